"""Fitting truncated normals to latents: from the rows of a release to a model file.

Roots are uniform and independent. Every other variable is, for each class, a normal truncated to
[-1, 1], whose mean is affine in terms of the roots. As an exponential family in mean / variance and
1 / variance its likelihood is concave, so that Newton's method finds the one maximum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.causal.expressions import Expression
from threedident.causal.quantiles import normal_cdf
from threedident.errors import UsageError
from threedident.plain_data import Misfit, explaining

Float64 = npt.NDArray[np.float64]

#: Standard errors that a coefficient must be away from 0 to stay.
KEPT = 4.0
#: The largest strain of a law that fits, and of a root: by chance a right law of three roots is
#: above it in one of ten thousand.
FITS = 2.6

_BINS = 8  # of each root, in which a law must hold
_LEAST_ROWS = 50  # of a class
_LEAST_GAIN = 13.0  # of the log likelihood: uniform rows gain it once in ten thousand times
_LARGEST_STD = 10.0  # a wider normal is uniform on [-1, 1] for all that rows can tell
_LEAST_STD = 0.006  # narrower ones are not resolved by the quadrature
_NODES = 64
_MOST_NODES = 1024
_ROWS = 4096  # that the quadrature takes at once
_STEPS = 60
_RAW_SLACK = 1e-5


@dataclasses.dataclass(frozen=True)
class Term:
    """A term of a mean.

    Attributes:
        text: the expression of the roots; empty for the constant.
        coefficient: its coefficient.
        error: the coefficient's standard error.
    """

    text: str
    coefficient: float
    error: float


@dataclasses.dataclass(frozen=True)
class ClassLaw:
    """The law of a variable in one class.

    Attributes:
        terms: the terms of the mean, the constant first where there is one; empty where the law
            is uniform.
        std: the standard deviation before truncation; None where the law is uniform.
        std_error: its standard error.
        rows: the number of rows that it was fitted to.
        distance: the Kolmogorov-Smirnov distance of the rows from the law.
        strain: such a distance times the root of the number of rows; the largest of all rows and
            of those in each eighth of each root, which sees a mean of other terms.
    """

    terms: tuple[Term, ...]
    std: float | None
    std_error: float
    rows: int
    distance: float
    strain: float

    @property
    def fits(self) -> bool:
        """Whether the rows could well be of this law."""
        return self.strain < FITS

    def mean(self) -> str:
        """The mean as an expression of a model file."""
        text = ""
        for term in self.terms:
            value = _rounded(term.coefficient, term.error)
            if value == 0:
                continue
            sign = "-" if value < 0 else "+"
            number = f"{abs(value):.12g}"
            product = f"{number} * {_factor(term.text)}" if term.text else number
            text += f" {sign} {product}" if text else f"{'-' if value < 0 else ''}{product}"
        return text or "0"

    def mechanism(self) -> str:
        """The mechanism as an inline table of TOML."""
        if self.std is None:
            return '{ kind = "uniform" }'
        std = _rounded(self.std, self.std_error)
        return f'{{ kind = "truncated_normal", mean = "{self.mean()}", std = {std:.12g} }}'


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted law.

    Attributes:
        classes: the names of the classes.
        shares: the share of each class.
        laws: for each variable that is no root, the law of each class.
        roots: the Kolmogorov-Smirnov distance of each root from the uniform distribution.
        rows: the number of rows.
        dependence: the largest absolute correlation between two roots, or between two other
            variables once their laws are taken away; near 0 where the graph has all edges.
    """

    classes: tuple[str, ...]
    shares: tuple[float, ...]
    laws: Mapping[str, tuple[ClassLaw, ...]]
    roots: Mapping[str, float]
    rows: int
    dependence: float

    @property
    def misfits(self) -> list[str]:
        """What the rows contradict, a line each; none where the law fits."""
        lines = [
            f"{name} is not uniform: its distribution function is off by {distance:.3f}"
            for name, distance in self.roots.items()
            if distance * math.sqrt(self.rows) >= FITS
        ]
        for name, laws in self.laws.items():
            off = {
                label: law.strain
                for label, law in zip(self.classes, laws, strict=True)
                if not law.fits
            }
            if off:
                worst = max(off, key=lambda label: off[label])
                lines.append(
                    f"{name} is no such truncated normal in {', '.join(off)}, or its mean is made "
                    f"of other terms: its strain is up to {off[worst]:.1f} ({worst}), where "
                    f"{FITS:g} is the limit"
                )
        if self.dependence * math.sqrt(self.rows) > 5:
            lines.append(
                f"variables depend on each other beyond this graph: a correlation of "
                f"{self.dependence:.3f} is left"
            )
        return lines


