"""`Recovery`: how the latents come back from the codes by linear regression."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.evaluate.metrics._arrays import standardised, varying
from threedident.evaluate.metrics._kinds import Kind, Points
from threedident.evaluate.metrics._linear_fit import fit_linear, splits, standardised_residual

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Latents as a linear regression predicts them from the codes.

    Attributes:
        predicted: (N, n), each half by the fit on the other half.
        error: (N,), root mean square over factors, in standard deviations of each.
        correlation: (n, m), Pearson's, of factors with codes; NaN where one is constant.
    """

    predicted: Array
    error: Array
    correlation: Array

    @classmethod
    def of(cls, z: Array, z_hat: Array) -> Recovery:
        """Fit and predict latents (N, n) from codes (N, m)."""
        predicted = np.empty_like(z)
        for fitted, scored in splits(len(z), 2):
            predicted[scored] = fit_linear(z_hat[fitted], z[fitted]).predict(z_hat[scored])
        error = np.sqrt((standardised_residual(z, predicted)[:, varying(z)] ** 2).mean(1))
        known = varying(z)[:, None] & varying(z_hat)
        correlation = np.clip(standardised(z).T @ standardised(z_hat) / len(z), -1, 1)
        return cls(predicted, error, np.where(known, correlation, np.nan))

    def worst(self, count: int) -> list[int]:
        """Return the rows of the largest errors, the worst first."""
        return [int(i) for i in np.argsort(-self.error, kind="stable")[:count]]
