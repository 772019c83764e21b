"""Matching, positive pairs and their loader, `3dident pairs`, and pairs rendered on demand."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import multiprocessing as mp
import os
import pickle
import re
import signal
import threading
import time
import warnings
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import fake_dataset as made
from helpers.commands import run_command
from helpers.fake_dataset import in_a_fork, same, wait_for
from PIL import Image
from scipy import stats
from torch.utils import data

from threedident import cli as cli_module
from threedident.baselines.data import _LATENTS
from threedident.baselines.reproduce.studies import STUDIES
from threedident.datasets import (
    Box,
    Change,
    GeneralizedNormal,
    Laplace,
    LatentMatcher,
    Normal,
    PairLoader,
    PairProcess,
    PerFactor,
    PositivePairs,
    ProjectedNormal,
    RenderedPairs,
    Sphere,
    ThreeDIdent,
    Unchanged,
    Uniform,
    VonMisesFisher,
)
from threedident.datasets import latent_matcher as matching
from threedident.datasets import matching_report as realised
from threedident.datasets.loader import Buffers
from threedident.distributions.torch_sampler import seeded
from threedident.errors import DatasetError, MatchingWarning, RenderError, UsageError
from threedident.factors import FACTOR_NAMES
from threedident.presets import load_preset
from threedident.render.direct import render
from threedident.system import is_running

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

KINDS = ("exact", "ivf", "hnsw")
ENGINE = ("--engine", "direct", "--resolution", 16, "--quality", "draft")


def uniform(count, n=10, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, n)).astype(np.float32)


def sphere(count, n, seed=0):
    points = np.random.default_rng(seed).normal(size=(count, n))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def brute_force(latents, points, k=1):
    """Distances and numbers of the k nearest, in double precision."""
    distances, found = [], []
    for start in range(0, len(points), 100):
        d = np.sqrt(((points[start : start + 100, None].astype(float) - latents) ** 2).sum(2))
        order = np.argpartition(d, k - 1, 1)[:, :k]
        order = np.take_along_axis(order, np.take_along_axis(d, order, 1).argsort(1), 1)
        found.append(order)
        distances.append(np.take_along_axis(d, order, 1))
    return np.concatenate(distances), np.concatenate(found)


# --- nearest neighbours


def test_exact_search_is_exact():
    latents, points = uniform(3000), uniform(500, seed=1)
    matcher = LatentMatcher(latents)
    assert matcher.factory == "Flat"
    for k in (1, 4):
        distances, found = matcher.nearest(points, k)
        expected, truth = brute_force(latents, points, k)
        assert np.array_equal(found, truth)
        assert distances == pytest.approx(expected, rel=1e-4)
    assert matcher.recall(300) == 1


@pytest.fixture(scope="module")
def many():
    """Latents, points, and the nearest latents of the points."""
    latents, points = uniform(30_000), uniform(1000, seed=1)
    return latents, points, brute_force(latents, points)[1]


@pytest.mark.parametrize("index", ["ivf", "hnsw"])
def test_approximate_search_finds_nearly_all(many, index):
    latents, points, truth = many
    matcher = LatentMatcher(latents, index=index)
    assert matcher.factory == {"ivf": "IVF256_HNSW32,Flat", "hnsw": "HNSW32,Flat"}[index]
    found = matcher.nearest(points)[1]
    recall = (found == truth).mean()
    assert recall >= 0.95
    assert matcher.recall(1000, seed=5) == pytest.approx(recall, abs=0.03)


@pytest.mark.parametrize("index", ["ivf", "hnsw"])
def test_how_far_is_searched(index):
    latents = uniform(4000)
    few = {"nprobe": 1} if index == "ivf" else {"ef_search": 1}
    narrow, wide = (LatentMatcher(latents, index=index, **o) for o in (few, {}))
    assert narrow.recall(1000, seed=5) < 0.9 < wide.recall(1000, seed=5)


def test_which_index_is_taken():
    assert LatentMatcher(uniform(20_001, 2)).factory == "IVF256_HNSW32,Flat"
    assert LatentMatcher(uniform(20_000, 2)).factory == "Flat"
    assert LatentMatcher(uniform(300, 2), index="IVF4,Flat").factory == "IVF4,Flat"


@pytest.mark.parametrize("index", KINDS)
def test_both_members_of_a_pair_are_matched_and_never_to_one_image(index):
    latents = uniform(2000, 3)
    matcher = LatentMatcher(latents, index=index, nprobe=1000, ef_search=200)
    process = PairProcess(Box(3), Normal(0.02))
    z, z_tilde = (t.numpy() for t in process.sample(1000, generator=seeded(0)))
    i, j = matcher.nearest_pairs(z, z_tilde)
    first, second = brute_force(latents, z)[1], brute_force(latents, z_tilde, 2)[1]
    expected = np.where(second[:, 0] == first[:, 0], second[:, 1], second[:, 0])
    assert 100 < (second[:, 0] == first[:, 0]).sum() < 900
    if index == "exact":
        assert np.array_equal(i, first[:, 0])
        assert np.array_equal(j, expected)
    assert (j == expected).mean() > 0.98
    assert (i != j).all()
    i, j = matcher.nearest_pairs(latents, latents)
    assert (i == np.arange(2000)).mean() > 0.98
    assert (i != j).all()


@pytest.mark.parametrize("index", KINDS)
def test_few_latents_and_latents_that_occur_more_than_once(index, capfd):
    for copies in (1, 2, 3, 50):
        points = uniform(2, 4).repeat(copies, 0)
        matcher = LatentMatcher(points, index=index)
        i, j = matcher.nearest_pairs(points, points)
        assert (i != j).all()
        assert np.array_equal(points[i], points)
        assert np.array_equal(points[j], points if copies > 1 else points[::-1])
    matcher = LatentMatcher(np.ones((30, 4)), index=index)  # nothing but copies, constant columns
    i, j = matcher.nearest_pairs(*2 * [np.zeros((20, 4))])
    assert (i != j).all()
    capfd.readouterr()  # FAISS warns of so few


@pytest.mark.parametrize("latents", [uniform(1), uniform(5)[0], np.full((3, 2), np.nan), []])
def test_latents_that_cannot_be_matched(latents):
    with pytest.raises(UsageError, match="at least two finite latents"):
        LatentMatcher(latents)


def test_queries_that_do_not_fit():
    matcher = LatentMatcher(uniform(5, 3))
    for points, k in ((uniform(2, 4), 1), (uniform(2, 3)[0], 1), (uniform(2, 3), 6)):
        with pytest.raises(UsageError, match=r"\(B, 3\) and k in \[1, 5\], found shape"):
            matcher.nearest(points, k)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": "fast"}, r"FAISS cannot build the index 'fast' of 300 latents \(could not"),
        ({"index": "IVF400,Flat"}, r"latents \(Number of training points .*: expected auto"),
        ({"match": "closest"}, "nearest, resample, found 'closest'"),
        ({"nprobe": 0}, "must be >= 1"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(UsageError, match=message):
        LatentMatcher(uniform(300), **options)


def test_the_matchers_latents_are_its_own():
    latents = torch.from_numpy(uniform(50))
    matcher = LatentMatcher(latents)
    latents.zero_()
    assert np.array_equal(matcher.latents, uniform(50))
    frozen = uniform(50)
    frozen.setflags(write=False)
    matcher = LatentMatcher(frozen, match="resample")
    assert len(matcher.resample(torch.arange(5), PairProcess(Box(10), Normal(1))).partners) == 5


# --- an index that is kept


def keep(tmp_path, latents):
    return LatentMatcher(latents, index="ivf", path=tmp_path / "kept.faiss")


def test_a_saved_index_is_mapped_and_not_built_again(tmp_path, many, monkeypatch, capsys):
    latents, points, _ = many
    first = keep(tmp_path, latents)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept.faiss", "kept.json"]
    monkeypatch.setattr(LatentMatcher, "_build", None)
    second = keep(tmp_path, latents)
    lists = faiss.downcast_InvertedLists(faiss.extract_index_ivf(second._index).invlists)
    assert isinstance(lists, faiss.OnDiskInvertedLists)
    assert np.array_equal(first.nearest(points)[1], second.nearest(points)[1])
    again = pickle.loads(pickle.dumps(second))
    assert np.array_equal(first.nearest(points)[1], again.nearest(points)[1])
    assert capsys.readouterr().err == ""


def other_latents(path):
    found = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**found, "latents": 64 * "0"}))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        other_latents,
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.with_suffix(".json").unlink(),
        lambda path: path.with_suffix(".json").write_text("{"),
    ],
)
def test_an_index_of_something_else_or_damaged_is_built_anew(tmp_path, capsys, damage):
    latents, points = uniform(2000, 3), uniform(100, 3, seed=1)
    expected = keep(tmp_path, latents).nearest(points)[1]
    damage(tmp_path / "kept.faiss")
    assert np.array_equal(keep(tmp_path, latents).nearest(points)[1], expected)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"building the index {tmp_path / 'kept.faiss'} anew: ")
    assert np.array_equal(keep(tmp_path, latents).nearest(points)[1], expected)
    assert capsys.readouterr().err == ""


def test_an_index_of_other_latents(tmp_path, capsys):
    keep(tmp_path, uniform(2000, 3))
    points = uniform(100, 3, seed=1)
    other = uniform(2000, 3, seed=2)
    found = keep(tmp_path, other).nearest(points)[1]
    assert "it belongs to other latents, or is damaged" in capsys.readouterr().err
    assert (found == brute_force(other, points)[1]).mean() > 0.95


@pytest.mark.parametrize("where", ["missing/kept.faiss", "file/kept.faiss", "folder"])
def test_where_no_index_can_be_kept(tmp_path, capsys, where):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    latents, points = uniform(2000, 3), uniform(100, 3, seed=1)
    matcher = LatentMatcher(latents, index="ivf", path=tmp_path / where)
    assert (matcher.nearest(points)[1] == brute_force(latents, points)[1]).mean() > 0.95
    assert "the index is not kept: " in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path, capsys):
    tmp_path.chmod(0o500)
    keep(tmp_path, uniform(2000, 3))
    tmp_path.chmod(0o700)
    assert "the index is not kept: " in capsys.readouterr().err


def keep_at_once(folder, latents, barrier):
    for _ in range(5):
        barrier.wait()
        matcher = keep(folder, latents)
        barrier.wait()
        assert matcher._read() is not None  # what both have left belongs together
        barrier.wait()
        (folder / "kept.faiss").unlink(missing_ok=True)


def test_two_processes_keep_an_index_at_once(tmp_path):
    latents, points = uniform(3000, 3), uniform(100, 3, seed=1)
    context = mp.get_context("fork")
    arguments = (tmp_path, latents, context.Barrier(2))
    both = [context.Process(target=keep_at_once, args=arguments) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        wait_for(process)
    found = keep(tmp_path, latents).nearest(points)[1]
    assert (found == brute_force(latents, points)[1]).mean() > 0.95
    assert not list(tmp_path.glob(".tmp-*"))


def search_again(matcher, points, expected):
    for _ in range(2):
        assert np.array_equal(matcher.nearest(points)[1], expected)
    thread = threading.Thread(target=matcher.nearest, args=(points,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("index", [*KINDS, "ivf, mapped"])
def test_a_forked_process_can_search(tmp_path, index):
    """FAISS's threads are not there in it: it must not wait for them."""
    latents, points = uniform(5000), uniform(1000, seed=1)
    kind, _, mapped = index.partition(", ")
    options = {"index": kind, "path": tmp_path / "kept.faiss" if mapped else None}
    for _ in range(2 if mapped else 1):
        matcher = LatentMatcher(latents, **options)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    expected = matcher.nearest(points)[1]
    in_a_fork(search_again, matcher, points, expected)
    faiss.omp_set_num_threads(before)


