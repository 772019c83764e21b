"""Laws, draws and strategies that tests of distributions share."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import strategies as st
from scipy import stats

from threedident.distributions import (
    Change,
    Distribution,
    GeneralizedNormal,
    Laplace,
    Normal,
    PerFactor,
    ProjectedNormal,
    Unchanged,
    Uniform,
    VonMisesFisher,
)
from threedident.distributions.spaces import Box, Product, Sphere, Unbounded

N = 8_000
UNLIKELY = 1e-4  # a p-value that a right sampler does not reach


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fits(sample, cdf) -> None:
    """Kolmogorov-Smirnov, of a sample against a distribution function or another sample."""
    found = stats.kstest(np.asarray(sample, np.float64), cdf)
    assert found.pvalue > UNLIKELY, found


def uncorrelated(*columns) -> None:
    corr = np.corrcoef(np.stack([np.asarray(c, np.float64) for c in columns]))
    assert np.abs(corr - np.eye(len(columns))).max() < 5 / math.sqrt(len(columns[0]))


def additive(beta: float, scale) -> Distribution:
    """The class that a shape has, by scale."""
    if beta == 1:
        return Laplace(scale)
    if beta == 2:
        return Normal(np.asarray(scale) / math.sqrt(2))
    return GeneralizedNormal(scale, beta)


def truncated_cdf(points, mean, scale, beta: float, box: Box):
    """The probability integral transform of density exp(-|(x - mean) / scale|^beta) in a box."""
    law = stats.gennorm(beta, loc=mean, scale=scale)
    low, high = law.cdf(box.low), law.cdf(box.high)
    return (law.cdf(points) - low) / (high - low)


def on_sphere(count: int, n: int, r: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Uniform points, (count, n) in double precision."""
    points = np.random.default_rng(seed).standard_normal((count, n))
    return torch.from_numpy(r * points / np.linalg.norm(points, axis=1, keepdims=True))


EVERY = [
    (Box(3), Uniform()),
    *((Box(3), additive(beta, 0.3)) for beta in (0.5, 1, 1.5, 2, 3)),
    *((Unbounded(3), additive(beta, 0.3)) for beta in (0.5, 1, 2, 3)),
    *((Sphere(3), d) for d in (Uniform(), Normal(0.1), VonMisesFisher(5), ProjectedNormal(10.0))),
    (Box(3), Change(Laplace(0.1), (1, 2))),
    (Box(3), PerFactor((((2, 0), Normal(0.1)), ((1,), Uniform())))),
]


@st.composite
def boxes(draw, most: int = 4) -> Box:
    low = draw(st.floats(-1e3, 1e3))
    return Box(draw(st.integers(1, most)), low, low + draw(st.floats(1e-3, 1e3)))


def widths(n: int, low: float = 1e-6, high: float = 1e6):
    one = st.floats(low, high)
    return one | st.tuples(*[one] * n)


def shapes():
    return st.sampled_from([1, 2]) | st.floats(0.1, 50)


def conditionals(space, nested: int = 2):
    if isinstance(space, Product):
        return st.tuples(*map(conditionals, space.parts)).map(
            lambda parts: PerFactor.by_part(space, *parts)
        )
    n = space.n
    options = [
        st.builds(Normal, widths(n)),
        st.builds(Laplace, widths(n)),
        st.builds(GeneralizedNormal, widths(n), shapes()),
        st.just(Unchanged()),
    ]
    if not isinstance(space, Unbounded):
        options.append(st.just(Uniform()))
    if isinstance(space, Sphere):
        options.append(st.builds(VonMisesFisher, st.floats(0, 1e12)))
        options.append(st.builds(ProjectedNormal, widths(n, 10, 1e6), st.floats(0.05, 2)))
    elif nested:
        count = st.integers(0, n)
        k = count | st.tuples(count, count).map(sorted).map(tuple)
        options.append(st.builds(Change, conditionals(space, nested - 1), k))
        cuts = st.tuples(st.permutations(range(n)), st.integers(1, n))
        options.append(cuts.flatmap(lambda cut: split(space, *cut, nested - 1)))
    return st.one_of(options)


def split(space, order, cut: int, nested: int):
    """Conditionals of some columns, and of the others."""
    blocks = [tuple(block) for block in (order[:cut], order[cut:]) if block]
    parts = st.tuples(*(conditionals(space.sub(block), nested) for block in blocks))
    return parts.map(lambda made: PerFactor(tuple(zip(blocks, made, strict=True))))


simple_spaces = (
    boxes()
    | st.builds(Sphere, st.integers(2, 5), st.floats(1e-3, 1e3))
    | st.builds(Unbounded, st.integers(1, 4))
)
spaces = simple_spaces | st.lists(simple_spaces, min_size=1, max_size=3).map(lambda s: Product(*s))


def marginal_of(space) -> Distribution:
    if isinstance(space, Unbounded):
        return Normal(3.0)
    if isinstance(space, Product):
        return PerFactor.by_part(space, *(marginal_of(part) for part in space.parts))
    return Uniform()


def anchors(space, dtype: torch.dtype, at_corners: bool) -> torch.Tensor:
    points = marginal_of(space).marginal(space, 8, generator=generator()).to(dtype)
    if isinstance(space, Box):
        if at_corners:
            points = torch.where(points > points.mean(), math.inf, -math.inf).to(dtype)
        points = points.clamp(space.low, space.high)
    return points


MIXED = Product(Box(2), Sphere(3))
