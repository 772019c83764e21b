from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.causal import UNIFORM, whole
from scipy import stats

from threedident.causal.expressions import Expression
from threedident.causal.mechanisms import (
    Choice,
    Constant,
    Domain,
    Draw,
    Shift,
    Stay,
    Step,
    Table,
    TruncatedLaplace,
    TruncatedNormal,
    Uniform,
)
from threedident.causal.quantiles import normal_quantile, truncated_laplace, truncated_normal
from threedident.errors import UsageError

BOX = Domain("x", "continuous", -2.0, 2.0)
CIRCLE = Domain("a", "circular", 0.0, 2 * math.pi)
SHIFTED_CIRCLE = Domain("a", "circular", -math.pi, math.pi)
CLASSES = Domain("s", "discrete", 0.0, 3.0, ("cup", "hare", "cow", "head"))

N = 4001
#: Noise, (N, 2): the first number grows, the second is another order of the same.
UNITS = np.stack([(np.arange(N) + 0.5) / N, np.roll((np.arange(N) + 0.5) / N, 1234)], axis=1)


def at(domain, units=UNITS, current=None, previous=None, first=None):
    frames = [
        {
            name: np.broadcast_to(np.asarray(value, float), (len(units),))
            for name, value in d.items()
        }
        for d in (current or {}, previous or {}, first or {})
    ]
    return Draw(domain, units, *frames)


def test_uniform_covers_its_range_evenly():
    np.testing.assert_allclose(Uniform().draw(at(BOX)), -2 + 4 * UNITS[:, 0], atol=1e-12)
    assert np.bincount(Uniform().draw(at(CLASSES)).astype(int)).tolist() == [1000, 1000, 1001, 1000]
    part = Uniform(Expression("y - 1"), Expression("y"))
    values = part.draw(at(BOX, current={"y": 0.5}))
    assert stats.kstest(values, stats.uniform(-0.5, 1).cdf).pvalue > 0.99
    assert Uniform().is_whole
    assert not part.is_whole
    assert part.frames("") == {"y"}


def test_the_last_noise_number_is_of_the_last_class():
    ends = np.array([[2.0**-25, 0.5], [1 - 2.0**-25, 0.5]])
    assert Uniform().draw(at(CLASSES, ends)).tolist() == [0, 3]
    assert Choice((0.0, 0.5, 0.5, 0.0)).draw(at(CLASSES, ends)).tolist() == [1, 2]
    tenths = Domain("t", "discrete", 0.0, 10.0, tuple("abcdefghijk"))
    assert Choice((*[0.1] * 10, 0.0)).draw(at(tenths, ends))[1] in (9, 10)


def test_choice_has_its_probabilities():
    values = Choice((0.1, 0.2, 0.0, 0.7)).draw(at(CLASSES))
    np.testing.assert_allclose(np.bincount(values.astype(int)) / N, [0.1, 0.2, 0, 0.7], atol=1e-3)


def test_truncated_mechanisms_are_their_quantiles():
    mean = np.linspace(-3, 3, N)
    frames = {"current": {"y": mean}}
    for cls, quantile in (
        (TruncatedNormal, truncated_normal),
        (TruncatedLaplace, truncated_laplace),
    ):
        drawn = cls(Expression("y"), 0.5).draw(at(BOX, **frames))
        assert drawn.tolist() == quantile(UNITS[:, 0], mean, 0.5, -2.0, 2.0).tolist()


def test_a_step_goes_its_share_of_the_way():
    step = Step(Expression("y"), 1e-9, 0.25)
    values = step.draw(at(BOX, current={"y": 1.0}, previous={"x": -1.0}))
    np.testing.assert_allclose(values, -0.5, atol=1e-7)
    values = Step(Expression("1.9"), 0.3).draw(at(BOX, previous={"x": 1.9}))
    cdf = stats.truncnorm((-2 - 1.9) / 0.3, (2 - 1.9) / 0.3, loc=1.9, scale=0.3).cdf
    assert stats.kstest(values, cdf).pvalue > 0.99
    assert step.remembers


