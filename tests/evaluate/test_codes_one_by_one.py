"""What all metrics that look at codes one by one share."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import uniform

from threedident.errors import UsageError
from threedident.evaluate.metrics import (
    dci,
    explicitness,
    mig,
    modularity,
    sap,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.mark.parametrize("metric", [dci, mig, sap, modularity, explicitness])
def test_constant_factors_are_left_out(metric):
    z = uniform(1000, 3)
    z[:, 1] = 0.5
    found = metric(z, z[:, [0, 2]])
    assert found.value > 0.85
    assert found.choices["constant_factors_left_out"] == [1]
    if found.per_factor is not None:
        assert np.isnan(found.per_factor).tolist() == [False, True, False]
    with pytest.raises(UsageError, match="codes, found 513"):
        metric(z, np.random.default_rng(0).standard_normal((1000, 513)))
    with pytest.raises(UsageError, match="at least 20 samples"):
        metric(z[:10], z[:10])


def test_arguments_that_do_not_fit():
    z = uniform(60, 2)
    for call, message in (
        (lambda: dci(z, z, regressor="forest"), "regressor must be one of trees, lasso"),
        (lambda: dci(z, z, importance="luck"), "importance must be one of permutation, fit"),
        (lambda: dci(z, z, folds="in-sample"), "use folds=2"),
        (lambda: dci(z[:, :1], z), "at least 2 varying factors, found 1"),
        (lambda: dci(z, z[:, :1]), "needs 2 to 512 codes, found 1"),
        (lambda: mig(z, z, bins=1), "bins must lie in 2..200, found 1"),
        (lambda: mig(z, z, binning="tree"), "binning must be one of width, quantile"),
        (lambda: explicitness(z, z, classes=1), "classes must lie in 2..100"),
        (lambda: explicitness(z, z, folds="in-sample"), "use folds=2"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
