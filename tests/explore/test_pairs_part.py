"""The page's pairs: exact ones, what a dataset makes of them, grids, and views of models."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import shlex

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import fake_dataset as made
from helpers.commands import without
from helpers.explorer import Page, with_page
from helpers.matching import brute_force
from helpers.other_data import SPRITES, grid_source, sequence_source
from PIL import Image
from scipy import stats

from threedident.causal import Sampling, load_model
from threedident.causal.sampling import second_views
from threedident.cli.options import ConditionalOptions, conditional_options
from threedident.distributions import Grid, Normal, PairProcess, UniformFactors
from threedident.distributions.philox_sampler import sample_partners
from threedident.distributions.spaces import Box
from threedident.explore import conditionals, pairs_part
from threedident.explore.conditionals import Conditional, check_conditional
from threedident.explore.controls import Control
from threedident.explore.explorer import Explorer
from threedident.explore.matching import Matching
from threedident.explore.scenes import Scene
from threedident.explore.stored_images import StoredImages
from threedident.factors import FACTOR_NAMES
from threedident.presets import load_preset

GENERATOR = {"preset": "3dident"}
Z = [0.1, -0.2, 0.3, 0.0, 0.5, -0.5, 0.9, -1.0, 1.0, 0.25]
NORMAL = {"name": "normal", "width": 0.3}


class NoRenderers:
    """Renderers for tests in which nothing is rendered."""


def page_of(source=None, preset="3dident"):
    stored = None
    if source is not None:
        stored = StoredImages.__new__(StoredImages)
        stored.root, stored.source = source.root, source
    return Page(Explorer(NoRenderers(), load_preset(preset), stored=stored))


def ask(page, name, conditional=NORMAL, **more):
    """The answer to one request about Z."""
    body = {"generator": GENERATOR, "values": Z, "conditional": conditional, **more}
    return asyncio.run(page.ask(name, body))


def preset_scene(name="3dident"):
    return page_of().explorer.scene({"preset": name})


def parsed(options):
    """The conditional that the options of a command stand for."""
    import click

    got = []

    @click.command()
    @conditional_options
    def command(conditional: ConditionalOptions):
        got.append(conditional.parse())

    done = CliRunner().invoke(command, shlex.split(options), standalone_mode=False)
    assert done.exception is None, done.exception
    return got[0]


# Exact pairs


def test_partners_are_those_of_the_sampler_and_of_the_seed():
    page = page_of()
    answer = ask(page, "pairs", count=4, seed=7).json()
    expected = sample_partners(Z, 4, conditional=Normal(0.3), seed=7)
    assert np.array_equal(np.float32([p["values"] for p in answer["partners"]]), expected)
    assert np.array_equal(np.float32(answer["z"]["values"]), np.float32(Z))
    assert answer == ask(page, "pairs", count=4, seed=7).json()
    again = ask(page, "pairs", count=4, seed=8).json()
    assert again["partners"][0] != answer["partners"][0]
    assert len(ask(page, "pairs").json()["partners"]) == 5
    assert not answer["matching"]
    assert "explore DATASET" in answer["no_matching"]


@pytest.mark.parametrize(
    ("name", "unchanged", "change", "preset"),
    list(
        itertools.product(
            conditionals.CONDITIONALS,
            [[], ["x", "y", "z", "psi"]],
            [None, 2],
            ["3dident", "3dident-rotations"],
        )
    ),
)
def test_the_options_mean_the_same_to_a_command(name, unchanged, change, preset):
    scene = preset_scene(preset)
    asked = {"name": name, "width": 0.25, "beta": 1.5, "unchanged": unchanged, "change": change}
    conditional = check_conditional(asked, scene)
    theirs = parsed(conditional.options())
    z = np.zeros((1, 10), np.float32)
    for column, control in enumerate(scene.controls):
        z[0, column] = control.start
    if conditional.held and change is None:
        # The preset holds them whatever the conditional: what remains has the same law.
        kept = [FACTOR_NAMES.index(n) for n in (*conditional.held, *conditional.unchanged)]
        mine = sample_partners(z[0], 400, conditional=conditional.over(), seed=0)
        other = sample_partners(z[0], 400, conditional=theirs, seed=1)
        assert (mine[:, kept] == z[:, kept]).all()
        for column in set(range(10)) - set(kept):
            assert stats.kstest(mine[:, column], other[:, column]).pvalue > 1e-4
    else:
        assert theirs == conditional.over()


def test_defaults_are_the_published_ones():
    assert Conditional().over() == Normal(0.1)
    assert parsed("--conditional gennorm --lambda 0.1").beta == Conditional().beta


def test_what_is_held_or_kept_stays_and_the_words_say_so():
    page = page_of()
    rotations = load_preset("3dident-rotations")
    z = [rotations.fixed.get(name, 0.5) for name in FACTOR_NAMES]
    body = {
        "generator": {"preset": "3dident-rotations"},
        "values": z,
        "conditional": {"name": "uniform", "unchanged": ["phi"]},
        "count": 12,
    }
    answer = asyncio.run(page.ask("pairs", body)).json()
    moved = np.float32([p["values"] for p in answer["partners"]]) != np.float32(z)
    free = [FACTOR_NAMES.index(n) for n in FACTOR_NAMES if n not in (*rotations.fixed, "phi")]
    assert free
    assert moved[:, free].all()
    assert moved.sum() == 12 * len(free)
    words = " ".join(answer["words"])
    assert "Equal in z and z~: phi." in words
    assert (
        f"Held by the preset: {', '.join(n for n in FACTOR_NAMES if n in rotations.fixed)}" in words
    )
    assert answer["options"] == "--conditional uniform --unchanged phi"


@pytest.mark.parametrize(
    ("conditional", "message"),
    [
        ({"name": "cauchy"}, "conditional.name must be one of normal, laplace, gennorm, uniform"),
        ({"width": 0}, "sigma must be a finite number > 0"),
        ({"width": -1, "name": "laplace"}, "lambda must be a finite number > 0"),
        ({"width": 1e9}, "at most 100"),
        ({"width": True}, "must be a finite number"),
        ({"name": "gennorm", "beta": 0.1}, "from beta 0.2 on"),
        ({"unchanged": ["colour"]}, "conditional.unchanged must be one of x, y, z"),
        ({"unchanged": list(FACTOR_NAMES)}, "no factor changes"),
        ({"unchanged": ["x", "y"], "change": 9}, "only 8 can"),
        ({"change": 0}, "conditional.change must be a whole number"),
        ({"change": 2.5}, "conditional.change must be a whole number"),
        ({"file": "/etc/passwd"}, "unknown field 'file'"),
        ("normal", "conditional must be a table"),
    ],
    ids=str,
)
def test_conditionals_that_do_not_fit(conditional, message):
    for name in ("pairs", "pairs-matched", "pairs-spread"):
        page = page_of(made.MadeUp(10, 8, None))
        answer = ask(page, name, conditional)
        assert answer.status == 400
        assert message in answer.error


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"count": 13}, "count must be at most 12"),
        ({"count": 0}, "count must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 2**64}, "seed must be a whole number"),
        ({"values": Z[:9]}, "values must be a list of 10"),
        ({"values": [2, *Z[1:]]}, "x must lie in"),
    ],
    ids=str,
)
def test_requests_that_do_not_fit(more, message):
    for name in ("pairs", "pairs-matched"):
        answer = ask(page_of(made.MadeUp(10, 8, None)), name, **more)
        assert answer.status == 400
        assert message in answer.error


def test_images_of_pairs_are_those_of_the_scene():
    async def test(page):
        scene = page.explorer.scene(GENERATOR)
        rows = [Z, [-v for v in Z]]
        body = {"generator": GENERATOR, "rows": rows, "size": 24, "tab": "t", "slot": "pairs"}
        urls = (await page.ask("pair-images", body)).json()["images"]
        expected = await scene.images(np.float32(rows), pairs_part.View(24))
        for url, image in zip(urls, expected, strict=True):
            content = base64.b64decode(url.removeprefix("data:image/png;base64,"))
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), image)
        for wrong, message in (
            ({"rows": [Z] * 14}, "list of 1 to 13"),
            ({"rows": [[3.0] * 10]}, "must lie in"),
            ({"rows": []}, "list of 1 to 13"),
            ({"size": 161}, "size must be at most 160"),
            ({"size": 15}, "size must be a whole number"),
        ):
            answer = await page.ask("pair-images", {**body, **wrong})
            assert answer.status == 400
            assert message in answer.error

    with_page(test, load_preset("3dident"))


# Among the images of a dataset


def matched(source, conditional=NORMAL, **more):
    answer = ask(page_of(source), "pairs-matched", conditional, **more)
    assert answer.status == 200, answer.body
    return answer.json()


def test_nearest_pairs_are_the_nearest_images_of_the_exact_ones():
    source = made.MadeUp(500, 8, None)
    answer = matched(source, count=6, seed=3)
    exact = sample_partners(Z, 6, conditional=Normal(0.3), seed=3)
    distance, number = brute_force(source.raw_latents, np.float32([Z, *exact]), 2)
    nearest = answer["nearest"]
    assert nearest["anchor"]["number"] == number[0, 0]
    assert nearest["distance"] == pytest.approx(distance[0, 0], rel=1e-4)
    for k, partner in enumerate(nearest["partners"], 1):
        place = int(number[k, 0] == number[0, 0])  # never the anchor itself
        assert partner["number"] == number[k, place]
        assert partner["distance"] == pytest.approx(distance[k, place], rel=1e-4)
        assert partner["values"] == source.raw_latents[partner["number"]].tolist()
        assert partner["reachable"]
    lengths = np.linalg.norm(exact - np.float32(Z), axis=1)
    assert nearest["exact_length"] == pytest.approx(lengths.mean(), rel=1e-4)
    assert answer["search"] == "exact"
    assert answer["images"] == 500


def test_resampled_pairs_follow_the_weights_around_the_nearest_image():
    random = np.random.default_rng(0)
    raw = np.zeros((3, 10))
    raw[:, 0] = (0.0, 0.3, 0.6)
    raw = np.repeat(raw, 2, 0) + random.uniform(-1e-3, 1e-3, (6, 10))
    source = made.MadeUp(6, 8, raw)
    counts = np.zeros(6)
    page = page_of(source)
    for seed in range(60):
        body = {"values": [0.0] * 10, "count": 12, "seed": seed}
        answer = ask(page, "pairs-matched", NORMAL, **body).json()["resampled"]
        for partner in answer["partners"]:
            counts[partner["number"]] += 1
    anchor = answer["anchor"]["number"]
    assert anchor in (0, 1)
    weights = np.exp(-((raw - raw[anchor]) ** 2).sum(1) / 2 / 0.3**2)
    weights[anchor] = 0
    expected = weights / weights.sum()
    others = expected > 0
    assert counts[anchor] == 0
    assert stats.chisquare(counts[others], counts.sum() * expected[others]).pvalue > 1e-4
    assert answer["effective"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-3)


def test_a_match_that_is_far_off_is_said():
    source = made.MadeUp(200, 8, None)
    assert matched(source, {"name": "normal", "width": 0.05})["far"]
    dense = made.MadeUp(
        200, 8, np.float32(Z) * 0.9 + np.random.default_rng(0).normal(0, 0.01, (200, 10))
    )
    assert not matched(dense, {"name": "normal", "width": 0.8})["far"]


@pytest.mark.parametrize(
    ("conditional", "message"),
    [
        ({**NORMAL, "unchanged": ["phi"]}, "keeps factors as they are (phi)"),
        ({**NORMAL, "change": 2}, "keeps factors as they are (x, y"),
    ],
    ids=str,
)
def test_content_cannot_be_matched(conditional, message):
    source = made.MadeUp(50, 8, None)
    for name in ("pairs-matched", "pairs-spread"):
        answer = ask(page_of(source), name, conditional)
        assert answer.status == 200
        assert message in answer.json()["refusal"]
    # All ten of ten change: nothing is kept.
    assert "refusal" not in matched(source, {**NORMAL, "change": 10})


def test_factors_that_all_images_share_are_left_out():
    random = np.random.default_rng(1)
    raw = random.uniform(-1, 1, (300, 10))
    raw[:, 3:] = 0.5
    source = made.MadeUp(300, 8, raw)
    answer = matched(source)
    assert answer["factors"] == ["x", "y", "z"]
    distance, number = brute_force(source.raw_latents[:, :3], np.float32([Z[:3]]), 1)
    assert answer["nearest"]["anchor"]["number"] == number[0, 0]
    assert answer["nearest"]["distance"] == pytest.approx(distance[0, 0], rel=1e-4)
    assert any("theta" not in note and "phi 0.5 (z has 0)" in note for note in answer["notes"])
    # Two of ten factors are not two of these three.
    assert "keeps factors" in matched(source, {**NORMAL, "change": 3})["refusal"]
    assert "refusal" not in matched(source, {**NORMAL, "unchanged": ["phi", "psi"]})


def test_other_presets_and_what_they_hold():
    source = made.MadeUp(50, 8, None)
    page = page_of(source)
    fixed = load_preset("3dident-rotations").fixed
    body = {
        "generator": {"preset": "3dident-rotations"},
        "values": [fixed.get(name, 0.0) for name in FACTOR_NAMES],
        "conditional": NORMAL,
    }
    answer = asyncio.run(page.ask("pairs-matched", body)).json()
    assert "preset holds" in answer["refusal"]
    assert "does not record its preset" in matched(source)["notes"][0]


def test_a_dataset_as_rendered(tmp_path):
    root = made.as_rendered(tmp_path / "data", 60, preset="3dident")
    page = Page(Explorer(NoRenderers(), load_preset("3dident"), stored=StoredImages(root)))
    assert ask(page, "pairs-matched").json()["notes"] == []
    assert ask(page, "pairs").json()["matching"]
    wrapped = {"generator": {"preset": "3dident-wrapped"}}
    notes = ask(page, "pairs-matched", **wrapped).json()["notes"]
    assert ["sliders show 3dident-wrapped" in note for note in notes] == [True]
    in_pairs = made.as_rendered(tmp_path / "pairs", 20, conditional=Normal(0.1))
    page = Page(Explorer(NoRenderers(), load_preset("3dident"), stored=StoredImages(in_pairs)))
    assert "was rendered in pairs, with Normal" in ask(page, "pairs-matched").json()["refusal"]


def test_classes_and_groups_of_a_causal_model_are_said(tmp_path):
    model = load_model("causal3dident-recalled-primitives")
    root = made.as_rendered(tmp_path / "single", 30, sampling=Sampling(model))
    page = Page(Explorer(NoRenderers(), load_preset("3dident"), stored=StoredImages(root)))
    notes = ask(page, "pairs-matched").json()["notes"]
    assert any("can differ in shape" in note for note in notes)
    root = made.as_rendered(tmp_path / "views", 30, sampling=Sampling(model, view="hues"))
    page = Page(Explorer(NoRenderers(), load_preset("3dident"), stored=StoredImages(root)))
    assert "belong together (views)" in ask(page, "pairs-matched").json()["refusal"]


# How wide pairs come out


def test_the_spread_is_that_of_the_pairs(monkeypatch):
    source = made.MadeUp(400, 8, None)
    page = page_of(source)
    answer = ask(page, "pairs-spread", {"name": "laplace", "width": 0.2}).json()
    assert answer["factors"] == list(FACTOR_NAMES)
    # A Laplace in a box is narrower than sqrt(2) lambda, and nowhere wider.
    process = PairProcess(Box(10), parsed("--conditional laplace --lambda 0.2"))
    z, z_tilde = process.sample(20_000, generator=torch.Generator().manual_seed(1))
    expected = (z_tilde - z).double().square().mean(0).sqrt().numpy()
    assert answer["asked"]["std"] == pytest.approx(expected, rel=0.1)
    assert 4 < answer["asked"]["kurtosis"] < 7
    assert answer["nearest"]["overall"] > 1.5 * answer["asked"]["overall"]
    assert answer["resampled"]["overall"] > 1.5 * answer["asked"]["overall"]
    assert answer["nearest"]["to_match"] > 0
    assert 1 <= answer["resampled"]["effective"] < 400
    # It is measured once.
    monkeypatch.setattr(Matching, "_measure", None)
    assert ask(page, "pairs-spread", {"name": "laplace", "width": 0.2}).json() == answer


def test_spreads_and_indices_do_not_pile_up(monkeypatch):
    page = page_of(made.MadeUp(50, 8, None))

    async def measured(self, process):
        return {"overall": 1}

    monkeypatch.setattr(Matching, "_measure", measured)
    for k in range(50):
        assert ask(page, "pairs-spread", {"width": 0.1 + k / 100}).status == 200
    matching = pairs_part.matching_of(page.explorer)
    assert len(matching._spreads) == 32
    ask(page, "pairs-matched")
    index = matching._matcher
    ask(page, "pairs-matched", {"width": 0.2})
    assert index is not None
    assert matching._matcher is index


def test_a_dataset_too_small_to_match():
    answer = ask(page_of(made.MadeUp(1, 8, None)), "pairs-matched")
    assert "No factor varies" in answer.json()["refusal"]


@pytest.mark.parametrize("module", ["torch", "faiss"])
def test_exact_pairs_need_no_extra_and_matching_says_what_to_install(module):
    code = (
        "import asyncio\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from threedident.datasets.formats.source import Origin, Source\n"
        "from threedident.explore import pairs_part\n"
        "from threedident.explore.explorer import Explorer\n"
        "from threedident.explore.stored_images import StoredImages\n"
        "from threedident.presets import load_preset\n"
        "class Some(Source):\n"
        "    root, form, origin, shape = Path('some'), 'shards', Origin(), (8, 8, 3)\n"
        "    raw_latents = np.random.default_rng(0).uniform(-1, 1, (9, 10)).astype(np.float32)\n"
        "    def read(self, indices, out): out[:] = 0\n"
        "stored = StoredImages.__new__(StoredImages)\n"
        "stored.root, stored.source = 'some', Some()\n"
        "explorer = Explorer(None, load_preset('3dident'), stored=stored)\n"
        "data = {'generator': {'preset': '3dident'}, 'values': [0.0] * 10}\n"
        "print(len(asyncio.run(pairs_part.pairs(explorer, data))['partners']))\n"
        "for handler in (pairs_part.pairs_matched, pairs_part.pairs_spread):\n"
        "    try:\n"
        "        asyncio.run(handler(explorer, data))\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = without(module, code)
    lines = done.stdout.splitlines()
    assert lines[:1] == ["5"], done.stderr
    assert len(lines) == 3
    assert all("pip install '.[train]'" in line for line in lines[1:])


# Grids and causal models


class StoredScene(Scene):
    """The scene of a stored grid, as far as pairs look at it."""

    kind, title, generator = "stored", "numbered", {"dataset": True}

    def __init__(self, source):
        self.controls = tuple(
            Control(column.name, column.name, "step", 0, max(0, float(source.factors[:, k].max())))
            for k, column in enumerate(source.factor_columns)
        )

    async def images(self, values, view, *, slot=None, priority=0):
        raise AssertionError("stored images are asked for by their numbers")


def on_scene(scene, source, values, conditional, **more):
    """The answer about a scene that the explorer knows by another part."""
    page = page_of(source)
    page.explorer.scene = lambda generator: scene
    body = {"generator": {"dataset": True}, "values": values, "conditional": conditional, **more}
    return asyncio.run(page.ask("pairs", body))


def test_partners_on_a_grid_are_images_of_it():
    source = grid_source()
    z = [1.0, 1.0, 2.0, 0.0, 3.0]
    answer = on_scene(StoredScene(source), source, z, {"name": "uni", "change": 2}, count=12).json()
    assert answer["z"] == {"values": z, "number": int(SPRITES.index(np.array(z)))}
    assert answer["options"] == "--transition uni --change 2"
    for partner in answer["partners"]:
        assert source.factors[partner["number"]].tolist() == partner["values"]
        assert (np.array(partner["values"]) != z).sum() == 2
    answer = on_scene(StoredScene(source), source, z, {"name": "lap", "rate": 2}, count=12).json()
    assert answer["options"] == "--transition lap --rate 2"
    assert "Always equal: shape." in answer["words"]
    assert all(p["values"][0] == 1 and p["values"] != z for p in answer["partners"])
    assert len({p["number"] for p in answer["partners"]}) > 1
    again = on_scene(StoredScene(source), source, z, {"name": "lap", "rate": 2}, count=12).json()
    assert again == answer


def test_hidden_factors_of_a_grid_are_drawn_anew():
    grid = Grid([3, 4, 5], ["a", "b", "c"], hidden=["b"])
    source = grid_source(grid)
    answer = on_scene(StoredScene(source), source, [2.0, 3.0], {"name": "uni"}, count=12).json()
    assert answer["z"]["number"] == int(grid.index(np.array([2, 0, 3])))
    points = grid.points(np.array([p["number"] for p in answer["partners"]]))
    assert points[:, [0, 2]].tolist() == [p["values"] for p in answer["partners"]]
    assert len(set(points[:, 1].tolist())) > 1
    assert any("drawn anew for z~: b" in sentence for sentence in answer["words"])


@pytest.mark.parametrize(
    ("conditional", "message"),
    [
        ({"name": "normal"}, "must be one of uni, lap"),
        ({"name": "uni", "change": 6}, "more than the 5 factors"),
        ({"name": "uni", "rate": 1}, "unknown field 'rate'"),
        ({"name": "lap", "rate": 0}, "rate must be a finite number > 0"),
        ({"name": "lap", "change": 1}, "unknown field 'change'"),
    ],
    ids=str,
)
def test_transitions_that_do_not_fit(conditional, message):
    source = grid_source()
    answer = on_scene(StoredScene(source), source, [0.0] * 5, conditional)
    assert answer.status == 400
    assert message in answer.error


def test_a_stored_dataset_without_a_grid_says_what_its_pairs_are():
    source = sequence_source()
    scene = StoredScene(source)
    scene.controls = tuple(Control(name, name, "continuous", 0, 1) for name in source.factor_names)
    assert "SequencePairs" in on_scene(scene, source, [0.5] * 3, None).json()["refusal"]
    rendered = made.MadeUp(9, 8, None)
    answer = on_scene(StoredScene(rendered), rendered, [0] * 10, None).json()
    assert "Choose a preset above" in answer["refusal"]
    answer = ask(page_of(source), "pairs").json()
    assert "other factors than these sliders" in answer["no_matching"]
    assert "other factors" in ask(page_of(source), "pairs-matched").error


class ModelScene(StoredScene):
    """The scene of a causal model, as far as pairs look at it."""

    kind, title, generator = "model", "a model", {"model": "a model"}

    def __init__(self, model):
        self.model = model
        self.controls = tuple(
            Control(v.name, v.name, v.kind, *v.range, values=v.values) for v in model.variables
        )


def test_second_views_are_those_that_a_dataset_would_have():
    model = load_model("causal3dident-recalled-primitives")
    drawn = Sampling(model, view="hues").draw(range(24), seed=5, split="train").variables
    for item in (0, 3, 11):
        views = second_views(model, "hues", drawn[2 * item], 12, seed=5)
        assert np.array_equal(views[item], drawn[2 * item + 1])


def test_pairs_of_a_model_are_its_views():
    model = load_model("3dident-views")
    answer = on_scene(ModelScene(model), None, Z, {"view": "rotations"}, count=12).json()
    assert answer["views"] == ["positions", "hues", "rotations"]
    assert answer["options"] == "--views rotations"
    moved = np.float32([p["values"] for p in answer["partners"]]) != np.float32(Z)
    rotations = [FACTOR_NAMES.index(name) for name in ("phi", "theta", "psi")]
    assert moved[:, rotations].all()
    assert moved.sum() == 36
    assert "phi, theta, psi" in answer["words"][2]
    assert on_scene(ModelScene(model), None, Z, None).json()["view"] == "positions"
    wrong = on_scene(ModelScene(model), None, Z, {"view": "none"})
    assert "must be one of positions, hues, rotations" in wrong.error
    for name in ("pairs-matched", "pairs-spread"):
        page = page_of(made.MadeUp(9, 8, None))
        page.explorer.scene = lambda generator: ModelScene(model)
        body = {"generator": {}, "values": Z}
        assert "no raw latents" in asyncio.run(page.ask(name, body)).error


def test_a_model_without_views_says_what_its_pairs_are():
    model = load_model("temporal-causal3dident-teapot")
    scene = ModelScene(model)
    values = [control.low for control in scene.controls]
    refusal = on_scene(scene, None, values, None).json()["refusal"]
    assert "no law of second views" in refusal
    assert "--counterfactual" in refusal


def test_words_of_transitions():
    words = conditionals.transition_words(UniformFactors(1), SPRITES)
    assert "1 changes, chosen anew" in words[0]
