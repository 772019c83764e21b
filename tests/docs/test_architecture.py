"""docs/architecture.md and CONTRIBUTING.md name what exists, and the API pages what is public."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("threedident", "render", "datasets", "evaluate", "baselines")
PAGES = [ROOT / name for name in ("docs/architecture.md", "docs/extending.md", "CONTRIBUTING.md")]


@pytest.fixture(scope="module")
def layout():
    """docs/layout.py, as mkdocs loads it."""
    spec = importlib.util.spec_from_file_location("docs_layout", ROOT / "docs/layout.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page):
    names = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", page.read_text("utf-8"))
    names = [name for name in names if not re.match(r"build/|\.venv|/|tests/ROOM", name)]
    missing = [name for name in names if not (ROOT / name).exists()]
    assert not missing, f"{page.name} names {', '.join(missing)}"
    assert len(names) > (40 if page.name == "architecture.md" else 1)


def test_the_architecture_has_a_word_on_every_folder_of_code():
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    for room in ROOMS:
        for init in (ROOT / room).rglob("__init__.py"):
            folder = init.parent.relative_to(ROOT)
            if len(list(init.parent.glob("*.py"))) > 1:  # not one of files of data
                assert f"`{folder}" in text, folder


def test_the_picture_is_the_one_that_its_script_draws(tmp_path):
    drawn = tmp_path / "architecture.svg"
    words = [sys.executable, str(ROOT / "docs/architecture_picture.py"), str(drawn)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert drawn.read_bytes() == (ROOT / "docs/images/architecture.svg").read_bytes()
    text = drawn.read_text("utf-8")
    for name in re.findall(r"(\w+)/", " ".join(re.findall(r"<text[^>]*>([^<]*)", text))):
        assert (
            any(path.is_dir() for room in ROOMS for path in (ROOT / room).rglob(name))
            or (ROOT / name).is_dir()
        ), name


def test_every_public_module_is_on_one_page_and_every_named_one_exists(layout):
    pages = {
        path: layout.on_page_markdown(path.read_text("utf-8"), None, None, None)
        for path in (ROOT / "docs/api").glob("*.md")
    }
    named = [name for text in pages.values() for name in re.findall(r"^::: (\S+)$", text, re.M)]
    assert sorted(named) == layout.public_modules()
    assert len(named) > 60
    for name in [*named, *layout.INTERNAL]:
        assert importlib.util.find_spec(name) is not None, name
    for room in ROOMS:
        for path in (ROOT / room).rglob("[!_]*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = module if room == "threedident" else f"threedident.{module}"
            private = any(part.startswith("_") for part in module.split("."))
            if not private and not module.startswith("threedident.cli."):
                assert (module in named) != (module in layout.INTERNAL), module
