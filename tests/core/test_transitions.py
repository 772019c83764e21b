"""Transitions on a grid: exact probabilities, draws that follow them, and published figures."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from helpers.distributions import UNLIKELY, generator
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from threedident.distributions import (
    Box,
    Change,
    DiscreteLaplace,
    Grid,
    Laplace,
    Normal,
    PairProcess,
    PerFactor,
    ProjectedNormal,
    Sphere,
    Unchanged,
    Uniform,
    UniformFactors,
    VonMisesFisher,
    parse_distribution,
)
from threedident.errors import UsageError

#: A small dSprites: shape, scale, orientation, x and y.
SMALL = Grid([3, 2, 4, 4], ["shape", "scale", "x", "y"], categorical=["shape"])
#: dSprites itself, without its one colour.
DSPRITES = Grid(
    [3, 6, 40, 32, 32],
    ["shape", "scale", "orientation", "x", "y"],
    categorical=["shape"],
    periods={"orientation": 39},
)
HIDDEN = Grid(
    [2, 3, 4], ["category", "instance", "azimuth"], categorical=["category"], hidden=["instance"]
)
EVERY = [
    UniformFactors(),
    UniformFactors(2),
    UniformFactors((1, 3), replace=True),
    UniformFactors(coin=True, replace=True),
    DiscreteLaplace(),
    DiscreteLaplace(3.0, "reject"),
    DiscreteLaplace((1.0, 10.0)),
]


def every_point(grid: Grid) -> torch.Tensor:
    return grid.points(torch.arange(len(grid)))


@st.composite
def grids(draw) -> Grid:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = [f"f{k}" for k in range(len(sizes))]
    kinds = [draw(st.sampled_from(["ordered", "categorical", "hidden"])) for _ in sizes]
    # One factor, at least, can move.
    sizes[0], kinds[0] = max(2, sizes[0]), "ordered"
    return Grid(
        sizes,
        names,
        categorical=[n for n, kind in zip(names, kinds, strict=True) if kind == "categorical"],
        hidden=[n for n, kind in zip(names, kinds, strict=True) if kind == "hidden"],
    )


hidden = st.sampled_from(["redraw", "keep"])
rates = st.floats(1e-3, 50) | st.tuples(st.floats(0.1, 1), st.floats(2, 20))
laplaces = st.builds(DiscreteLaplace, rates, st.sampled_from(["one", "reject"]), hidden)
uniforms = st.builds(UniformFactors, st.none() | st.just(1), st.booleans(), st.booleans(), hidden)


@given(grids(), laplaces | uniforms, st.data())
@settings(deadline=None)
def test_probabilities_sum_to_one_and_draws_have_some(grid, transition, data):
    point = grid.points(torch.tensor(data.draw(st.integers(0, len(grid) - 1))))
    chances = transition.probabilities(grid, point)
    assert float(chances.sum()) == pytest.approx(1, abs=1e-9)
    drawn = transition.sample(grid, point.float().expand(50, -1), generator=generator())
    assert bool((chances[grid.index(drawn)] > 0).all())
    kept = [
        k
        for k, name in enumerate(grid.names)
        if (name in grid.hidden and transition.hidden == "keep")
        or (
            isinstance(transition, DiscreteLaplace)
            and name in grid.categorical
            and name not in grid.hidden
        )
    ]
    assert bool((drawn[:, kept] == point[kept]).all())


@pytest.mark.parametrize("transition", EVERY, ids=repr)
@pytest.mark.parametrize("grid", [SMALL, HIDDEN], ids=["shown", "hidden"])
def test_draws_have_the_exact_probabilities(grid, transition):
    if isinstance(transition, UniformFactors) and transition.k in (2, (1, 3)) and grid is HIDDEN:
        transition = UniformFactors(2, transition.replace)
    for number in (0, len(grid) // 2 + 1):
        point = grid.points(torch.tensor(number))
        count = 20_000
        drawn = transition.sample(
            grid, point.float().expand(count, -1), generator=generator(number)
        )
        observed = np.bincount(grid.index(drawn).numpy(), minlength=len(grid))
        expected = transition.probabilities(grid, point).numpy() * count
        assert not observed[expected == 0].any()
        common = expected >= 5
        rest = [observed[~common].sum()], [expected[~common].sum()]
        seen, asked = (
            np.concatenate([each[common], more]) if expected[~common].sum() > 1 else each[common]
            for each, more in zip((observed, expected), rest, strict=True)
        )
        assert stats.chisquare(seen, asked * seen.sum() / asked.sum()).pvalue > UNLIKELY


def by_rejection(grid: Grid, point: list[int], rate: float) -> np.ndarray:
    """LAP as the workshop paper describes it: weights, and pairs without a change left out."""
    chances = np.ones(1)
    for k, (size, name) in enumerate(zip(grid.sizes, grid.names, strict=True)):
        weights = np.exp(-np.abs(np.arange(size) - point[k]) * rate / np.log(size))
        if name in grid.categorical:
            weights = (np.arange(size) == point[k]).astype(float)
        chances = np.outer(chances, weights / weights.sum()).ravel()
    chances[int(grid.index(np.array(point)))] = 0
    return chances / chances.sum()


def test_laplace_that_rejects_is_the_truncated_law_by_its_definition():
    for point in ([0, 0, 0, 0], [2, 1, 2, 3]):
        for rate in (0.5, 1.0, 10.0):
            chances = DiscreteLaplace(rate, "reject").probabilities(SMALL, point)
            np.testing.assert_allclose(chances, by_rejection(SMALL, point, rate), atol=1e-12)


def test_laplace_that_redraws_one_by_enumeration():
    """The law of SlowVAE's code: all factors at once, and if none has moved, one of them alone."""
    grid, point, rate = Grid([3, 4]), [1, 0], 2.0
    laws = []
    for size, value in zip(grid.sizes, point, strict=True):
        weights = np.exp(-np.abs(np.arange(size) - value) * rate / np.log(size))
        laws.append(weights / weights.sum())
    expected = np.outer(*laws)
    stay = expected[1, 0]
    expected[1, 0] = 0
    for k, law in enumerate(laws):
        others = np.where(np.arange(len(law)) == point[k], 0, law)
        others /= others.sum()
        if k == 0:
            expected[:, 0] += stay / 2 * others
        else:
            expected[1] += stay / 2 * others
    np.testing.assert_allclose(
        DiscreteLaplace(rate).probabilities(grid, point), expected.ravel(), atol=1e-12
    )


