"""Metrics of identifiability: true latents and codes in, a score out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.evaluate.metrics._bootstrap import Measured as Measured
    from threedident.evaluate.metrics._bootstrap import Score as Score
    from threedident.evaluate.metrics._dci import completeness as completeness
    from threedident.evaluate.metrics._dci import dci as dci
    from threedident.evaluate.metrics._dci import disentangled as disentangled
    from threedident.evaluate.metrics._dci import explicitness as explicitness
    from threedident.evaluate.metrics._dci import mig as mig
    from threedident.evaluate.metrics._dci import modularity as modularity
    from threedident.evaluate.metrics._dci import sap as sap
    from threedident.evaluate.metrics._r2 import block_r2 as block_r2
    from threedident.evaluate.metrics._r2 import linear_r2 as linear_r2
    from threedident.evaluate.metrics._r2 import mcc as mcc
    from threedident.evaluate.metrics._r2 import nonlinear_r2 as nonlinear_r2

_MODULES = {
    "threedident.evaluate.metrics._bootstrap": (
        "Measured",
        "Score",
    ),
    "threedident.evaluate.metrics._dci": (
        "completeness",
        "dci",
        "disentangled",
        "explicitness",
        "mig",
        "modularity",
        "sap",
    ),
    "threedident.evaluate.metrics._r2": (
        "block_r2",
        "linear_r2",
        "mcc",
        "nonlinear_r2",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
