"""Families of distributions, as marginals and conditionals of latents.

The classes are plain data, checked when they are made and written into `dataset.json`. Who draws
from them: `torch_sampler`, and without torch `philox_sampler`, for pairs that are rendered.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from threedident.distributions.grid import Grid
from threedident.distributions.number_checks import is_number, plain
from threedident.distributions.spaces import LARGEST, Product, Space, Sphere, Unbounded
from threedident.errors import UsageError

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor

Width: TypeAlias = float | tuple[float, ...]

#: What fields are called where they have no name of Python's: in papers and on the command line.
SPELLING = {"lam": "lambda"}

_LEAST_BETA = 0.05  # below it draws overflow


class Distribution:
    """A distribution over a space: around a mean as a conditional, around its centre as a marginal.

    Attributes:
        name: its name in `dataset.json` and on the command line.
    """

    name: ClassVar[str]

    def check(self, space: Space) -> None:
        """Check that this distribution is defined on a space.

        Raises:
            UsageError: it is not, or a width per dimension has another length.
        """

    def sample(
        self, space: Space, mean: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw a point around each mean, exactly.

        Args:
            space: the space of the points.
            mean: the means, (N, n), points of the space.
            generator: the source of random numbers, on the device of `mean`.

        Returns:
            The points, (N, n), like `mean` in dtype and device.

        Raises:
            UsageError: a mean is not in the space, or this is not defined there.
        """
        from threedident.distributions import torch_sampler

        return torch_sampler.sample(self, space, mean, generator)

    def marginal(
        self,
        space: Space,
        count: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        mean: Sequence[float] | None = None,
    ) -> Tensor:
        """Draw points from the whole space.

        Args:
            space: the space of the points.
            count: the number of points.
            generator: the source of random numbers.
            device: the device of the result; None: the generator's, or the CPU.
            mean: the mean, (n,); None: the space's centre.

        Returns:
            The points, (count, n) float32.

        Raises:
            UsageError: this is not defined there.
        """
        from threedident.distributions import torch_sampler

        point = space.center() if mean is None else mean
        center = torch_sampler.expand(point, count, generator, device)
        return self.sample(space, center, generator=generator)

    def log_weight(self, space: Space, mean: Tensor, points: Tensor) -> Tensor:
        """The log density of points around means, up to a constant for each mean.

        Args:
            space: the space of the points.
            mean: the means, (B, n).
            points: the points, (N, n); those outside the space get weight 0.

        Returns:
            The log densities, (B, N).

        Raises:
            UsageError: the density has no closed form, or is not a density.
        """
        from threedident.distributions import torch_density

        return torch_density.log_weight(self, space, mean, points)

    def kept(self, n: int) -> tuple[int, ...]:
        """The columns in which z~ can equal z: content.

        Only exact pairs have them: of single images, no two share a continuous latent.

        Args:
            n: the dimensions of the space.
        """
        return ()

    def as_dict(self) -> dict[str, Any]:
        """The distribution as plain data, as in `dataset.json`."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **{key: _plain(value) for key, value in fields.items()}}


@dataclasses.dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform over a box, a sphere or a grid, whatever the mean."""

    name: ClassVar[str] = "uniform"

    def check(self, space: Space) -> None:
        """Raise a UsageError for unbounded space."""
        if isinstance(space, Unbounded):
            raise UsageError(f"there is no uniform distribution on unbounded space, {space}")
        if isinstance(space, Product):
            for part in space.parts:
                self.check(part)


class Additive(Distribution):
    """z~ = z + e with e_i of density exp(-|e_i / lambda_i|^beta).

    It is truncated to a box, and projected onto a sphere (Zimmermann et al. 2021, A.1).
    """

    @property
    def scale(self) -> Width:
        """The scale lambda, for all dimensions or for each."""
        raise NotImplementedError

    @property
    def shape(self) -> float:
        """The exponent beta."""
        raise NotImplementedError

    def check(self, space: Space) -> None:
        """Raise a UsageError for a product, a grid, or widths of another number than dimensions."""
        if isinstance(space, Grid):
            raise UsageError(
                f"{self} is for continuous factors, and those of {space} are discrete: take "
                "UniformFactors or DiscreteLaplace"
            )
        if isinstance(space, Product):
            raise UsageError(f"{self} on a product of spaces: give each part its own, by PerFactor")
        _check_length(self.scale, space.n, str(self))


