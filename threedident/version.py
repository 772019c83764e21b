"""The version of this package."""

from __future__ import annotations

from importlib import metadata


def toolkit_version() -> str:
    """The version of this package."""
    return metadata.version("threedident")