# --- resampling


def log_density(conditional, mean, points):
    """Of points around one mean, up to a constant; in double precision."""
    d = points.astype(float) - mean.astype(float)
    match conditional:
        case Normal(sigma=s):
            return (-(d**2) / (2 * np.array(s) ** 2)).sum(1)
        case Laplace(lam=s):
            return (-np.abs(d) / np.array(s)).sum(1)
        case GeneralizedNormal(lam=s, beta=b):
            return (-((np.abs(d) / np.array(s)) ** b)).sum(1)
        case VonMisesFisher(kappa=k):
            return k * (points.astype(float) @ mean.astype(float))
        case PerFactor(parts=parts):
            return sum(log_density(p, mean[list(c)], points[:, list(c)]) for c, p in parts)
        case Uniform():
            return np.zeros(len(points))
    raise AssertionError(conditional)


def exact_weights(process, latents, anchor):
    weight = np.exp(log_density(process.conditional, latents[anchor], latents))
    weight[anchor] = 0
    weight[process.space.outside(latents)] = 0
    return weight


PROCESSES = [
    PairProcess(Box(3), Normal(0.4)),
    PairProcess(Box(3), Normal((0.2, 0.6, 2.0))),
    PairProcess(Box(3), Laplace(0.3)),
    PairProcess(Box(3), GeneralizedNormal(0.8, 3.0)),
    PairProcess(Box(3), GeneralizedNormal(0.5, 0.5)),
    PairProcess(Box(3), Uniform()),
    PairProcess(Box(3, -0.9, 0.8), Normal(0.4)),
    PairProcess(Sphere(3), VonMisesFisher(3.0)),
    PairProcess(Box(3), PerFactor((((2,), Laplace(0.5)), ((0, 1), Normal(0.5))))),
    PairProcess(Box(3), PerFactor((((0, 2), Uniform()), ((1,), Normal(0.3))))),
]


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_partners_follow_the_conditional(process, monkeypatch):
    monkeypatch.setattr(matching, "_BLOCK", 5)  # three blocks
    latents = (sphere if isinstance(process.space, Sphere) else uniform)(12, 3, seed=4)
    if isinstance(process.space, Box) and process.space.high < 1:
        assert process.space.outside(latents).any()
    matcher = LatentMatcher(latents, match="resample")
    draws = 2500
    anchors = torch.arange(12).repeat_interleave(draws)
    found = matcher.resample(anchors, process, seeded(1))
    partners = found.partners.view(12, draws).numpy()
    effective = found.effective.view(12, draws).numpy()
    p_values = []
    for anchor in range(12):
        weight = exact_weights(process, latents, anchor)
        counts = np.bincount(partners[anchor], minlength=12)
        assert counts[weight == 0].sum() == 0
        expected = draws * weight / weight.sum()
        often = expected >= 5
        rest = [counts[~often].sum()], [expected[~often].sum()]
        observed, wanted = np.append(counts[often], rest[0]), np.append(expected[often], rest[1])
        if wanted[-1] < 1:
            assert observed[-1] < 10
            observed, wanted = observed[:-1], wanted[:-1] * observed[:-1].sum() / wanted[:-1].sum()
        p_values.append(stats.chisquare(observed, wanted).pvalue)
        size = weight.sum() ** 2 / (weight**2).sum()
        assert effective[anchor] == pytest.approx(np.full(draws, size), rel=1e-4)
    assert min(p_values) > 1e-4
    assert max(p_values) > 0.05


