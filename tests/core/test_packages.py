"""pyproject.toml names every folder and every file of data, or the wheel would lack them."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
#: What stands beside the sources and is no part of the package.
_BESIDE = {".pyc", ".pyo"}


def _folders() -> dict[str, Path]:
    """The folders of the checkout by dotted name: a folder of data is a package to setuptools."""
    tops = {name: ROOT / folder for name, folder in SETTINGS["package-dir"].items()}
    tops["threedident"] = ROOT / "threedident"
    return {
        ".".join((name, *folder.relative_to(top).parts)): folder
        for name, top in tops.items()
        for folder in (top, *sorted(path for path in top.rglob("*") if path.is_dir()))
        if folder.name != "__pycache__" and any(path.is_file() for path in folder.iterdir())
    }


def test_every_folder_is_listed():
    assert sorted(SETTINGS["packages"]) == sorted(_folders())


def test_every_folder_with_sources_is_a_package():
    found = [folder for folder in _folders().values() if list(folder.glob("*.py"))]
    assert len(found) > 20
    without = [folder for folder in found if not (folder / "__init__.py").exists()]
    assert not [str(folder.relative_to(ROOT)) for folder in without]


def test_every_file_of_data_is_listed():
    patterns = SETTINGS["package-data"]
    left_out = [
        str(path.relative_to(ROOT))
        for name, folder in _folders().items()
        for path in folder.iterdir()
        if path.is_file() and path.suffix != ".py" and path.suffix not in _BESIDE
        if not any(path.match(pattern) for pattern in patterns.get(name, ()))
    ]
    assert not left_out
    for name, each in patterns.items():  # a pattern that matches nothing is a file that has moved
        for pattern in each:
            assert list(_folders()[name].glob(pattern)), f"{name}: {pattern}"


@pytest.mark.parametrize("name", ["", ".baselines", ".datasets", ".evaluate", ".render"])
def test_dir_shows_public_names_alone(name):
    package = importlib.import_module(f"threedident{name}")
    shown = [each for each in dir(package) if not each.startswith("__")]
    assert shown == [each for each in package.__all__ if not each.startswith("__")]
    assert {"__doc__", "__file__", "__name__"} < {*dir(package)}
