"""Matching: nearest neighbours, a kept index, resampling."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import pickle
import threading

import faiss
import numpy as np
import pytest
import torch
from helpers.fake_dataset import in_a_fork, wait_for
from helpers.matching import brute_force, exact_weights, sphere, uniform
from scipy import stats

from threedident.datasets import (
    Box,
    GeneralizedNormal,
    Laplace,
    LatentMatcher,
    Normal,
    PairProcess,
    PerFactor,
    Sphere,
    Uniform,
    VonMisesFisher,
)
from threedident.datasets import latent_matcher as matching
from threedident.distributions.torch_sampler import seeded
from threedident.errors import UsageError

KINDS = ("exact", "ivf", "hnsw")


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


def test_a_device_that_is_not_there():
    with pytest.raises(UsageError, match=r"device must be one of torch .* found 'gpu'"):
        LatentMatcher(uniform(20), device="gpu")
    matcher = LatentMatcher(uniform(20), match="resample", device="cuda:99")
    with pytest.raises(
        UsageError, match=r"20 latents need 0\.0 MB on cuda:99, which cannot be had"
    ):
        matcher.pairs(PairProcess(Box(10), Normal(0.3)), 4, seeded(0))


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


# --- partners of all latents


def test_partners_of_all_latents_are_those_that_resampling_draws():
    space = Box(2)
    latents = Uniform().marginal(space, 300, generator=seeded(0))
    matcher = LatentMatcher(latents, match="resample")
    process = PairProcess(space, Laplace(0.2))
    partners = matcher.partners(process, 1000, seeded(1))
    assert partners.shape == (300, 1000) and partners.dtype == torch.int32
    assert (partners != torch.arange(300)[:, None]).all()
    for anchor in (0, 255):
        expected = (-(latents - latents[anchor]).abs().sum(1) / 0.2).exp()
        expected[anchor] = 0
        counts = torch.bincount(partners[anchor], minlength=300)
        likely = expected > expected.sum() * 0.02  # at least 20 draws each
        observed = [*counts[likely].tolist(), int(counts[~likely].sum())]
        shares = torch.cat([expected[likely], expected[~likely].sum()[None]]).double()
        assert stats.chisquare(observed, (1000 * shares / shares.sum()).tolist()).pvalue > 1e-4
    once = matcher.partners(process, 20, seeded(2))
    assert torch.equal(once, matcher.partners(process, 20, seeded(2)))
