"""`render_dataset` as Python users call it; the other files here go through the command."""

from __future__ import annotations

import doctest
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import threedident as tdi
from threedident.errors import DatasetError, RenderError, RenderWarning, UsageError
from threedident.latents import sample_raw_latents
from threedident.render import dataset as module
from threedident.render import settings
from threedident.storage.directory import DatasetDir
from threedident.storage.manifest import read_manifest
from threedident.storage.shard_plan import list_shards
from threedident.storage.shards import read_shard

pytest.importorskip("warp")
QUICK: dict[str, Any] = {"engine": "direct", "quality": "draft", "resolution": 32, "workers": 1}


def images(root: Path) -> np.ndarray:
    fingerprint = read_manifest(root).fingerprint
    shards = list_shards(root).values()
    return np.concatenate(
        [read_shard(path, resolution=32, fingerprint=fingerprint).images for path in shards]
    )


def test_the_example_of_the_docstring_runs():
    found = doctest.DocTestFinder(recurse=False).find(module.render_dataset, "render_dataset")
    assert len(found) == 1 and len(found[0].examples) == 3
    result = doctest.DocTestRunner().run(found[0])
    assert (result.failed, result.attempted) == (0, 3)
    assert len(images(Path("data/small"))) == 8


def test_an_engine_is_asked_once_and_again_where_it_failed(monkeypatch):
    answer = [settings.Probe("1.0", {"cpu": 2})]
    answers = [RenderError("it does not load"), *answer]
    asked = []

    def call(function, engine):
        asked.append((function, engine))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(settings, "call_in_process", call)
    settings.probe.cache_clear()
    try:
        with pytest.raises(RenderError, match="does not load"):
            settings.probe("direct")
        assert [settings.probe("direct") for _ in range(3)] == 3 * answer
        assert asked == [(settings.probe_here, "direct")] * 2
    finally:
        settings.probe.cache_clear()  # this answer is no engine's


def test_it_makes_what_the_command_makes(cli, capfd):
    summary = tdi.render_dataset("python", 6, seed=3, split="test", fixed={"x": 0.5}, **QUICK)
    said = capfd.readouterr().err
    assert said.startswith("rendering 6 images into python: preset 3dident, split test, seed 3")
    assert "said after half a minute" in said and "started again, it continues" in said
    assert "--estimate" not in said
    assert (summary.images, summary.rendered, summary.failed) == (6, 6, {})
    assert str(summary).startswith("python: 6 images, 6 of them new, in ")
    words = ("--engine", "direct", "--quality", "draft", "--resolution", 32, "--workers", 1)
    cli("render", *words, "--n", 6, "--seed", 3, "--split", "test", "--fix", "x=0.5", "--out", "c")
    ours, theirs = read_manifest(Path("python")), read_manifest(Path("c"))
    assert ours.fingerprint == theirs.fingerprint
    assert np.array_equal(images(Path("python")), images(Path("c")))
    assert ours.command == (
        "render_dataset('python', n=6, fixed={'x': 0.5}, split='test', seed=3, engine='direct', "
        "quality='draft', resolution=32, workers=1)"
    )
    assert theirs.command.startswith("3dident render --engine direct")


def test_quiet_prints_nothing_and_the_summary_says_it_all(capfd):
    tdi.render_dataset("d", 4, quiet=True, shard_size=2, **QUICK)
    first = next(iter(list_shards(Path("d")).values()))
    first.write_bytes(first.read_bytes()[:3000])
    summary = tdi.render_dataset("d", 6, quiet=True, shard_size=2, **QUICK)
    assert capfd.readouterr() == ("", "")
    assert (summary.images, summary.rendered, summary.redone) == (6, 4, [first.name])
    assert "corrupt shards rendered again" in str(summary)


def test_pairs_count_twice_and_given_latents_are_taken_from_arrays(tmp_path):
    summary = tdi.render_dataset("pairs", 3, pairs=tdi.Laplace(0.2), quiet=True, **QUICK)
    assert summary.images == 6
    process = read_manifest(Path("pairs")).pair_process
    assert process is not None and process.conditional == tdi.Laplace(0.2)
    raw = sample_raw_latents(range(3), seed=1, split="val")
    assert tdi.render_dataset("given", latents=raw, quiet=True, **QUICK).images == 3
    assert np.array_equal(DatasetDir.open("given").given_latents(), raw)
    np.save("raw.npy", raw)
    assert tdi.render_dataset("given", latents="raw.npy", quiet=True, **QUICK).rendered == 0


