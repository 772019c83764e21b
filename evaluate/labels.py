"""What pages call metrics and tracks, and in which order they show them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from threedident.evaluate.scoring import METRICS

#: Stands where there is nothing to show.
NONE = "\N{EN DASH}"
TRACKS: dict[str, str] = {
    "supervised": "supervised",
    "pairs-exact": "exact pairs",
    "pairs-matched": "matched pairs",
    "augmentations": "augmentations",
    "other": "other",
}


def metric_label(name: str) -> str:
    """What a page calls a metric."""
    return METRICS[name].label if name in METRICS else name


def in_order(names: Iterable[str]) -> list[str]:
    """Metrics as pages list them."""
    known = list(METRICS)
    return sorted(set(names), key=lambda n: (known.index(n) if n in known else len(known), n))


def is_entry_id(text: str) -> bool:
    """Whether a text can name an entry, and its folder."""
    return bool(re.fullmatch("[a-z0-9][a-z0-9-]{0,63}", text))
