"""Marginals and conditionals of latents, and the pair process that joins them.

The classes here are plain data, checked when they are made and written into `dataset.json`.
They sample through `torch_sampler`, which needs torch; `philox_sampler` draws from the same
conditionals without it, for rendering.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from threedident.distributions.spaces import (
    LARGEST,
    Box,
    Product,
    Space,
    Sphere,
    Unbounded,
    is_number,
    plain,
)
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, factor_columns

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    Tensor: TypeAlias = torch.Tensor

Width: TypeAlias = float | tuple[float, ...]

_LEAST_BETA = 0.05  # below it draws overflow
#: What holds content, where matching cannot.
_EXACT_PAIRS = (
    "exact pairs hold them: a dataset made by `3dident render --pairs` (its --unchanged or "
    "--change), or RenderedPairs, which renders while training"
)


class Distribution:
    """A distribution over a space: around a mean as a conditional, around its centre as a marginal.

    Attributes:
        name: what `dataset.json` and the command line call it.
    """

    name: ClassVar[str]

    def check(self, space: Space) -> None:
        """Checks that this distribution is defined on a space.

        Raises:
            UsageError: it is not, or a width per dimension has another length.
        """

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws around each mean, exactly.

        Args:
            space: where the points lie.
            mean: (N, n), points of the space.
            generator: of random numbers, on the device of `mean`.

        Returns:
            (N, n), like `mean` in dtype and device.

        Raises:
            UsageError: a mean is not in the space, or this is not defined there.
        """
        raise NotImplementedError

    def marginal(
        self,
        space: Space,
        count: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        mean: Sequence[float] | None = None,
    ) -> Tensor:
        """Draws from the whole space.

        Args:
            space: where the points lie.
            count: how many.
            generator: of random numbers.
            device: of the result; None: the generator's, or the CPU.
            mean: (n,); None: the space's centre.

        Returns:
            (count, n) float32.

        Raises:
            UsageError: this is not defined there.
        """
        from threedident.distributions import torch_sampler as sampling

        center = sampling.expand(space.center() if mean is None else mean, count, generator, device)
        return self.sample(space, center, generator=generator)

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """The log density of points around means, up to a constant for each mean.

        Args:
            space: where the points lie.
            mean: (B, n).
            points: (N, n); those outside the space get weight 0.

        Returns:
            (B, N).

        Raises:
            UsageError: the density has no closed form, or is not a density.
        """
        raise UsageError(
            f"the density of {self} on {space} has no closed form, so rendered latents cannot be "
            'resampled by it: leave out match="resample"'
        )

    def kept(self, n: int) -> tuple[int, ...]:
        """Columns in which z~ can equal z: content.

        Only exact pairs have them: of single images, no two share a continuous latent.

        Args:
            n: dimensions of the space.
        """
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in `dataset.json`."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **{key: _plain(value) for key, value in fields.items()}}


@dataclasses.dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform over a box or a sphere, whatever the mean."""

    name: ClassVar[str] = "uniform"

    def check(self, space: Space) -> None:
        """Refuses unbounded space."""
        if isinstance(space, Unbounded):
            raise UsageError(f"there is no uniform distribution on unbounded space, {space}")
        if isinstance(space, Product):
            for part in space.parts:
                self.check(part)

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws from the whole space; only the number of means counts."""
        from threedident.distributions import torch_sampler as sampling

        self.check(space)
        sampling.check_means(space, mean, "the mean of Uniform()", inside=False)
        return sampling.uniform(space, mean, generator)

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """0 inside the space."""
        from threedident.distributions import torch_sampler as sampling

        self.check(space)
        return sampling.within(space, points, mean.new_zeros(len(mean), len(points)))


