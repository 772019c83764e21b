"""Non-linear regression from codes to factors: kernel ridge and a small MLP."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable
from types import ModuleType

import numpy as np

from threedident.errors import MissingExtraError, UsageError
from threedident.evaluate.metrics._arrays import Float64, standardised, varying
from threedident.evaluate.metrics._linear_fit import Starts, determination

try:
    from scipy import linalg
    from scipy.spatial.distance import cdist
except ImportError as error:
    raise MissingExtraError("scipy", "train", "scoring") from error

#: (train codes, train factors, test codes) to predictions for the test rows.
Regression = Callable[[Float64, Float64, Float64], Float64]

#: Cubic in the samples, so more than this are not used.
MOST_SAMPLES = 4096
#: Multiples of the median distance between codes.
WIDTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
#: Penalties, times the number of samples.
RIDGES = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0)
HIDDEN = (64, 64)
MOST_MLP_CODES = 4096


def _alike(train: Float64, test: Float64) -> tuple[Float64, Float64]:
    """Standardise both by the mean and standard deviation of the first."""
    moves = varying(train)
    mean, std = train[:, moves].mean(0), train[:, moves].std(0)
    if not moves.any():
        return np.zeros((len(train), 1)), np.zeros((len(test), 1))
    return (train[:, moves] - mean) / std, (test[:, moves] - mean) / std


def kernel_ridge(train: Float64, targets: Float64, test: Float64, starts: Starts = None) -> Float64:
    """Predict factors by kernel ridge regression with a Gaussian kernel (Saunders et al. 1998).

    f(c) = mean + k(c)^T (K + N ridge)^-1 (z - mean), K_rs = exp(-|c_r - c_s|^2 / (2 width^2)),
    on standardised codes. Width and ridge are chosen per factor, from a grid: fitted on the
    first half of the training rows, the best R2 on the second half wins, and is fitted again
    on all training rows.

    Args:
        train: (N, m), the codes to fit on.
        targets: (N, k), their factors, one column each unless `starts` says otherwise.
        test: (M, m), the codes to predict from.
        starts: the first column of each factor; width and ridge are chosen for all columns of a
            factor together.

    Returns:
        Predictions (M, k).
    """
    codes, queries = _alike(train, test)
    squares = cdist(codes, codes, "sqeuclidean")
    median = np.median(squares[np.triu_indices(len(codes), 1)])
    unit = float(median) if median > 0 else 1.0
    half = len(codes) // 2
    scale = np.where(varying(targets), targets.std(0), 1)
    mean = targets.mean(0)
    wanted = (targets - mean) / scale
    inner = wanted[:half].mean(0)
    count = targets.shape[1] if starts is None else len(starts)
    units = 1.0 if starts is None else scale  # of the columns of a factor, to be compared
    r2 = np.full((len(WIDTHS), len(RIDGES), count), -np.inf)
    for i, width in enumerate(WIDTHS):
        kernel = np.exp(-squares[:, :half] / (2 * width**2 * unit))
        values, vectors = np.linalg.eigh(kernel[:half])
        inside, outside = vectors.T @ (wanted[:half] - inner), kernel[half:] @ vectors
        for j, ridge in enumerate(RIDGES):
            shrunk = inside / (np.maximum(values, 0) + half * ridge)[:, None]
            guess = inner + outside @ shrunk
            r2[i, j] = np.nan_to_num(determination(wanted[half:] * units, guess * units, starts))
    best = r2.reshape(-1, count).argmax(0)
    if starts is not None:
        best = np.repeat(best, np.diff([*starts, targets.shape[1]]))
    predicted = np.empty((len(queries), targets.shape[1]))
    across = cdist(queries, codes, "sqeuclidean")
    for place, (width, ridge) in enumerate(itertools.product(WIDTHS, RIDGES)):
        chosen = best == place
        if chosen.any():
            kernel = np.exp(-squares / (2 * width**2 * unit))
            kernel[np.diag_indices(len(kernel))] += len(kernel) * ridge
            dual = linalg.solve(kernel, wanted[:, chosen], assume_a="pos", overwrite_a=True)
            predicted[:, chosen] = np.exp(-across / (2 * width**2 * unit)) @ dual
    return mean + scale * predicted


def mlp(seed: int) -> Regression:
    """Make the regression by a multi-layer perceptron, one for all factors together.

    scikit-learn's MLPRegressor: two hidden layers of 64 ReLU, Adam at 0.003 in batches of 200,
    stopped when a tenth of the training rows, held back, has not improved for 20 passes, after
    500 at most; standardised codes and factors. The same seed gives the same predictions.
    """

    def regress(train: Float64, targets: Float64, test: Float64) -> Float64:
        neural_network = sklearn_part("neural_network")
        if train.shape[1] > MOST_MLP_CODES:
            raise UsageError(
                f"the MLP takes at most {MOST_MLP_CODES} codes, found {train.shape[1]}: reduce "
                "them first, for example to principal components"
            )
        codes, queries = _alike(train, test)
        model = neural_network.MLPRegressor(
            hidden_layer_sizes=HIDDEN,
            learning_rate_init=3e-3,
            max_iter=500,
            early_stopping=True,
            n_iter_no_change=20,
            random_state=seed,
        )
        wanted = standardised(targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that 500 passes were not enough is no news
            model.fit(codes, wanted[:, 0] if wanted.shape[1] == 1 else wanted)
        predicted = model.predict(queries).reshape(len(queries), -1)
        return targets.mean(0) + predicted * np.where(varying(targets), targets.std(0), 0)

    return regress


def sklearn_part(name: str) -> ModuleType:
    """Import a module of scikit-learn when a metric needs it: it takes a second.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(f"sklearn.{name}")
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "train", "this metric") from error
