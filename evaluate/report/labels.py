"""The words that pages and terminals share: labels of metrics, their order, fixed sentences."""

from __future__ import annotations

from collections.abc import Iterable

from threedident.evaluate.metrics.registry import METRICS

#: Stands where there is nothing to show.
NONE = "\N{EN DASH}"
#: Said of the intervals of scores, which need not hold the R2 that more images would give.
OF_INTERVALS = "Intervals are for a test set of this size."


def metric_label(name: str) -> str:
    """Return the label of a metric on pages."""
    return METRICS[name].label if name in METRICS else name


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of metrics as pages list them."""
    known = list(METRICS)
    return sorted(set(names), key=lambda n: (known.index(n) if n in known else len(known), n))
