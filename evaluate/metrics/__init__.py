"""Metrics of identifiability: a file each, a function of true latents and codes to a score.

Every metric takes z (N, n), the factors, and z_hat (N, m), the codes, numpy or torch, row by row
of the same samples, and returns a `MetricResult`. `registry` lists them by the names that the
command line takes; the files with other names are what they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.evaluate.metrics._accuracy import accuracy as accuracy
    from threedident.evaluate.metrics._beta_vae import beta_vae_score as beta_vae_score
    from threedident.evaluate.metrics._beyond_parents import r2_beyond_parents as r2_beyond_parents
    from threedident.evaluate.metrics._block_r2 import block_r2 as block_r2
    from threedident.evaluate.metrics._dci import completeness as completeness
    from threedident.evaluate.metrics._dci import dci as dci
    from threedident.evaluate.metrics._dci import disentangled as disentangled
    from threedident.evaluate.metrics._dci_discrete import dci_discrete as dci_discrete
    from threedident.evaluate.metrics._explicitness import explicitness as explicitness
    from threedident.evaluate.metrics._factor_vae import factor_vae_score as factor_vae_score
    from threedident.evaluate.metrics._infomec import infomec as infomec
    from threedident.evaluate.metrics._kinds import Kind as Kind
    from threedident.evaluate.metrics._linear_r2 import linear_r2 as linear_r2
    from threedident.evaluate.metrics._mcc import mcc as mcc
    from threedident.evaluate.metrics._mig import mig as mig
    from threedident.evaluate.metrics._mig import mig_discrete as mig_discrete
    from threedident.evaluate.metrics._modularity import modularity as modularity
    from threedident.evaluate.metrics._modularity import (
        modularity_discrete as modularity_discrete,
    )
    from threedident.evaluate.metrics._nonlinear_r2 import nonlinear_r2 as nonlinear_r2
    from threedident.evaluate.metrics._result import MetricResult as MetricResult
    from threedident.evaluate.metrics._result import Replicates as Replicates
    from threedident.evaluate.metrics._result import Resample as Resample
    from threedident.evaluate.metrics._sap import sap as sap
    from threedident.evaluate.metrics._sap_discrete import sap_discrete as sap_discrete

_MODULES = {
    "threedident.evaluate.metrics._accuracy": ("accuracy",),
    "threedident.evaluate.metrics._beta_vae": ("beta_vae_score",),
    "threedident.evaluate.metrics._beyond_parents": ("r2_beyond_parents",),
    "threedident.evaluate.metrics._block_r2": ("block_r2",),
    "threedident.evaluate.metrics._dci": ("completeness", "dci", "disentangled"),
    "threedident.evaluate.metrics._dci_discrete": ("dci_discrete",),
    "threedident.evaluate.metrics._explicitness": ("explicitness",),
    "threedident.evaluate.metrics._factor_vae": ("factor_vae_score",),
    "threedident.evaluate.metrics._infomec": ("infomec",),
    "threedident.evaluate.metrics._kinds": ("Kind",),
    "threedident.evaluate.metrics._linear_r2": ("linear_r2",),
    "threedident.evaluate.metrics._mcc": ("mcc",),
    "threedident.evaluate.metrics._mig": ("mig", "mig_discrete"),
    "threedident.evaluate.metrics._modularity": ("modularity", "modularity_discrete"),
    "threedident.evaluate.metrics._nonlinear_r2": ("nonlinear_r2",),
    "threedident.evaluate.metrics._result": ("MetricResult", "Replicates", "Resample"),
    "threedident.evaluate.metrics._sap": ("sap",),
    "threedident.evaluate.metrics._sap_discrete": ("sap_discrete",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