class Additive(Distribution):
    """z~ = z + e with e_i of density exp(-|e_i / lambda_i|^beta).

    Truncated to a box, projected onto a sphere (Z21, A.1).
    """

    @property
    def scale(self) -> Width:
        """Lambda, for all dimensions or for each."""
        raise NotImplementedError

    @property
    def shape(self) -> float:
        """Beta."""
        raise NotImplementedError

    def check(self, space: Space) -> None:
        """Compares the number of widths with the space's dimensions."""
        if isinstance(space, Product):
            raise UsageError(f"{self} on a product of spaces: give each part its own, by PerFactor")
        _check_length(self.scale, space.n, str(self))

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws around each mean: truncated to a box, projected onto a sphere."""
        from threedident.distributions import torch_sampler as sampling

        self.check(space)
        sampling.check_means(space, mean, f"the mean of {self}")
        return sampling.additive(space, mean, self.scale, self.shape, generator)

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """-sum_i |d_i / lambda_i|^beta, in a box or in unbounded space."""
        from threedident.distributions import torch_sampler as sampling

        self.check(space)
        if isinstance(space, Sphere):
            return super().log_weight(space, mean, points)
        return sampling.within(
            space, points, -sampling.powered_distance(mean, points, self.scale, self.shape)
        )


@dataclasses.dataclass(frozen=True)
class Normal(Additive):
    """Normal with standard deviation sigma > 0, one or one per dimension."""

    sigma: Width
    name: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        _clean_width(self, "sigma")

    @property
    def scale(self) -> Width:
        """sqrt(2) sigma."""
        if isinstance(self.sigma, tuple):
            return tuple(math.sqrt(2) * s for s in self.sigma)
        return math.sqrt(2) * self.sigma

    @property
    def shape(self) -> float:
        """2."""
        return 2.0


@dataclasses.dataclass(frozen=True)
class Laplace(Additive):
    """Laplace with scale lambda > 0 (`lam`), one or one per dimension."""

    lam: Width
    name: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        _clean_width(self, "lam")

    @property
    def scale(self) -> Width:
        """Lambda."""
        return self.lam

    @property
    def shape(self) -> float:
        """1."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class GeneralizedNormal(Additive):
    """Generalised normal, density exp(-|x / lambda|^beta); beta = 2 is Normal(lambda / sqrt 2).

    beta is at least 0.05.
    """

    lam: Width
    beta: float = 3.0
    name: ClassVar[str] = "gennorm"

    def __post_init__(self) -> None:
        _clean_width(self, "lam")
        _clean_number(self, "beta")
        if self.beta < _LEAST_BETA:
            raise UsageError(
                f"{self.name}: beta must be at least {_LEAST_BETA}, found {self.beta:g}"
            )

    @property
    def scale(self) -> Width:
        """Lambda."""
        return self.lam

    @property
    def shape(self) -> float:
        """Beta."""
        return self.beta


@dataclasses.dataclass(frozen=True)
class VonMisesFisher(Distribution):
    """Von Mises-Fisher of concentration kappa >= 0, for the sphere scaled to radius 1."""

    kappa: float
    name: ClassVar[str] = "vmf"

    def __post_init__(self) -> None:
        kappa = plain(self.kappa)
        if not (is_number(kappa) and 0 <= kappa <= LARGEST):
            raise UsageError(
                f"vmf: kappa must be a finite number >= 0, {LARGEST:g} at most, found {kappa!r}"
            )
        object.__setattr__(self, "kappa", float(kappa))

    def check(self, space: Space) -> None:
        """Refuses all but a sphere."""
        _require_sphere(self, space)

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws around each mean by Wood's rejection scheme (1994), exact for any kappa and n."""
        from threedident.distributions import torch_sampler as sampling

        sphere = _require_sphere(self, space)
        sampling.check_means(sphere, mean, f"the mean of {self}")
        return sampling.von_mises_fisher(mean, self.kappa, sphere.r, generator)

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """Kappa times the cosine, less kappa."""
        from threedident.distributions import torch_sampler as sampling

        sphere = _require_sphere(self, space)
        if self.kappa == 0:
            return sampling.within(sphere, points, mean.new_zeros(len(mean), len(points)))
        # By differences: at large kappa a product of float32 vectors is too coarse.
        scale = sphere.r * math.sqrt(2 / self.kappa)
        return sampling.within(sphere, points, -sampling.powered_distance(mean, points, scale, 2.0))