def test_partners_from_many_latents_are_those_of_the_inverse_transform():
    """Across the blocks that weights are summed in."""
    latents = uniform(1700, 2)
    process = PairProcess(Box(2), Laplace(0.2))
    matcher = LatentMatcher(latents, match="resample")
    anchors = torch.randint(1700, (500,), generator=seeded(2))
    found = matcher.resample(anchors, process, seeded(3)).partners.numpy()
    levels = torch.rand(500, dtype=torch.float64, generator=seeded(3)).numpy()
    expected = []
    for anchor, level in zip(anchors.tolist(), levels, strict=True):
        upto = exact_weights(process, latents, anchor).cumsum()
        expected.append(np.searchsorted(upto, level * upto[-1], side="right"))
    assert (found == expected).mean() > 0.99  # in float32 one in a thousand moves by one
    assert np.abs(np.array(expected) - found).max() < 100
    assert (found != anchors.numpy()).all()


@pytest.mark.parametrize("process", [PROCESSES[1], PROCESSES[7]], ids=str)
def test_partners_do_not_depend_on_how_the_work_is_cut(process, monkeypatch):
    latents = (sphere if isinstance(process.space, Sphere) else uniform)(700, 3)
    anchors = torch.arange(0, 700, 3)
    found = []
    for at_once in (2**24, 700 * 10, 1):
        monkeypatch.setattr(matching, "_AT_ONCE", at_once)
        matcher = LatentMatcher(latents, match="resample")
        found.append(matcher.resample(anchors, process, seeded(0)))
    for other in found[1:]:
        assert torch.equal(other.partners, found[0].partners)
        assert torch.equal(other.effective, found[0].effective)