def test_a_rate_for_each_pair_is_the_mean_over_rates():
    point = [1, 0, 3, 2]
    rates = 1 + 9 * (np.arange(300) + 0.5) / 300
    each = np.stack([DiscreteLaplace(r).probabilities(SMALL, point).numpy() for r in rates])
    chances = DiscreteLaplace((1, 10)).probabilities(SMALL, point)
    np.testing.assert_allclose(chances, each.mean(0), atol=1e-5)


def test_uniform_factors_change_exactly_k_to_other_values():
    drawn_from = torch.tensor([[2.0, 1, 0, 3]]).expand(4000, -1)
    for k in (1, 2, 3, 4):
        drawn = UniformFactors(k).sample(SMALL, drawn_from, generator=generator())
        assert set((drawn != drawn_from).sum(1).tolist()) == {k}
    counts = (UniformFactors().sample(SMALL, drawn_from, generator=generator()) != drawn_from).sum(
        1
    )
    observed = np.bincount(counts.numpy(), minlength=5)
    assert observed[0] == observed[4] == 0
    assert stats.chisquare(observed[1:4]).pvalue > UNLIKELY


def test_the_coin_chooses_one_factor_or_k():
    """Locatello et al.: {1, k} by a coin, k uniform in 1 to D - 1, values may stay."""
    chances = UniformFactors(coin=True, replace=True).probabilities(SMALL, [0, 0, 0, 0])
    weights = [0, 1 / 2 + 1 / 6, 1 / 6, 1 / 6, 0]
    expected = np.zeros(len(SMALL))
    for chosen, weight in enumerate(weights):
        for places in itertools.combinations(range(4), chosen):
            values = [range(SMALL.sizes[k]) if k in places else [0] for k in range(4)]
            share = weight / math.comb(4, chosen) / math.prod(len(v) for v in values)
            for point in itertools.product(*values):
                expected[int(SMALL.index(np.array(point)))] += share
    np.testing.assert_allclose(chances, expected, atol=1e-12)


def matrix(transition, grid: Grid) -> np.ndarray:
    points = every_point(grid).double()
    return transition.log_weight(grid, points, points).exp().numpy()


@pytest.mark.parametrize("transition", EVERY[:4], ids=repr)
def test_uni_is_symmetric_and_keeps_the_marginal_uniform(transition):
    table = matrix(transition, SMALL)
    np.testing.assert_allclose(table, table.T, atol=1e-12)
    np.testing.assert_allclose(table.sum(0), 1, atol=1e-9)


