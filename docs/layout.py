"""Hooks of mkdocs: the package as it is installed, and the tables of results, on their pages."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority


@event_priority(100)  # before mkdocstrings looks for it
def on_config(config: Any) -> Any:
    """Copies the package's sources to build/api, for mkdocstrings to read.

    `render/` is `threedident.render` only there; pyproject.toml says which folder is what.
    """
    root = Path(config.config_file_path).parent
    setuptools = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    target = root / "build" / "api"
    shutil.rmtree(target, ignore_errors=True)
    for package in setuptools["packages"]:
        folder = root / _folder(package, setuptools["package-dir"])
        place = target.joinpath(*package.split("."))
        place.mkdir(parents=True, exist_ok=True)
        for source in folder.glob("*.py"):
            shutil.copy(source, place)
    return config


def _folder(package: str, known: dict[str, str]) -> str:
    """Where a package's sources lie: setuptools asks for its parents' folders, too."""
    if package in known:
        return known[package]
    parent, _, name = package.rpartition(".")
    return f"{_folder(parent, known)}/{name}" if parent else name


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts the tables that `3dident reproduce` has written where a page says so."""
    root = Path(config.config_file_path).parent
    tables = sorted((root / "benchmarks" / "results" / "reproduce-cpu").glob("*/table.md"))
    texts = (re.sub("^#", "###", table.read_text("utf-8"), flags=re.M) for table in tables)
    return markdown.replace("<!-- tables -->", "\n\n".join(texts))
