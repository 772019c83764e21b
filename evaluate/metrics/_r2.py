"""How much of the true latents z an encoder has recovered in its codes z_hat.

Every metric is a function of z (N, n) and z_hat (N, m), numpy or torch, row by row of the same
samples. In the docstrings: factors are the columns of z, codes those of z_hat.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import (
    Float64,
    checked,
    left_out,
    mean_of_varying,
    standardised,
    varying,
)
from threedident.evaluate.metrics._bootstrap import Measured, Replicates, Score
from threedident.evaluate.metrics._correlations import (
    UNMATCHED,
    Int64,
    aligned_correlations,
    assign,
    matched,
    pearson_correlations,
    spearman_correlations,
)
from threedident.evaluate.metrics._kernel_ridge import (
    HIDDEN,
    MOST_SAMPLES,
    RIDGES,
    WIDTHS,
    Regression,
    kernel_ridge,
    mlp,
)
from threedident.evaluate.metrics._linear_fit import (
    MOST_REFITTED,
    Folds,
    Moments,
    determination,
    drawn_folds,
    fit_linear,
    held_determination,
    refitted_determination,
    splits,
    whitened,
)

__all__ = ["Measured", "Score", "block_r2", "linear_r2", "mcc", "nonlinear_r2"]

CORRELATIONS = ("pearson", "spearman")
REGRESSORS = ("kernel", "mlp")


def linear_r2(z: Any, z_hat: Any, *, folds: Folds = 2, adjusted: bool = False) -> Measured:
    """R2 of a linear regression with intercept from codes to factors, averaged over factors.

    Zimmermann et al. 2021, section 4. With fewer codes than rows to fit on, it is invariant under
    invertible affine maps of the codes; with more, the solution of minimum norm depends on their
    scales. Of two folds the mean of both R2 is taken. An R2 ends at -1e9, also where it enters a
    mean. Sums are in float64; the published code regresses in float32, and scores badly scaled or
    nearly collinear codes lower. The adjusted R2, 1 - (1 - R2) (N - 1) / (N - p - 1)
    for codes of rank p (Ezekiel 1930), corrects a fit on the scored rows for the codes' number.

    Args:
        z: (N, n).
        z_hat: (N, m). With m >= N of a fold, the solution of minimum norm.
        folds: 2, "single" (the published split) or "in-sample"; see `linear.splits`. Halves
            are taken as the rows stand, so their order must be random.
        adjusted: for folds="in-sample".

    Returns:
        The mean R2 and each factor's. Parts: `folds`, (folds, n); `rank` of the codes.

    Raises:
        UsageError: the arrays or arguments do not fit.
    """
    if adjusted and folds != "in-sample":
        raise UsageError(
            "the adjusted R2 corrects a fit for being scored on its own rows; a held-out one "
            f"needs no correction: use folds='in-sample' with it, found folds={folds!r}"
        )
    factors, codes = checked(z, z_hat)
    pairs, parts = splits(len(factors), folds), drawn_folds(len(factors), folds)
    predicted, found, ranks = np.zeros_like(factors), [], []
    for train, test in pairs:
        fit = fit_linear(codes[train], factors[train])
        predicted[test] = fit.predict(codes[test])
        found.append(determination(factors[test], predicted[test]))
        ranks.append(fit.rank)
    spare = (len(factors) - 1) / max(len(factors) - ranks[0] - 1, 1) if adjusted else 1.0
    if adjusted and len(factors) <= ranks[0] + 1:
        raise UsageError(
            f"the adjusted R2 needs more samples than codes: found {len(factors)} samples and "
            f"codes of rank {ranks[0]}"
        )
    per_fold = 1 - spare * (1 - np.array(found))
    fewest = min(train.stop - train.start for train, _ in pairs)
    refits = codes.shape[1] <= MOST_REFITTED and codes.shape[1] < fewest

    @functools.cache
    def design() -> tuple[Float64, Float64]:
        return whitened(codes), standardised(factors)

    def refitted(counts: Float64) -> list[Float64]:
        white, unit = design()
        drawn = [Moments.of(white[part], unit[part], counts[:, part]) for part in parts]
        return [
            refitted_determination(drawn[parts.index(train)], drawn[parts.index(test)])
            for train, test in pairs
        ]

    def held(counts: Float64) -> list[Float64]:
        return [held_determination(factors[t], predicted[t], counts[:, t]) for _, t in pairs]

    def replicate(counts: Float64) -> Replicates:
        drawn = refitted(counts) if refits else held(counts)
        each = 1 - spare * (1 - np.mean(drawn, 0))
        return Replicates(mean_of_varying(each), each)

    per_factor = per_fold.mean(0)
    return Measured(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"folds": per_fold, "rank": min(ranks)},
        {
            "folds": folds,
            "adjusted": adjusted,
            "bootstrap": "refitted" if refits else "the fit held",
            **left_out(factors),
        },
        parts,
        replicate,
    )


def nonlinear_r2(
    z: Any,
    z_hat: Any,
    *,
    regressor: str = "kernel",
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
    seed: int = 0,
) -> Measured:
    """Held-out R2 of a non-linear regression from codes to factors, averaged over factors.

    Kernel ridge regression as for content and style in von Kuegelgen et al. 2021 (section 5),
    or a small MLP: high where the codes hold the factors, in whatever form.

    Args:
        z: (N, n).
        z_hat: (N, m).
        regressor: "kernel" (`nonlinear.kernel_ridge`) or "mlp" (`nonlinear.mlp`).
        folds: 2 or "single".
        most: samples that are used, the first ones.
        seed: of the MLP.

    Returns:
        The mean R2 and each factor's. Parts: `folds`, (folds, n). A bootstrap holds the fit.

    Raises:
        UsageError: the arrays or arguments do not fit.
    """
    if regressor not in REGRESSORS:
        raise UsageError(f"regressor must be one of {', '.join(REGRESSORS)}, found {regressor!r}")
    if folds == "in-sample":
        raise UsageError(
            "a non-linear regression fits its own rows whatever they are: use folds=2 or 'single'"
        )
    factors, codes = checked(z, z_hat, 20 if regressor == "kernel" else 40)
    factors, codes = factors[:most], codes[:most]
    pairs = splits(len(factors), folds)
    regress: Regression = kernel_ridge if regressor == "kernel" else mlp(seed)
    predicted = np.zeros_like(factors)
    for train, test in pairs:
        predicted[test] = regress(codes[train], factors[train], codes[test])
    per_fold = np.array([determination(factors[t], predicted[t]) for _, t in pairs])

    def replicate(counts: Float64) -> Replicates:
        drawn = [held_determination(factors[t], predicted[t], counts[:, t]) for _, t in pairs]
        each = np.mean(drawn, 0)
        return Replicates(mean_of_varying(each), each)

    per_factor = per_fold.mean(0)
    settings: dict[str, Any] = (
        {"kernel": "gaussian", "widths_in_median_distances": list(WIDTHS), "ridges": list(RIDGES)}
        if regressor == "kernel"
        else {"hidden": list(HIDDEN), "seed": seed}
    )
    return Measured(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"folds": per_fold},
        {
            "regressor": regressor,
            **settings,
            "folds": folds,
            "samples": len(factors),
            "bootstrap": "the fit held",
            **left_out(factors),
        },
        drawn_folds(len(factors), folds),
        replicate,
    )


def mcc(
    z: Any,
    z_hat: Any,
    *,
    correlation: str = "pearson",
    aligned: bool = False,
    noise_padded: bool = False,
    seed: int = 0,
) -> Measured:
    """Mean correlation coefficient: every factor with a code of its own.

    The absolute correlation of every factor with every code, the one-to-one assignment of
    the largest sum, and the mean over factors (Hyvarinen & Morioka 2016); over all samples, no
    split. Invariant under permutations, signs and scales of the codes, and for Spearman under
    monotone maps. A constant code has correlation 0. With m > n the assignment picks n of the
    m codes; with m < n the factors without a code count as 0.

    Args:
        z: (N, n).
        z_hat: (N, m).
        correlation: "pearson" or "spearman" (ties get mean ranks).
        aligned: first map the codes to the factors linearly, least squares on the other half
            of the samples ("weak" identifiability, Khemakhem et al. 2020, section 4.1); the
            correlation matrix is then the mean of both halves', (n, n).
        noise_padded: pad the n factors with independent Gaussian noise to m before the
            assignment, which then must place the noise too; the mean is over the n factors.
            So were the KITTI Masks results taken (Klindt et al. 2021).
        seed: of that noise.

    Returns:
        The mean and each factor's absolute correlation. Parts: `permutation` (n,), each
        factor's code, -1 for none; `correlation` (n, m), signed.

    Raises:
        UsageError: the arrays or arguments do not fit.
    """
    if correlation not in CORRELATIONS:
        raise UsageError(
            f"correlation must be one of {', '.join(CORRELATIONS)}, found {correlation!r}"
        )
    if aligned and (correlation != "pearson" or noise_padded):
        raise UsageError("aligned goes with Pearson correlations and without noise: leave one out")
    factors, codes = checked(z, z_hat)
    count = factors.shape[1]
    padding = max(codes.shape[1] - int(varying(factors).sum()), 0) if noise_padded else 0
    noise = np.random.default_rng([seed, 2]).standard_normal((len(factors), padding))
    padded = np.concatenate([factors, noise], 1)
    kept = varying(padded)
    if aligned:
        correlations = aligned_correlations(padded, codes)
    elif correlation == "pearson":
        correlations = pearson_correlations(padded, codes)
    else:
        correlations = spearman_correlations(padded, codes)

    def match(table: Float64) -> tuple[Float64, Int64]:
        """Each factor's correlation, NaN where it is constant, and its code."""
        values, codes_of = np.full(len(table), np.nan), np.full(len(table), UNMATCHED)
        strength = np.abs(table[kept])
        codes_of[kept] = assign(strength)
        values[kept] = matched(strength, codes_of[kept])
        return values[:count], codes_of[:count]

    def replicate(counts: Float64) -> Replicates:
        each = np.array([match(table)[0] for table in correlations.draw(counts)])
        return Replicates(mean_of_varying(each), each)

    per_factor, permutation = match(correlations.table)
    return Measured(
        float(mean_of_varying(per_factor)),
        per_factor,
        {"permutation": permutation, "correlation": correlations.table[:count]},
        {
            "correlation": correlation,
            "aligned": aligned,
            "noise_padded": {"columns": padding, "seed": seed} if noise_padded else False,
            "bootstrap": correlations.bootstrap,
            **left_out(factors),
        },
        drawn_folds(len(factors), 2 if aligned else "in-sample"),
        replicate,
    )