def fit_truncated_normals(
    values: Mapping[str, npt.ArrayLike],
    numbers: npt.ArrayLike,
    classes: Sequence[str],
    *,
    roots: Sequence[str] = ("spotlight_position", "spotlight_hue", "background_hue"),
    terms: Sequence[str] | None = None,
) -> Fit:
    """Fit truncated normals to the rows of a release, by maximum likelihood.

    Args:
        values: the raw values (N,) of each variable, in [-1, 1].
        numbers: the class numbers, (N,).
        classes: the names of the classes, in the order of their numbers.
        roots: the variables that depend on no other.
        terms: the expressions of the roots, as in a model file, that a mean may be made of beside
            a constant; None: the roots themselves.

    Returns:
        The law, in which only coefficients that differ from 0 are left.

    Raises:
        UsageError: an argument does not fit, a class has too few rows, or a variable is a function
            of the terms.
    """
    arrays = {name: np.asarray(each, np.float64) for name, each in values.items()}
    label = np.asarray(numbers)
    _check(arrays, label, classes, roots)
    features = {
        text: _evaluate(text, arrays, roots) for text in (roots if terms is None else terms)
    }
    children = [name for name in arrays if name not in roots]
    laws: dict[str, list[ClassLaw]] = {name: [] for name in children}
    ranks = {name: np.empty(len(label)) for name in children}
    places = np.stack([np.floor((arrays[name] + 1) / 2 * _BINS) for name in roots], axis=1)
    for number, kind in enumerate(classes):
        rows = np.flatnonzero(label == number)
        inputs = {text: each[rows] for text, each in features.items()}
        for name in children:
            what = f"{name} in the class {kind}"
            law, shares = _fit_class(arrays[name][rows], inputs, places[rows], what)
            laws[name].append(law)
            ranks[name][rows] = shares
    counts = np.bincount(label.astype(np.int64), minlength=len(classes))
    return Fit(
        classes=tuple(classes),
        shares=tuple(float(share) for share in counts / len(label)),
        laws={name: tuple(each) for name, each in laws.items()},
        roots={name: _distance((arrays[name] + 1) / 2) for name in roots},
        rows=len(label),
        dependence=max(
            _largest_correlation([arrays[name] for name in roots]),
            _largest_correlation(list(ranks.values())),
        ),
    )


def _check(
    arrays: Mapping[str, Float64],
    label: npt.NDArray[Any],
    classes: Sequence[str],
    roots: Sequence[str],
) -> None:
    for name in roots:
        if name not in arrays:
            raise UsageError(f"unknown root {name!r}: expected some of {', '.join(arrays)}")
    if len(roots) == len(arrays):
        raise UsageError("every variable is a root: there is nothing to fit")
    for name, array in arrays.items():
        if array.shape != label.shape or label.ndim != 1:
            raise UsageError(f"{name} has shape {array.shape}, the class numbers {label.shape}")
        bad = ~(np.abs(array) <= 1 + _RAW_SLACK)
        if bad.any():
            raise UsageError(f"{name}: raw values lie in [-1, 1], found {array[bad][0]}")
    counts = np.array([(label == number).sum() for number in range(len(classes))])
    if counts.sum() != len(label):
        raise UsageError(f"the class numbers are not 0 to {len(classes) - 1}")
    if counts.min() < _LEAST_ROWS:
        few = classes[int(counts.argmin())]
        raise UsageError(
            f"the class {few} has {counts.min()} rows: expected at least {_LEAST_ROWS} of each"
        )


def _evaluate(text: str, arrays: Mapping[str, Float64], roots: Sequence[str]) -> Float64:
    """The values (N,) of a term.

    Raises:
        UsageError: it is no expression of the roots, or not finite.
    """
    with explaining(f"the term {text!r:.80}"):
        expression = Expression(text)
        unknown = expression.parents - set(roots)
        if unknown or expression.names("previous") or expression.names("first"):
            raise Misfit(f"expected an expression of {', '.join(roots)}")
    count = len(next(iter(arrays.values())))
    values = expression.evaluate(arrays, {}, {}, count)
    if not np.isfinite(values).all():
        raise UsageError(f"the term {text!r:.80} is not finite everywhere")
    return values