@pytest.mark.parametrize("domain", [CIRCLE, SHIFTED_CIRCLE], ids=["from 0", "from -pi"])
@hypothesis.given(before=st.floats(-3.1, 3.1), goal=st.floats(-20, 20))
def test_on_a_circle_a_step_takes_the_shorter_way(domain, before, goal):
    before = (before - domain.low) % (2 * math.pi) + domain.low
    values = domain.hold(
        Step(Expression(f"{goal!r}"), 1e-9).draw(
            at(domain, UNITS[2000:2001], previous={"a": before})
        )
    )
    assert domain.low <= values[0] < domain.high + 1e-6
    way = (goal - before + math.pi) % (2 * math.pi) - math.pi
    hypothesis.assume(abs(way) < math.pi - 1e-3)
    off = (values[0] - before - way / 2 + math.pi) % (2 * math.pi) - math.pi
    assert abs(off) < 1e-5


def test_the_noise_of_a_circular_step_is_normal():
    values = Step(Expression("a0"), 0.15).draw(at(CIRCLE, current={"a0": 1.0}, previous={"a": 1.0}))
    np.testing.assert_allclose(values, 1 + 0.15 * normal_quantile(UNITS[:, 0]), atol=1e-12)


def test_stay_keeps_a_class_or_draws_any():
    units = np.random.default_rng(0).random((100_000, 2))
    values = Stay(0.2).draw(at(CLASSES, units, previous={"s": 2.0}))
    shares = np.bincount(values.astype(int)) / len(units)
    np.testing.assert_allclose(shares, [0.05, 0.05, 0.85, 0.05], atol=5e-3)
    assert (Stay(0.0).draw(at(CLASSES, previous={"s": 1.0})) == 1).all()


def test_a_table_asks_its_parent():
    table = Table(
        Expression("s"),
        ((1, Constant(Expression("y"))), (3, TruncatedNormal(Expression("0"), 0.1))),
        CLASSES.values,
        Uniform(Expression("1"), Expression("2")),
    )
    classes = np.arange(N) % 4
    values = table.draw(at(BOX, current={"s": classes, "y": -1.5}))
    assert (values[classes == 1] == -1.5).all()
    assert values[classes == 3].std() == pytest.approx(0.1, rel=0.05)
    rest = np.isin(classes, [0, 2])
    np.testing.assert_allclose(values[rest], 1 + UNITS[rest, 0], atol=1e-12)
    assert table.frames("") == {"s", "y"}
    assert table.is_random
    assert not Table(Expression("s"), ((0, Constant(Expression("y"))),), ("a",)).is_random


def test_a_shift_keeps_the_noise_and_stays_in_the_range():
    base = TruncatedNormal(Expression("y"), 0.5)
    frames = {"current": {"y": 1.0}}
    drawn = BOX.hold(base.draw(at(BOX, **frames)))
    shifted = Shift(0.75, base).draw(at(BOX, **frames))
    np.testing.assert_allclose(shifted, np.minimum(drawn + 0.75, 2), atol=1e-12)
    turned = CIRCLE.hold(Shift(-1.0, Uniform()).draw(at(CIRCLE)))
    np.testing.assert_allclose(np.cos(turned), np.cos(2 * math.pi * UNITS[:, 0] - 1), atol=1e-6)
    assert Shift(0.1, base).frames("") == {"y"}
    assert Shift(0.1, base).is_random


@pytest.mark.parametrize("domain", [BOX, CIRCLE, SHIFTED_CIRCLE, CLASSES], ids=lambda d: d.name)
def test_values_are_held_as_float32_in_the_range(domain):
    values = domain.hold(Uniform().draw(at(domain)))
    assert values.dtype == np.float64
    assert (values == values.astype(np.float32)).all()
    assert (values >= np.float32(domain.low)).all()
    assert (values <= np.float32(domain.high)).all()


