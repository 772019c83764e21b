"""The words that pages and terminals share: labels of metrics, their order, fixed sentences."""

from __future__ import annotations

from collections.abc import Iterable

from threedident.evaluate.metrics.registry import METRICS

#: Stands where there is nothing to show.
NONE = "\N{EN DASH}"
#: The quantity that intervals of scores are intervals of.
OF_INTERVALS = (
    "of the expected score at this number of images; with ever more, a held-out R2 is higher"
)


def metric_label(name: str) -> str:
    """Return the label of a metric on pages."""
    return METRICS[name].label if name in METRICS else name


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of metrics as pages list them."""
    known = list(METRICS)
    return sorted(set(names), key=lambda n: (known.index(n) if n in known else len(known), n))
