"""Imports look down only: cli -> explore, baselines -> evaluate -> datasets -> render -> core."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: From the bottom to the top; `core` is all of threedident/ that is in no other layer.
LAYERS = ("core", "render", "datasets", "evaluate", "baselines", "explore", "cli")
#: The folder of each layer but the core, in the checkout.
FOLDERS = {
    **{name: ROOT / name for name in ("render", "datasets", "evaluate", "baselines")},
    **{name: ROOT / "threedident" / name for name in ("explore", "cli")},
}
#: What runs the command line or names the packages, and so stands above all layers.
ABOVE_ALL = {ROOT / "threedident" / "__init__.py", ROOT / "threedident" / "__main__.py"}


def _layer_of(module: str) -> str | None:
    """The layer of a module by its dotted name; None for one that is not ours."""
    parts = module.split(".")
    if parts[0] != "threedident":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else "core"


def _sources() -> Iterator[tuple[str, Path]]:
    """Every source file, and the layer in which it lies."""
    for layer, folder in FOLDERS.items():
        yield from ((layer, path) for path in sorted(folder.rglob("*.py")))
    for path in sorted((ROOT / "threedident").rglob("*.py")):
        higher = {FOLDERS["cli"], FOLDERS["explore"]} & set(path.parents)
        if not higher and path not in ABOVE_ALL:
            yield "core", path


def _imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of everything that a module imports, wherever it does.

    Args:
        source: the module's text.
        package: the package in which it lies, from which relative imports count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            # importlib.import_module("threedident.render"), and the like.
            name, first = ast.unparse(node.func), node.args[0]
            if name.endswith(("import_module", "__import__")) and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def _upward(layer: str, path: Path, text: str) -> list[str]:
    """The imports of a file that look up, each as one line."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {layer} imports {name}"
        for line, name in sorted(_imports(text, _package(layer, path)))
        if (target := _layer_of(name)) and LAYERS.index(target) > LAYERS.index(layer)
    ]


def _package(layer: str, path: Path) -> str:
    """The package of a file, as it is installed."""
    folder = path.parent.relative_to(ROOT).parts
    return ".".join(folder if layer in ("core", "explore", "cli") else ("threedident", *folder))


def test_imports_look_down_only():
    upward = [
        line for layer, path in _sources() for line in _upward(layer, path, path.read_text("utf-8"))
    ]
    assert not upward, "these imports look up:\n" + "\n".join(upward)


def test_every_layer_has_sources():
    assert {layer for layer, _ in _sources()} == set(LAYERS)
    assert sum(layer == "core" for layer, _ in _sources()) > 10


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        ("core", "from threedident.cli import main"),
        ("core", "import threedident.render.job"),
        ("core", "from threedident import datasets"),
        ("core", "from .. import render"),
        ("core", "from ..render import job"),
        ("render", "def f():\n    from threedident.datasets.dataset import ThreeDIdent"),
        ("datasets", "import importlib\nimportlib.import_module('threedident.evaluate')"),
        ("evaluate", "from threedident.baselines import losses"),
        ("baselines", "from threedident.cli import main"),
        ("baselines", "from threedident.explore import explore"),
        ("explore", "from ..cli import main"),
    ],
)
def test_an_import_that_looks_up_is_seen(layer, text):
    folder = ROOT / "threedident" / "storage" if layer == "core" else FOLDERS[layer]
    (line,) = _upward(layer, folder / "new.py", text)
    assert f": {layer} imports threedident." in line


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        ("cli", "from threedident.baselines import train"),
        ("explore", "from threedident.evaluate.runner import session\nfrom . import app"),
        ("baselines", "from threedident.evaluate.metrics import mcc\nimport torch"),
        ("render", "from threedident.presets import Preset\nfrom . import engine"),
        ("core", "import threedident\nfrom .directory import DatasetDir"),
    ],
)
def test_an_import_that_looks_down_is_allowed(layer, text):
    folder = ROOT / "threedident" / "storage" if layer == "core" else FOLDERS[layer]
    assert _upward(layer, folder / "new.py", text) == []
