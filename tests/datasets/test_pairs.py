"""Positive pairs of a dataset: matched, and rendered in pairs."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import fake_dataset as made
from helpers.commands import run_command
from helpers.fake_dataset import same
from helpers.matching import sphere, uniform
from helpers.pairs import ENGINE, both_ways, on_demand, run
from torch.utils import data

from threedident.datasets import (
    Box,
    Change,
    LatentMatcher,
    Normal,
    PairProcess,
    PerFactor,
    PositivePairs,
    ProjectedNormal,
    Sphere,
    ThreeDIdent,
    Unchanged,
    Uniform,
)
from threedident.datasets import latent_matcher as matching
from threedident.distributions.torch_sampler import seeded
from threedident.errors import MatchingWarning, UsageError
from threedident.factors import FACTOR_NAMES

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


# --- which conditionals fit a dataset of single images


NESTED = PerFactor((((0, 1), Change(Normal(1))),))
KEEPING = [
    (Unchanged(), "x, y, z"),
    (Change(Normal(0.1), 2), "x, y, z"),
    (Change(Normal(0.1), (0, 3)), "x, y, z"),
    (PerFactor((((0,), Unchanged()), ((1, 2), Normal(0.1)))), "x"),
    (PerFactor((((1,), Uniform()), ((2, 0), NESTED))), "x, z"),
    (Change(PerFactor((((0, 2), Normal(1)), ((1,), Unchanged()))), 3), "y"),
]


@pytest.fixture(scope="module")
def on_a_sphere(tmp_path_factory):
    """Twenty images, whose position lies on a sphere."""
    root = tmp_path_factory.mktemp("sphere") / "d"
    raw = np.zeros((20, 10), np.float32)
    raw[:, :3] = sphere(20, 3)
    made.make(root, 20, raw=raw)
    return root


@pytest.mark.parametrize(("conditional", "kept"), KEEPING)
def test_what_a_conditional_keeps_single_images_cannot_hold(on_a_sphere, conditional, kept):
    dataset = ThreeDIdent(on_a_sphere, factors="position")
    own = [{"matcher": LatentMatcher(dataset.raw_latents, match=m)} for m in matching.MATCHES]
    message = rf"keeps factors as they are \({kept}\), and .*render --pairs.*RenderedPairs"
    for options in (*({"match": m} for m in matching.MATCHES), *own):
        with pytest.raises(UsageError, match=message) as caught:
            PositivePairs(dataset, None, conditional, **options)
        assert "nearest" not in str(caught.value)
    process = PairProcess(Box(3), conditional)
    with pytest.raises(UsageError, match=r"as they are, so it has no density.*exact pairs"):
        own[1]["matcher"].resample(torch.arange(3), process)


def test_factors_that_all_change_are_matched(on_a_sphere):
    dataset = ThreeDIdent(on_a_sphere, factors="position")
    for match in matching.MATCHES:
        pairs = PositivePairs(dataset, None, Change(Normal(0.5), 3), batch_size=20, match=match)
        (z, z_tilde), _ = pairs.batch(0, 0)
        assert (z != z_tilde).all()


def test_a_factor_that_all_images_share_is_kept(on_a_sphere):
    """Whatever it is matched to, the hue stays as it is."""
    keep = {"position": Normal(0.5), "hue": Unchanged()}
    names = ("x", "y", "z", *FACTOR_NAMES[7:])
    dataset = ThreeDIdent(on_a_sphere, factors=names)
    pairs = PositivePairs(dataset, None, PerFactor.by_name(keep, names), batch_size=20)
    (z, z_tilde), _ = pairs.batch(0, 0)
    assert torch.equal(z[:, 3:], z_tilde[:, 3:])
    assert (z[:, :3] != z_tilde[:, :3]).any(1).all()
    keep = PerFactor.by_name({"hue": Normal(0.5), "position": Unchanged()}, names)
    with pytest.raises(UsageError, match=r"\(x, y, z\)"):
        PositivePairs(dataset, None, keep)


@pytest.mark.parametrize("conditional", [ProjectedNormal(5.0), Normal(0.1)])
def test_what_cannot_be_resampled_can_be_matched(on_a_sphere, conditional):
    dataset = ThreeDIdent(on_a_sphere, factors="position")
    message = 'no closed form.* leave out match="resample"'
    with pytest.raises(UsageError, match=message):
        PositivePairs(dataset, Sphere(3), conditional, match="resample")
    matcher = LatentMatcher(dataset.raw_latents, match="resample")
    with pytest.raises(UsageError, match=message):
        PositivePairs(dataset, Sphere(3), conditional, matcher=matcher)
    with pytest.raises(UsageError, match=message):
        matcher.resample(torch.arange(3), PairProcess(Sphere(3), conditional))
    z, z_tilde = PositivePairs(dataset, Sphere(3), conditional, batch_size=5).batch(0, 0)[0]
    assert z.shape == z_tilde.shape == (5, 3)


# --- batches of pairs


def test_images_belong_to_their_latents(dataset):
    for pairs in both_ways(dataset, batches=4):
        for batch in (*pairs, pairs.batch(7, 123)):
            dataset.check(batch)
        i, j = pairs.indices(0, 2)
        (z, z_tilde), _ = pairs[2]
        assert np.array_equal(dataset.rows(z), i)
        assert np.array_equal(dataset.rows(z_tilde), j)


def test_matched_pairs_are_next_to_drawn_ones(dataset):
    pairs = both_ways(dataset)[0]
    z, z_tilde = pairs.process.sample(40, generator=seeded(3, 5, 1))
    i, j = pairs.matcher.nearest_pairs(z, z_tilde)
    found = pairs.indices(5, 1)
    assert np.array_equal(found[0], i)
    assert np.array_equal(found[1], j)


def test_batches_differ(dataset):
    for one, other in zip(both_ways(dataset), both_ways(dataset, seed=4), strict=True):
        batches = [one.batch(0, 0), one.batch(0, 1), one.batch(1, 0), other.batch(0, 0)]
        for a, b in itertools.combinations(batches, 2):
            assert not (a[0][0] == b[0][0]).all()
        assert same(one.batch(1, 0), batches[2])


def test_what_pairs_say_of_themselves(dataset, rendered):
    nearest, resampled = both_ways(dataset)
    assert repr(nearest) == (
        f"PositivePairs({dataset.root}, 300 images, match=nearest, Normal(sigma=0.3), "
        "7 x 40 pairs an epoch)"
    )
    assert "match=resample" in repr(resampled)
    pairs = PositivePairs(rendered, batch_size=5)
    assert repr(pairs) == (
        f"PositivePairs({rendered}, 20 rendered pairs, Normal(sigma=0.1), 4 x 5 pairs an epoch)"
    )
    assert "in pairs, 10 factors)" in repr(pairs.dataset)
    assert repr(on_demand()) == (
        "RenderedPairs(Normal(sigma=0.1), preset 3dident, 16 x 16, cpu, 10 pairs a batch, no end)"
    )


def test_sizes_of_batches_and_epochs(dataset):
    for pairs in both_ways(dataset, batch_size=1000):  # more than there are images
        assert pairs.batches == 1
        numbers = dataset.check(pairs[0])
        assert len(numbers[0]) == 1000
    for pairs in both_ways(dataset, batch_size=1, batches=2):
        assert [len(dataset.check(batch)[0]) for batch in pairs.loader()] == [1, 1]
    for wrong in ({"batch_size": 0}, {"batches": 0}):
        with pytest.raises(UsageError, match="at least 1 pair and batch"):
            both_ways(dataset, **wrong)


def test_factors_choose_the_space(dataset):
    some = ThreeDIdent(dataset.root, factors="position")
    pairs = PositivePairs(some, conditional=Normal((0.1, 0.2, 0.3)), batch_size=10)
    assert pairs.process.space == Box(3)
    (z, _), _ = batch = pairs.batch(0, 0)
    assert z.shape == (10, 3)
    dataset.check(batch)
    with pytest.raises(UsageError) as caught:
        PositivePairs(some, Box(10), Normal(0.1))
    for part in ("Box(n=10", "10 dimensions", "latents 3 (x, y, z)"):
        assert part in str(caught.value)
    with pytest.raises(UsageError, match="10 widths for 3 dimensions"):
        PositivePairs(some, conditional=Normal((0.1,) * 10))
    with pytest.raises(UsageError, match="was not rendered in pairs: say from which conditional"):
        PositivePairs(some)


def test_two_images_are_enough_and_one_is_not(tmp_path):
    for count in (1, 2):
        made.make(tmp_path / str(count), count)
    for match in ("nearest", "resample"):
        pairs = PositivePairs(tmp_path / "2", None, Normal(0.1), batch_size=6, match=match)
        i, j = pairs.indices(0, 0)
        assert torch.equal(i + j, torch.ones(6, dtype=torch.int64))
        with pytest.raises(UsageError, match="at least two finite latents"):
            PositivePairs(tmp_path / "1", None, Normal(0.1), match=match)


def test_a_matcher_of_ones_own(dataset):
    some = ThreeDIdent(dataset.root)
    matcher = LatentMatcher(some.raw_latents, match="resample")
    pairs = PositivePairs(some, None, Normal(0.3), matcher=matcher, batch_size=40, seed=3)
    assert same(pairs.batch(0, 1), both_ways(dataset)[1].batch(0, 1))
    for latents in (uniform(300), uniform(200), some.raw_latents[:, :3]):
        with pytest.raises(UsageError, match="the matcher has other latents"):
            PositivePairs(some, None, Normal(0.3), matcher=LatentMatcher(latents))


def test_where_an_index_is_kept(tmp_path, capfd):
    made.make(tmp_path / "d", 60)
    run_command("pack", "d", "--out", "all.h5")
    for name in ("d", "all.h5"):
        for factors in (None, "position", "hue"):
            some = ThreeDIdent(tmp_path / name, factors=factors)
            PositivePairs(some, None, Normal(0.1), index="ivf")
        PositivePairs(some, None, Normal(0.1))  # exact search keeps nothing
    inside = {p.name for p in (tmp_path / "d").glob("matcher-*")}
    assert sum(name.endswith(".faiss") for name in inside) == 3
    assert {p.name for p in tmp_path.glob("all-*")} == {f"all-{name}" for name in inside}
    capfd.readouterr()
    PositivePairs(some, None, Normal(0.1), index="ivf")
    assert capfd.readouterr().err == ""


# --- how wide they are


def warned(make):
    """What a function warns of, but for batches that are larger than their datasets."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", MatchingWarning)
        make()
    messages = [str(each.message) for each in caught]
    return [message for message in messages if not message.startswith("a batch of")]