@pytest.mark.parametrize("transition", EVERY[4:], ids=repr)
def test_lap_is_not_but_mirrors(transition):
    """A value at the border has fewer neighbours; turning all axes round changes nothing."""
    table = matrix(transition, SMALL)
    assert np.abs(table - table.T).max() > 1e-3
    mirrored = (torch.tensor(SMALL.sizes) - 1 - every_point(SMALL)).long()
    mirrored[:, 0] = every_point(SMALL)[:, 0]
    order = SMALL.index(mirrored).numpy()
    np.testing.assert_allclose(table, table[np.ix_(order, order)], atol=1e-12)


def test_the_figures_of_lap_on_dsprites():
    """What was computed for rate 1: how often factors stay, and how far they move."""
    stays, squares, all_stay = {}, {}, 1.0
    for name, size in zip(DSPRITES.names[1:], DSPRITES.sizes[1:], strict=True):
        apart = np.abs(np.arange(size)[:, None] - np.arange(size))
        law = np.exp(-apart / np.log(size))
        law /= law.sum(1, keepdims=True)
        stays[name], squares[name] = np.diag(law).mean(), (law * apart**2).sum(1).mean()
        all_stay *= np.diag(law).mean()
    figures = {name: round(float(value), 3) for name, value in stays.items()}
    assert figures == {"scale": 0.380, "orientation": 0.152, "x": 0.164, "y": 0.164}
    steps = {name: round(math.sqrt(value), 1) for name, value in squares.items()}
    assert steps == {"scale": 1.5, "orientation": 4.6, "x": 4.2, "y": 4.2}
    assert all_stay == pytest.approx(0.0016, abs=5e-5)
    assert 4 - sum(stays.values()) == pytest.approx(3.1, abs=0.05)

    count = 100_000
    z, z_tilde = PairProcess(DSPRITES, DiscreteLaplace()).sample(count, generator=generator())
    difference = (z_tilde - z).double()
    assert not bool((difference[:, 0] != 0).any())
    assert float((difference != 0).sum(1).min()) == 1
    for k, name in enumerate(DSPRITES.names[1:], 1):
        # The pairs of which one factor is forced to move are 0.16 %.
        share = float((difference[:, k] == 0).double().mean())
        assert share == pytest.approx(stays[name], abs=0.0016 + 5 * math.sqrt(0.25 / count))
        assert float((difference[:, k] ** 2).mean()) == pytest.approx(squares[name], rel=0.04)
    # z is uniform.
    for k, size in enumerate(DSPRITES.sizes):
        assert stats.chisquare(np.bincount(z[:, k].long(), minlength=size)).pvalue > UNLIKELY


def test_extreme_rates_move_by_one_or_anywhere():
    mean = torch.tensor([[1.0, 1, 3, 0]]).expand(2000, -1)
    # All 32 points alike: of the pair that stays, a third each moves along one of three factors.
    for redraw, most in (("one", 1 / 32 + 1 / 96), ("reject", 1 / 31)):
        fast = DiscreteLaplace(1e30, redraw).sample(SMALL, mean, generator=generator())
        assert float((fast - mean).abs().sum(1).max()) == 1
        assert float((fast - mean).abs().sum(1).min()) == 1
        slow = DiscreteLaplace(1e-30, redraw).probabilities(SMALL, [1, 1, 3, 0])
        assert float(slow.max()) == pytest.approx(most)
        assert float(slow.sum()) == pytest.approx(1)


def test_hidden_factors_are_drawn_anew_or_kept():
    mean = torch.tensor([[1.0, 2, 3]]).expand(3000, -1)
    for transition in (UniformFactors(), DiscreteLaplace()):
        drawn = transition.sample(HIDDEN, mean, generator=generator())
        assert stats.chisquare(np.bincount(drawn[:, 1].long())).pvalue > UNLIKELY
    for transition in (UniformFactors(hidden="keep"), DiscreteLaplace(hidden="keep")):
        drawn = transition.sample(HIDDEN, mean, generator=generator())
        assert set(drawn[:, 1].tolist()) == {2.0}


