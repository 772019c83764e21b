"""The version of this package."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path


def toolkit_version() -> str:
    """The version of this package: of the distribution, or of the checkout where none is."""
    try:
        return metadata.version("threedident")
    except metadata.PackageNotFoundError:
        path = Path(__file__).resolve().parents[1] / "pyproject.toml"
        version: str = tomllib.loads(path.read_text("utf-8"))["project"]["version"]
        return version