@pytest.mark.parametrize("domain", [CIRCLE, SHIFTED_CIRCLE], ids=["from 0", "from -pi"])
@hypothesis.given(value=st.floats(-1e3, 1e3))
@hypothesis.example(value=float(np.nextafter(math.pi, 0)))
@hypothesis.example(value=-math.pi)
@hypothesis.example(value=-1e-17)
def test_a_turn_is_taken_off_a_circular_value(domain, value):
    held = domain.hold(np.array([value, value + 2 * math.pi]))
    assert (held >= np.float32(domain.low)).all()
    assert (held < np.float32(domain.high)).all()
    assert (held == held.astype(np.float32)).all()
    off = (held - value + math.pi) % (2 * math.pi) - math.pi
    assert (np.abs(off) < 1e-6).all()


@pytest.mark.parametrize("low, high", [(-1.2, 1.2), (-0.1, 0.1), (0.3, 0.7), (-1e-3, 1e-3)])
def test_rounded_to_float32_an_end_is_still_in_the_range_and_so_is_a_copy(low, high):
    domain = Domain("x", "continuous", low, high)
    ends = domain.hold(np.array([low, high]))
    copies = Domain("y", "continuous", low, high).hold(ends)
    assert (copies == ends).all()
    thrice = Domain("y", "continuous", 3 * low, 3 * high).hold(3 * ends)
    np.testing.assert_allclose(thrice, 3 * ends, rtol=1e-6)


@pytest.mark.parametrize("value", [2.001, -2.001, 1e9])
def test_a_value_out_of_range_names_the_variable(value):
    with pytest.raises(UsageError, match=r"variable x: its mechanism gives .*outside of its range"):
        BOX.hold(np.array([0.0, value]))
    with pytest.raises(UsageError, match=r"variable s: .*no class|variable s: .*outside"):
        CLASSES.hold(np.array([0.0, min(value, 2.5)]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("domain", [BOX, CIRCLE, CLASSES], ids=lambda d: d.kind)
def test_a_value_that_is_not_finite_names_the_variable(domain, value):
    with pytest.raises(UsageError, match=rf"variable {domain.name}: .*not finite"):
        domain.hold(np.array([0.0, value]))


@pytest.mark.parametrize(
    "mechanism",
    [
        TruncatedNormal(Expression("1 / y"), 0.5),
        TruncatedLaplace(Expression("y / y"), 0.5),
        Step(Expression("1 / y"), 0.1),
        Constant(Expression("1 / y")),
        Uniform(Expression("y"), Expression("1 / y")),
    ],
    ids=lambda m: type(m).__name__,
)
def test_an_expression_that_is_not_finite_names_the_variable(mechanism):
    with pytest.raises(UsageError, match=r"variable x: .*not finite"):
        BOX.hold(mechanism.draw(at(BOX, current={"y": 0.0}, previous={"x": 0.0})))


def test_every_mechanism_is_a_function_of_its_own_noise_that_grows():
    """Inverse transforms: so noise can be kept, and read back from values."""
    for mechanism in (
        Uniform(),
        Uniform(Expression("-1"), Expression("y")),
        TruncatedNormal(Expression("y"), 0.5),
        TruncatedLaplace(Expression("y"), 0.5),
        Step(Expression("y"), 0.3),
    ):
        values = mechanism.draw(at(BOX, current={"y": 0.7}, previous={"x": 0.1}))
        assert (np.diff(values) > 0).all()
    assert (np.diff(Choice((0.1, 0.2, 0.3, 0.4)).draw(at(CLASSES))) >= 0).all()


def test_adjacency_of_a_model_that_has_all():
    model = whole()
    names = model.names

    def edges(graph):
        return {(names[i], names[j]) for i, j in np.argwhere(graph)}

    assert edges(model.adjacency) == {
        ("switch", "x"),
        ("theta", "x"),
        ("x", "y"),
        ("x", "z"),
        ("y", "z"),
    }
    assert edges(model.step_adjacency) == {
        ("background_hue_goal", "background_hue"),
        ("theta", "x"),
        ("x", "y"),
        ("x", "z"),
        ("y", "z"),
    }
    assert edges(model.lagged_adjacency) == {
        ("switch", "switch"),
        ("background_hue", "background_hue"),
        ("background_hue", "theta"),
        ("theta", "theta"),
        ("x", "x"),
    }
    assert model.role("x") == "content"
    assert model.role("y") == "style"
    assert model.role("background_hue") == "private"
    assert model["background_hue"].mechanism.as_dict() == UNIFORM
