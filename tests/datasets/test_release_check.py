"""Which preset made a dataset: told from datasets that we made in each way."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers.commands import run_command
from PIL import Image

from threedident.datasets.formats import open_dataset
from threedident.datasets.formats import png_folder as published
from threedident.datasets.release_check import choose_sample
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset

pytest.importorskip("warp")

PRESETS = [load_preset("3dident"), load_preset("3dident-wrapped")]


def make(root, name, *options):
    """A published layout of eight images, rendered with a preset."""
    small = ("--engine", "direct", "--resolution", 48, "--workers", 1)
    run_command("render", *small, *options, "--out", root / f"{name}-shards")
    run_command("convert", root / f"{name}-shards", "--to", "published", "--out", root / name)
    return root / name


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Published layouts that differ in how they were made."""
    root = tmp_path_factory.mktemp("releases")
    eight = ("--n", "8")
    return {
        "3dident": make(root, "a", *eight),
        "3dident-wrapped": make(root, "b", *eight, "--preset", "3dident-wrapped"),
    }


@pytest.fixture
def copy(releases, tmp_path):
    """A layout, to be changed; as the published one, it does not say what made it."""
    copy = shutil.copytree(releases["3dident"], tmp_path / "copy")
    (copy / "3dident.json").unlink()
    return copy


def verdict(said):
    return said.stdout.splitlines()[-1].removeprefix("verdict: ")


@pytest.mark.parametrize("name", ["3dident", "3dident-wrapped"])
def test_the_hue_rule_is_told_from_the_images(cli, tmp_path, releases, name):
    said = cli("compare-release", releases[name], "--n", 6, "--out", "figure.png")
    hue = load_preset(name).hue
    found = next(line for line in said.stdout.splitlines() if line.startswith("verdict"))
    assert found.startswith(f"verdict: {name} (hues {hue}) fits: equality on the ")
    assert "these are what the raw latents mean in 3dident and 3dident-wrapped" in said.stdout
    assert "-1.5708 to 1.5708" in said.stdout
    with Image.open(tmp_path / "figure.png") as figure:
        # Three cells for each of six images, twice as large as they are.
        assert figure.size[0] == 3 * (2 * 48 + 4) + 4
        assert figure.size[1] > 6 * 2 * 48


def test_another_engine_tells_the_same(cli, releases):
    words = ("compare-release", releases["3dident"], "--engine", "cycles", "--workers", 1)
    found = verdict(cli(*words, "--n", 6))
    assert found.startswith("3dident (hues unwrapped) fits: ")
    # At quality draft both engines share code; they need not be equal.
    assert float(found.split("fits: ")[1].split()[0]) > 35


def test_hues_that_are_all_positive_tell_nothing(cli, tmp_path):
    raw = sample_raw_latents(range(6), seed=3, split="train")
    raw[:, 7:] = np.abs(raw[:, 7:])
    np.save(tmp_path / "raw.npy", raw)
    root = make(tmp_path, "positive", "--latents", "raw.npy")
    said = cli("compare-release", root)
    assert verdict(said) == (
        "they cannot be told apart by the 6 images: all presets render them alike"
    )
    assert said.stdout.count("same image") == 6


def test_images_of_something_else(cli, copy):
    rng = np.random.default_rng(0)
    for path in (copy / "images").iterdir():
        published.write_image(path, rng.integers(0, 256, (48, 48, 3), np.uint8))
    found = verdict(cli("compare-release", copy, "--n", 6))
    assert found.startswith("neither fits: 3dident")
    assert "35 dB or more" in found
    alone = verdict(cli("compare-release", copy, "--n", 2, "--preset", "3dident-wrapped"))
    assert alone.startswith("it does not fit: 3dident-wrapped (hues wrapped) comes nearest with")


def test_a_third_rule_shows_in_the_images_that_do_not_depend_on_it(cli, tmp_path):
    raw = sample_raw_latents(range(8), seed=3, split="train")
    raw[:6, 7:] = -np.abs(raw[:6, 7:])
    raw[6:, 7:] = np.abs(raw[6:, 7:])
    np.save(tmp_path / "raw.npy", raw)
    root = make(tmp_path, "third", "--latents", "raw.npy")
    for i in range(6):
        path = root / "images" / f"{i}.png"
        published.write_image(path, 255 - published.read_image(path))
    found = verdict(cli("compare-release", root, "--n", 8))
    assert found.startswith("neither fits")
    assert found.endswith("; on the other images it has equality")


