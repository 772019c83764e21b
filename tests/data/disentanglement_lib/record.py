"""Record what disentanglement_lib gives for `helpers.grid_codes`, into `scores.json` beside this.

Install disentanglement-lib 1.5 without its dependencies, and absl-py, six and gin-config, into a
folder; then `PYTHONPATH=FOLDER:tests python tests/data/disentanglement_lib/record.py`. TensorFlow
is not needed: of it, the metrics import `gin.tf` alone, which an empty module stands in for.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from helpers.grid_codes import GRID, codes_of_rows, grid_rows

CUT = 600  # rows to fit on
POINTS, TEST_POINTS, BATCH = 2000, 1000, 64


def _imported(name: str) -> Any:
    return importlib.import_module(f"disentanglement_lib.evaluation.metrics.{name}")


def _stand_in() -> None:
    """Stand in for gin.tf, whose decorators then change nothing."""
    module = types.ModuleType("gin.tf")
    gin = types.ModuleType("gin")
    for each in (module, gin):
        each.configurable = lambda *_, **__: lambda function: function  # type: ignore[attr-defined]
        each.REQUIRED = None  # type: ignore[attr-defined]
    gin.tf = module  # type: ignore[attr-defined]
    sys.modules |= {"gin": gin, "gin.tf": module}


class Rows:
    """The grid as disentanglement_lib samples it: an image is the number of its point."""

    num_factors = GRID.n

    def sample_factors(self, count: int, state: Any) -> Any:
        return np.stack([state.randint(size, size=count) for size in GRID.sizes], 1)

    def sample_observations_from_factors(self, factors: Any, state: Any) -> Any:
        del state
        return GRID.index(factors)

    def sample_observations(self, count: int, state: Any) -> Any:
        return GRID.index(self.sample_factors(count, state))


def main() -> None:
    """Record all scores."""
    _stand_in()
    utils = _imported("utils")
    utils.make_discretizer = lambda rows: utils._histogram_discretize(rows, 20)  # as in its study
    z = grid_rows()
    every = GRID.points(np.arange(len(GRID))).astype(float)
    recorded: dict[str, Any] = {}
    for name, codes in codes_of_rows(z).items():
        rows, labels = codes.T, z.T.astype(int)
        parts = rows[:, :CUT], labels[:, :CUT], rows[:, CUT:], labels[:, CUT:]
        np.random.seed(0)
        information = utils.discrete_mutual_info(utils.make_discretizer(rows), labels)
        dci = _imported("dci")._compute_dci(*parts)
        table = codes_of_rows(every)[name]
        state = np.random.RandomState(0)
        sizes = {"batch_size": BATCH, "num_train": POINTS, "num_eval": TEST_POINTS}
        given = Rows(), table.__getitem__, state
        beta = _imported("beta_vae").compute_beta_vae_sklearn(*given, **sizes)
        factor = _imported("factor_vae").compute_factor_vae(
            *given, **sizes, num_variance_estimate=2000
        )
        recorded[name] = {
            "mig_discrete": _imported("mig")._compute_mig(rows, labels)["discrete_mig"],
            "modularity_discrete": _imported("modularity_explicitness").modularity(information),
            "dci_discrete": dci["disentanglement"],
            "completeness": dci["completeness"],
            "informativeness": dci["informativeness_test"],
            "sap_discrete": _imported("sap_score")._compute_sap(*parts, False)["SAP_score"],
            "beta_vae": beta["eval_accuracy"],
            "factor_vae": factor["eval_accuracy"],
        }
    versions = {
        each: metadata.version(each) for each in ("disentanglement-lib", "scikit-learn", "numpy")
    }
    content = {"versions": versions, "scores": recorded}
    path = Path(__file__).with_name("scores.json")
    path.write_text(json.dumps(content, indent=1, default=float) + "\n")


if __name__ == "__main__":
    with threadpoolctl.threadpool_limits(1):
        main()
