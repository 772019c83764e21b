"""Pairs: what changes between two images and what stays, and the process that draws them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from threedident.distributions.families import Distribution, Uniform
from threedident.distributions.number_checks import plain
from threedident.distributions.spaces import Product, Space
from threedident.distributions.transitions import Transition
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, factor_columns, grouped_names

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    Tensor: TypeAlias = torch.Tensor

#: What holds content, where matching cannot; the end of an error.
EXACT_PAIRS = (
    "exact pairs hold them: a dataset made by `3dident render --pairs` (its --unchanged or "
    "--change), or RenderedPairs, which renders while training"
)


@dataclasses.dataclass(frozen=True)
class Unchanged(Distribution):
    """The conditional z~ = z: content, in the terms of content and style."""

    name: ClassVar[str] = "unchanged"

    def kept(self, n: int) -> tuple[int, ...]:
        """All columns."""
        return tuple(range(n))


@dataclasses.dataclass(frozen=True)
class Change(Distribution):
    """A change of k of the n factors, chosen anew for each pair; the rest stay.

    Attributes:
        conditional: the conditional of the factors that change, which must treat them
            independently.
        k: the number of factors that change, or (least, most), each number as likely.
    """

    conditional: Distribution
    k: int | tuple[int, int] = 1
    name: ClassVar[str] = "change"

    def __post_init__(self) -> None:
        k = plain(self.k)
        if isinstance(k, list | tuple):
            k = tuple(plain(bound) for bound in k)
        bounds = k if isinstance(k, tuple) else (k, k)
        if len(bounds) != 2 or not all(type(b) is int for b in bounds):
            raise UsageError(f"change: k must be a number or (least, most), found {k!r}")
        if not 0 <= bounds[0] <= bounds[1]:
            raise UsageError(f"change: k must lie in 0 <= least <= most, found {k!r}")
        object.__setattr__(self, "k", k)

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most factors that change."""
        return (self.k, self.k) if isinstance(self.k, int) else self.k

    def check(self, space: Space) -> None:
        """Raise a UsageError for k > n, and if coordinates cannot change one by one."""
        if isinstance(self.conditional, Transition):
            raise UsageError(
                f"{self}: {self.conditional.name} says itself which factors change; leave out "
                "change"
            )
        self.conditional.check(space)
        for column in range(space.n):
            space.sub([column])
        if self.bounds[1] > space.n:
            raise UsageError(f"change: k = {self.k} of {space.n} factors")

    def kept(self, n: int) -> tuple[int, ...]:
        """All columns, as any factor may stay; where none does, those of the conditional."""
        return tuple(range(n)) if self.bounds[0] < n else self.conditional.kept(n)


@dataclasses.dataclass(frozen=True)
class PerFactor(Distribution):
    """A distribution for each factor, group of factors, or part of a product of spaces.

    Attributes:
        parts: pairs (columns, distribution), which between them name every column once.
    """

    parts: tuple[tuple[tuple[int, ...], Distribution], ...]
    name: ClassVar[str] = "per-factor"

    def __post_init__(self) -> None:
        parts = tuple((tuple(plain(c) for c in block), part) for block, part in self.parts)
        columns = [c for block, _ in parts for c in block]
        whole = all(type(c) is int for c in columns) and all(block for block, _ in parts)
        if not whole or sorted(columns) != list(range(len(columns))) or not columns:
            raise UsageError(
                "per-factor: expected every column once, and some for each distribution, found "
                f"{[block for block, _ in parts]}"
            )
        object.__setattr__(self, "parts", parts)

    @classmethod
    def by_name(
        cls, parts: Mapping[str, Distribution], factors: Iterable[str] = FACTOR_NAMES
    ) -> PerFactor:
        """Make it from names of factors and groups, as {"position": Normal(0.1), ...}.

        Args:
            parts: the distributions by name; the names must cover the factors.
            factors: the factors that are the latents' columns, as a dataset's `factor_names`.

        Raises:
            UsageError: a name is unknown or not among the factors, or a factor has none or two.
        """
        names = tuple(factors)
        blocks = []
        for name, distribution in parts.items():
            chosen = [FACTOR_NAMES[c] for c in factor_columns([name])]
            for each in chosen:
                if each not in names:
                    raise UsageError(f"{name}: expected some of {', '.join(names)}")
            blocks.append((tuple(names.index(each) for each in chosen), distribution))
        named = [names[c] for block, _ in blocks for c in block]
        for each in names:
            if named.count(each) != 1:
                raise UsageError(
                    f"per-factor: {each} has {named.count(each)} distributions, expected one "
                    "(Unchanged() for a factor that stays)"
                )
        return cls(tuple(blocks))

    @classmethod
    def by_part(cls, space: Product, *parts: Distribution) -> PerFactor:
        """Make it from a distribution for each part of a product of spaces, in order.

        Raises:
            UsageError: there are more or fewer distributions than parts.
        """
        if len(parts) != len(space.parts):
            raise UsageError(f"{space} has {len(space.parts)} parts, found {len(parts)}")
        return cls(tuple(zip(space.blocks(), parts, strict=True)))

    def check(self, space: Space) -> None:
        """Check each part on its columns of the space."""
        count = sum(len(columns) for columns, _ in self.parts)
        if count != space.n:
            raise UsageError(f"per-factor: {count} columns for {space}")
        for columns, distribution in self.parts:
            distribution.check(space.sub(columns))

    def kept(self, n: int) -> tuple[int, ...]:
        """The columns that the parts keep."""
        parts = ((columns, part.kept(len(columns))) for columns, part in self.parts)
        return tuple(sorted(columns[c] for columns, kept in parts for c in kept))

    def as_dict(self) -> dict[str, Any]:
        """The distribution as plain data, as in `dataset.json`."""
        parts = [{"columns": list(c), "distribution": d.as_dict()} for c, d in self.parts]
        return {"name": self.name, "parts": parts}


