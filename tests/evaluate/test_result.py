"""What a metric returns."""

import pytest
from helpers.synthetic_codes import uniform

from threedident.evaluate.metrics import (
    dci,
    linear_r2,
)


def test_a_score_is_a_number_with_a_short_name():
    z = uniform(1000, 10)
    found = linear_r2(z, z)
    assert float(found) == found.value == pytest.approx(1)
    assert repr(found) == "MetricResult(1; per_factor, parts['folds'], parts['rank'])"
    assert len(repr(dci(z[:200], z[:200]))) < 300
    assert found.resample is not None
    assert found.alone().resample is None
    assert repr(found.alone()) == repr(found)
