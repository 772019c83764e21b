"""The sampler without torch: exact positive pairs to render.

The anchor z is drawn as for single images, its positive z~ from the conditional around it. Images
2i and 2i + 1 are pair i. Both depend on (seed, split, i) alone, as everywhere: of numpy's
generators, only the raw words are used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from threedident.distributions.families import Additive, Distribution, Uniform
from threedident.distributions.pair_process import Change, PerFactor, Unchanged
from threedident.distributions.spaces import Box, check_points, raw_box
from threedident.errors import UsageError
from threedident.latents import SPLITS, check_seed_and_split, sample_raw_latents

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_LEAST_BETA = 0.2  # below it next to no candidate is accepted
_PARTNERS = 1  # the third word of the generator's counter; 0 there gives z
_AROUND = 2  # the same for partners of a z that is given


class _Stream:
    """Uniform draws from (0, 1), of 52 bits, from a counter of their own.

    Args:
        seed: the seed, 0 <= seed < 2^64.
        split: train, val or test.
        pair: the number of the pair.
        purpose: the third word of the counter, which keeps streams apart.
    """

    def __init__(self, seed: int, split: str, pair: int, purpose: int = _PARTNERS) -> None:
        key = np.array([seed, SPLITS[split]], np.uint64)
        counter = np.array([0, pair, purpose, 0], np.uint64)
        self._words = np.random.Philox(key=key, counter=counter)

    def uniform(self, count: int) -> Float64:
        """Draw `count` numbers."""
        top = np.atleast_1d(self._words.random_raw(count)) >> np.uint64(12)
        return (top.astype(np.float64) + 0.5) / 2.0**52  # with 53 bits, half could round to 1


def sample_pair_latents(
    indices: Iterable[int], *, seed: int, split: str, conditional: Distribution
) -> Float32:
    """Draw the raw latents of images that come in pairs.

    Args:
        indices: the image numbers; 2i is the anchor of pair i, 2i + 1 its positive.
        seed: the seed, 0 <= seed < 2^64.
        split: train, val or test.
        conditional: the conditional p(z~ | z) on [-1, 1]^10, in raw units.

    Returns:
        The raw latents, (N, 10) float32 in [-1, 1].

    Raises:
        UsageError: an argument does not fit.
    """
    check_renderable(conditional)
    numbers = list(indices)
    anchors = sample_raw_latents([i // 2 for i in numbers], seed=seed, split=split)
    for row, number in enumerate(numbers):
        if number % 2:
            stream = _Stream(seed, split, number // 2)
            z = anchors[row].astype(np.float64)
            anchors[row] = _draw(conditional, raw_box(), z, stream)
    return anchors


def sample_partners(
    z: npt.ArrayLike, count: int, *, conditional: Distribution, seed: int
) -> Float32:
    """Draw partners z~ of a given z, exactly.

    Partner i depends on z, the conditional, the seed and i alone. None is that of a rendered pair:
    their random numbers are others.

    Args:
        z: the raw latents of the anchor, (10,) in [-1, 1].
        count: the number of partners.
        conditional: the conditional p(z~ | z) on [-1, 1]^10, in raw units.
        seed: the seed, 0 <= seed < 2^64.

    Returns:
        The raw latents of the partners, (count, 10) float32 in [-1, 1].

    Raises:
        UsageError: an argument does not fit.
    """
    check_renderable(conditional)
    check_seed_and_split(seed, "train")
    anchor = np.asarray(z, np.float32)
    check_points(raw_box(), anchor[None], "z")
    partners = np.empty((count, len(anchor)), np.float32)
    for row in range(count):
        stream = _Stream(seed, "train", row, _AROUND)
        partners[row] = _draw(conditional, raw_box(), anchor.astype(np.float64), stream)
    return partners


def check_renderable(conditional: Distribution) -> None:
    """Check that pairs can be rendered from a conditional.

    Raises:
        UsageError: it is not defined on [-1, 1]^10, or its tails are too heavy.
    """
    conditional.check(raw_box())
    for part in _parts(conditional):
        if isinstance(part, Additive) and part.shape < _LEAST_BETA:
            raise UsageError(f"{part}: pairs can be rendered from beta {_LEAST_BETA} on")


def _parts(distribution: Distribution) -> Iterator[Distribution]:
    """The distributions of which one is made, itself among them."""
    yield distribution
    if isinstance(distribution, PerFactor):
        for _, part in distribution.parts:
            yield from _parts(part)
    if isinstance(distribution, Change):
        yield from _parts(distribution.conditional)


@functools.singledispatch
def _draw(distribution: Distribution, box: Box, z: Float64, stream: _Stream) -> Float64:
    """Draw one point of a box around z."""
    raise UsageError(f"{distribution} is not defined on the raw latents' box")


@_draw.register(Uniform)
def _(distribution: Uniform, box: Box, z: Float64, stream: _Stream) -> Float64:
    return box.low + (box.high - box.low) * stream.uniform(box.n)


@_draw.register(Additive)
def _(distribution: Additive, box: Box, z: Float64, stream: _Stream) -> Float64:
    widths = np.broadcast_to(np.asarray(distribution.scale, np.float64), (box.n,))
    return _truncated(z, widths, distribution.shape, box, stream)


@_draw.register(Unchanged)
def _(distribution: Unchanged, box: Box, z: Float64, stream: _Stream) -> Float64:
    return z


@_draw.register(Change)
def _(distribution: Change, box: Box, z: Float64, stream: _Stream) -> Float64:
    least, most = distribution.bounds
    k = least + int(stream.uniform(1)[0] * (most - least + 1))
    chosen = np.argsort(stream.uniform(box.n))[:k]
    drawn = _draw(distribution.conditional, box, z, stream)
    moved = z.copy()
    moved[chosen] = drawn[chosen]
    return moved


@_draw.register(PerFactor)
def _(distribution: PerFactor, box: Box, z: Float64, stream: _Stream) -> Float64:
    moved = z.copy()
    for columns, part in distribution.parts:
        block = list(columns)
        moved[block] = _draw(part, box.sub(columns), z[block], stream)
    return moved


def _truncated(z: Float64, scale: Float64, beta: float, box: Box, stream: _Stream) -> Float64:
    """Draw from the density exp(-|(x - z) / scale|^beta) in the box, by rejection.

    Candidates are uniform over the box where the scale is wide, else from the whole line by
    the ratio of uniforms (see `torch_sampler`), whichever is accepted more often.
    """
    moved = z.copy()
    reach = math.exp((math.log(2 / beta) - 1) / beta)
    flat = box.high - box.low <= 4 * scale * reach
    todo = np.arange(len(z))
    while len(todo):
        first, second = stream.uniform(len(todo)), stream.uniform(len(todo))
        here, widths, even = z[todo], scale[todo], flat[todo]
        offset = np.where(
            even,
            box.low - here + (box.high - box.low) * second,
            widths * reach * (2 * second - 1) / first,
        )
        with np.errstate(over="ignore"):  # to inf, which is not accepted
            allowed = -(np.abs(offset / widths) ** beta)
        good = np.where(even, 1, 2) * np.log(first) <= allowed
        x = here + offset
        good &= (box.low <= x) & (x <= box.high)
        moved[todo[good]] = x[good]
        todo = todo[~good]
    return moved