@dataclasses.dataclass(frozen=True)
class PairProcess:
    """The process that draws positive pairs: z from a marginal, z~ from a conditional around z.

    Attributes:
        space: the space of both.
        conditional: the conditional, p(z~ | z).
        marginal: the marginal, p(z).

    Raises:
        UsageError: one of the two is not defined on the space.
    """

    space: Space
    conditional: Distribution
    marginal: Distribution = dataclasses.field(default_factory=Uniform)

    def __post_init__(self) -> None:
        self.conditional.check(self.space)
        self.marginal.check(self.space)

    def sample(
        self,
        count: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw pairs, exactly.

        Args:
            count: the number of pairs.
            generator: the source of random numbers.
            device: the device of the result; None: the generator's, or the CPU.

        Returns:
            z and z~, (count, n) float32 each.
        """
        z = self.marginal.marginal(self.space, count, generator=generator, device=device)
        return z, self.conditional.sample(self.space, z, generator=generator)


def check_matchable(
    conditional: Distribution, latents: npt.NDArray[Any], factors: Sequence[str]
) -> None:
    """Check that pairs of a conditional can be matched to latents of single images.

    Two images would have to share the factors that a conditional keeps, and they do only where a
    factor is constant.

    Args:
        conditional: the conditional of the pairs.
        latents: the images' latents, (N, n); none, if they are not known, stand for uniform ones.
        factors: the names of the columns.

    Raises:
        UsageError: the conditional keeps a factor that varies.
    """
    varies = [not len(column) or bool((column != column[0]).any()) for column in latents.T]
    kept = [factors[c] for c in conditional.kept(len(factors)) if varies[c]]
    if kept:
        raise UsageError(
            f"the conditional keeps factors as they are ({', '.join(kept)}), and pairs matched "
            f"among single images cannot: no two images share a latent. Only {EXACT_PAIRS}"
        )


def check_free(conditional: Distribution, held: Iterable[str]) -> None:
    """Check that a conditional over the ten factors does not count on those that a preset holds.

    Args:
        conditional: the conditional of the pairs.
        held: the names of the factors that the preset holds.

    Raises:
        UsageError: factors that are held are among those of which some change, or nothing moves.
    """
    still = set(held)
    columns = {FACTOR_NAMES.index(name) for name in still}
    moving, counted = _moving(conditional, tuple(range(len(FACTOR_NAMES))))
    if columns & counted:
        names = [FACTOR_NAMES[c] for c in range(len(FACTOR_NAMES)) if c in columns & counted]
        words = " ".join(f"--unchanged {name}" for name in grouped_names(set(names)))
        raise UsageError(
            f"the preset holds {', '.join(names)}, and change would count them among the factors "
            f"of which some change: pairs would be equal. Leave them out of it: {words} (in "
            "Python, PerFactor with Unchanged() for them)"
        )
    if still and not moving - columns:
        raise UsageError(
            "no factor changes: the preset holds "
            f"{', '.join(name for name in FACTOR_NAMES if name in still)}, and the others are "
            "unchanged. Let one of them change"
        )


def _moving(conditional: Distribution, columns: tuple[int, ...]) -> tuple[set[int], set[int]]:
    """Return the columns that a conditional of some columns moves, and those that Change counts."""
    if isinstance(conditional, PerFactor):
        parts = [
            _moving(part, tuple(columns[c] for c in block)) for block, part in conditional.parts
        ]
        return set().union(*(a for a, _ in parts)), set().union(*(b for _, b in parts))
    if isinstance(conditional, Unchanged):
        return set(), set()
    if isinstance(conditional, Change):
        return _moving(conditional.conditional, columns)[0], set(columns)
    return set(columns), set()