def block_r2(
    z: Any,
    z_hat: Any,
    factor_blocks: Mapping[str, Sequence[int]],
    code_blocks: Mapping[str, Sequence[int]],
    kernel: bool = False,
    *,
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
) -> Measured:
    """R2 from every block of codes to every block of factors: what each block holds.

    Content and style (von Kuegelgen et al. 2021, section 5): content codes should predict the
    content and not the style. The value is the mean over factors of the R2 from the factor's
    own codes: those of the block of the same name, or of the only block. Otherwise, of the
    block that does best on the factor's block.

    Args:
        z: (N, n).
        z_hat: (N, m).
        factor_blocks: columns of z by name.
        code_blocks: columns of z_hat by name.
        kernel: kernel ridge regression rather than linear; `nonlinear_r2`.
        folds: as for `linear_r2`.
        most: samples that kernel ridge uses.

    Returns:
        The mean R2 and each factor's (NaN outside the blocks). Parts: `r2`, the matrix (blocks
        of codes, blocks of factors); `own`, for each block of factors the codes it was scored
        on; names of both.

    Raises:
        UsageError: the arrays or the blocks do not fit.
    """
    factors, codes = checked(z, z_hat)
    _check_blocks(factor_blocks, factors.shape[1], "factor")
    _check_blocks(code_blocks, codes.shape[1], "code")
    found = [
        nonlinear_r2(factors, codes[:, list(columns)], folds=folds, most=most)
        if kernel
        else linear_r2(factors, codes[:, list(columns)], folds=folds)
        for columns in code_blocks.values()
    ]
    inside = [list(columns) for columns in factor_blocks.values()]

    def table(rows: Sequence[Float64]) -> Float64:
        """R2 of blocks (..., codes, factors) from R2 per factor (..., n) of each code block."""
        return np.stack(
            [np.stack([mean_of_varying(row[..., i]) for i in inside], -1) for row in rows], -2
        )

    whole = table([_defined(each) for each in found])
    names = list(code_blocks)
    best = np.nan_to_num(whole, nan=-np.inf).argmax(0)
    own = [
        names.index(name) if name in code_blocks else int(best[i])
        for i, name in enumerate(factor_blocks)
    ]

    def of_own(rows: Sequence[Float64]) -> Float64:
        """R2 per factor (..., n) from its own codes."""
        picked = np.full(rows[0].shape, np.nan)
        for block, columns in zip(own, inside, strict=True):
            picked[..., columns] = rows[block][..., columns]
        return picked

    def replicate(counts: Float64) -> Replicates:
        each = of_own([_defined(block.replicate(counts)) for block in found])
        return Replicates(mean_of_varying(each), each)

    per_factor = of_own([_defined(each) for each in found])
    shared = set(names) & set(factor_blocks)
    return Measured(
        float(mean_of_varying(per_factor)),
        per_factor,
        {
            "r2": whole,
            "own": [names[i] for i in own],
            "code_blocks": names,
            "factor_blocks": list(factor_blocks),
        },
        {
            "code_blocks": {name: list(map(int, each)) for name, each in code_blocks.items()},
            "factor_blocks": {name: list(map(int, each)) for name, each in factor_blocks.items()},
            "own": "the block of the same name" if shared else "the best block",
            "regression": dict(found[0].choices),
        },
        found[0].folds,
        replicate,
    )


def _defined(scored: Measured | Replicates) -> Float64:
    assert scored.per_factor is not None
    return scored.per_factor


def _check_blocks(blocks: Mapping[str, Sequence[int]], width: int, kind: str) -> None:
    if not blocks:
        raise UsageError(f"expected at least one block of {kind}s, found none")
    for name, columns in blocks.items():
        if not len(columns) or not all(0 <= column < width for column in columns):
            raise UsageError(
                f"{kind} block {name!r} must name some of the columns 0 to {width - 1}, found "
                f"{list(columns)}"
            )