def test_the_uniform_marginal_and_parts_of_a_grid():
    drawn = Uniform().marginal(SMALL, 20_000, generator=generator())
    counts = np.bincount(SMALL.index(drawn).numpy(), minlength=len(SMALL))
    assert stats.chisquare(counts).pvalue > UNLIKELY
    parts = PerFactor((((0, 1), Unchanged()), ((2, 3), DiscreteLaplace())))
    z, z_tilde = PairProcess(SMALL, parts).sample(500, generator=generator())
    assert bool((z[:, :2] == z_tilde[:, :2]).all())
    assert bool((z[:, 2:] != z_tilde[:, 2:]).any(1).all())
    z, z_tilde = PairProcess(SMALL, Change(Uniform(), 2)).sample(500, generator=generator())
    assert int((z != z_tilde).sum(1).max()) == 2


@pytest.mark.parametrize("transition", EVERY, ids=repr)
def test_they_come_back_from_plain_data(transition):
    plain = json.loads(json.dumps(transition.as_dict()))
    assert None not in plain.values()  # TOML has none
    assert parse_distribution(plain) == transition
    assert parse_distribution({"name": transition.name}) == type(transition)()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformFactors(0), "k must be a number >= 1"),
        (lambda: UniformFactors((2, 1)), "k must be a number >= 1"),
        (lambda: UniformFactors(True), "k must be"),
        (lambda: UniformFactors(replace=1), "replace must be true or false, found 1"),
        (lambda: UniformFactors(hidden="drop"), "hidden must be one of redraw, keep"),
        (lambda: DiscreteLaplace(-1), "rate must be a finite number > 0, found -1"),
        (lambda: DiscreteLaplace((10, 1)), r"rate must be a number or \(low, high\)"),
        (lambda: DiscreteLaplace((1, 2, 3)), r"rate must be a number or \(low, high\)"),
        (lambda: DiscreteLaplace(redraw="none"), "redraw must be one of one, reject"),
        (lambda: PairProcess(Box(3), UniformFactors()), "defined on a grid .* take Normal"),
        (lambda: PairProcess(Sphere(3), DiscreteLaplace()), "defined on a grid"),
        (lambda: PairProcess(SMALL, Normal(0.1)), "take UniformFactors or DiscreteLaplace"),
        (lambda: PairProcess(SMALL, Laplace(0.1)), "take UniformFactors or DiscreteLaplace"),
        (lambda: PairProcess(SMALL, VonMisesFisher(1.0)), "defined on a sphere"),
        (lambda: PairProcess(SMALL, ProjectedNormal(1.0)), "defined on a sphere"),
        (lambda: PairProcess(SMALL, UniformFactors(5)), "k is more than the 4 factors"),
        (lambda: PairProcess(Grid([1, 1]), UniformFactors()), "no factor of .* can change"),
        (
            lambda: PairProcess(Grid([3], ["shape"], categorical=["shape"]), DiscreteLaplace()),
            "no factor of .* can change",
        ),
        (lambda: PairProcess(Grid([2**25]), UniformFactors()), "more than 16,777,216 values"),
        (lambda: PairProcess(SMALL, Change(UniformFactors(), 1)), "leave out change"),
        (
            lambda: UniformFactors().sample(SMALL, torch.tensor([[0.5, 0, 0, 0]])),
            "is not a point of Grid",
        ),
        (lambda: DiscreteLaplace().probabilities(SMALL, [3, 0, 0, 0]), "is not a point of Grid"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_numbers_of_points_are_whole_whatever_they_are_given_as():
    """float32 does not hold 16,801,805."""
    grid = Grid((2, 4099, 4099))
    points = grid.points(np.array([16_801_805]))
    for given_as in (points, torch.tensor(points), torch.tensor(points, dtype=torch.float32)):
        assert int(grid.index(given_as)[0]) == 16_801_805
    assert grid.points(torch.tensor([16_801_805])).tolist() == points.tolist()


@pytest.mark.parametrize("rate", [1e3, 1e14, 1e16, 1e20, 1e30])
@pytest.mark.parametrize("redraw", ["one", "reject"])
def test_probabilities_add_up_at_any_rate(rate, redraw):
    """Beside a decay of 1e14 the logarithm of a probability is lost."""
    chances = DiscreteLaplace(rate, redraw).probabilities(SMALL, [1, 1, 3, 0])
    assert float(chances.sum()) == pytest.approx(1)
    nearby = DiscreteLaplace(1e3, redraw).probabilities(SMALL, [1, 1, 3, 0])
    assert chances.tolist() == pytest.approx(nearby.tolist(), abs=1e-12)
