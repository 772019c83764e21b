"""The command line, and the package as it is installed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from helpers.commands import command
from PIL import Image

import threedident
from threedident.cli import SECTIONS, main
from threedident.cli.doctor import PACKAGES, examine
from threedident.errors import UsageError
from threedident.factors import FACTORS
from threedident.render.figures import contact_sheet, traversal_figure, traversal_latents


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["render", "datasets", "evaluate", "baselines"])
def test_no_folder_of_ours_takes_a_bare_name(name):
    assert importlib.util.find_spec(f"threedident.{name}") is not None
    found = python(f"import {name}; print({name}.__file__)")
    ours = str(Path(__file__).parents[2] / name)
    assert found.returncode != 0 or ours not in found.stdout


def test_help_and_reading_load_neither_blender_nor_torch():
    done = python(
        "import sys, threedident.cli, threedident.datasets.formats.sources\n"
        "import threedident.datasets.formats.convert\n"
        "heavy = {'bpy', 'torch', 'trimesh', 'faiss', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'loads {heavy}' if heavy else 0)"
    )
    assert done.returncode == 0, done.stderr
    light = python("import sys, threedident.cli; sys.exit('numpy' in sys.modules)")
    assert light.returncode == 0


def test_bpy_is_imported_in_one_place():
    root = Path(__file__).parents[2]
    folders = ("threedident", "render", "datasets", "evaluate", "baselines", "benchmarks")
    sources = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(sources) > 20
    users = [path.name for path in sources if "import bpy\n" in path.read_text()]
    assert users == ["blender.py"]


def test_every_command_explains_itself(cli):
    listed = cli("--help").stdout
    for name in main.commands:
        assert name in listed
        assert len(cli(name, "--help").stdout) > 120
    for words in (command(), [sys.executable, "-m", "threedident"]):
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.strip().endswith("0.1.0")
    assert "No such command" in cli("rendr", code=2).stderr


def test_help_is_grouped_by_what_one_wants_and_cuts_no_sentence(cli):
    listed = [name for commands in SECTIONS.values() for name in commands]
    assert sorted(listed) == sorted(main.commands)
    said = cli("--help").stdout
    assert "..." not in said.replace("COMMAND [ARGS]...", "")
    for title, commands in SECTIONS.items():
        assert f"{title}:" in said
        for name, line in commands.items():
            assert any(f"{name}  " in row and row.endswith(line) for row in said.splitlines())


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
    assert {name for name in seen if name != "_run"} == set(module.__all__)
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


@pytest.mark.parametrize(
    "name",
    ["info", "verify", "stats", "preview", "pack", "convert", "doctor", "compare-release"],
)
def test_every_option_of_the_commands_that_look_at_datasets_has_words(cli, name):
    options = [p for p in main.commands[name].params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []
    for option in options:
        if option.name == "workers":
            assert "[default: " in option.help


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


def test_doctor(cli):
    said = cli("doctor").stdout
    assert re.search(r"^ok     Blender +4\.5\.", said, re.MULTILINE)
    assert re.search(r"^ok     render devices +cpu$", said, re.MULTILINE)
    findings = {f.name: f for f in examine()}
    columns = [line[7:].split(maxsplit=1)[0] for line in said.splitlines()[1:]]
    assert {name for name in findings if " " not in name} <= set(columns)  # none runs into another
    assert said.startswith("loading what is installed")
    document = json.loads(cli("doctor", "--json").stdout)
    assert document["good"] is True
    assert [each["name"] for each in document["findings"]] == list(findings)
    assert {name for group in PACKAGES.values() for name in group} <= set(findings)
    assert findings["bpy"].state == "ok"


def without(module: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process where a module cannot be found."""
    return python(
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.split('.')[0] == {module!r}:\n"
        f"            raise ModuleNotFoundError(f'No module named {{name!r}}', name={module!r})\n"
        "sys.meta_path.insert(0, Hide())\n" + code
    )


def test_a_missing_extra_is_one_line_of_advice(tmp_path):
    from threedident.errors import MissingExtraError

    done = without("bpy", "from threedident.render.blender import import_bpy\nimport_bpy()")
    assert f"{MissingExtraError.__name__}: rendering needs bpy" in done.stderr
    assert "pip install '.[render]' in the checkout" in done.stderr
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    words = ["render", "--out", str(tmp_path / "d"), "--shape", str(tmp_path / "a.obj")]
    done = without("trimesh", f"from threedident.cli import main\nmain({words!r})")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "reading a mesh file needs trimesh" in done.stderr


def test_the_direct_engine_without_warp():
    done = without("warp", "from threedident.render.direct import render")
    assert "the direct engine needs warp-lang (NVIDIA Warp)" in done.stderr
    assert "pip install '.[direct]' in the checkout" in done.stderr


def test_reading_works_without_the_render_extra(small_dataset):
    done = without(
        "bpy",
        f"from threedident.cli import main\nmain(['verify', {str(small_dataset)!r}])",
    )
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout


def test_a_missing_system_library_is_named():
    done = python(
        "import sys, importlib.abc, importlib.machinery\n"
        "class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        return importlib.machinery.ModuleSpec(name, self) if name == 'bpy' else None\n"
        "    def create_module(self, spec):\n"
        "        raise ImportError('libXi.so.6: cannot open shared object file')\n"
        "    def exec_module(self, module): pass\n"
        "sys.meta_path.insert(0, Broken())\n"
        "from threedident.render.blender import import_bpy\nimport_bpy()"
    )
    assert "libXi.so.6" in done.stderr
    assert "apt-get install libx11-6 libxrender1" in done.stderr


