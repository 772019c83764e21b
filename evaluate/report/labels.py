"""What pages call metrics and tracks, and in which order they show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

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


#: What the intervals of scores are intervals of.
OF_INTERVALS = (
    "of the expected score at this number of images; with ever more, a held-out R2 is higher"
)


def no_best_scores(scores: Mapping[str, Any]) -> str | None:
    """Why scores do not stand beside the best possible ones, a line; None where they do."""
    reason = scores["data"].get("why_no_best_r2")
    return f"no best possible scores are given: {reason}" if reason else None


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
