"""Scoring encoders: metrics, submissions, reports and a leaderboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.evaluate.disentanglement import dci as dci
    from threedident.evaluate.disentanglement import explicitness as explicitness
    from threedident.evaluate.disentanglement import mig as mig
    from threedident.evaluate.disentanglement import modularity as modularity
    from threedident.evaluate.disentanglement import sap as sap
    from threedident.evaluate.metrics import block_r2 as block_r2
    from threedident.evaluate.metrics import linear_r2 as linear_r2
    from threedident.evaluate.metrics import mcc as mcc
    from threedident.evaluate.metrics import nonlinear_r2 as nonlinear_r2
    from threedident.evaluate.run import evaluate as evaluate
    from threedident.evaluate.run import score_codes as score_codes
    from threedident.evaluate.scoring import score as score

_MODULES = {
    "threedident.evaluate.disentanglement": ("dci", "explicitness", "mig", "modularity", "sap"),
    "threedident.evaluate.metrics": ("block_r2", "linear_r2", "mcc", "nonlinear_r2"),
    "threedident.evaluate.run": ("evaluate", "score_codes"),
    "threedident.evaluate.scoring": ("score",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