def test_latents_of_another_mapping(cli, copy):
    latents = np.load(copy / "latents.npy")
    latents[:, 7:] += np.float32(np.pi / 2)
    latents[3, 0] += 0.25
    latents[:, 2] = 0.75
    np.save(copy / "latents.npy", latents)
    raw = np.load(copy / "raw_latents.npy")
    raw[:, 2] = 0.25
    np.save(copy / "raw_latents.npy", raw)
    said = cli("compare-release", copy, "--n", 2, "--preset", "3dident").stdout
    assert "not what the raw latents mean in 3dident: x, object_hue, spotlight_hue, back" in said
    rows = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert "0.0000 to 3.1416" in rows["object_hue"]
    assert rows["object_hue"].split()[-1] == "1.6"
    assert "not affine in raw" in rows["x"]
    assert rows["x"].split()[-1] == "0.25"
    assert rows["y"].split()[-1] == "0"
    assert "0.7500, raw is fixed" in rows["z"]


def test_raw_latents_in_other_units(cli, copy):
    raw = np.load(copy / "raw_latents.npy")
    raw[:, :3] *= 3
    np.save(copy / "raw_latents.npy", raw)
    done = cli("compare-release", copy, code=2)
    assert "expected raw latents in [-1, 1], found x from -2." in done.stderr
    assert "z from" in done.stderr
    assert "phi" not in done.stderr
    assert "-1.0000 to 1.0000" in done.stdout


def test_what_cannot_be_compared(cli, tmp_path, copy):
    words = ("compare-release", "copy")
    assert "none of these" in cli("compare-release", ".", code=2).stderr
    assert "unknown preset 'x'" in cli(*words, "--preset", "x", code=2).stderr
    assert "ends in .png" in cli(*words, "--out", "figure.doc", code=2).stderr
    assert "unknown engine 'x'" in cli(*words, "--engine", "x", code=2).stderr
    path = copy / "images/5.png"
    Image.new("RGB", (48, 32)).save(path)
    assert "image 5 has shape (32, 48, 3)" in cli(*words, "--n", 8, code=2).stderr
    for each in (copy / "images").iterdir():
        Image.new("RGB", (48, 32)).save(each)
    assert "the images are 48 x 32, expected square" in cli(*words, code=2).stderr
    for each in (copy / "images").iterdir():
        Image.new("RGB", (5, 5)).save(each)
    assert "the resolution must lie in [8, 4096], found 5" in cli(*words, code=2).stderr


def test_any_form_and_an_odd_size(cli, tmp_path, releases):
    make(tmp_path, "odd", "--resolution", "33", "--n", "2")
    cli("pack", "odd-shards", "--out", "odd.h5")
    for form in ("odd-shards", "odd.h5"):
        words = ("compare-release", form, "--preset", "3dident")
        assert verdict(cli(*words)).startswith("3dident (hues unwrapped) fits: equality on the 2")


def test_a_sample_is_spread_and_prefers_what_tells():
    raw = sample_raw_latents(range(2000), seed=0, split="train")
    chosen = choose_sample(raw, PRESETS, 16)
    assert len(set(chosen.tolist())) == 16
    assert chosen.max() > 1500
    positive = (raw[:, 7:] >= 0).all(1)
    assert 1 <= positive[chosen].sum() <= 4
    assert np.array_equal(chosen, choose_sample(raw, PRESETS, 16))
    rare = np.abs(raw)
    rare[1234, 7] = -0.9
    assert 1234 in choose_sample(rare, PRESETS, 16)
    assert choose_sample(raw[:3], PRESETS, 16).tolist() == [0, 1, 2]
    assert len(choose_sample(raw, PRESETS[:1], 1)) == 1
    assert len(choose_sample(raw, PRESETS, 1000)) == 1000


def test_a_dataset_of_ours_says_the_same_of_itself(releases):
    with open_dataset(releases["3dident"]) as source:
        assert np.allclose(PRESETS[0].to_scene(source.raw_latents), source.latents)
