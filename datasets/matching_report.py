"""Measure how far pairs matched to rendered latents deviate from the requested conditional."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.latent_matcher import LatentMatcher
from threedident.datasets.pairs import PositivePairs
from threedident.distributions import (
    Change,
    Distribution,
    GeneralizedNormal,
    Laplace,
    Normal,
    PairProcess,
    PerFactor,
)
from threedident.distributions.torch_sampler import seeded
from threedident.errors import UsageError
from threedident.figures import empty_figure
from threedident.progress import Progress

Float64 = npt.NDArray[np.float64]

#: The largest relative error of the realised spread for which a conditional counts as met.
TOLERANCE = 0.05
_SCALES = np.geomspace(0.1, 20, 14)  # multiples of a width, in the search for where it holds
_TICKS = [m * 10.0**k for k in range(-4, 2) for m in (1, 2, 5)]
_WIDEST_FACTOR, _HALVINGS = 1e3, 16  # in the search for a conditional as wide as matched pairs
_LARGEST_WIDTH = 2.0  # the largest width to try: beyond it a box is uniform


@dataclasses.dataclass(frozen=True)
class Spread:
    """The spread of the differences d = z~ - z of pairs.

    Attributes:
        std: the root mean square of each factor's d, (n,).
        overall: the root mean square of d over pairs and factors.
        kurtosis: the kurtosis E d^4 / (E d^2)^2 over the factors that vary, each scaled by its
            std; 3 for a Normal.
        distance: the mean Euclidean length of d.
        differences: the differences themselves, (N, n), for figures.
    """

    std: Float64
    overall: float
    kurtosis: float
    distance: float
    differences: Float64

    @classmethod
    def of(cls, z: npt.NDArray[Any], z_tilde: npt.NDArray[Any]) -> Spread:
        """Measure the spread of pairs (N, n)."""
        d = z_tilde.astype(np.float64) - z
        std = np.sqrt((d**2).mean(0))
        scaled = d[:, std > 0] / std[std > 0]
        return cls(
            std,
            float(np.sqrt((d**2).mean())),
            float((scaled**4).mean()) if scaled.size else float("nan"),
            float(np.sqrt((d**2).sum(1)).mean()),
            d,
        )


@dataclasses.dataclass(frozen=True)
class Report:
    """A report on how far a dataset's pairs follow a conditional.

    Attributes:
        factors: the names of the columns.
        images: the number of latents to match with.
        conditional: the requested conditional.
        asked: the spread of pairs drawn exactly.
        nearest: the spread of the same pairs, matched to the nearest rendered latents; None for
            a dataset of rendered pairs.
        to_match: the mean distance from a drawn latent to its match.
        one_image: the share of pairs whose two draws are nearest to the same image.
        resampled: the spread of pairs resampled among rendered latents; None where that is not
            possible.
        effective: the median effective sample size of resampling.
        unable: the reason why resampling is not possible.
        rendered: the spread of a dataset's own pairs, where it was rendered in pairs.
        scales: the multiples of the requested widths that were tried.
        tried: the realised over the requested spread at each scale, for each way of matching;
            "asked" holds the requested spread itself.
        holds_from: the multiple, for each way of matching, from which on the realised spread is
            within 5 % of the requested one; None: at no multiple that was tried.
    """

    factors: Sequence[str]
    images: int
    conditional: Distribution
    asked: Spread
    nearest: Spread | None = None
    to_match: float | None = None
    one_image: float | None = None
    resampled: Spread | None = None
    effective: float | None = None
    unable: str | None = None
    rendered: Spread | None = None
    scales: Float64 = dataclasses.field(default_factory=lambda: np.empty(0))
    tried: dict[str, Float64] = dataclasses.field(default_factory=dict)
    holds_from: dict[str, float | None] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""

        def plain(spread: Spread | None) -> dict[str, Any] | None:
            if spread is None:
                return None
            return {
                "std": dict(zip(self.factors, spread.std.tolist(), strict=True)),
                "std_overall": spread.overall,
                "kurtosis": spread.kurtosis,
                "mean_distance": spread.distance,
            }

        return {
            "images": self.images,
            "conditional": self.conditional.as_dict(),
            "asked": plain(self.asked),
            "nearest": plain(self.nearest),
            "resampled": plain(self.resampled),
            "rendered": plain(self.rendered),
            "mean_distance_to_match": self.to_match,
            "share_on_one_image": self.one_image,
            "median_effective_sample_size": self.effective,
            "tolerance": TOLERANCE,
            "holds_from_times_the_width": self.holds_from,
            "scales": self.scales.tolist(),
            "tried": {name: values.tolist() for name, values in self.tried.items()},
        }


def examine_pairs(pairs: PositivePairs, draws: int, seed: int = 0) -> Report:
    """Compare the pairs of a dataset rendered in pairs with exact draws.

    Args:
        pairs: the pairs of such a dataset.
        draws: the number of exact pairs to compare with.
        seed: the seed for the exact pairs.
    """
    latents = pairs.dataset.raw_latents.numpy()
    latents = latents[: len(latents) // 2 * 2]
    columns = list(pairs.dataset.columns)
    z, z_tilde = (t.numpy() for t in pairs.process.sample(draws, generator=seeded(seed)))
    return Report(
        pairs.dataset.factor_names,
        len(latents),
        pairs.process.conditional,
        Spread.of(z[:, columns], z_tilde[:, columns]),
        rendered=Spread.of(latents[::2], latents[1::2]),
    )


def examine(
    matcher: LatentMatcher,
    process: PairProcess,
    factors: Sequence[str],
    *,
    draws: int = 20_000,
    anchors: int = 4_000,
    seed: int = 0,
) -> Report:
    """Measure both ways of matching, and from which width on they represent the conditional.

    Args:
        matcher: the matcher of the rendered latents, open for nearest neighbours.
        process: the process of the pairs.
        factors: the names of the columns.
        draws: the number of pairs that are drawn and matched to the nearest.
        anchors: the number of pairs that are resampled; each looks at every rendered latent.
        seed: the seed for all pairs.
    """
    resampled = effective = unable = None
    scales = _scales(process.conditional)
    with Progress("matching", 1 + len(scales), unit="widths") as progress:
        asked, nearest, to_match, one_image = _nearest(matcher, process, draws, seed)
        try:
            resampled, effective = _resampled(matcher, process, anchors, seed)
        except UsageError as error:
            unable, anchors = str(error), 0
        progress.advance()
        tried: dict[str, list[float]] = {"asked": [], "nearest": [], "resampled": []}
        for scale in scales:
            wider = dataclasses.replace(process, conditional=scaled(process.conditional, scale))
            exact, matched, _, _ = _nearest(matcher, wider, max(draws // 5, 1), seed)
            tried["asked"].append(exact.overall)
            tried["nearest"].append(matched.overall / exact.overall)
            if anchors:
                with contextlib.suppress(UsageError):  # too narrow: no other latent has weight
                    drawn, _ = _resampled(matcher, wider, max(anchors // 8, 1), seed)
                    tried["resampled"].append(drawn.overall / exact.overall)
            progress.advance()
    # A way that could not be tried at every width is left out.
    arrays = {n: np.array(v) for n, v in tried.items() if v and len(v) == len(scales)}
    holds = {name: _holds_from(scales, arrays[name]) for name in arrays if name != "asked"}
    return Report(
        factors=factors,
        images=len(matcher.latents),
        conditional=process.conditional,
        asked=asked,
        nearest=nearest,
        to_match=to_match,
        one_image=one_image,
        resampled=resampled,
        effective=effective,
        unable=unable,
        scales=scales,
        tried=arrays,
        holds_from=holds,
    )


def scaled(distribution: Distribution, factor: float) -> Distribution:
    """Multiply all widths of a conditional.

    Args:
        distribution: the conditional.
        factor: the factor for its widths.

    Raises:
        UsageError: the conditional has no widths.
    """

    def times(width: float | tuple[float, ...]) -> float | tuple[float, ...]:
        if isinstance(width, tuple):
            return tuple(factor * each for each in width)
        return factor * width

    match distribution:
        case Normal():
            return Normal(times(distribution.sigma))
        case Laplace():
            return Laplace(times(distribution.lam))
        case GeneralizedNormal():
            return GeneralizedNormal(times(distribution.lam), distribution.beta)
        case Change():
            return Change(scaled(distribution.conditional, factor), distribution.k)
        case PerFactor():
            return PerFactor(
                tuple(
                    (columns, scaled(part, factor) if _widths(part) else part)
                    for columns, part in distribution.parts
                )
            )
    raise UsageError(f"{distribution} has no width")


def matched_width(
    matcher: LatentMatcher, process: PairProcess, *, draws: int = 20_000, seed: int = 0
) -> float:
    """Find the factor by which matching to the nearest latents widens a conditional.

    Exact pairs of the conditional with all widths times this factor have the overall spread of
    the matched pairs.

    Args:
        matcher: the matcher of the rendered latents, open for nearest neighbours.
        process: the process of the pairs.
        draws: the number of pairs that are drawn.
        seed: the seed for the pairs.

    Raises:
        UsageError: the conditional has no width.
    """
    _, matched, _, _ = _nearest(matcher, process, draws, seed)
    low, high = 1.0, 1.0

    def spread(factor: float) -> float:
        wider = dataclasses.replace(process, conditional=scaled(process.conditional, factor))
        z, z_tilde = (t.numpy() for t in wider.sample(draws, generator=seeded(seed)))
        return Spread.of(z, z_tilde).overall

    # Truncated to a box, even the widest conditional has no more than the spread of a uniform one.
    while spread(high) < matched.overall and high < _WIDEST_FACTOR:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle) < matched.overall else (low, middle)
    return (low + high) / 2


def _widths(distribution: Distribution) -> list[float]:
    """Return all widths of a conditional: sigma of a Normal, lambda of the others."""
    match distribution:
        case Normal(sigma=width) | Laplace(lam=width) | GeneralizedNormal(lam=width):
            return list(width) if isinstance(width, tuple) else [width]
        case Change():
            return _widths(distribution.conditional)
        case PerFactor():
            return [w for _, part in distribution.parts for w in _widths(part)]
    return []


def _scales(conditional: Distribution) -> Float64:
    widths = _widths(conditional)
    if not widths:
        return np.empty(0)
    # Absolute widths from a hundredth of the box on, whatever the requested widths.
    return _SCALES * (_LARGEST_WIDTH / _SCALES[-1]) / max(widths)


def _nearest(
    matcher: LatentMatcher, process: PairProcess, draws: int, seed: int
) -> tuple[Spread, Spread, float, float]:
    """The spread of exact and of matched pairs, the mean distance to a match, the share on one.

    "On one" are pairs whose two draws are nearest to the same image.
    """
    z, z_tilde = (t.numpy() for t in process.sample(draws, generator=seeded(seed)))
    distances, numbers = matcher.nearest(np.concatenate([z, z_tilde]))
    i, j = matcher.nearest_pairs(z, z_tilde)
    return (
        Spread.of(z, z_tilde),
        Spread.of(matcher.latents[i], matcher.latents[j]),
        float(distances.mean()),
        float((numbers[:draws] == numbers[draws:]).mean()),
    )


def _resampled(
    matcher: LatentMatcher, process: PairProcess, count: int, seed: int
) -> tuple[Spread, float]:
    """The spread of resampled pairs, and the median effective sample size."""
    generator = seeded(seed, 1)
    anchors = matcher.anchors(process, count, generator)
    drawn = matcher.resample(anchors, process, generator)
    i, j = anchors.numpy(), drawn.partners.numpy()
    return (
        Spread.of(matcher.latents[i], matcher.latents[j]),
        float(drawn.effective.median()),
    )


def _holds_from(scales: Float64, ratios: Float64) -> float | None:
    """Interpolate the scale from which on the ratio stays within the tolerance; None: nowhere."""
    off = np.abs(np.log(ratios)) - np.log1p(TOLERANCE)
    bad = np.flatnonzero(off > 0)
    if not len(bad):
        return float(scales[0])
    last = bad[-1]
    if last == len(scales) - 1:
        return None
    share = off[last] / (off[last] - off[last + 1])
    return float(np.exp(np.log(scales[last]) * (1 - share) + np.log(scales[last + 1]) * share))


def table(report: Report) -> list[str]:
    """Format a report as the lines that `3dident pairs` prints."""
    ways = {
        "asked": report.asked,
        "nearest": report.nearest,
        "resampled": report.resampled,
        "rendered": report.rendered,
    }
    spreads = {name: spread for name, spread in ways.items() if spread is not None}

    def line(title: str, cells: dict[str, str]) -> str:
        return f"{title:<42}" + "".join(f"{cells.get(name, ''):>11}" for name in spreads)

    lines = [line("", {name: name for name in spreads})]
    for column, factor in enumerate(report.factors):
        cells = {name: f"{spread.std[column]:.4f}" for name, spread in spreads.items()}
        lines.append(line(f"std of z~ - z, {factor}", cells))
    overall = {name: f"{spread.overall:.4f}" for name, spread in spreads.items()}
    kurtosis = {name: f"{spread.kurtosis:.2f}" for name, spread in spreads.items()}
    distance = {name: f"{spread.distance:.3f}" for name, spread in spreads.items()}
    lines += [
        line("std, all factors", overall),
        line("kurtosis (Normal 3, Laplace 6)", kurtosis),
        line("mean distance of a pair", distance),
    ]
    if report.nearest is not None:
        lines += [
            line("mean distance to the match", {"nearest": f"{report.to_match:.3f}"}),
            line("z and z~ match the same image", {"nearest": f"{report.one_image:.1%}"}),
        ]
    if report.effective is not None:
        cells = {"resampled": f"{report.effective:.1f}"}
        lines.append(line("effective sample size, median", cells))
    if report.unable:
        lines.append(f"no resampling: {report.unable}")
    widths = _widths(report.conditional)
    if report.holds_from:
        cells = {}
        for way, times in report.holds_from.items():
            if times is None:
                cells[way] = "never"
            else:
                low = "<= " if times == report.scales[0] else ""
                cells[way] = f"{low}{times * max(widths):.3f}"
        what = "width" if len(set(widths)) == 1 else "largest width"
        lines.append(line(f"std within 5 % of asked, from {what}", cells))
    return lines


def figure(report: Report, title: str) -> Any:
    """Draw a report: differences, realised against requested spread, and distances.

    Args:
        report: the report; the second panel needs widths that were tried.
        title: the title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    panels = 3 if report.tried else 2
    drawing = empty_figure(4.6 * panels, 3.8)
    axes = list(drawing.subplots(1, panels))
    drawing.suptitle(title)
    _draw_distributions(report, axes[0], axes[-1])
    if report.tried:
        _draw_widths(report, axes[1])
    return drawing