def test_a_dataset_is_extended_with_its_own_settings():
    tdi.render_dataset("d", 2, preset=tdi.load_preset("3dident-wrapped"), quiet=True, **QUICK)
    summary = tdi.render_dataset("d", 4, extend=True, workers=1, quiet=True)
    assert (summary.images, summary.rendered) == (4, 2)
    assert tdi.render_dataset("d", extend=True, quiet=True).rendered == 0
    with pytest.raises(UsageError, match="leave out latents, resolution"):
        tdi.render_dataset("d", extend=True, resolution=64, latents=np.zeros((1, 10)))
    with pytest.raises(DatasetError, match=r"seed: the dataset has 0, this command 1"):
        tdi.render_dataset("d", 4, preset="3dident-wrapped", seed=1, quiet=True, **QUICK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "--n must be at least 1"),
        ({"workers": 0}, "workers must be at least 1, found 0"),
        ({"shard_size": 20_000}, "shard_size must be at most 10000"),
        ({"part": (2, 2)}, r"part must be \(I, K\) with 0 <= I < K"),
        ({"timeout": float("nan")}, "--timeout must be a number of seconds"),
        ({"executor": "slurm"}, "unknown executor 'slurm': expected local or ray"),
        ({"address": "a:1"}, "add --executor ray"),
        ({"split": "all"}, "unknown split 'all'"),
        ({"seed": -1}, "the seed must lie in"),
        ({"compression": "zip"}, "unknown compression 'zip'"),
        ({"preset": "4dident"}, "unknown preset '4dident'"),
        ({"quality": "best"}, "unknown quality 'best'"),
        ({"engine": "eevee"}, "unknown engine 'eevee'"),
        ({"resolution": 4}, r"the resolution must lie in \[8, 4096\]"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"latents": np.zeros((2, 3))}, r"expected an array of shape \(N, 10\)"),
        ({"latents": np.zeros((2, 10)), "seed": 1}, "so that seed would do nothing"),
        ({"latents": np.zeros((2, 10)), "pairs": tdi.Normal(0.1)}, "leave out --latents"),
        ({"latents": np.zeros((2, 10)), "n": 3}, "--n 3 is more than the 2 rows of its given"),
        ({"latents": np.zeros((2, 10)), "fixed": {"x": 1}}, "x is held at raw 1"),
        ({"engine": "direct", "material": "crystal"}, "cannot render crystal"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(arguments, message):
    with pytest.raises(UsageError, match=message):
        tdi.render_dataset("d", **{"n": 2, **arguments})
    assert not Path("d").exists()


def test_a_quality_may_be_given_by_its_settings():
    from threedident.render.quality import QUALITIES, Whole

    quality = QUALITIES["direct"]["draft"]
    tdi.render_dataset("d", 1, **{**QUICK, "quality": quality}, quiet=True)
    assert read_manifest(Path("d")).engine["quality"] == "draft"
    with pytest.raises(UsageError, match="is no quality level of the engine direct"):
        tdi.render_dataset("d", 1, **{**QUICK, "quality": Whole(4)}, quiet=True)


def test_images_that_are_not_as_expected_are_warned_of_where_the_call_stands():
    far = np.zeros((2, 10), np.float32)
    preset = tdi.load_preset("3dident").as_dict()
    preset["ranges"]["x"] = [50.0, 60.0]
    from threedident.presets import parse_preset

    with pytest.warns(RenderWarning, match="wholly outside the frame") as caught:
        tdi.render_dataset(
            "d", latents=far, preset=parse_preset(preset, "mine"), quiet=True, **QUICK
        )
    assert Path(caught[0].filename) == Path(__file__)


def test_an_estimate_takes_the_arguments_of_a_render(capfd):
    estimate = tdi.render.estimate_render("d", 100_000, **QUICK)
    assert not Path("d").exists()
    low, high = sorted(estimate.seconds()[1:])
    assert estimate.images == 100_000 and 0 < low <= estimate.seconds()[0] <= high
    assert estimate.bytes > 100_000 * 32 * 32 * 3
    assert "to be rendered: 100000 images, 1000 shards" in str(estimate)
    with pytest.raises(TypeError, match="unexpected keyword argument 'resolutoin'"):
        tdi.render.estimate_render("d", 2, resolutoin=3)


SCRIPT = """
import threedident as tdi
try:
    tdi.render_dataset("d", 3000, engine="direct", quality="draft", resolution=32, workers=1)
except KeyboardInterrupt as error:
    print("stopped", error.summary.images, error.summary.interrupted)
    raise SystemExit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_script_does_not_go_on(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("d/shard-*")):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    have = sum(interval.count for interval in list_shards(tmp_path / "d"))
    assert out == f"stopped {have} True\n" and 0 < have < 3000
    assert json.loads((tmp_path / "d/stats.json").read_text())["images"] == have


def test_a_changed_preset_is_recorded_as_what_makes_it():
    from threedident.render.dataset import _preset_text

    preset = tdi.load_preset("3dident")
    assert _preset_text(preset) == "'3dident'"
    changed = preset.changed(fixed={"x": 0.5}, material="metal")
    text = _preset_text(changed)
    assert text == "load_preset('3dident').changed(fixed={'x': 0.5}, material='metal')"
    assert eval(text, {"load_preset": tdi.load_preset}) == changed
