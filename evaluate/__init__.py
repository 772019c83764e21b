"""Scoring of encoders: metrics, submissions, reports and a leaderboard.

`evaluate` runs a submission in a process of its own (`runner`), scores its codes (`scoring`,
`metrics`) and writes scores.json (`scores_file`) and a page (`report`); `leaderboard` collects
such scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.evaluate.evaluation import EvaluationResult as EvaluationResult
    from threedident.evaluate.evaluation import evaluate as evaluate
    from threedident.evaluate.evaluation import score_codes as score_codes
    from threedident.evaluate.metrics import Kind as Kind
    from threedident.evaluate.metrics import MetricResult as MetricResult
    from threedident.evaluate.metrics import accuracy as accuracy
    from threedident.evaluate.metrics import beta_vae_score as beta_vae_score
    from threedident.evaluate.metrics import block_r2 as block_r2
    from threedident.evaluate.metrics import dci as dci
    from threedident.evaluate.metrics import dci_discrete as dci_discrete
    from threedident.evaluate.metrics import explicitness as explicitness
    from threedident.evaluate.metrics import factor_vae_score as factor_vae_score
    from threedident.evaluate.metrics import infomec as infomec
    from threedident.evaluate.metrics import linear_r2 as linear_r2
    from threedident.evaluate.metrics import mcc as mcc
    from threedident.evaluate.metrics import mig as mig
    from threedident.evaluate.metrics import mig_discrete as mig_discrete
    from threedident.evaluate.metrics import modularity as modularity
    from threedident.evaluate.metrics import modularity_discrete as modularity_discrete
    from threedident.evaluate.metrics import nonlinear_r2 as nonlinear_r2
    from threedident.evaluate.metrics import r2_beyond_parents as r2_beyond_parents
    from threedident.evaluate.metrics import sap as sap
    from threedident.evaluate.metrics import sap_discrete as sap_discrete
    from threedident.evaluate.readout import Readout as Readout
    from threedident.evaluate.readout import read_out as read_out
    from threedident.evaluate.scores_file import ScoresFile as ScoresFile
    from threedident.evaluate.scoring import score as score
    from threedident.evaluate.submissions import onnx_export as _onnx
    from threedident.evaluate.text_tables import summary as summary

    export_onnx = _onnx.export

_MODULES = {
    "threedident.evaluate.metrics": (
        "Kind",
        "MetricResult",
        "accuracy",
        "beta_vae_score",
        "block_r2",
        "dci",
        "dci_discrete",
        "explicitness",
        "factor_vae_score",
        "infomec",
        "linear_r2",
        "mcc",
        "mig",
        "mig_discrete",
        "modularity",
        "modularity_discrete",
        "nonlinear_r2",
        "r2_beyond_parents",
        "sap",
        "sap_discrete",
    ),
    "threedident.evaluate.evaluation": ("EvaluationResult", "evaluate", "score_codes"),
    "threedident.evaluate.readout": ("Readout", "read_out"),
    "threedident.evaluate.scores_file": ("ScoresFile",),
    "threedident.evaluate.scoring": ("score",),
    "threedident.evaluate.text_tables": ("summary",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

_PLACES["export_onnx"] = "threedident.evaluate.submissions.onnx_export:export"

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
