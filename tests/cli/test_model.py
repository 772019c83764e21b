"""`3dident model`: lists, checks, describes and draws causal models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.commands import command

from threedident.causal import load_model, model_names
from threedident.causal.description import describe_model, list_lines, model_lines
from threedident.causal.graph_picture import graph_svg

FILE = """
description = "The spotlight follows the object."
[variables.object_hue]
mechanism = { kind = "uniform" }
[variables.spotlight_hue]
mechanism = { kind = "truncated_normal", mean = "object_hue", std = 0.2 }
[environments.red]
object_hue = 0.0
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.toml").write_text(FILE)
    return tmp_path / "own.toml"


@pytest.mark.parametrize("words", [[], ["--list"], ["show"], ["show", "--list"]])
def test_without_a_name_it_lists_the_models(cli, words):
    said = cli("model", *words).stdout
    assert said.splitlines() == list(list_lines(map(load_model, model_names())))
    for name in model_names():
        assert f"\n{name}\n" in f"\n{said}"


def test_the_list_as_json(cli):
    listed = json.loads(cli("model", "--json").stdout)
    assert [each["name"] for each in listed] == model_names()
    assert all(each["description"] and each["sources"] for each in listed)


@pytest.mark.parametrize("words", [["model"], ["model", "show"]])
def test_it_says_what_a_model_is(cli, own, words):
    said = cli(*words, own).stdout.splitlines()
    assert said == list(model_lines(load_model(own)))
    assert "spotlight_hue" in "\n".join(said)


def test_it_knows_built_in_models(cli):
    name = "temporal-causal3dident-teapot"
    assert cli("model", name).stdout.splitlines() == list(model_lines(load_model(name)))


def test_it_prints_json(cli, own):
    said = json.loads(cli("model", own, "--json").stdout)
    assert said == describe_model(load_model(own))
    assert said["graph"]["adjacency"] == [[0, 1], [0, 0]]


def test_it_writes_the_picture(cli, own):
    said = cli("model", own, "--svg", "graph.svg").stdout
    assert said.endswith("\nwrote graph.svg\n")
    assert Path("graph.svg").read_text("utf-8") == graph_svg(load_model(own))
    ElementTree.parse("graph.svg")
    document = json.loads(
        cli("model", own, "--svg", "red.svg", "--environment", "red", "--json").stdout
    )
    assert document["name"] == "own"
    assert Path("red.svg").read_text("utf-8") == graph_svg(load_model(own), "red")
    assert sorted(each.name for each in Path().iterdir()) == ["graph.svg", "own.toml", "red.svg"]


@pytest.mark.parametrize(
    "words, text",
    [
        (["nothing"], "unknown model 'nothing': Expected the path"),
        (["missing.toml"], "cannot read model file missing.toml: there is no such file"),
        (["bad.toml"], "model file bad.toml: variables is missing"),
        (["own.toml", "--svg", "graph.png"], "--svg must end in .svg, found graph.png"),
        (["own.toml", "--svg", "no/graph.svg"], "cannot write no/graph.svg"),
        (["own.toml", "--environment", "red"], "add --svg FILE"),
        (
            ["own.toml", "--svg", "a.svg", "--environment", "blue"],
            "has no environment 'blue': expected one of observed, independent, red",
        ),
        (["--svg", "graph.svg"], "are of one model"),
        (["own.toml", "--list"], "are of one model"),
    ],
)
def test_an_error_is_one_line_and_leaves_nothing(cli, own, words, text):
    Path("bad.toml").write_text("name = 'x'\n")
    done = cli("model", *words, code=2)
    assert text in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(each.name for each in Path().iterdir()) == ["bad.toml", "own.toml"]


@pytest.mark.parametrize(
    "content, text",
    [
        ('[variables.x]\nmechanism = "y"\n[variables.y]\nmechanism = "x"\n', "in a circle: "),
        ('[variables.x]\nmechanism = "__import__(1)"\n', "unknown function '__import__'"),
        ('[variables.x]\nmechanism = { kind = "normal" }\n', "mechanism.kind must be one of"),
        ('[variables.x]\nmechanism = "1 / 0"\n', "expected a value in [-1, 1] for x"),
        ('[variables.x]\nrenders = "w"\nmechanism = 0\n', "the scene has no 'w'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(cli, content, text):
    Path("own.toml").write_text(content)
    done = cli("model", "own.toml", code=2)
    assert text in done.stderr


def test_the_real_command_needs_neither_torch_nor_bpy(own):
    code = (
        "import sys\n"
        "from threedident.cli import main\n"
        f"main(['model', {str(own)!r}], standalone_mode=False)\n"
        "assert not {'torch', 'bpy', 'warp', 'h5py'} & {*sys.modules}, {*sys.modules}\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(model_lines(load_model(own)))
    done = subprocess.run([*command(), "model", "no"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown model 'no'")


def test_help_names_the_commands(cli):
    said = cli("model", "--help").stdout
    assert "show" in said
    assert "fit" in said
    assert "--svg" in cli("model", "show", "--help").stdout
    assert "--out" in cli("model", "fit", "--help").stdout
