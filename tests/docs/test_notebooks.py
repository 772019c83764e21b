"""The notebooks in examples/ run from top to bottom, and use public names alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import threedident

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
ROOMS = ("baselines", "datasets", "evaluate", "render")
#: The sizes that a notebook begins with, and those of the tests.
SIZES = r"^images, steps = \d+, \d+"


def code_of(path: Path) -> str:
    if path.suffix == ".py":
        return path.read_text("utf-8")
    cells = nbformat.read(path, 4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    return re.sub("^[%!].*$", "", code, flags=re.M)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, 4)
    changed = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source, count = re.subn(SIZES, "images, steps = 100, 4", cell.source, flags=re.M)
            changed += count
    assert changed == 1
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    assert list(tmp_path.glob("data/*/dataset.json"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_with_its_pictures(path):
    assert path.stat().st_size < 400_000
    cells = nbformat.read(path, 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not [output for output in outputs if output.output_type == "error"]
    text = "".join(output.get("text", "") for output in outputs)
    assert not re.search(r"/(home|root|tmp)/", text), "a path of the machine that ran it"


@pytest.mark.parametrize("path", [*NOTEBOOKS, *SCRIPTS], ids=lambda path: path.name)
def test_examples_use_public_names_alone(path):
    """Those of `threedident` and of its rooms, and the modules of `threedident.encoders`."""
    for node in ast.walk(ast.parse(code_of(path))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("threedident"):
            assert node.module == "threedident.encoders", node.module
        if not isinstance(node, ast.Attribute):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "tdi":
            assert node.attr in threedident.__all__, node.attr
        if isinstance(node.value, ast.Attribute) and node.value.attr in ROOMS:
            assert node.attr in getattr(threedident, node.value.attr).__all__, node.attr
