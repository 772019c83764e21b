"""The manifest: what it records, and how two of them differ."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from threedident.errors import DatasetError
from threedident.storage.directory import DatasetDir
from threedident.storage.manifest import (
    MANIFEST,
    Manifest,
    differences,
    read_manifest,
    settings_fingerprint,
    without_consequences,
)

SETTINGS = {
    "preset": None,
    "mesh_sha256": None,
    "seed": None,
    "split": None,
    "latents": {"source": "imported", "count": 3, "sha256": "0" * 64, "scene_sha256": "1" * 64},
    "resolution": 8,
    "engine": {"name": "imported", "version": "", "device": "", "quality": ""},
}


def create(root, **options):
    return DatasetDir.create_or_open(
        root, SETTINGS, shard_size=2, compression=None, **options
    ).manifest


def test_the_command_is_what_the_caller_says(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["something", "else"])
    assert create(tmp_path / "a").command == "Python"
    assert create(tmp_path / "b", command="3dident render --n 3").command == "3dident render --n 3"
    # Whoever goes on with it changes nothing.
    assert create(tmp_path / "b", command="another").command == "3dident render --n 3"
    assert Manifest.new(SETTINGS, 2, "none", {}, "mine").command == "mine"


def test_nothing_below_the_command_line_reads_the_command():
    root = Path(__file__).parents[2]
    folders = ("threedident", "render", "datasets", "evaluate", "baselines")
    sources = [path for folder in folders for path in (root / folder).rglob("*.py")]
    readers = {
        str(path.relative_to(root))
        for path in sources
        if re.search(r"sys\.argv|from sys import", path.read_text("utf-8"))
    }
    # `child` is a script of its own.
    assert {name for name in readers if not name.startswith("threedident/cli/")} <= {
        "render/executors/child.py"
    }


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    written = create(tmp_path, command="one")
    read = read_manifest(tmp_path)
    assert read == written
    assert read.fingerprint == settings_fingerprint(SETTINGS)
    assert read.fingerprint == json.loads((tmp_path / MANIFEST).read_text())["fingerprint"]


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {**SETTINGS, "resolution": 9}},
        {"settings": {**SETTINGS, "latents": {"source": "somewhere"}}},
        {"storage": {"shard_size": 0, "compression": "none"}},
        {"format_version": 2},
        {"format": "another"},
        {"toolkit": None, "storage": None},
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, change):
    create(tmp_path)
    path = tmp_path / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DatasetError, match=re.escape(str(path))):
        read_manifest(tmp_path)


def test_differences_name_what_was_chosen_and_not_what_follows():
    left = {"engine": {"name": "a", "version": "1", "samples": 4}, "seed": 0}
    right = {"engine": {"name": "b", "version": "2", "samples": 8}, "seed": 0}
    unequal = differences(left, right)
    assert [name for name, _, _ in unequal] == ["engine.name", "engine.version", "engine.samples"]
    assert without_consequences(unequal) == [("engine.name", "a", "b")]
    unequal = differences(left, {**left, "seed": 1})
    assert without_consequences(unequal) == [("seed", 0, 1)]
    # Of another recipe everything of the engine is another, and the recipe is the reason.
    left = {"engine": {"name": "a", "quality": "q", "recipe": 1, "version": "1", "samples": 4}}
    right = {"engine": {"name": "a", "quality": "q", "recipe": 2, "version": "2", "edge": 8}}
    assert without_consequences(differences(left, right)) == [("engine.recipe", 1, 2)]
    right["engine"]["quality"] = "other"
    assert without_consequences(differences(left, right)) == [("engine.quality", "q", "other")]
