"""Transitions: conditionals of pairs over a grid of discrete factors, with exact probabilities.

Like `families`, these are plain data; `torch_transitions` draws them and computes their
probabilities. They are the two kinds of pairs that the literature on dSprites and its kin trains
on, with the variants of papers and code as arguments.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from threedident.distributions.families import Distribution, positive_number
from threedident.distributions.grid import Grid
from threedident.distributions.number_checks import plain
from threedident.distributions.spaces import Space
from threedident.errors import UsageError

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor

_HIDDEN = ("redraw", "keep")
_REDRAW = ("one", "reject")
#: Beyond it float32 does not hold every whole number.
_LARGEST_SIZE = 2**24


class Transition(Distribution):
    """A conditional p(z~ | z) over a grid, which leads from each point to others near or far.

    Factors that the grid hides, such as the instance of SmallNORB, are no factors of interest. By
    default z~ has them drawn anew, uniformly, whatever else changes.

    Attributes:
        hidden: the treatment of hidden factors: redraw or keep.
    """

    hidden: str

    def check(self, space: Space) -> None:
        """Raise a UsageError for any space but a grid, or one where nothing can change."""
        if not self.movable(require_grid(self, space)):
            raise UsageError(f"{self}: no factor of {space} can change")

    def movable(self, grid: Grid) -> tuple[int, ...]:
        """The columns that can change and count: shown ones of more than one value."""
        return tuple(k for k in grid.shown if grid.sizes[k] > 1)

    def redrawn(self, grid: Grid) -> tuple[int, ...]:
        """The hidden columns that are drawn anew."""
        if self.hidden == "keep":
            return ()
        return tuple(k for k in range(grid.n) if k not in grid.shown)

    def kept(self, n: int) -> tuple[int, ...]:
        """All columns: any factor may stay."""
        return tuple(range(n))

    def probabilities(self, grid: Grid, point: Any) -> Tensor:
        """Compute the exact probability of every point of the grid, given z.

        Args:
            grid: the grid.
            point: z, a point of it, (n,).

        Returns:
            The probabilities in the order of the points' numbers, (len(grid),) float64.

        Raises:
            UsageError: this is no point, or nothing can change.
        """
        import torch

        every = grid.points(torch.arange(len(grid))).double()
        mean = torch.as_tensor(plain(point), dtype=torch.float64)[None]
        return self.log_weight(grid, mean, every)[0].exp()


@dataclasses.dataclass(frozen=True)
class UniformFactors(Transition):
    """UNI: k factors change, chosen at random, each to a value drawn uniformly; the rest stay.

    With the defaults it is that of Zimmermann et al. (2020, A.6) and of SlowVAE's code (Klindt et
    al. 2021): k is uniform in {1, ..., D - 1} of D factors, and a factor that is chosen takes one
    of its other values. `coin=True, replace=True` is that of the code for Locatello et al.
    (2020): a coin decides between one factor and k, and a value that is drawn may be the old one.

    p(z~ | z) = p(z | z~), so that z~ is uniform where z is.

    Attributes:
        k: the number of factors that are chosen, or (least, most), each number as likely; None:
            from 1 to D - 1, where D counts the factors that are not hidden and have two values.
        replace: whether a factor that is chosen may keep its value.
        coin: whether half of the pairs choose one factor, whatever k.
        hidden: the treatment of hidden factors: redraw or keep.
    """

    k: int | tuple[int, int] | None = None
    replace: bool = False
    coin: bool = False
    hidden: str = "redraw"
    name: ClassVar[str] = "uniform-factors"

    def __post_init__(self) -> None:
        _check_choice(self, "hidden", _HIDDEN)
        for field in ("replace", "coin"):
            if type(getattr(self, field)) is not bool:
                value = getattr(self, field)
                raise UsageError(f"{self.name}: {field} must be true or false, found {value!r:.50}")
        if self.k is None:
            return
        k = plain(self.k)
        bounds = tuple(plain(each) for each in k) if isinstance(k, list | tuple) else (k, k)
        whole = len(bounds) == 2 and all(type(each) is int for each in bounds)
        if not whole or not 1 <= bounds[0] <= bounds[1]:
            raise UsageError(
                f"{self.name}: k must be a number >= 1 or (least, most), found {self.k!r:.50}"
            )
        object.__setattr__(self, "k", k if type(k) is int else bounds)

    def check(self, space: Space) -> None:
        """Raise a UsageError for any space but a grid, and for k above its factors."""
        super().check(space)
        count = len(self.movable(require_grid(self, space)))
        if self.k is not None and self.bounds(count)[1] > count:
            raise UsageError(f"{self}: k is more than the {count} factors that can change")

    def bounds(self, count: int) -> tuple[int, int]:
        """The least and the most factors that are chosen, of `count` that can change."""
        if self.k is None:
            return 1, max(1, count - 1)
        return (self.k, self.k) if isinstance(self.k, int) else self.k

    def weights(self, count: int) -> list[float]:
        """The probability that 0, 1, ..., `count` factors are chosen, of so many."""
        least, most = self.bounds(count)
        share = (0.5 if self.coin else 1.0) / (most - least + 1)
        weights = [share if least <= chosen <= most else 0.0 for chosen in range(count + 1)]
        weights[1] += 0.5 if self.coin else 0.0
        return weights

    def as_dict(self) -> dict[str, Any]:
        """The transition as plain data; k is left out where it is None."""
        return {key: value for key, value in super().as_dict().items() if value is not None}


@dataclasses.dataclass(frozen=True)
class DiscreteLaplace(Transition):
    """LAP: ordered factors move by steps that are mostly small; categorical ones stay.

    A factor of n values goes from i to j with probability proportional to
    exp(-|j - i| rate / ln n), over all j. It does not come round, even where the grid says that
    the values do. z~ always differs from z: where no factor has moved, redraw="one" lets one of
    them move, chosen at random, with the same probabilities of its other values (SlowVAE's code,
    Klindt et al. 2021); redraw="reject" draws the pair again (Zimmermann et al. 2020, A.6).

    Attributes:
        rate: the rate, > 0; or (low, high), from which each pair draws its own uniformly:
            SlowVAE's code has (1, 10) where its rate is -1.
        redraw: the cure of pairs in which nothing has moved: one or reject.
        hidden: the treatment of hidden factors: redraw or keep. SlowVAE's code keeps them, as it
            does all categorical ones.
    """

    rate: float | tuple[float, float] = 1.0
    redraw: str = "one"
    hidden: str = "redraw"
    name: ClassVar[str] = "discrete-laplace"

    def __post_init__(self) -> None:
        _check_choice(self, "redraw", _REDRAW)
        _check_choice(self, "hidden", _HIDDEN)
        rate = plain(self.rate)
        if isinstance(rate, list | tuple):
            ends = tuple(positive_number(plain(end), "rate", self.name) for end in rate)
            if len(ends) != 2 or not ends[0] < ends[1]:
                raise UsageError(
                    f"{self.name}: rate must be a number or (low, high), found {self.rate!r:.100}"
                )
            object.__setattr__(self, "rate", ends)
        else:
            object.__setattr__(self, "rate", positive_number(rate, "rate", self.name))

    def movable(self, grid: Grid) -> tuple[int, ...]:
        """The columns that can move: shown and ordered ones of more than one value."""
        columns = super().movable(grid)
        return tuple(k for k in columns if grid.names[k] not in grid.categorical)


def require_grid(distribution: Distribution, space: Space) -> Grid:
    """The space, which must be a grid.

    Raises:
        UsageError: it is another one, or a factor of it has more values than float32 holds.
    """
    if not isinstance(space, Grid):
        raise UsageError(
            f"{distribution} is defined on a grid of discrete factors, found {space}: of "
            "continuous factors take Normal or Laplace"
        )
    if max(space.sizes) > _LARGEST_SIZE:
        raise UsageError(f"a factor of {space} has more than {_LARGEST_SIZE:,} values")
    return space


def _check_choice(transition: Transition, field: str, choices: tuple[str, ...]) -> None:
    value = getattr(transition, field)
    if value not in choices:
        raise UsageError(
            f"{transition.name}: {field} must be one of {', '.join(choices)}, found {value!r:.50}"
        )
