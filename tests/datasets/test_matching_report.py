"""`3dident pairs`: measuring what matching does to a conditional."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_dataset import as_rendered
from helpers.matching import brute_force, exact_weights, uniform
from helpers.pairs import run
from PIL import Image

from threedident.baselines.data import _LATENTS
from threedident.baselines.reproduce.studies import STUDIES
from threedident.causal import Sampling, load_model
from threedident.datasets import (
    Box,
    Laplace,
    LatentMatcher,
    Normal,
    PairProcess,
    ThreeDIdent,
    Uniform,
)
from threedident.datasets import matching_report as realised
from threedident.distributions.torch_sampler import seeded
from threedident.factors import FACTOR_NAMES


def rms(differences, axis=None):
    return np.sqrt((differences.astype(float) ** 2).mean(axis))


def test_what_the_command_measures(cli, tmp_path, dataset):
    words = (
        *("pairs", dataset.root, "--conditional", "laplace", "--lambda", 0.2, "--factors", "hue"),
        *("--factors", "x", "--draws", 3000, "--seed", 5, "--out", "f.png"),
    )
    said = cli(*words).stdout
    as_json = cli(*words, "--json")
    assert as_json.stderr == "wrote f.png\n"  # nothing but the document on standard output
    found = json.loads(as_json.stdout)
    with Image.open(tmp_path / "f.png") as image:
        assert image.size[0] > image.size[1] > 200
        assert len(image.convert("RGB").getcolors(2**20)) > 20
    names = [*FACTOR_NAMES[7:], "x"]
    latents = dataset.truth.raw_latents[:, [7, 8, 9, 0]]
    process = PairProcess(Box(4), Laplace(0.2))

    # The same draws, matched by brute force.
    z, z_tilde = (t.numpy() for t in process.sample(3000, generator=seeded(5)))
    first, second = brute_force(latents, z)[1], brute_force(latents, z_tilde, 2)[1]
    j = np.where(second[:, 0] == first[:, 0], second[:, 1], second[:, 0])
    d = latents[j] - latents[first[:, 0]]
    assert found["images"] == 300
    assert found["conditional"] == {"name": "laplace", "lam": 0.2}
    assert list(found["nearest"]["std"]) == names
    assert list(found["asked"]["std"].values()) == pytest.approx(rms(z_tilde - z, 0), rel=1e-5)
    assert list(found["nearest"]["std"].values()) == pytest.approx(rms(d, 0), rel=1e-3)
    assert found["nearest"]["std_overall"] == pytest.approx(rms(d), rel=1e-3)
    scaled = d / rms(d, 0)
    assert found["nearest"]["kurtosis"] == pytest.approx((scaled**4).mean(), rel=1e-3)
    assert found["nearest"]["mean_distance"] == pytest.approx(
        np.linalg.norm(d, axis=1).mean(), rel=1e-3
    )
    to_match = brute_force(latents, np.concatenate([z, z_tilde]))[0].mean()
    assert found["mean_distance_to_match"] == pytest.approx(to_match, rel=1e-4)
    share = (second[:, 0] == first[:, 0]).mean()
    assert found["share_on_one_image"] == pytest.approx(share, abs=1e-3)

    # Resampling: what is expected of each anchor, by its exact weights.
    weights = np.stack([exact_weights(process, latents, a) for a in range(300)])
    weights /= weights.sum(1, keepdims=True)
    squares = (latents[:, None].astype(float) - latents) ** 2
    expected = np.sqrt((weights[:, :, None] * squares).sum(1).mean(0))
    assert list(found["resampled"]["std"].values()) == pytest.approx(expected, rel=0.06)
    anchors = LatentMatcher(latents).anchors(process, 4000, seeded(5, 1))
    size = np.median(1 / (weights[anchors] ** 2).sum(1))
    assert found["median_effective_sample_size"] == pytest.approx(size, rel=1e-3)

    # The table says the same, one line a factor.
    lines = said.splitlines()
    assert lines[0] == ("d: 300 images, exact search of the nearest; Laplace(lam=0.2), 3000 draws")
    assert lines[1].split() == ["asked", "nearest", "resampled"]
    for line, name in zip(lines[2:], names, strict=False):
        values = [found[way]["std"][name] for way in ("asked", "nearest", "resampled")]
        assert line.split()[-4:] == [name, *(f"{v:.4f}" for v in values)]
    row = next(line for line in lines if line.startswith("z and z~ match the same image"))
    assert row.split()[-1] == f"{share:.1%}"
    assert "wrote f.png" in said

    # Where it begins to hold, the realised spread is 5 % off.
    scales, tried = np.array(found["scales"]), found["tried"]
    assert len(scales) == len(tried["asked"]) == len(tried["nearest"])
    for way, holds in found["holds_from_times_the_width"].items():
        ratios = np.array(tried[way])
        assert (np.abs(np.log(ratios[scales >= holds])) <= math.log(1.05)).all()
        assert scales[0] <= holds <= scales[-1]
    assert tried["nearest"][0] > 2


@pytest.mark.parametrize(("pairs", "latents"), [("laplace", 10_000), ("laplace", 100_000)])
def test_exact_pairs_are_as_wide_as_matched_ones_where_a_study_says_so(pairs, latents):
    space = Box(10)
    drawn = Uniform().marginal(space, latents, generator=seeded(0, _LATENTS))
    matcher = LatentMatcher(drawn, repeatable=True)
    process = PairProcess(space, {"laplace": Laplace(0.1), "normal": Normal(0.1)}[pairs])
    factor = realised.matched_width(matcher, process)
    row = STUDIES["matching-synthetic"].row(
        f"matching-synthetic-exact-wide-{pairs}-unbounded-{latents}"
    )
    assert 0.1 * factor == pytest.approx(row.published_experiment().data.conditional.lam, abs=1e-4)
    wide = dataclasses.replace(process, conditional=realised.scaled(process.conditional, factor))
    spreads = [
        realised.Spread.of(*(t.numpy() for t in each)).overall
        for each in (
            wide.sample(10_000, generator=seeded(5)),
            [drawn[i] for i in matcher.pairs(process, 10_000, seeded(6))],
        )
    ]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.02)


def test_the_realised_spread_of_exact_and_dense_latents():
    """What is realised approaches what is asked for as the latents fill the space."""
    process = PairProcess(Box(2), Normal(0.3))
    report = realised.examine(
        LatentMatcher(uniform(4000, 2)), process, ("x", "y"), draws=5000, anchors=400
    )
    assert report.unable is None
    for spread in (report.nearest, report.resampled):
        assert spread.overall == pytest.approx(report.asked.overall, rel=0.05)
        assert spread.std == pytest.approx(report.asked.std, rel=0.08)
    assert report.holds_from["nearest"] < 0.3
    assert report.effective > 100


def test_a_dataset_in_pairs_is_measured_as_it_is(rendered):
    said = run(rendered, "--draws", 5000, "--out", "p.png").output
    found = json.loads(run(rendered, "--draws", 5000, "--json").stdout)
    raw = ThreeDIdent(rendered).raw_latents.numpy()
    d = raw[1::2] - raw[::2]
    assert found["rendered"]["std"] == pytest.approx(
        dict(zip(FACTOR_NAMES, rms(d, 0), strict=True)), rel=1e-6
    )
    assert found["rendered"]["std_overall"] == pytest.approx(rms(d), rel=1e-6)
    assert found["rendered"]["std_overall"] == pytest.approx(0.097, rel=0.2)
    assert found["asked"]["std_overall"] == pytest.approx(0.097, rel=0.03)
    assert found["nearest"] is found["resampled"] is None
    assert "20 rendered pairs" in said
    assert "rendered" in said.splitlines()[1].split()
    with Image.open("p.png") as image:
        assert min(image.size) > 200
    words = ("--conditional", "normal", "--sigma", 0.1)
    assert "leave out the conditional" in run(rendered, *words, code=2).output


def test_why_some_conditionals_cannot_be_resampled(dataset):
    # Where single precision ends: (2 / 0.1)^40.
    words = ("--conditional", "gennorm", "--lambda", 0.1, "--beta", 40, "--draws", 500)
    said = run(dataset.root, *words, "--out", "k.png").output
    found = json.loads(run(dataset.root, *words, "--json").stdout)
    assert found["resampled"] is found["median_effective_sample_size"] is None
    assert "nearest" in found["tried"]
    assert "resampled" not in found["tried"]
    assert "no resampling: GeneralizedNormal(lam=0.1, beta=40.0) gives no other" in said
    assert said.splitlines()[1].split() == ["asked", "nearest"]
    assert Path("k.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--conditional must be one of normal"),
        (("--conditional", "normal"), "needs --sigma"),
        (("--conditional", "normal", "--sigma", "0.1,0.2"), "2 widths, expected 10 or one"),
        (("--conditional", "normal", "--sigma", "0.1", "--factors", "shape"), "unknown factor"),
        (
            ("--conditional", "normal", "--sigma", "0.1", "--index", "fast"),
            "'fast' of 300 latents (could not parse index string fast): expected auto, exact, ivf",
        ),
        (
            ("--conditional", "normal", "--sigma", "0.1", "--unchanged", "hue"),
            "(object_hue, spotlight_hue, background_hue), and pairs matched among single images",
        ),
        (("--conditional", "normal", "--sigma", "0.1", "--change", "2"), "Only exact pairs hold"),
        (("--conditional", "normal", "--sigma", "0.1", "--out", "f.txt"), "ends in .png"),
    ],
)
def test_commands_that_do_not_fit(dataset, words, message):
    assert message in run(dataset.root, *words, code=2).output


def test_images_of_a_causal_model_are_matched_with_a_word(tmp_path):
    model = load_model(Path(__file__).parents[1] / "data" / "model.toml")
    as_rendered(tmp_path / "single", 40, sampling=Sampling(model))
    words = ("--conditional", "normal", "--sigma", 0.3, "--draws", 100)
    done = run(tmp_path / "single", *words)
    assert "can differ in kind" in done.stderr
    as_rendered(tmp_path / "views", 40, sampling=Sampling(model, view="hues"))
    done = run(tmp_path / "views", *words, code=2)
    assert "belong together (views)" in done.output