def test_partners_when_next_to_nothing_has_weight():
    latents = uniform(600, 4)
    process = PairProcess(Box(4), Normal(1e-3))  # all but the nearest underflow
    matcher = LatentMatcher(latents, match="resample")
    found = matcher.resample(torch.arange(600), process, seeded(0))
    assert np.array_equal(found.partners.numpy(), brute_force(latents, latents, 2)[1][:, 1])
    assert found.effective.min() >= 1
    twins = LatentMatcher(np.zeros((2, 4)), match="resample")
    assert twins.resample(torch.tensor([0, 1, 1]), process).partners.tolist() == [1, 0, 0]


@pytest.mark.parametrize(("level", "end"), [(0.0, 0), (1 - 2.0**-53, -1)])
def test_partners_at_the_ends_of_the_random_numbers(monkeypatch, level, end):
    """What has no weight is not drawn even there: the anchor, and what is not in the space."""
    monkeypatch.setattr(matching, "_BLOCK", 5)
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), level).double())
    latents = uniform(13, 2)
    latents[[0, 1, 6, 12]] = 2.0
    inside = [2, 3, 4, 5, 7, 8, 9, 10, 11]
    matcher = LatentMatcher(latents, match="resample")
    process = PairProcess(Box(2), Normal(1.0))
    for anchor in range(13):
        (partner,) = matcher.resample(torch.tensor([anchor]), process).partners.tolist()
        assert partner == [i for i in inside if i != anchor][end]


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


def test_anchors_follow_the_marginal():
    latents = uniform(40, 2, seed=3)
    matcher = LatentMatcher(latents, match="resample")

    def counts(process):
        return np.bincount(matcher.anchors(process, 20_000, seeded(0)), minlength=40)

    even = counts(PairProcess(Box(2), Normal(0.1)))
    assert stats.chisquare(even).pvalue > 1e-3
    weight = np.exp(-(latents.astype(float) ** 2).sum(1) / (2 * 0.5**2))
    bell = counts(PairProcess(Box(2), Normal(0.1), Normal(0.5)))
    assert stats.chisquare(bell, 20_000 * weight / weight.sum()).pvalue > 1e-3
    inside = (np.abs(latents) <= 0.5).all(1)
    assert 3 < inside.sum() < 30
    part = counts(PairProcess(Box(2, -0.5, 0.5), Normal(0.1)))
    assert part[~inside].sum() == 0
    assert stats.chisquare(part[inside]).pvalue > 1e-3
    with pytest.raises(UsageError, match="no rendered latent lies in Sphere"):
        counts(PairProcess(Sphere(2, 7.0), VonMisesFisher(1.0)))


