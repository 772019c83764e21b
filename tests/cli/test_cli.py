"""The command line, and the package as it is installed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from helpers.commands import python

import threedident


@pytest.mark.parametrize("name", ["render", "datasets", "evaluate", "baselines"])
def test_no_folder_of_ours_takes_a_bare_name(name):
    assert importlib.util.find_spec(f"threedident.{name}") is not None
    found = python(f"import {name}; print({name}.__file__)")
    ours = str(Path(__file__).parents[2] / name)
    assert found.returncode != 0 or ours not in found.stdout


def test_bpy_is_imported_in_one_place():
    root = Path(__file__).parents[2]
    folders = ("threedident", "render", "datasets", "evaluate", "baselines", "benchmarks")
    sources = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(sources) > 20
    users = [path.name for path in sources if "import bpy\n" in path.read_text()]
    assert users == ["blender.py"]


@pytest.mark.parametrize("package", ["", ".render", ".datasets", ".evaluate", ".baselines"])
def test_names_are_imported_when_they_are_asked_for_and_types_see_the_same_ones(package):
    module = importlib.import_module(f"threedident{package}")
    for name in module.__all__:
        assert name in dir(module)
        assert getattr(module, name) is not None
    tree = ast.parse(Path(module.__file__).read_text())
    branches = [node for node in tree.body if isinstance(node, ast.If)]
    typed = next(node.body for node in branches if ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname for node in typed for alias in getattr(node, "names", ())}
    seen |= {t.id for node in typed if isinstance(node, ast.Assign) for t in node.targets}
    seen |= {node.target.id for node in typed if isinstance(node, ast.AnnAssign)}
    assert {name for name in seen if not re.match("_[a-z]", name)} == set(module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_guesses_of_a_new_user_work():
    done = python(
        "import sys, threedident as tdi\n"
        "heavy = {'numpy', 'torch', 'bpy', 'click'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert tdi.__version__ and tdi.datasets.ThreeDIdent is tdi.ThreeDIdent\n"
        "from threedident import Normal, PositivePairs, load_preset\n"
        "from threedident.render import render, render_images\n"
        "from threedident.evaluate import evaluate, linear_r2, mcc, score\n"
        "from threedident.baselines import info_nce, train\n"
        "assert tdi.evaluate_encoder is evaluate and tdi.render.render is render\n"
        "from threedident import *\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_checkout_works_without_being_installed():
    root = Path(__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import threedident\n"
        "from threedident.datasets import Normal\n"
        "import threedident.baselines.tables, threedident.evaluate.evaluation\n"
        f"assert threedident.baselines.__file__.startswith({str(root)!r})\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_the_distribution():
    assert threedident.__doc__
    from threedident.version import toolkit_version

    assert toolkit_version() == "0.1.0"


def test_a_checkout_that_is_not_installed_knows_its_version(monkeypatch):
    from threedident import version

    def missing(name):
        raise version.metadata.PackageNotFoundError(name)

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    monkeypatch.setattr(version.metadata, "version", missing)
    assert version.toolkit_version() == project["project"]["version"]
