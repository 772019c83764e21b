"""Scoring encoders: metrics, submissions, reports and a leaderboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.evaluate.evaluation import evaluate as evaluate
    from threedident.evaluate.evaluation import score_codes as score_codes
    from threedident.evaluate.metrics import block_r2 as block_r2
    from threedident.evaluate.metrics import linear_r2 as linear_r2
    from threedident.evaluate.metrics import mcc as mcc
    from threedident.evaluate.metrics import nonlinear_r2 as nonlinear_r2
    from threedident.evaluate.metrics._dci import dci as dci
    from threedident.evaluate.metrics._dci import explicitness as explicitness
    from threedident.evaluate.metrics._dci import mig as mig
    from threedident.evaluate.metrics._dci import modularity as modularity
    from threedident.evaluate.metrics._dci import sap as sap
    from threedident.evaluate.scoring import score as score

_MODULES = {
    "threedident.evaluate.metrics._dci": ("dci", "explicitness", "mig", "modularity", "sap"),
    "threedident.evaluate.metrics": ("block_r2", "linear_r2", "mcc", "nonlinear_r2"),
    "threedident.evaluate.evaluation": ("evaluate", "score_codes"),
    "threedident.evaluate.scoring": ("score",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