def _fit_class(
    y: Float64, inputs: Mapping[str, Float64], places: Float64, what: str
) -> tuple[ClassLaw, Float64]:
    """Fit one variable in one class.

    Args:
        y: its values (N,).
        inputs: the terms' values (N,), by their texts.
        places: the number of the bin of each root, (N, R).
        what: its name in errors.

    Returns:
        The law, and the ranks (N,) of the values in it.
    """
    inputs = {"": np.ones(len(y)), **inputs}  # the constant first
    texts = list(inputs)
    while True:
        design = np.column_stack([inputs[text] for text in texts])
        natural, covariance, value = _maximise(y, design, what)
        precision = natural[-1]
        gain = value + len(y) * math.log(2)  # over the uniform distribution
        if precision * _LARGEST_STD**2 <= 1 or gain < _LEAST_GAIN:
            ranks = (np.clip(y, -1, 1) + 1) / 2
            strain = _strain(ranks, places)
            return ClassLaw((), None, 0.0, len(y), _distance(ranks), strain), ranks
        weights = natural[:-1] / precision
        errors = _errors(weights, precision, covariance)
        sure = np.abs(weights) > KEPT * errors
        kept = [text for text, each in zip(texts, sure, strict=True) if each] or [""]
        if kept == texts:
            break
        texts = kept
    std = precision**-0.5
    if std < _LEAST_STD:
        raise _too_narrow(what, std)
    ranks = _ranks(y, design @ weights, std)
    terms = tuple(
        Term(text, float(weight), float(error))
        for text, weight, error in zip(texts, weights, errors, strict=True)
    )
    error = 0.5 * std**3 * math.sqrt(covariance[-1, -1])
    strain = _strain(ranks, places)
    return ClassLaw(terms, float(std), error, len(y), _distance(ranks), strain), ranks


def _too_narrow(what: str, std: float) -> UsageError:
    return UsageError(
        f"{what} is a function of the terms up to {std:.2g}: this is no truncated normal"
    )


def _errors(weights: Float64, precision: float, covariance: Float64) -> Float64:
    """The standard errors of the mean's coefficients, each a natural one over the precision."""
    own = np.diagonal(covariance)[:-1]
    mixed, last = covariance[:-1, -1], covariance[-1, -1]
    variance = (own - 2 * weights * mixed + weights**2 * last) / precision**2
    return np.sqrt(np.maximum(variance, 0))


def _maximise(y: Float64, design: Float64, what: str) -> tuple[Float64, Float64, float]:
    """The natural coefficients that are most likely, their covariance, and the log likelihood.

    The log density at y of [-1, 1] is (row . b) y - t y^2 / 2, up to its normalisation; b and t are
    the coefficients (k + 1,).

    Raises:
        UsageError: the terms depend on each other, or the search does not end.
    """
    size = design.shape[1]
    if np.linalg.matrix_rank(design) < size:
        raise UsageError(f"{what}: the terms depend on each other, or one is constant")
    weights, *_ = np.linalg.lstsq(design, y, rcond=None)
    variance = float(np.mean((y - design @ weights) ** 2))
    if variance < _LEAST_STD**2:
        raise _too_narrow(what, variance**0.5)
    at = np.append(weights, 1.0) / variance
    value, gradient, curvature = _likelihood(at, y, design)
    for _ in range(_STEPS):
        step = np.linalg.solve(curvature, gradient)
        gain = float(gradient @ step)
        if gain < 1e-9:
            return at, np.linalg.inv(curvature), value
        scale = 1.0
        while True:
            new = at + scale * step
            attempt = _likelihood(new, y, design)
            if attempt[0] >= value + 1e-4 * scale * gain:
                break
            scale /= 2
            if scale < 1e-6:  # rounding: there is nothing more to gain
                return at, np.linalg.inv(curvature), value
        at, (value, gradient, curvature) = new, attempt
    raise UsageError(f"{what}: the fit does not converge")


def _likelihood(at: Float64, y: Float64, design: Float64) -> tuple[float, Float64, Float64]:
    """The log likelihood, its gradient, and minus its second derivatives."""
    slope, precision = design @ at[:-1], float(at[-1])
    std = max(precision, 0.25) ** -0.5
    count = int(np.clip(math.ceil(6 / std), _NODES, _MOST_NODES))
    nodes, weights = np.polynomial.legendre.leggauss(count)  # type: ignore[no-untyped-call]
    powers = np.stack([nodes**k for k in range(5)], axis=1) * weights[:, None]
    size = len(at)
    value, gradient, curvature = 0.0, np.zeros(size), np.zeros((size, size))
    for start in range(0, len(y), _ROWS):
        rows = slice(start, start + _ROWS)
        exponent = slope[rows, None] * nodes - precision / 2 * nodes**2
        top = exponent.max(1, keepdims=True)
        moments = np.exp(exponent - top) @ powers
        mass = moments[:, 0]
        one, two, three, four = (moments[:, k] / mass for k in range(1, 5))
        target, inputs = y[rows], design[rows]
        value += float(
            (slope[rows] * target - precision / 2 * target**2 - np.log(mass) - top[:, 0]).sum()
        )
        gradient[:-1] += inputs.T @ (target - one)
        gradient[-1] -= 0.5 * float((target**2 - two).sum())
        curvature[:-1, :-1] += (inputs * (two - one**2)[:, None]).T @ inputs
        curvature[:-1, -1] -= 0.5 * inputs.T @ (three - one * two)
        curvature[-1, -1] += 0.25 * float((four - two**2).sum())
    curvature[-1, :-1] = curvature[:-1, -1]
    return value, gradient, curvature


