"""Replicates and intervals of every metric."""

import math

import numpy as np
import pytest
from helpers.synthetic_codes import data, noise

from threedident.evaluate.metrics import (
    accuracy,
    block_r2,
    dci,
    explicitness,
    infomec,
    linear_r2,
    mcc,
    mig,
    modularity,
    nonlinear_r2,
    r2_beyond_parents,
    sap,
)
from threedident.evaluate.metrics._bootstrap import bootstrap, draw_counts, interval

BLOCKS = {"a": [0, 1], "b": [2]}


MEASURES = {
    "two folds": linear_r2,
    "single": lambda z, c: linear_r2(z, c, folds="single"),
    "in-sample": lambda z, c: linear_r2(z, c, folds="in-sample"),
    "adjusted": lambda z, c: linear_r2(z, c, folds="in-sample", adjusted=True),
    "wide": lambda z, c: linear_r2(z, np.concatenate([c, c**2, c**3] * 20, 1)),
    "kernel": nonlinear_r2,
    "mcc": mcc,
    "spearman": lambda z, c: mcc(z, c, correlation="spearman"),
    "spearman, ties": lambda z, c: mcc(np.round(z, 1), np.round(c), correlation="spearman"),
    "aligned": lambda z, c: mcc(z, c, aligned=True),
    "padded": lambda z, c: mcc(z, c, noise_padded=True),
    "many codes": lambda z, c: mcc(z, np.concatenate([c, noise(len(c), 600)], 1)),
    "blocks": lambda z, c: block_r2(z, c, BLOCKS, BLOCKS),
    "dci": lambda z, c: dci(z, c, regressor="lasso"),
    "mig": mig,
    "sap": sap,
    "modularity": modularity,
    "explicitness": explicitness,
    "infomec": infomec,
    "beyond parents": lambda z, c: r2_beyond_parents(z, c, [[], [0], [0, 1]]),
    "accuracy": lambda z, c: accuracy(np.round(z), c),
    "circular": lambda z, c: linear_r2(z, c, kinds=["circular"] * 3),
}


#: These fit or cut anew in every draw, so that rows drawn twice are as good as rows twice.
REFITTED = ("two folds", "single", "in-sample", "mcc", "spearman", "spearman, ties", "aligned")


@pytest.mark.parametrize("name", MEASURES)
def test_a_draw_of_every_row_once_is_the_score_itself(name):
    z, codes = data()
    measured = MEASURES[name](z, codes)
    drawn = measured.resample.replicate(np.ones((2, 120)))
    assert np.allclose(drawn.value, measured.value, rtol=0, atol=1e-7)
    if measured.per_factor is not None:
        assert np.allclose(drawn.per_factor, measured.per_factor[None], rtol=0, atol=1e-7)
    for part, values in drawn.parts.items():
        assert np.allclose(values, measured.parts[part], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", [*REFITTED, "sap", "circular"])
def test_a_draw_is_the_score_of_the_rows_drawn(name):
    z, codes = data()
    measured = MEASURES[name](z, codes)
    counts = np.concatenate(list(draw_counts(measured.resample.folds, 3, 0)))
    for row, value in zip(counts, measured.resample.replicate(counts).value, strict=True):
        rows = np.repeat(np.arange(120), row.astype(int))
        assert MEASURES[name](z[rows], codes[rows]).value == pytest.approx(value, abs=1e-8)


def test_rows_are_drawn_inside_their_fold():
    folds = (slice(0, 7), slice(7, 20))
    counts = np.concatenate(list(draw_counts(folds, 450, 3)))
    assert counts.shape == (450, 20)
    assert (counts[:, :7].sum(1) == 7).all()
    assert (counts[:, 7:].sum(1) == 13).all()
    assert np.abs(counts.mean(0) - 1).max() < 0.25
    assert np.array_equal(counts, np.concatenate(list(draw_counts(folds, 450, 3))))
    assert not np.array_equal(counts, np.concatenate(list(draw_counts(folds, 450, 4))))


def test_intervals():
    draws = np.linspace(0, 0.1, 1001)[:, None] + [0.0, 0.3, np.nan]
    ends = interval(draws, [0.5, 0.99, 0.2], 0.0)
    assert ends[:, 0] == pytest.approx([0.5 - 0.0475, 0.5 + 0.0475])
    assert ends[:, 1] == pytest.approx([0.99 - 0.0475, 1])
    assert np.isnan(ends[:, 2]).all()
    assert interval(draws[:, 0], 0.01, 0.0)[0] == 0


@pytest.mark.parametrize(("width", "folds"), [(1, 2), (5, 2), (5, "in-sample"), (5, "single")])
def test_intervals_cover_the_known_r2_of_a_gaussian_regression(width, folds):
    """z = sqrt(R2) w.c + sqrt(1 - R2) e with |w| = 1 has R2 exactly; 95 % are asked for."""
    truth, runs, hits = 0.7, 200, 0
    for run in range(runs):
        generator = np.random.default_rng(run)
        codes = generator.standard_normal((500, width))
        weights = generator.standard_normal((width, 2))
        weights /= np.linalg.norm(weights, axis=0)
        z = math.sqrt(truth) * codes @ weights
        z += math.sqrt(1 - truth) * generator.standard_normal(z.shape)
        measured = linear_r2(z, codes, folds=folds)
        low, high = interval(bootstrap(measured, 200, run).value, measured.value, -math.inf)
        hits += low <= truth <= high
    assert 0.88 <= hits / runs <= 0.99


def test_intervals_cover_the_known_correlation():
    truth, runs, hits = 0.6, 200, 0
    for run in range(runs):
        generator = np.random.default_rng(run)
        z = generator.standard_normal((300, 2))
        codes = truth * z + math.sqrt(1 - truth**2) * generator.standard_normal(z.shape)
        measured = mcc(z, codes)
        low, high = interval(bootstrap(measured, 200, run).value, measured.value, 0)
        hits += low <= truth <= high
    assert 0.88 <= hits / runs <= 0.99
