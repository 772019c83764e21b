"""docs/models.md has all of the language, and the picture of its own example."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from threedident.causal import assumptions, files, load_model, parsing
from threedident.causal.expressions import FRAMES, FUNCTIONS
from threedident.causal.graph_picture import graph_svg
from threedident.causal.mechanisms import MECHANISMS
from threedident.causal.model import STATUSES, TARGETS, Variable

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/models.md"
TEXT = PAGE.read_text("utf-8")


@pytest.fixture
def camouflage(tmp_path):
    file = tmp_path / "camouflage.toml"
    file.write_text(re.search(r'```toml title="camouflage.toml"\n(.*?)```', TEXT, re.S)[1])
    return load_model(file)


def rows(section: str) -> dict[str, str]:
    """The rows of the tables in a section, by their first cells."""
    text = re.search(rf"^#+ {section}\n(.*?)(?=^#+ |\Z)", TEXT, re.M | re.S)[1]
    lines = re.findall(r"^\| (.*?) \|(.*)$", text, re.M)
    return {key: rest for key, rest in lines if not re.match(r"[-\s|]*$", key + rest)}


def test_the_picture_is_that_of_the_example(camouflage):
    assert (ROOT / "docs/images/camouflage.svg").read_text("utf-8") == graph_svg(camouflage)


def test_the_tables_have_every_field_and_mechanism():
    fields = {key.strip("`[]").partition(".")[0] for key in rows("The file")}
    assert {*parsing._FIELDS, "base", files._VARIANTS} == fields - {"field"}
    own = {field.name for field in dataclasses.fields(Variable)} - {"domain"}
    named = {key.strip("`") for key in rows("Variables")} - {"field"}
    assert named == own | {"kind", "range", "values"}
    kinds = rows("Mechanisms")
    assert {key.strip("`") for key in kinds} - {"kind"} == {*MECHANISMS}
    for name, cls in MECHANISMS.items():
        for field in dataclasses.fields(cls):
            if field.name != "classes":
                assert f"`{field.name}`" in kinds[f"`{name}`"], (name, field.name)
    parts = " ".join(rows("Expressions"))
    for name in (*FUNCTIONS, *FRAMES, "pi"):
        assert re.search(rf"\b{name}\b", parts), name
    time = rows("Time")
    assert {"`targets`", "`probability`", "`observed`", "`groups`"} < {*time}
    assert all(f'`"{name}"`' in time["`targets`"] for name in TARGETS)
    assert all(f'`"{name}"`' in rows("Variables")["`status`"] for name in STATUSES)


def test_every_paper_that_a_verdict_names_is_on_the_page():
    source = Path(assumptions.__file__).read_text("utf-8")
    papers = set(re.findall(r'"([^"]+ \d{4})"', source))
    assert len(papers) > 15
    listed = TEXT[TEXT.index("The papers that are named") :]
    entries = [" ".join(each.split()) for each in re.findall(r"^- (.*(?:\n  .*)*)", listed, re.M)]
    for paper in papers:
        first = re.split(r" et al\.| & ", paper[:-5])[0]
        assert any(
            re.search(rf"^[^:]*?\b{re.escape(first)}\b", each) and paper[-4:] in each
            for each in entries
        ), paper