def test_no_other_latent_in_reach():
    latents = np.array([[0.0, 0], [5, 5], [6, 6]])
    matcher = LatentMatcher(latents, match="resample")
    with pytest.raises(UsageError, match="gives no other rendered latent any weight"):
        matcher.resample(torch.tensor([0]), PairProcess(Box(2), Normal(0.1)))


def test_what_matching_does_to_the_published_conditional():
    """10,000 uniform latents in ten dimensions cannot represent a standard deviation of 0.1."""
    latents = uniform(10_000)
    process = PairProcess(Box(10), Normal(0.1))
    matcher = LatentMatcher(latents)
    z, z_tilde = (t.numpy() for t in process.sample(4000, generator=seeded(0)))
    assert np.sqrt(((z_tilde - z) ** 2).mean()) == pytest.approx(0.097, abs=0.003)
    i, j = matcher.nearest_pairs(z, z_tilde)
    assert 0.34 < np.sqrt(((latents[j] - latents[i]) ** 2).mean()) < 0.38
    anchors = torch.arange(0, 10_000, 10)
    j = matcher.resample(anchors, process, seeded(0)).partners.numpy()
    assert 0.23 < np.sqrt(((latents[j] - latents[::10]) ** 2).mean()) < 0.27


# --- batches of pairs


class Made:
    """A dataset of 300 images, and what it holds."""

    def __init__(self, root):
        self.root = root
        self.truth = made.make(root, 300)

    def rows(self, z):
        """Which images latents belong to."""
        columns = z.shape[1]
        hits = (self.truth.raw_latents[None, :, :columns] == z.numpy()[:, None]).all(2)
        assert (hits.sum(1) == 1).all()
        return hits.argmax(1)

    def check(self, batch):
        """That images are those of the latents, and no pair is twice the same image."""
        numbers = []
        for z, x in zip(*batch, strict=True):
            assert z.dtype == torch.float32
            assert x.dtype == torch.uint8
            assert x.shape == (len(z), 3, 8, 8)
            assert x.is_contiguous(memory_format=torch.channels_last)
            numbers.append(self.rows(z))
            assert np.array_equal(x.permute(0, 2, 3, 1), self.truth.pixels[numbers[-1]])
        assert (numbers[0] != numbers[1]).all()
        return numbers


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("made") / "d")


def both_ways(dataset, **options):
    """Pairs that are matched, and pairs that are resampled."""
    options = {"conditional": Normal(0.3), "batch_size": 40, "seed": 3, **options}
    return [PositivePairs(dataset.root, match=m, **options) for m in ("nearest", "resample")]


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


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_give_the_same_batches(dataset, threads):
    for pairs in both_ways(dataset):
        assert len(pairs) == pairs.batches == 300 // 40
        loader = pairs.loader(threads=threads)
        for epoch in range(2):
            found = list(loader)
            assert len(found) == len(loader) == 7
            for number, batch in enumerate(found):
                assert same(batch, pairs.batch(epoch, number))


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_worker_processes_give_the_same_batches(dataset, context, workers, capfd):
    ways = both_ways(dataset, batches=3)
    ways.append(both_ways(dataset, batches=3, index="ivf")[0])
    kept = list(dataset.root.glob("matcher-*.faiss"))
    assert len(kept) == 1
    ways.append(PositivePairs(ThreeDIdent(dataset.root, cache="ram"), None, Normal(0.3), batches=3))
    expected = {epoch: [p.batch(epoch, n) for p in ways for n in range(3)] for epoch in (0, 2, 1)}
    loader = data.DataLoader(
        data.ConcatDataset(ways),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    for epoch, batches in expected.items():
        for pairs in ways:
            pairs.set_epoch(epoch)  # the workers are there already in the second epoch
        for found, batch in zip(loader, batches, strict=True):
            assert same(found, batch)
            assert found[1][0].is_contiguous(memory_format=torch.channels_last)
    assert "Error" not in capfd.readouterr().err


def test_the_epoch_of_items(dataset):
    pairs = both_ways(dataset)[0]
    assert same(pairs[1], pairs.batch(0, 1))
    pairs.set_epoch(5)
    assert same(pairs[-1], pairs.batch(5, 6))
    assert same(pickle.loads(pickle.dumps(pairs))[0], pairs.batch(5, 0))
    for wrong in (7, -8):
        with pytest.raises(IndexError):
            pairs[wrong]


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


def test_a_loader_that_would_make_batches_of_batches_is_refused(dataset):
    for pairs in both_ways(dataset):
        with pytest.raises(UsageError, match=r"of PositivePairs are whole .*batch_size=None"):
            next(iter(data.DataLoader(pairs, batch_size=32)))
        assert same(next(iter(data.DataLoader(pairs, batch_size=None))), pairs[0])


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


# --- the loader


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("pairs")]


