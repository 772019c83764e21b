"""Reproducing a table or figure of a paper: its runs, and the comparison with what was printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.baselines.reproduce.runs import reproduce as reproduce
    from threedident.baselines.reproduce.scales import SCALES as SCALES
    from threedident.baselines.reproduce.studies import STUDIES as STUDIES

_MODULES = {
    "threedident.baselines.reproduce.runs": ("reproduce",),
    "threedident.baselines.reproduce.scales": ("SCALES",),
    "threedident.baselines.reproduce.studies": ("STUDIES",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