def _ranks(y: Float64, mean: Float64, std: float) -> Float64:
    """The values (N,) of the distribution function of truncated normals."""
    first, last = (-1 - mean) / std, (1 - mean) / std
    sign = np.where(first + last > 0, -1.0, 1.0)  # into the tail that is exact
    begin, at, end = (normal_cdf(sign * each) for each in (first, (y - mean) / std, last))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (at - begin) / (end - begin)
    return np.clip(np.nan_to_num(share, nan=0.5), 0, 1)


def _distance(ranks: Float64) -> float:
    """The Kolmogorov-Smirnov distance of values in [0, 1] from the uniform distribution."""
    ordered, count = np.sort(ranks), len(ranks)
    steps = np.arange(count + 1) / count
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def _strain(ranks: Float64, places: Float64) -> float:
    """The largest distance, times the root of the rows, of all ranks and of those in each bin."""
    largest = _distance(ranks) * math.sqrt(len(ranks))
    for column in places.T:
        for place in range(_BINS):
            inside = ranks[column == place]
            if len(inside):
                largest = max(largest, _distance(inside) * math.sqrt(len(inside)))
    return largest


def _largest_correlation(columns: Sequence[Float64]) -> float:
    if len(columns) < 2:
        return 0.0
    table = np.corrcoef(np.stack(columns))
    np.fill_diagonal(table, 0.0)
    return float(np.nan_to_num(np.abs(table)).max())


def _rounded(value: float, error: float) -> float:
    """A number without the digits that its standard error makes meaningless."""
    if error <= 0:
        return value
    return round(value, max(1, 1 - math.floor(math.log10(error))))


def _factor(text: str) -> str:
    """A term as a factor of a product."""
    return text if text.isidentifier() else f"({text})"


def model_file(
    fit: Fit,
    base: str,
    where: str,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """The text of a model file with a fitted law.

    Args:
        fit: the law.
        base: the built-in model of the same variables, whose scene is taken.
        where: the name of what it was fitted to.
        ranges: the scene values at raw -1 and +1 by factor, where they are known.
    """
    where = " ".join(where.split()).replace("\\", "/").replace('"', "'")
    about = f"{fit.rows:,} rows of {where}"
    lines = [
        f'base = "{base}"',
        f'description = "The law of Causal3DIdent, fitted to {about}."',
        f'sources = "Fitted by maximum likelihood: truncated normals, whose means are affine in '
        f'terms of the roots. {_verdict(fit)}"',
        "",
    ]
    if ranges:
        lines.append("[scene.ranges]")
        lines += [f"{name} = [{low!r}, {high!r}]" for name, (low, high) in ranges.items()]
        lines.append("")
    equal = max(fit.shares) - min(fit.shares) < 4 * math.sqrt(max(fit.shares) / fit.rows)
    shares = ", ".join(f"{share:.12g}" for share in fit.shares)
    choice = '{ kind = "choice" }'
    if not equal:
        choice = f'{{ kind = "choice", probabilities = [{shares}] }}'
    lines += ["[variables.shape]", f"mechanism = {choice}", 'status = "fitted"', ""]
    for name, distance in fit.roots.items():
        lines += [
            f"[variables.{name}]",
            'mechanism = { kind = "uniform" }',
            'status = "fitted"',
            f'note = "A root; its distribution function is within {distance:.4f} of the uniform."',
            "",
        ]
    for name, laws in fit.laws.items():
        worst = max(law.distance for law in laws)
        lines += [
            f"[variables.{name}]",
            'status = "fitted"',
            f'note = "The distribution function is within {worst:.4f} of that of the rows, in '
            'every class."',
            "",
            f"[variables.{name}.mechanism]",
            'kind = "table"',
            'by = "shape"',
            "",
            f"[variables.{name}.mechanism.cases]",
            *(f"{kind} = {law.mechanism()}" for kind, law in zip(fit.classes, laws, strict=True)),
            "",
        ]
    return "\n".join(lines[:-1]) + "\n"


def _verdict(fit: Fit) -> str:
    misfits = fit.misfits
    if not misfits:
        return "The rows do not contradict it."
    return "The rows contradict it: " + "; ".join(misfits) + "."
