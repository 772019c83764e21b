"""Latents as a linear regression predicts them from codes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.fake_scores import Structure, make_codes, scores_file

from threedident.evaluate.report.recovery import Recovery
from threedident.evaluate.report.report import report


def test_what_is_constant_has_no_correlation():
    z, z_hat = make_codes()
    z[:, 2], z_hat[:, 5] = 0.3, -7.0
    recovery = Recovery.of(z, z_hat)
    bad = np.zeros((10, 10), bool)
    bad[2], bad[:, 5] = True, True
    assert (np.isnan(recovery.correlation) == bad).all()
    assert np.isfinite(recovery.error).all()
    found = Structure(report(scores_file(), z, z_hat))
    assert "z, code 0: none" in found.text
    assert "nan" not in found.text


@pytest.mark.parametrize("width", [1, 3, 10, 300])
def test_predictions_are_those_of_the_other_half(width):
    z, z_hat = make_codes(codes=width)
    recovery = Recovery.of(z, z_hat)
    for here, there in ((slice(200), slice(200, None)), (slice(200, None), slice(200))):
        design = np.column_stack([z_hat, np.ones(len(z_hat))])
        slope = np.linalg.lstsq(design[there], z[there], rcond=None)[0]
        if width < 200:
            assert np.allclose(recovery.predicted[here], design[here] @ slope)
    assert recovery.predicted.shape == z.shape
    assert np.allclose(recovery.correlation, np.corrcoef(z.T, z_hat.T)[:10, 10:])