def test_presets_are_shown(cli):
    listed = cli("presets").stdout
    assert "3dident-regular" in listed
    shown = cli("presets", "3dident-positions").stdout
    assert "fixed at raw -0.66" in shown
    assert "unknown preset" in cli("presets", "x", code=2).stderr


def test_info_and_stats(cli, small_dataset):
    said = cli("info", small_dataset).stdout
    for factor in FACTORS:
        assert factor.name in said
    assert "0.9630" in said
    assert "not injective: the hue is not wrapped" in said
    stats = json.loads(cli("stats", small_dataset).stdout)
    assert stats["images"] == 12
    assert set(stats["definitions"]) == set(stats) - {"images", "definitions"}


def test_looking_at_a_dataset_needs_no_name_where_the_default_is_there(
    cli, tmp_path, small_dataset
):
    for name in ("info", "verify", "stats", "preview"):
        refused = cli(name, code=2).stderr
        assert "Missing argument 'DATASET'" in refused
        assert "no data/3dident" in refused
        assert "`3dident render`" in refused
    shutil.copytree(small_dataset, tmp_path / "data/3dident")
    assert cli("info").stdout.startswith("data/3dident: 12 images")
    assert cli("verify").stdout.startswith("data/3dident: 12 images are good")
    assert json.loads(cli("stats").stdout)["images"] == 12
    assert cli("preview").stdout == "wrote data/3dident/preview.png\n"


def test_a_preset_without_best_scores_says_why_they_are_not_shown(cli, tmp_path):
    text = (Path(threedident.__file__).parent / "presets/3dident-regular.toml").read_text()
    head, table = text.split("[best_r2]")
    (tmp_path / "own.toml").write_text(head)
    said = cli("presets", "own.toml").stdout
    assert said.count("best R2 -") == len(FACTORS)
    assert "is not known: the preset's table best_r2 does not give it" in said
    (tmp_path / "own.toml").write_text(f"{head}[best_r2]{table}")
    assert "is not known" not in cli("presets", "own.toml").stdout


def test_preview(cli, tmp_path, small_dataset):
    cli("preview", small_dataset, "--out", "sheet.png", "--count", 6)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    from threedident.datasets.formats.sources import open_source

    with open_source(small_dataset) as source:
        assert np.array_equal(sheet[4:36, 4:36], source.image(0))
        assert np.array_equal(sheet[4:36, 40:72], source.image(1))
    assert "ends in .png" in cli("preview", small_dataset, "--out", "sheet.doc", code=2).stderr
    cli("preview", small_dataset, "--out", "six.png", "--n", 6)
    assert (tmp_path / "six.png").read_bytes() == (tmp_path / "sheet.png").read_bytes()


def test_a_preview_leaves_what_was_published_as_it_is(cli, tmp_path, small_dataset):
    cli("convert", small_dataset, "--to", "published", "--out", "png")
    there = sorted(tmp_path.glob("png/*"))
    assert cli("preview", "png").stdout.endswith("png-preview.png\n")
    assert sorted(tmp_path.glob("png/*")) == there
    assert (tmp_path / "png-preview.png").is_file()


def test_traverse(cli, tmp_path):
    cli("traverse", "--steps", 3, "--resolution", 24, "--quality", "draft", "--out", "t.png")
    figure = np.asarray(Image.open(tmp_path / "t.png"))
    assert figure.shape[0] > 3 * 24
    assert figure.shape[1] > 10 * 24
    assert "unknown preset" in cli("traverse", "--preset", "x", "--out", "t.png", code=2).stderr


def test_traversals_change_one_factor_at_a_time():
    raw = traversal_latents(5, {4: 0.5})
    assert raw.shape == (5, 10, 10)
    for f in range(10):
        rest = np.delete(raw[:, f], f, axis=1)
        assert (rest == rest[0]).all()
        assert raw[:, f, f].tolist() == [-1, -0.5, 0, 0.5, 1]
    assert (raw[:, 0, 4] == 0.5).all()
    with pytest.raises(UsageError, match="at least 2"):
        traversal_latents(1)


@pytest.mark.parametrize("side", [8, 64, 300])
def test_figures_show_every_image_once(side):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, side, side, 3), np.uint8)
    sheet = np.asarray(contact_sheet(images, list("abcdef"), columns=4))
    assert sheet.shape[1] >= 4 * side
    grid = rng.integers(0, 256, (3, 10, side, side, 3), np.uint8)
    figure = np.asarray(traversal_figure(grid, "title"))
    last = figure[figure.shape[0] - side - 4 : -4, figure.shape[1] - side - 4 : -4]
    assert np.array_equal(last, grid[2, 9])


def test_the_version_is_that_of_the_distribution():
    assert threedident.__doc__
    from threedident.storage.directory import toolkit_version

    assert toolkit_version() == "0.1.0"


def test_a_figure_that_cannot_be_drawn_is_said_before_the_work():
    words = ["pairs", "--n", "250000", "--conditional", "normal", "--sigma", "0.1"]
    words += ["--out", "figure.png"]
    code = "import threedident.latents as latents\nlatents.sample_raw_latents = None\n"
    done = without("matplotlib", code + f"from threedident.cli import main\nmain({words!r})")
    assert done.returncode == 2
    assert "the figure needs matplotlib" in done.stderr
    assert "Traceback" not in done.stderr