def test_a_spread_that_is_off_is_said_once_where_pairs_are_made(dataset, tmp_path):
    def make():
        pairs = PositivePairs(dataset.root, conditional=Normal(0.3), batches=2)
        pairs.batch(0, 0)
        list(pairs.loader())
        again = pickle.loads(pickle.dumps(pairs))
        list(data.DataLoader(again, batch_size=None, num_workers=1, multiprocessing_context="fork"))

    with pytest.warns(MatchingWarning) as caught:
        PositivePairs(dataset.root, conditional=Normal(0.3))
    assert caught[0].filename == __file__
    (said,) = warned(make)
    assert said == str(caught[0].message)  # it is the same every time
    found = re.search(r"is about ([0-9.]+) instead of ([0-9.]+) for (\w+), and off by more", said)
    words = ("--conditional", "normal", "--sigma", 0.3, "--json")
    measured = json.loads(run(dataset.root, *words).stdout)
    for value, way in ((found[1], "nearest"), (found[2], "asked")):
        assert float(value) == pytest.approx(measured[way]["std"][found[3]], rel=0.06)
    assert "all 10 factors" in said
    for way_out in ("More images", "render --pairs", "RenderedPairs", "3dident pairs"):
        assert way_out in said


def test_what_is_wide_or_dense_enough_is_not_warned_of(dataset):
    def make(**options):
        return lambda: PositivePairs(dataset.root, **options)

    assert not warned(make(conditional=Normal(1.0)))
    assert not warned(make(conditional=Uniform(), match="resample"))
    (said,) = warned(make(conditional=Normal(0.5)))
    assert 'match="resample" brings it within a quarter' in said
    assert not warned(make(conditional=Normal(0.5), match="resample"))
    (said,) = warned(make(conditional=Normal(0.2)))
    assert "resample" not in said
    assert warned(make(conditional=Normal(0.2), match="resample"))
    one = ThreeDIdent(dataset.root, factors="x")
    assert not warned(lambda: PositivePairs(one, conditional=Normal(0.1)))


