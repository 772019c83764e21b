"""pyproject.toml names every package and every file of data, or the wheel would lack them."""

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
    """The folder of each package, by its dotted name, as the checkout has them."""
    tops = {name: ROOT / folder for name, folder in SETTINGS["package-dir"].items()}
    tops["threedident"] = ROOT / "threedident"
    return {
        ".".join((name, *init.parent.relative_to(top).parts)): init.parent
        for name, top in tops.items()
        for init in sorted(top.rglob("__init__.py"))
    }


def test_every_package_is_listed():
    assert sorted(SETTINGS["packages"]) == sorted(_folders())


def test_every_folder_with_sources_is_a_package():
    known = set(_folders().values())
    tops = {ROOT / folder for folder in SETTINGS["package-dir"].values()} | {ROOT / "threedident"}
    sources = [path for top in tops for path in top.rglob("*.py")]
    assert len(sources) > 50
    assert not [str(path.relative_to(ROOT)) for path in sources if path.parent not in known]


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