class Numbers:
    """A source whose batches are their numbers, ready out of order."""

    def __init__(self, batches=None, broken=None, delay=0.002):
        self.batches, self.broken, self.delay, self.asked = batches, broken, delay, []

    def batch(self, epoch, number):
        self.asked.append(number)
        time.sleep(self.delay * (number % 3))
        if number == self.broken:
            raise RenderError(f"batch {number} is broken")
        return epoch, number


def test_the_loader_gives_batches_in_order_and_goes_on():
    loader = PairLoader(Numbers(9), threads=3, ahead=1)
    assert len(loader) == 9
    assert list(loader) == [(0, n) for n in range(9)]
    assert list(loader) == [(1, n) for n in range(9)]
    loader.epoch, loader.start = 7, 6
    assert list(loader) == [(7, 6), (7, 7), (7, 8)]
    assert list(loader) == [(8, n) for n in range(9)]
    loader.start = 9
    assert list(loader) == []
    assert loader.epoch == 10
    assert not loader_threads()


def test_a_source_without_end():
    loader = PairLoader(Numbers(), threads=2)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    assert list(itertools.islice(loader, 20)) == [(0, n) for n in range(20)]


def test_no_more_is_prepared_than_asked_for():
    source = Numbers(100, delay=0)
    for batch in PairLoader(source, threads=2, ahead=3):
        if batch == (0, 4):
            time.sleep(0.2)  # time for as many as there are
            break
    assert 4 < max(source.asked) <= 4 + 2 + 3


def test_breaking_off_leaves_no_thread():
    loader = PairLoader(Numbers(), threads=2, ahead=3)
    for batch in loader:
        if batch == (0, 4):
            break
    assert not loader_threads()
    assert next(iter(loader)) == (1, 0)
    iterator = iter(loader)
    next(iterator)
    assert loader_threads()
    del iterator
    assert not loader_threads()
    iter(loader)
    assert loader.epoch == 4
    assert not loader_threads()  # nothing starts before the first batch


def test_an_error_in_a_batch_surfaces_once():
    source = Numbers(20, broken=5)
    loader = PairLoader(source)
    iterator, found = iter(loader), []
    with pytest.raises(RenderError, match="batch 5 is broken"):
        for batch in iterator:
            found.append(batch)
    assert found == [(0, n) for n in range(5)]
    assert not loader_threads()
    assert list(iterator) == []
    source.broken = None
    assert len(list(loader)) == 20


def test_an_unreadable_image_surfaces(tmp_path):
    made.make(tmp_path / "d", 120)
    pairs = PositivePairs(tmp_path / "d", None, Normal(0.3), batch_size=50, batches=5)
    (tmp_path / "d/shard-00000100-00020.h5").unlink()
    with pytest.raises(DatasetError, match=r"shard-00000100-00020\.h5"):
        list(pairs.loader())
    assert not loader_threads()


@pytest.mark.parametrize("options", [{"threads": 0}, {"ahead": -1}])
def test_loader_options_that_do_not_fit(options):
    with pytest.raises(UsageError, match="threads >= 1 and ahead >= 0"):
        PairLoader(Numbers(), **options)


# --- buffers


HOLD = {
    "itself": lambda t: t,
    "slice": lambda t: t[1:2, 3:],
    "view": lambda t: t.view(-1),
    "permuted": lambda t: t.permute(0, 3, 1, 2)[2:],
    "detached": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "numpy slice": lambda t: t.numpy()[1:, ::2],
    "numpy view": lambda t: t.numpy().view(np.int8).reshape(-1)[5:],
    "memoryview": lambda t: memoryview(t.numpy()),
    "dlpack": np.from_dlpack,
    "through numpy": lambda t: torch.from_numpy(t.numpy()[2:]),
    "frombuffer": lambda t: torch.frombuffer(t.numpy(), dtype=torch.uint8),
    "storage": lambda t: t.untyped_storage(),
    "closure": lambda t: lambda: t,
}


@pytest.mark.parametrize("way", HOLD)
def test_a_buffer_is_not_used_again_while_somebody_holds_it(way):
    buffers = Buffers()
    shape = (4, 6, 6, 3)
    taken = buffers.take(shape)
    assert taken.shape == shape
    assert taken.dtype == torch.uint8
    assert taken.is_contiguous()
    before = taken.data_ptr()
    held = HOLD[way](taken)
    del taken
    others = [buffers.take(shape) for _ in range(3)]
    assert before not in [other.data_ptr() for other in others]
    del held
    gc.collect()
    assert buffers.take(shape).data_ptr() == before


def test_buffers_of_other_shapes_are_others():
    buffers = Buffers()
    first = buffers.take((2, 4))
    place = first.data_ptr()
    del first
    assert buffers.take((4, 2)).shape == (4, 2)
    assert buffers.take((2, 4)).data_ptr() == place