@dataclasses.dataclass(frozen=True)
class Normal(Additive):
    """The normal distribution.

    Attributes:
        sigma: the standard deviation, > 0: one for all dimensions, or one for each.
    """

    sigma: Width
    name: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        _clean_width(self, "sigma")

    @property
    def scale(self) -> Width:
        """The scale lambda: sqrt(2) sigma."""
        if isinstance(self.sigma, tuple):
            return tuple(math.sqrt(2) * s for s in self.sigma)
        return math.sqrt(2) * self.sigma

    @property
    def shape(self) -> float:
        """The exponent beta: 2."""
        return 2.0


@dataclasses.dataclass(frozen=True)
class Laplace(Additive):
    """The Laplace distribution.

    Attributes:
        lam: the scale lambda, > 0: one for all dimensions, or one for each.
    """

    lam: Width
    name: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        _clean_width(self, "lam")

    @property
    def scale(self) -> Width:
        """The scale lambda."""
        return self.lam

    @property
    def shape(self) -> float:
        """The exponent beta: 1."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class GeneralizedNormal(Additive):
    """The generalised normal distribution, of density exp(-|x / lambda|^beta).

    With beta = 2 it is Normal(lambda / sqrt 2), with beta = 1 Laplace(lambda).

    Attributes:
        lam: the scale lambda, > 0: one for all dimensions, or one for each.
        beta: the exponent, at least 0.05.
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
        """The scale lambda."""
        return self.lam

    @property
    def shape(self) -> float:
        """The exponent beta."""
        return self.beta


@dataclasses.dataclass(frozen=True)
class VonMisesFisher(Distribution):
    """The von Mises-Fisher distribution on a sphere.

    Attributes:
        kappa: the concentration, >= 0, for the sphere scaled to radius 1.
    """

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
        """Raise a UsageError for any space but a sphere."""
        require_sphere(self, space)


@dataclasses.dataclass(frozen=True)
class ProjectedNormal(Distribution):
    """The anisotropic conditional of AnInfoNCE on the sphere (Rusak et al. 2024, section 4).

    z~ = normalise(z + e), e_i ~ N(0, 1 / Lambda_ii), redrawn while z + e is farther than
    `shell` from the unit sphere.

    Attributes:
        Lambda: the concentrations, > 0: one for all dimensions, or one for each.
        shell: the largest distance from the unit sphere, > 0; the published code takes 0.1.
    """

    Lambda: Width
    shell: float = 0.1
    name: ClassVar[str] = "projected-normal"

    def __post_init__(self) -> None:
        _clean_width(self, "Lambda")
        _clean_number(self, "shell")

    def check(self, space: Space) -> None:
        """Raise a UsageError for any space but a sphere, and a Lambda of another length."""
        _check_length(self.Lambda, require_sphere(self, space).n, str(self))


def _plain(value: Any) -> Any:
    if isinstance(value, Distribution):
        return value.as_dict()
    return list(value) if isinstance(value, tuple) else value


def positive_number(value: Any, what: str, name: str) -> float:
    """Turn a number > 0 into a float.

    Args:
        value: the number.
        what: its name in errors.
        name: the name of its owner in errors.

    Raises:
        UsageError: it is no number > 0, or beyond 1e30 or 1e-30.
    """
    if not (is_number(value) and value > 0):
        raise UsageError(f"{name}: {what} must be a finite number > 0, found {value!r}")
    if not 1 / LARGEST <= value <= LARGEST:
        raise UsageError(
            f"{name}: {what} must lie between {1 / LARGEST:g} and {LARGEST:g}, found {value!r:.50}"
        )
    return float(value)


def _clean_number(distribution: Distribution, field: str) -> None:
    """Turn a field that is a number > 0 into a float, or raise a UsageError."""
    value = plain(getattr(distribution, field))
    object.__setattr__(distribution, field, positive_number(value, field, distribution.name))


def _clean_width(distribution: Distribution, field: str) -> None:
    """Turn a field that is a width into a float or a tuple of floats, or raise a UsageError."""
    value = plain(getattr(distribution, field))
    what = SPELLING.get(field, field)
    cleaned: Width
    if isinstance(value, Sequence) and not isinstance(value, str):
        every = f"every {what}"
        cleaned = tuple(positive_number(plain(each), every, distribution.name) for each in value)
    else:
        cleaned = positive_number(value, what, distribution.name)
    object.__setattr__(distribution, field, cleaned)


def _check_length(width: Width, n: int, what: str) -> None:
    if isinstance(width, tuple) and len(width) != n:
        raise UsageError(f"{what} has {len(width)} widths for {n} dimensions: expected {n}, or one")


def require_sphere(distribution: Distribution, space: Space) -> Sphere:
    """The space, which must be a sphere.

    Raises:
        UsageError: it is another one.
    """
    if not isinstance(space, Sphere):
        raise UsageError(f"{distribution} is defined on a sphere, found {space}")
    return space