@dataclasses.dataclass(frozen=True)
class ProjectedNormal(Distribution):
    """The anisotropic conditional of AnInfoNCE on the sphere (R24, section 4).

    z~ = normalise(z + e), e_i ~ N(0, 1 / Lambda_ii), redrawn while z + e is farther than
    `shell` from the unit sphere.

    Attributes:
        Lambda: concentrations > 0, one or one per dimension.
        shell: > 0; the published code takes 0.1.
    """

    Lambda: Width
    shell: float = 0.1
    name: ClassVar[str] = "projected-normal"

    def __post_init__(self) -> None:
        _clean_width(self, "Lambda")
        _clean_number(self, "shell")

    def check(self, space: Space) -> None:
        """Refuses all but a sphere, and a Lambda of another length."""
        _check_length(self.Lambda, _require_sphere(self, space).n, str(self))

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws around each mean by rejection."""
        from threedident.distributions import torch_sampler as sampling

        self.check(space)
        sphere = _require_sphere(self, space)
        sampling.check_means(sphere, mean, f"the mean of {self}")
        return sampling.projected_normal(mean, self.Lambda, self.shell, sphere.r, generator)


@dataclasses.dataclass(frozen=True)
class Unchanged(Distribution):
    """z~ = z: content, in the terms of content and style."""

    name: ClassVar[str] = "unchanged"

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """A copy of the means."""
        from threedident.distributions import torch_sampler as sampling

        sampling.check_means(space, mean, "the mean of Unchanged()")
        return mean.clone()

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """Refuses: there is no density."""
        raise _no_density(self)

    def kept(self, n: int) -> tuple[int, ...]:
        """All."""
        return tuple(range(n))


@dataclasses.dataclass(frozen=True)
class Change(Distribution):
    """k of the n factors, chosen anew for each pair, change by a conditional; the rest stay.

    Attributes:
        conditional: of the factors that change; one that treats them independently.
        k: how many change: a number, or (least, most), each number as likely.
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
        """Refuses k > n, and spaces whose coordinates cannot change one by one."""
        self.conditional.check(space)
        for column in range(space.n):
            space.sub([column])
        if self.bounds[1] > space.n:
            raise UsageError(f"change: k = {self.k} of {space.n} factors")

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws all, and keeps the means of those that are not chosen."""
        from threedident.distributions import torch_sampler as sampling

        self.check(space)
        drawn = self.conditional.sample(space, mean, generator=generator)
        return sampling.choose(drawn, mean, self.bounds, generator)

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """Refuses, unless all factors change: there is no density."""
        if self.kept(space.n):
            raise _no_density(self)
        return self.conditional.log_weight(space, mean, points)

    def kept(self, n: int) -> tuple[int, ...]:
        """All, as any factor may be the one that stays; where none stays, the conditional's."""
        return tuple(range(n)) if self.bounds[0] < n else self.conditional.kept(n)


@dataclasses.dataclass(frozen=True)
class PerFactor(Distribution):
    """A distribution for each factor, group of factors, or part of a product of spaces.

    Attributes:
        parts: (columns, distribution), which between them name every column once.
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
        """Distributions by factor and group names, as {"position": Normal(0.1), ...}.

        Args:
            parts: names, which must cover the factors.
            factors: the latents' columns, as a dataset's `factor_names`.

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
        """A distribution for each part of a product of spaces, in order.

        Raises:
            UsageError: their number differs.
        """
        if len(parts) != len(space.parts):
            raise UsageError(f"{space} has {len(space.parts)} parts, found {len(parts)}")
        return cls(tuple(zip(space.blocks(), parts, strict=True)))

    def check(self, space: Space) -> None:
        """Checks each part on its columns of the space."""
        count = sum(len(columns) for columns, _ in self.parts)
        if count != space.n:
            raise UsageError(f"per-factor: {count} columns for {space}")
        for columns, distribution in self.parts:
            distribution.check(space.sub(columns))

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws each part around its columns of the means."""
        from threedident.distributions import torch_sampler as sampling

        self.check(space)
        sampling.check_means(space, mean, "the mean of PerFactor", inside=False)
        out = mean.clone()
        for columns, part in self.parts:
            block = list(columns)
            out[:, block] = part.sample(space.sub(columns), mean[:, block], generator=generator)
        return out

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """The sum of the parts'."""
        self.check(space)
        total = mean.new_zeros(len(mean), len(points))
        for columns, part in self.parts:
            block = list(columns)
            total += part.log_weight(space.sub(columns), mean[:, block], points[:, block])
        return total

    def kept(self, n: int) -> tuple[int, ...]:
        """Those of the parts."""
        parts = ((columns, part.kept(len(columns))) for columns, part in self.parts)
        return tuple(sorted(columns[c] for columns, kept in parts for c in kept))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in `dataset.json`."""
        parts = [{"columns": list(c), "distribution": d.as_dict()} for c, d in self.parts]
        return {"name": self.name, "parts": parts}


@dataclasses.dataclass(frozen=True)
class PairProcess:
    """How positive pairs come about: z from the marginal, z~ from the conditional around z.

    Attributes:
        space: where both lie.
        conditional: p(z~ | z).
        marginal: p(z).

    Raises:
        UsageError: either is not defined on the space.
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
        """Draws pairs, exactly.

        Returns:
            z and z~, (count, n) float32 each.
        """
        z = self.marginal.marginal(self.space, count, generator=generator, device=device)
        return z, self.conditional.sample(self.space, z, generator=generator)


