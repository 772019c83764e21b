"""The commands that render: where they write, what they say first, what they refuse."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.renders import QUICK, RENDER, content
from PIL import Image

from threedident import progress
from threedident.factors import FACTORS
from threedident.storage.directory import default_out


def test_the_default_directory_says_what_is_in_it(cli, tmp_path):
    assert default_out() == Path("data/3dident")
    assert default_out(split="test") == Path("data/3dident-test")
    assert default_out("3dident-wrapped", "val") == Path("data/3dident-wrapped-val")
    assert default_out("my/own.toml", pairs=True) == Path("data/own-pairs")
    named = default_out(engine="direct", quality="draft", resolution=64, split="test")
    assert named == Path("data/3dident-direct-draft-64-test")
    cli("render", *QUICK, "--n", 2)
    assert "2 images, 0 of them new" in cli("render", *QUICK, "--n", 2).stdout
    assert len(content(tmp_path / "data/3dident-direct-draft-32")["index"]) == 2


@pytest.mark.parametrize(
    "options",
    [("--shape", "cube"), ("--material", "metal"), ("--fix", "x=0"), ("--seed", 1)],
)
def test_a_default_directory_that_would_not_say_what_is_in_it_is_not_taken(cli, tmp_path, options):
    said = cli("render", *QUICK, "--n", 1, *options, code=2).stderr
    assert f"with {options[0]}, say where it shall lie, for example --out data/3dident-" in said
    assert not list(tmp_path.iterdir())


def test_other_pairs_than_those_that_are_there_are_refused_in_a_default_directory(cli):
    words = ("render", *QUICK, "--n", 1, "--pairs", "--conditional", "normal", "--sigma")
    said = cli(*words, 0.1).stderr
    assert "rendering 1 pairs, 2 images, into data/3dident-direct-draft-32-pairs" in said
    assert "latents.conditional.sigma" in cli(*words, 0.2, code=2).stderr


def test_it_says_first_what_it_does_where_and_how_to_stop(cli):
    said = cli("render", *QUICK, "--n", 5, "--out", "d").stderr.splitlines()
    assert said[0].startswith("rendering 5 images into d: preset 3dident, split train, seed 0, 32")
    assert said[1] == "engine direct, quality draft, cpu, on 1 process"
    assert re.fullmatch(
        r"0 of 5 images are there; the rest takes 15.9 kB of disk \([\d.,]+ .B are free\)", said[2]
    )
    assert "--estimate measures it" in said[3] and "--engine direct" not in said[3]
    assert said[4] == "Ctrl-C stops it and keeps what is finished; the same command continues"
    said = cli("render", *QUICK, "--n", 9, "--out", "d", "--shard-size", 5, code=2).stderr
    assert "rendering" not in said
    said = cli("render", *QUICK, "--n", 205, "--out", "d", "--shard", "2/3").stderr
    assert "5 of 205 images are there; part 2/3, 5 of the rest, takes" in said


def test_a_log_shows_that_a_render_is_alive(cli, monkeypatch):
    monkeypatch.setattr(progress, "SHORT", 0.01)
    monkeypatch.setattr(progress, "FORECAST_AFTER", 0.01)
    monkeypatch.setattr(progress, "FORECAST_AFTER_FIRST", 0.0)
    said = cli("render", *QUICK, "--n", 40, "--out", "d").stderr
    assert re.search("^rendering: 0 of 40 images$", said, re.M)
    assert re.search(r"^about .* to go, by the first \d+ images in \d+ s$", said, re.M)
    assert re.search(r"^rendering: finished 40 of 40 images in \d+ s$", said, re.M)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--n", 0), "--n must be at least 1 and at most 100000000, found 0"),
        (("--n", 10**12), "found 1000000000000"),
        (("--timeout", "nan"), "--timeout"),
        (("--preset", "4dident"), "unknown preset '4dident': expected one of 3dident"),
        (("--preset", "missing.toml"), "no such file"),
        (("--fix", "hue=1"), "unknown factor 'hue'"),
        (("--fix", "x"), "FACTOR=VALUE"),
        (("--fix", "x=far"), "expected a number"),
        (("--fix", "x=1.5"), "raw value in [-1, 1]"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--device", "metal"), "no metal device found; here are: cpu"),
        (("--quality", "best"), "unknown quality 'best'"),
        (("--split", "dev"), "unknown split 'dev'"),
        (("--seed", -1), "seed"),
        (("--resolution", 1), "resolution"),
        (("--shape", "rabbit"), "unknown shape 'rabbit'"),
        (("--shape", "rabbit.obj"), "no such file"),
        (("--material", "gold"), "material must be one of rubber, metal, crystal"),
        (("--latents", "missing.npy"), "no such file"),
        (("--shard", "3/3"), "0 <= I < K"),
        (("--shard", "x"), "0 <= I < K"),
        (("--compression", "zip"), "unknown compression 'zip'"),
    ],
)
def test_bad_options(cli, tmp_path, options, message):
    assert message in cli("render", "--out", "d", *options, code=2).stderr
    assert not (tmp_path / "d").exists()


def test_directories_that_are_no_dataset(cli, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").write_text("mine")
    assert "is not empty and is no dataset" in cli(*RENDER, "--out", "foreign", code=2).stderr
    assert [p.name for p in (tmp_path / "foreign").iterdir()] == ["notes.txt"]
    (tmp_path / "file").write_text("")
    said = cli(*RENDER, "--out", "file", code=2).stderr
    assert "file is a file, not a directory: choose another --out" in said
    for name, text in (("garbage", "{"), ("other", '{"format": "x"}'), ("list", "[1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text(text)
        for words in ((*RENDER, "--out", name), ("info", name), ("verify", name), ("stats", name)):
            assert "dataset.json" in cli(*words, code=2).stderr
    assert "there is no such file or directory" in cli("verify", "missing", code=2).stderr


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder nobody can write to")
def test_an_unwritable_place(cli):
    assert "cannot write" in cli(*RENDER, "--n", 1, "--out", "/proc/dataset", code=2).stderr


def test_a_damaged_manifest_is_not_trusted(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    path = tmp_path / "d" / "dataset.json"
    text = path.read_text()
    path.write_text(text.replace('"seed": 0', '"seed": 1'))
    assert "fingerprint" in cli(*RENDER, "--out", "d", "--seed", 1, code=2).stderr
    data = json.loads(text)
    data["format_version"] = 99
    path.write_text(json.dumps(data))
    assert "format version 99" in cli("info", "d", code=2).stderr
    del data["settings"]["engine"]
    data["format_version"] = 1
    path.write_text(json.dumps(data))
    assert "damaged" in cli("info", "d", code=2).stderr


def test_presets_are_shown(cli):
    listed = cli("presets").stdout
    assert "3dident-regular" in listed
    shown = cli("presets", "3dident-positions").stdout
    assert "fixed at raw -0.66" in shown
    assert "unknown preset" in cli("presets", "x", code=2).stderr


def test_a_preset_without_best_scores_says_why_they_are_not_shown(cli, tmp_path):
    head = "[ranges]\n" + "".join(f"{factor.name} = [-1, 1]\n" for factor in FACTORS)
    table = "".join(f"{factor.name} = 1.0\n" for factor in FACTORS)
    (tmp_path / "own.toml").write_text(head)
    said = cli("presets", "own.toml").stdout
    assert said.count("best R2 -") == len(FACTORS)
    assert "is not known: the preset's table best_r2 does not give it" in said
    (tmp_path / "own.toml").write_text(f"{head}[best_r2]\n{table}")
    assert "is not known" not in cli("presets", "own.toml").stdout


def test_traverse(cli, tmp_path):
    cli("traverse", "--steps", 3, "--resolution", 24, "--quality", "draft", "--out", "t.png")
    figure = np.asarray(Image.open(tmp_path / "t.png"))
    assert figure.shape[0] > 3 * 24
    assert figure.shape[1] > 10 * 24
    assert "unknown preset" in cli("traverse", "--preset", "x", "--out", "t.png", code=2).stderr


def test_change_does_not_count_what_the_preset_holds(cli, tmp_path):
    pairs = ("render", "--pairs", "--preset", "3dident-positions", "--conditional", "uniform")
    done = cli(*pairs, "--change", 1, "--n", 2, "--out", tmp_path / "d", code=2)
    assert "--unchanged rotation --unchanged spotlight_position --unchanged hue" in done.stderr
    assert not (tmp_path / "d").exists()