def test_one_factor_that_is_off_is_enough(dataset):
    """A mean over ten would hide it."""
    narrow = Normal((*9 * (1.0,), 0.1))
    (said,) = warned(lambda: PositivePairs(dataset.root, None, narrow))
    assert "for background_hue, and off by more than a quarter for background_hue." in said
    raw = dataset.truth.raw_latents.copy()
    raw[:, 4] = 0.25
    made.make(Path("flat"), 300, raw=raw)
    (said,) = warned(lambda: PositivePairs("flat", None, Normal(1.0)))
    assert "about 0 instead of 0." in said
    assert "for theta." in said


def test_factors_that_a_preset_holds_are_not_missed(tmp_path):
    words = ("render", *ENGINE, "--n", 60, "--workers", 1, "--preset", "3dident-positions")
    run_command(*words, "--out", tmp_path / "positions")
    assert not warned(lambda: PositivePairs(tmp_path / "positions", conditional=Normal(0.7)))
    (said,) = warned(lambda: PositivePairs(tmp_path / "positions", conditional=Normal(0.1)))
    assert "for x, y, z." in said


def test_a_batch_that_is_larger_than_its_dataset_is_warned_of(dataset):
    dataset = ThreeDIdent(dataset.root)
    count = len(dataset)
    with pytest.warns(MatchingWarning, match=f"{count + 1} pairs is more than the {count} of"):
        PositivePairs(dataset, conditional=Uniform(), batch_size=count + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PositivePairs(dataset, conditional=Uniform(), match="resample", batch_size=count)


def test_rendered_pairs_are_as_wide_as_they_are(rendered):
    assert not warned(lambda: PositivePairs(rendered))


def test_the_command_line_shows_the_warning_in_one_line(dataset, tmp_path):
    words = ["train", "demo", "--data", dataset.root, "--out", tmp_path / "run"]
    for setting in ("steps=1", "batch_size=16"):
        words += ["--set", f"training.{setting}"]
    with warnings.catch_warnings():
        warnings.simplefilter("always", MatchingWarning)
        said = run_command(*words).stderr
    lines = [line for line in said.splitlines() if "spread" in line]
    assert len(lines) == 1
    assert lines[0].startswith("warning: pairs matched among 300 images do not have the spread")


# --- a dataset rendered in pairs


def test_rendered_pairs_come_once_an_epoch(rendered):
    some = ThreeDIdent(rendered)
    raw = some.raw_latents
    everything = some.images(range(40))
    assert raw.shape == (40, 10)
    pairs = PositivePairs(rendered, batch_size=5, seed=1)
    assert pairs.process == PairProcess(Box(10), Normal(0.1))
    assert pairs.matcher is None
    assert pairs.batches == 4
    orders = []
    for epoch, threads in ((0, 1), (1, 3)):
        loader = pairs.loader(threads=threads)
        loader.epoch = epoch
        order = []
        for (z, z_tilde), (x, x_tilde) in loader:
            for row in range(5):
                number = int((raw[::2] == z[row]).all(1).nonzero())
                order.append(number)
                assert torch.equal(z_tilde[row], raw[2 * number + 1])
                assert torch.equal(x[row], everything[2 * number])
                assert torch.equal(x_tilde[row], everything[2 * number + 1])
        assert sorted(order) == list(range(20))
        orders.append(order)
    orders.append([int(i) // 2 for n in range(4) for i in pairs.indices(2, n)[0]])
    other = PositivePairs(rendered, batch_size=5, seed=2)
    orders.append([int(i) // 2 for n in range(4) for i in other.indices(0, n)[0]])
    assert len({tuple(order) for order in orders}) == 4
    assert same(pairs.batch(1, 2), PositivePairs(rendered, batch_size=5, seed=1).batch(1, 2))


def test_rendered_pairs_that_do_not_fill_a_batch_and_batches_that_they_do_not_fill(rendered):
    pairs = PositivePairs(rendered, batch_size=8)
    assert pairs.batches == 2
    found = torch.cat([pairs.indices(0, n)[0] for n in range(2)])
    assert len(set(found.tolist())) == 16
    large = PositivePairs(rendered, batch_size=50, batches=2)
    i, j = map(torch.cat, zip(*(large.indices(0, n) for n in range(2)), strict=True))
    assert torch.equal(j, i + 1)
    assert np.bincount(i // 2).tolist() == 20 * [5]
    assert len({tuple(i[s : s + 20].tolist()) for s in range(0, 100, 20)}) == 5


def test_rendered_pairs_are_what_they_are(rendered):
    PositivePairs(rendered, Box(10), Normal(0.1), marginal=Uniform())
    for space, conditional, message in (
        (None, Normal(0.2), r"in pairs with conditional Normal\(sigma=0\.1\), asked for Normal"),
        (Sphere(10), None, "with space Box.*asked for Sphere"),
    ):
        with pytest.raises(UsageError, match=message):
            PositivePairs(rendered, space, conditional)
    (z, _), _ = PositivePairs(ThreeDIdent(rendered, factors="hue"), batch_size=3).batch(0, 0)
    assert z.shape == (3, 3)


def test_rendered_pairs_in_worker_processes(rendered):
    pairs = PositivePairs(rendered, batch_size=6)
    for epoch in range(2):
        pairs.set_epoch(epoch)
        loader = data.DataLoader(
            pairs, batch_size=None, num_workers=2, multiprocessing_context="fork"
        )
        for number, batch in enumerate(loader):
            assert same(batch, pairs.batch(epoch, number))