def test_what_is_kept_of_many_buffers():
    buffers = Buffers()
    many = [buffers.take((10,)) for _ in range(50)]
    del many
    assert sum(map(len, buffers._free.values())) == 8
    assert pickle.loads(pickle.dumps(buffers)).take((10,)).shape == (10,)


def test_a_batch_that_the_garbage_collector_lets_go_in_the_middle_of_taking_one():
    buffers = Buffers()
    held = [buffers.take((10,))]

    class Collecting(dict):
        def setdefault(self, key, default):
            held.clear()  # as a cycle through a batch is, at any allocation
            return super().setdefault(key, default)

    buffers._free = Collecting(buffers._free)
    thread = threading.Thread(target=buffers.take, args=((10,),), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_pinned_memory_needs_a_gpu(dataset):
    with pytest.raises(UsageError, match="pin_memory is for a GPU, and torch finds none"):
        both_ways(dataset, pin_memory=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_pinned_memory_is_not_used_again_before_it_is_copied(dataset):
    pairs = both_ways(dataset, pin_memory=True, batches=20)[0]
    copies = []
    for batch in pairs.loader():
        assert batch[1][0].is_pinned()
        torch.cuda._sleep(10**7)  # the copy waits for this
        copies.append((batch[0][0], batch[1][0].to("cuda", non_blocking=True)))
        del batch
    for z, x in copies:
        assert np.array_equal(x.cpu().permute(0, 2, 3, 1), dataset.truth.pixels[dataset.rows(z)])


def test_batches_that_are_held_stay_as_they_are(dataset):
    """And memory that nobody holds is used again."""
    for pairs in both_ways(dataset, batches=30):
        random = np.random.default_rng(0)
        held, places = [], set()
        for batch in pairs.loader(threads=3):
            places.add(batch[1][0].data_ptr())
            if random.random() < 0.3:  # now of x, now of x~, now a part
                which = int(random.integers(2))
                held.append((batch[0][which][5:], batch[1][which][5:]))
            if random.random() < 0.15 and held:
                held.pop(0)
            del batch
            for z, x in held:
                assert np.array_equal(x.permute(0, 2, 3, 1), dataset.truth.pixels[dataset.rows(z)])
        assert held
        pairs.batch(0, 0)
        del held
        places.clear()
        for batch in pairs.loader(threads=1, ahead=0):
            places.add(batch[1][0].data_ptr())
            del batch
        assert len(places) <= 8


# --- a dataset rendered in pairs


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Twenty pairs."""
    root = tmp_path_factory.mktemp("rendered") / "pairs"
    words = ["render", "--pairs", "--conditional", "normal", "--sigma", 0.1, *ENGINE, "--n", 20]
    words += ["--workers", 1, "--out", root]
    run_command(*words)
    return root


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


# --- 3dident pairs


def run(*words, code=0):
    """`3dident pairs` in this process."""
    done = CliRunner().invoke(cli_module.main, ["pairs", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


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
    assert lines[0] == "d: 300 images, Flat; Laplace(lam=0.2), 3000 draws"
    assert lines[1].split() == ["asked", "nearest", "resampled"]
    for line, name in zip(lines[2:], names, strict=False):
        values = [found[way]["std"][name] for way in ("asked", "nearest", "resampled")]
        assert line.split()[-4:] == [name, *(f"{v:.4f}" for v in values)]
    assert f"both draws hit one image{share:>21.1%}".split()[-1] in said
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


def test_partners_of_all_latents_are_those_that_resampling_draws():
    space = Box(2)
    latents = Uniform().marginal(space, 600, generator=seeded(0))
    matcher = LatentMatcher(latents, match="resample")
    process = PairProcess(space, Laplace(0.2))
    partners = matcher.partners(process, 2000, seeded(1))
    assert partners.shape == (600, 2000) and partners.dtype == torch.int32
    assert (partners != torch.arange(600)[:, None]).all()
    for anchor in (0, 555):
        expected = (-(latents - latents[anchor]).abs().sum(1) / 0.2).exp()
        expected[anchor] = 0
        counts = torch.bincount(partners[anchor], minlength=600)
        likely = expected > expected.sum() * 0.01  # at least 20 draws each
        observed = [*counts[likely].tolist(), int(counts[~likely].sum())]
        shares = torch.cat([expected[likely], expected[~likely].sum()[None]]).double()
        assert stats.chisquare(observed, (2000 * shares / shares.sum()).tolist()).pvalue > 1e-4
    assert torch.equal(partners, matcher.partners(process, 2000, seeded(1)))


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


# --- pairs rendered on demand


def on_demand(**options):
    options = {"resolution": 16, "quality": "draft", "batch_size": 10, "seed": 4, **options}
    return RenderedPairs(conditional=Normal(0.1), **options)


def alive(pids):
    return [pid for pid in pids if is_running(pid) and b"\nState:\tZ" not in status(pid)]


def status(pid):
    try:
        return Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return b"\nState:\tZ"


def wait_until_gone(pids):
    """As long as it takes on a busy machine."""
    for _ in range(600):
        if not alive(pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {alive(pids)}")


def test_pairs_rendered_on_demand_and_a_process_that_dies():
    with on_demand(workers=1, preset="3dident-positions", batches=3) as one:
        expected = [one.batch(0, 0), one.batch(0, 1), one.batch(2, 1)]
        pids = [process.pid for process in one._renderers.processes]
        assert len(alive(pids)) == 1
        for epoch, number, ((z, z_tilde), (x, x_tilde)) in zip(
            (0, 0, 2), (0, 1, 1), expected, strict=True
        ):
            drawn = one.process.sample(10, generator=seeded(4, epoch, number))
            preset = load_preset("3dident-positions")
            assert preset.fixed
            for latents, images, exact in ((z, x, drawn[0]), (z_tilde, x_tilde, drawn[1])):
                assert np.array_equal(latents, preset.hold_fixed(exact.numpy()))
                assert images.dtype == torch.uint8
                assert images.shape == (10, 3, 16, 16)
                assert images.is_contiguous(memory_format=torch.channels_last)
                there = render(
                    latents, preset, resolution=16, quality="draft", device="cpu", seed=0
                )
                assert np.array_equal(images.permute(0, 2, 3, 1), there)
            assert len({image.numpy().tobytes() for image in (*x, *x_tilde)}) == 20
        assert not same(expected[0], expected[1])
    wait_until_gone(pids)
    with on_demand(workers=2, preset="3dident-positions", batches=3) as two:
        loader = two.loader()
        found = [*loader, *loader, *loader]
        assert len(found) == 9
        for batch, number in zip(expected, (0, 1, 7), strict=True):
            assert same(found[number], batch)

        # And one of the two dies.
        pids = [process.pid for process in two._renderers.processes]
        assert len(alive(pids)) == 2
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RenderError, match="a render process of RenderedPairs has died"):
            for _ in range(10):
                list(loader)
        assert not loader_threads()
        with pytest.raises(RenderError, match="same seed, epoch and batch number"):
            two.batch(0, 0)
    wait_until_gone(pids)


def test_an_engine_that_cannot_be_made_says_so(tmp_path):
    path = tmp_path / "shape.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n")
    with on_demand(
        workers=1, preset=dataclasses.replace(load_preset("3dident"), shape=str(path))
    ) as pairs:
        path.unlink()
        with pytest.raises(UsageError, match=r"shape\.obj"):
            pairs.batch(0, 0)


def render_on(pipe):
    """Renders pairs until it is killed; sends the numbers of its processes."""
    pairs = on_demand(batch_size=24, workers=2)
    pairs.batch(0, 0)
    pipe.send([process.pid for process in pairs._renderers.processes])
    for _ in pairs.loader():
        pass
    time.sleep(600)


def test_render_processes_end_with_their_parent():
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=render_on, args=(theirs,))
    process.start()
    assert ours.poll(120)
    pids = ours.recv()
    assert len(alive(pids)) == 2
    process.kill()
    process.join()
    wait_until_gone(pids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": Sphere(10)}, r"from a box within \[-1, 1\]\^10, found Sphere"),
        ({"space": Box(9)}, "found Box"),
        ({"space": Box(10, -1.0, 2.0)}, "found Box"),
        ({"batch_size": 0}, "at least 1 pair and batch, found 0"),
        ({"batches": 0}, "at least 1 pair and batch, found 10, 0"),
        ({"workers": 0}, "at least 1 worker"),
        ({"resolution": 4}, "resolution must lie in"),
        ({"quality": "best"}, "quality"),
        ({"device": "metal"}, "cpu or cuda, found metal"),
        ({"preset": "3dindent"}, "3dindent"),
        ({"preset": dataclasses.replace(load_preset("3dident"), material="crystal")}, "crystal"),
        ({"conditional": VonMisesFisher(1.0)}, "is defined on a sphere"),
    ],
)
def test_what_is_not_rendered_on_demand(options, message):
    options = {"space": None, "conditional": Normal(0.1), "batch_size": 10, **options}
    with pytest.raises(UsageError, match=message):
        RenderedPairs(**options)


def test_rendered_pairs_need_a_conditional_and_take_it_as_before():
    with pytest.raises(UsageError, match="conditional=Normal"):
        RenderedPairs()
    with RenderedPairs(None, Normal(0.1), "3dident") as pairs:  # as before it went by name
        assert pairs.process.conditional == Normal(0.1)


def test_a_batch_unpacks_and_has_names(dataset):
    batch = PositivePairs(dataset.root, conditional=Normal(0.3), batch_size=4).batch(0, 0)
    (z, _), (x, _) = batch
    assert z is batch.latents[0] is batch[0][0]
    assert x is batch.observations[0]
    assert pickle.loads(pickle.dumps(batch)).latents[0].equal(z)