_KINDS: dict[str, type[Distribution]] = {
    kind.name: kind
    for kind in (
        *(Uniform, Normal, Laplace, GeneralizedNormal, VonMisesFisher),
        *(ProjectedNormal, Unchanged),
    )
}


def parse_distribution(data: Any) -> Distribution:
    """The distribution that plain data describe.

    Raises:
        UsageError: they describe none.
    """
    try:
        fields = dict(data)
        name = fields.pop("name")
        if "lambda" in fields:  # no name of Python's, but the papers' and the command line's
            fields["lam"] = fields.pop("lambda")
        kinds = (*_KINDS, PerFactor.name, Change.name)
        if name not in kinds:
            raise UsageError(f"unknown distribution {name!r:.100}: expected {', '.join(kinds)}")
        if name in _KINDS:
            expected = [f.name for f in dataclasses.fields(_KINDS[name])]  # type: ignore[arg-type]
            for key in fields:
                if key not in expected:
                    raise UsageError(
                        f"{name} has no {key!r:.100}: expected {', '.join(expected) or 'no field'}"
                    )
        if name == PerFactor.name:
            blocks = [
                (tuple(p["columns"]), parse_distribution(p["distribution"]))
                for p in fields.pop("parts")
            ]
            return PerFactor(tuple(blocks), **fields)
        if name == Change.name:
            return Change(parse_distribution(fields.pop("conditional")), **fields)
        return _KINDS[name](**fields)
    except RecursionError:
        raise UsageError("the description of a distribution is nested too deeply") from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"expected the description of a distribution, found {data!r:.200}") from (
            error
        )


def check_matchable(
    conditional: Distribution, latents: npt.NDArray[Any], factors: Sequence[str]
) -> None:
    """Checks that pairs of a conditional can be matched to latents of single images.

    What a conditional keeps, two images would have to share. That only those do whose factor is
    constant.

    Args:
        conditional: of the pairs.
        latents: (N, n), of the images; none, if they are not known, stand for uniform ones.
        factors: names of the columns.

    Raises:
        UsageError: the conditional keeps a factor that varies.
    """
    varies = [not len(column) or bool((column != column[0]).any()) for column in latents.T]
    kept = [factors[c] for c in conditional.kept(len(factors)) if varies[c]]
    if kept:
        raise UsageError(
            f"the conditional keeps factors as they are ({', '.join(kept)}), and pairs matched "
            f"among single images cannot: no two images share a latent. Only {_EXACT_PAIRS}"
        )


def raw_box() -> Box:
    """The space of raw latents, [-1, 1]^10."""
    return Box(len(FACTOR_NAMES), -1.0, 1.0)


def _no_density(distribution: Distribution) -> UsageError:
    return UsageError(
        f"{distribution} keeps factors as they are, so it has no density by which rendered latents "
        f"could be resampled: only {_EXACT_PAIRS}"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Distribution):
        return value.as_dict()
    return list(value) if isinstance(value, tuple) else value


def _positive(value: Any, what: str, name: str) -> float:
    """A number as a float."""
    if not (is_number(value) and value > 0):
        raise UsageError(f"{name}: {what} must be a finite number > 0, found {value!r}")
    if not 1 / LARGEST <= value <= LARGEST:
        raise UsageError(
            f"{name}: {what} must lie between {1 / LARGEST:g} and {LARGEST:g}, found {value!r:.50}"
        )
    return float(value)


def _clean_number(distribution: Distribution, field: str) -> None:
    """Checks a number > 0 and makes it a float."""
    value = plain(getattr(distribution, field))
    object.__setattr__(distribution, field, _positive(value, field, distribution.name))


def _clean_width(distribution: Distribution, field: str) -> None:
    """Checks a width and makes it a float or a tuple of floats."""
    value = plain(getattr(distribution, field))
    what = "lambda" if field == "lam" else field
    cleaned: Width
    if isinstance(value, Sequence) and not isinstance(value, str):
        every = f"every {what}"
        cleaned = tuple(_positive(plain(each), every, distribution.name) for each in value)
    else:
        cleaned = _positive(value, what, distribution.name)
    object.__setattr__(distribution, field, cleaned)


def _check_length(width: Width, n: int, what: str) -> None:
    if isinstance(width, tuple) and len(width) != n:
        raise UsageError(f"{what} has {len(width)} widths for {n} dimensions: expected {n}, or one")


def _require_sphere(distribution: Distribution, space: Space) -> Sphere:
    if not isinstance(space, Sphere):
        raise UsageError(f"{distribution} is defined on a sphere, found {space}")
    return space