def _draw_distributions(report: Report, first: Any, last: Any) -> None:
    """Draw the histograms of differences and of distances into two axes."""
    shown = {
        "asked for": (report.asked, "black"),
        "matched to the nearest": (report.nearest, "tab:orange"),
        "resampled": (report.resampled, "tab:blue"),
        "rendered": (report.rendered, "tab:green"),
    }
    varying = report.asked.std > 0
    reach = 4 * max(s.std.max() for s, _ in shown.values() if s is not None)
    for label, (spread, color) in shown.items():
        if spread is None:
            continue
        style = {"histtype": "step", "density": True, "label": label, "color": color}
        differences = spread.differences[:, varying].ravel()
        first.hist(differences, bins=81, range=(-reach, reach), **style)
        lengths = np.sqrt((spread.differences**2).sum(1))
        last.hist(lengths, bins=60, **style)
    first.set(xlabel="z~ - z, all factors that change", ylabel="density", yscale="log")
    last.set(xlabel="distance of a pair", ylabel="density")
    first.set_ylim(top=40 * first.get_ylim()[1])  # room for the legend, above the curves
    first.legend(fontsize="small", loc="upper left")
    if report.to_match is not None:
        last.axvline(report.to_match, color="grey", linestyle=":", label="mean distance to match")
        last.legend(fontsize="small")


def _draw_widths(report: Report, axes: Any) -> None:
    """Draw the realised against the requested spread at all widths that were tried."""
    asked = report.tried["asked"]
    axes.plot(asked, asked, color="black", label="asked for")
    for way, color in (("nearest", "tab:orange"), ("resampled", "tab:blue")):
        if way not in report.tried:
            continue
        axes.plot(asked, report.tried[way] * asked, ".-", color=color, label=way)
        factor = report.holds_from[way]
        if factor is not None:
            at = np.interp(np.log(factor), np.log(report.scales), np.log(asked))
            axes.axvline(np.exp(at), color=color, linestyle=":")
    axes.axvline(report.asked.overall, color="grey", linestyle="--", label="this width")
    axes.set(xlabel="std asked for", ylabel="std realised", xscale="log", yscale="log")
    for axis, (low, high) in (
        (axes.xaxis, axes.get_xlim()),
        (axes.yaxis, axes.get_ylim()),
    ):
        ticks = [tick for tick in _TICKS if low <= tick <= high]
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.legend(fontsize="small")
