"""Pairs over grids, of sequences, and of tables: exact, and determined by (seed, epoch, number)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.other_data import (
    SPRITES,
    FakeDataset,
    grid_source,
    numbers_of,
    sequence_source,
)
from torch.utils.data import DataLoader

from threedident.datasets.grid_pairs import GridPairs
from threedident.datasets.pair_report import examine_changes, figure, table
from threedident.datasets.sequence_pairs import SequencePairs, TablePairs
from threedident.distributions import (
    DiscreteLaplace,
    Grid,
    Normal,
    PerFactor,
    Unchanged,
    UniformFactors,
)
from threedident.errors import DatasetError, MatchingWarning, UsageError

FORTY = [[k % 11, 10] for k in range(40)]


def grid_pairs(transition=None, **arguments) -> GridPairs:
    return GridPairs(FakeDataset(grid_source()), transition or DiscreteLaplace(), **arguments)


def every_pair(pairs, epochs: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [pairs.indices(e, b) for e in range(epochs) for b in range(pairs.batches)]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def table_source(pairs):
    source = sequence_source()
    source.sequences, source.pairs = None, np.array(pairs, np.int64)
    return source


def test_a_batch_holds_the_images_and_factors_of_its_numbers():
    pairs = grid_pairs(batch_size=50)
    i, j = pairs.indices(2, 3)
    batch = pairs.batch(2, 3)
    (z, z_tilde), (x, x_tilde) = batch
    assert numbers_of(x) == i.tolist()
    assert numbers_of(x_tilde) == j.tolist()
    points = SPRITES.points(torch.stack([i, j])).float()
    assert torch.equal(z, points[0])
    assert torch.equal(z_tilde, points[1])
    assert x.shape == (50, 1, 16, 16)
    assert x.dtype == torch.uint8
    again = pairs.batch(2, 3)
    assert all(torch.equal(a, b) for a, b in zip(sum(batch, ()), sum(again, ()), strict=True))


@pytest.mark.parametrize(
    "make",
    [
        grid_pairs,
        lambda **how: SequencePairs(FakeDataset(sequence_source([20] * 20)), 3, **how),
        lambda **how: TablePairs(
            FakeDataset(table_source([[k % 11, 10] for k in range(40)])), **how
        ),
    ],
    ids=["grid", "sequence", "table"],
)
def test_pairs_depend_on_seed_epoch_and_number_alone(make):
    one, same, other = make(batch_size=8), make(batch_size=8), make(batch_size=8, seed=1)

    def at(pairs, epoch, number):
        return torch.stack(pairs.indices(epoch, number)).tolist()

    assert at(one, 1, 2) == at(same, 1, 2)
    assert at(one, 1, 2) not in (at(one, 1, 1), at(one, 0, 2), at(other, 1, 2))
    loaded = DataLoader(one, batch_size=None)
    one.set_epoch(1)
    z = list(loaded)[2].latents[0]
    assert torch.equal(z, same.batch(1, 2).latents[0])
    loader = same.loader()
    loader.epoch = 1
    assert torch.equal(list(loader)[2].latents[0], z)


def test_an_epoch_has_each_image_of_a_grid_as_anchor_once():
    pairs = grid_pairs(batch_size=32)
    i, j = every_pair(pairs)
    assert sorted(i.tolist()) == list(range(len(SPRITES)))
    assert not bool((i == j).any())
    assert not bool((SPRITES.points(i)[:, 0] != SPRITES.points(j)[:, 0]).any())


def test_partners_follow_the_transition():
    transition = UniformFactors(2)
    i, j = every_pair(grid_pairs(transition, batch_size=32), epochs=3)
    assert set((SPRITES.points(i) != SPRITES.points(j)).sum(1).tolist()) == {2}
    parts = PerFactor((((0, 1, 2), Unchanged()), ((3, 4), DiscreteLaplace())))
    i, j = every_pair(grid_pairs(parts, batch_size=32))
    changes = SPRITES.points(i) != SPRITES.points(j)
    assert not bool(changes[:, :3].any())
    assert bool(changes[:, 3:].any(1).all())


def test_hidden_factors_are_not_among_the_factors():
    grid = Grid([2, 3, 4], ["category", "instance", "azimuth"], hidden=["instance"])
    pairs = GridPairs(FakeDataset(grid_source(grid)), UniformFactors(1), batch_size=24)
    i, j = every_pair(pairs, epochs=20)
    (z, _), _ = pairs.batch(0, 0)
    assert z.shape == (24, 2)
    changes = (grid.points(i) != grid.points(j)).double().mean(0)
    assert float(changes[0] + changes[2]) == pytest.approx(1)
    assert float(changes[1]) == pytest.approx(2 / 3, abs=0.1)


@pytest.mark.parametrize("max_gap", [1, 2, 5])
def test_frames_are_later_in_the_same_sequence(max_gap):
    lengths = (3, 1, 5, 2)
    source = sequence_source(lengths)
    place = np.repeat(np.arange(4), lengths)
    last = np.cumsum(lengths) - 1
    pairs = SequencePairs(FakeDataset(source), max_gap, batch_size=7)
    i, j = (each.numpy() for each in every_pair(pairs, epochs=2000))
    # Every frame but the last of its sequence is an anchor as often.
    anchors, counts = np.unique(i, return_counts=True)
    assert anchors.tolist() == [0, 1, 4, 5, 6, 7, 9]
    assert set(counts) == {2000}
    assert bool((place[i] == place[j]).all())
    for anchor in anchors:
        gaps = j[i == anchor] - anchor
        left = last[place[anchor]] - anchor
        expected = np.bincount(np.minimum(np.arange(1, max_gap + 1), left), minlength=6) / max_gap
        shares = np.bincount(gaps, minlength=6) / len(gaps)
        np.testing.assert_allclose(shares, expected, atol=0.05)


def test_pairs_of_a_table_come_as_it_names_them():
    named = [[0, 5], [3, 2], [10, 9], [1, 1]]
    pairs = TablePairs(FakeDataset(table_source(named)), batch_size=4)
    drawn = torch.stack(every_pair(pairs), 1).tolist()
    assert sorted(drawn) == sorted(named)


def test_a_batch_that_is_too_large_is_said_to_be():
    with pytest.warns(MatchingWarning, match="more than the 384 anchors"):
        pairs = grid_pairs(batch_size=385)
    assert len(pairs.indices(0, 0)[0]) == 385


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda d: GridPairs(d(sequence_source()), UniformFactors()), UsageError, "SequencePairs"),
        (
            lambda d: GridPairs(d(table_source([[0, 1]])), UniformFactors()),
            UsageError,
            "TablePairs",
        ),
        (lambda d: SequencePairs(d(grid_source())), UsageError, "GridPairs"),
        (lambda d: TablePairs(d(grid_source())), UsageError, "names no pairs"),
        (lambda d: SequencePairs(d(sequence_source()), 0), UsageError, "max_gap must be"),
        (lambda d: SequencePairs(d(sequence_source()), True), UsageError, "max_gap must be"),
        (lambda d: SequencePairs(d(sequence_source([1, 1]))), DatasetError, "no sequence of two"),
        (lambda d: GridPairs(d(grid_source()), Normal(0.1)), UsageError, "take UniformFactors"),
        (lambda d: GridPairs(d(grid_source()), "lap"), UsageError, "transition must be"),
        (
            lambda d: GridPairs(d(grid_source()), UniformFactors(), batch_size=0),
            UsageError,
            "at least 1",
        ),
    ],
)
def test_data_of_another_kind_are_refused_with_the_way_out(make, error, message):
    with pytest.raises(error, match=message):
        make(FakeDataset)


def test_a_report_has_what_was_asked_beside_what_came_out():
    report = examine_changes(grid_pairs(UniformFactors(1), batch_size=64), 4000)
    plain = report.as_dict()
    for way in ("asked", "realised"):
        assert plain[way]["factors_that_change"] == 1
        assert plain[way]["std"]["shape"] is None
        assert sum(plain[way]["unchanged"].values()) == pytest.approx(4)
        assert plain[way]["unchanged"]["x"] == pytest.approx(0.8, abs=0.03)
        # Another one of 4 values, in a fifth of the pairs.
        apart = np.abs(np.arange(4)[:, None] - np.arange(4))
        square = (apart**2).sum() / 12 / 5
        assert plain[way]["std"]["x"] == pytest.approx(np.sqrt(square), rel=0.06)
        assert plain[way]["kurtosis"]["x"] == pytest.approx(
            (apart**4).sum() / 12 / 5 / square**2, rel=0.12
        )
    lines = table(report)
    assert lines[-1] == "factors that change in a pair, of 5: 1.00 asked, 1.00 realised"
    assert any(line.startswith("shape ") and " - " in line for line in lines)
    assert len(figure(report, "grid").axes) == 4


def test_a_report_of_sequences_has_nothing_asked():
    pairs = SequencePairs(FakeDataset(sequence_source([10] * 5)), 2, batch_size=8)
    report = examine_changes(pairs, 300)
    assert report.asked is None
    assert report.as_dict()["asked"] is None
    i, j = (
        torch.cat(each)[:300]
        for each in zip(*(pairs.indices(*divmod(k, pairs.batches)) for k in range(40)), strict=True)
    )
    expected = (
        (pairs.dataset.factors[j] - pairs.dataset.factors[i]).double().square().mean(0).sqrt()
    )
    np.testing.assert_allclose(report.realised.std, expected)
    assert table(report)[-1] == "factors that change in a pair, of 3: 3.00"
