"""The examples in the docstrings of metrics give what they say."""

import doctest
import importlib

import pytest

from threedident.evaluate import metrics

MODULES = (
    *("_linear_r2", "_nonlinear_r2", "_mcc", "_block_r2", "_dci", "_mig", "_sap"),
    *("_modularity", "_explicitness", "_beyond_parents", "_accuracy", "_infomec"),
    *("_beta_vae", "_factor_vae", "_dci_discrete", "_sap_discrete"),
)


@pytest.mark.parametrize("name", [f"metrics.{module}" for module in MODULES] + ["scoring"])
def test_examples(name):
    module = importlib.import_module(f"threedident.evaluate.{name}")
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried > 1


def test_every_metric_has_a_module_of_its_own():
    exported = {metrics._PLACES[name].rpartition(".")[2] for name in metrics.__all__}
    assert exported == {*MODULES, "_kinds", "_result"}
