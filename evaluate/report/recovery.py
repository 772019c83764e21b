"""`Recovery`: how the latents come back from the codes by linear regression."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.evaluate.metrics._arrays import standardised, varying
from threedident.evaluate.metrics._kinds import Kinds, Points, as_kinds
from threedident.evaluate.metrics._linear_fit import fit_linear, splits, standardised_residual

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Latents as a linear regression predicts them from the codes.

    Attributes:
        predicted: (N, n), each half by the fit on the other half: numbers; angles, at most half a
            turn from the true one; class numbers.
        error: (N,), root mean square over factors, in standard deviations of each.
        correlation: (n, m), Pearson's, of factors with codes; NaN where one is constant. Of a
            circular or discrete factor the multiple correlation of a code with its coordinates.
    """

    predicted: Array
    error: Array
    correlation: Array

    @classmethod
    def of(cls, z: Array, z_hat: Array, kinds: Kinds = None) -> Recovery:
        """Fit and predict latents (N, n) of these kinds from codes (N, m)."""
        points = Points.of(z, kinds)
        true = points.values
        predicted = np.empty_like(true)
        for fitted, scored in splits(len(z), 2):
            predicted[scored] = fit_linear(z_hat[fitted], true[fitted]).predict(z_hat[scored])
        known = varying(z)[:, None] & varying(z_hat)
        correlation = np.clip(standardised(true).T @ standardised(z_hat) / len(z), -1, 1)
        if points.starts is None:
            squares = standardised_residual(z, predicted)[:, varying(z)] ** 2
            error = np.sqrt(squares.mean(1))
            return cls(predicted, error, np.where(known, correlation, np.nan))
        values, squares, table = np.empty(z.shape), np.zeros(z.shape), np.empty(known.shape)
        for i, kind in enumerate(as_kinds(kinds, z.shape[1])):
            columns = points.columns(i)
            own, guess = true[:, columns], predicted[:, columns]
            spread = own.var(0).sum()
            squares[:, i] = ((own - guess) ** 2).sum(1) / (spread if spread > 0 else 1)
            table[i] = correlation[columns][0]
            if kind.name != "continuous":
                table[i] = _multiple(own, z_hat)
            if kind.name == "circular":
                off = np.arctan2(guess[:, 1], guess[:, 0]) - 2 * np.pi * (z[:, i] / kind.turn)
                off = np.mod(off + np.pi, 2 * np.pi) - np.pi
                values[:, i] = z[:, i] + off * kind.turn / (2 * np.pi)
            elif kind.name == "discrete":
                values[:, i] = np.unique(np.rint(z[:, i]))[guess.argmax(1)]
            else:
                values[:, i] = guess[:, 0]
        error = np.sqrt(squares[:, varying(z)].mean(1))
        return cls(values, error, np.where(known, table, np.nan))

    def worst(self, count: int) -> list[int]:
        """Return the rows of the largest errors, the worst first."""
        return [int(i) for i in np.argsort(-self.error, kind="stable")[:count]]


def _multiple(coordinates: Array, codes: Array) -> Array:
    """Return the correlation (m,) of each code with the best sum of coordinates (N, k)."""
    fit = fit_linear(coordinates, standardised(codes)).predict(coordinates)
    return np.sqrt(np.clip(fit.var(0), 0, 1))
