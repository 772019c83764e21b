"""`MetricReport`: a score beside its interval, what chance gives, and what is possible."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from threedident.evaluate.metrics import MetricResult
from threedident.evaluate.metrics._arrays import Float64

#: Significant digits in JSON, of numbers and of the entries of arrays.
_DIGITS, _ARRAY_DIGITS = 10, 6

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class MetricReport:
    """A score, and what to hold it against.

    The same for scores that were just taken and for those that a file holds.

    Attributes:
        score: the result of the metric.
        factors: names of the n factors.
        interval: the 95 % interval of the value; None without a bootstrap.
        per_factor_interval: (2, n), the intervals of the factors, NaN where there is none; or
            None.
        part_intervals: intervals of numbers among the parts, by name.
        chance: the mean of the same score over shuffled pairs; NaN where it is not known.
        chance_interval: the smallest and the largest of them; None where they are not known.
        best: the best possible score by factor, where it is known.
        share: the share of it that was reached, by factor.
    """

    score: MetricResult
    factors: tuple[str, ...]
    interval: Interval | None = None
    per_factor_interval: Float64 | None = None
    part_intervals: Mapping[str, Interval] = dataclasses.field(default_factory=dict)
    chance: float = math.nan
    chance_interval: Interval | None = None
    best: Mapping[str, float | None] | None = None
    share: Mapping[str, float | None] | None = None

    @property
    def value(self) -> float | None:
        """The score; None where it is not defined."""
        return _defined(self.score.value)

    @property
    def ends(self) -> Interval | None:
        """The interval of the value; None where it is not defined."""
        known = self.interval is not None and all(map(math.isfinite, self.interval))
        return self.interval if known else None

    @property
    def per_factor(self) -> dict[str, float | None] | None:
        """The score by factor, None for a factor that does not vary; None without such parts."""
        values = self.score.per_factor
        if values is None:
            return None
        return {
            name: _defined(value) for name, value in zip(self.factors, values.tolist(), strict=True)
        }

    def factor_ends(self, factor: str) -> Interval | None:
        """Return the interval of a factor's score; None where there is none."""
        if self.per_factor_interval is None or factor not in self.factors:
            return None
        low, high = self.per_factor_interval[:, self.factors.index(factor)].tolist()
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, rounded; null for what is not a number."""
        intervals, per_factor = self.per_factor_interval, self.score.per_factor
        parts = {
            **self.score.parts,
            **{f"{name}_interval": ends for name, ends in self.part_intervals.items()},
        }
        return {
            "value": _plain(self.score.value),
            "interval": _plain(self.interval),
            "chance": _plain(self.chance),
            "chance_interval": _plain(self.chance_interval),
            "per_factor": None if per_factor is None else self._by_name(per_factor),
            "per_factor_interval": None if intervals is None else self._by_name(intervals.T),
            "best_per_factor": _plain(self.best),
            "share_of_best": _plain(self.share),
            "parts": _plain(parts),
            "choices": _plain(self.score.choices),
        }

    def _by_name(self, values: Float64) -> dict[str, Any]:
        return dict(zip(self.factors, _plain(list(values)), strict=True))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MetricReport:
        """Make a report of what `as_dict` returned, or an earlier version of it.

        Args:
            data: the fields, already checked; all but `value` may be missing.
        """
        per_factor, intervals = data.get("per_factor"), data.get("per_factor_interval") or None
        factors = tuple(per_factor or intervals or ())
        result = MetricResult(
            _number(data["value"]),
            None if not per_factor else np.array([_number(per_factor[f]) for f in factors]),
            dict(data.get("parts") or {}),
            dict(data.get("choices") or {}),
        )
        return cls(
            result,
            factors,
            _interval(data.get("interval")),
            None if intervals is None else _columns(intervals, factors),
            chance=_number(data.get("chance")),
            chance_interval=_interval(data.get("chance_interval")),
            best=data.get("best_per_factor"),
            share=data.get("share_of_best"),
        )


def _defined(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _interval(pair: Any) -> Interval | None:
    """Return [low, high], null in either for NaN; None for anything else."""
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    if not all(end is None or isinstance(end, int | float) for end in pair):
        return None
    return _number(pair[0]), _number(pair[1])


def _columns(intervals: Mapping[str, Any], factors: Sequence[str]) -> Float64:
    nothing = (math.nan, math.nan)
    pairs = [_interval(intervals.get(name)) or nothing for name in factors]
    return np.array(pairs, np.float64).reshape(-1, 2).T


def _rounded(number: float, digits: int) -> float | None:
    """Round to so many significant digits; None for what JSON cannot hold."""
    return float(f"{number:.{digits}g}") + 0.0 if math.isfinite(number) else None


def _plain(value: Any, digits: int = _DIGITS) -> Any:
    """Return data for JSON: arrays as lists, numbers rounded, null for what is not a number."""
    match value:
        case np.ndarray():
            return _plain(value.tolist(), _ARRAY_DIGITS if value.ndim > 1 else digits)
        case Mapping():
            return {str(name): _plain(each, digits) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each, digits) for each in value]
        case bool() | str() | None:
            return value
        case int() | np.integer():
            return int(value)
    return _rounded(float(value), digits)
