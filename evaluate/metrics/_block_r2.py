"""`block_r2`: which block of codes holds which block of factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import Float64, checked, mean_of_varying
from threedident.evaluate.metrics._kernel_ridge import MOST_SAMPLES
from threedident.evaluate.metrics._kinds import Kinds
from threedident.evaluate.metrics._linear_fit import Folds
from threedident.evaluate.metrics._linear_r2 import linear_r2
from threedident.evaluate.metrics._nonlinear_r2 import nonlinear_r2
from threedident.evaluate.metrics._result import MetricResult, Replicates, Resample

#: Columns by the name of their block.
Blocks = Mapping[str, Sequence[int]]


def block_r2(
    z: Any,
    z_hat: Any,
    factor_blocks: Blocks,
    code_blocks: Blocks,
    kernel: bool = False,
    *,
    folds: Folds = 2,
    most: int = MOST_SAMPLES,
    kinds: Kinds = None,
) -> MetricResult:
    """R2 from every block of codes to every block of factors.

    Content and style (von Kuegelgen et al. 2021, section 5): content codes should predict the
    content and not the style. The value is the mean over factors of the R2 (as in `linear_r2`)
    from the factor's own codes: those of the block of the same name, or of the only block.
    Otherwise, of the block that does best on the factor's block. Range and chance are those of
    the regression.

    Args:
        z: (N, n), the factors.
        z_hat: (N, m), the codes.
        factor_blocks: columns of z by name.
        code_blocks: columns of z_hat by name.
        kernel: whether to use kernel ridge regression (`nonlinear_r2`) rather than linear.
        folds: the rows to fit on and to score, as for `linear_r2`.
        most: the number of samples that kernel ridge uses.
        kinds: the kind of each factor, as in `linear_r2`; None: all continuous.

    Returns:
        The mean R2 and each factor's (NaN outside the blocks). Parts: `r2`, the matrix (blocks
        of codes, blocks of factors); `own`, for each block of factors the codes it was scored
        on; names of both.

    Raises:
        UsageError: the arrays or the blocks do not fit.

    Examples:
        The first code holds the content, and nothing of the style.

        >>> import numpy as np
        >>> z = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
        >>> blocks = {"content": [0], "style": [1]}
        >>> (block_r2(z, z, blocks, blocks).parts["r2"] > 0.5).tolist()
        [[True, False], [False, True]]
    """
    factors, codes = checked(z, z_hat)
    _check_blocks(factor_blocks, factors.shape[1], "factor")
    _check_blocks(code_blocks, codes.shape[1], "code")
    results = [
        nonlinear_r2(factors, codes[:, list(columns)], folds=folds, most=most, kinds=kinds)
        if kernel
        else linear_r2(factors, codes[:, list(columns)], folds=folds, kinds=kinds)
        for columns in code_blocks.values()
    ]
    resamples = [result.resample for result in results if result.resample is not None]
    inside = [list(columns) for columns in factor_blocks.values()]
    per_code_block = [_defined(result) for result in results]
    r2 = np.stack(
        [np.stack([mean_of_varying(row[i]) for i in inside], -1) for row in per_code_block], -2
    )
    names = list(code_blocks)
    own = _own_blocks(r2, list(factor_blocks), names)

    def of_own(rows: Sequence[Float64]) -> Float64:
        """Return the R2 per factor (..., n) from its own codes."""
        picked = np.full(rows[0].shape, np.nan)
        for block, columns in zip(own, inside, strict=True):
            picked[..., columns] = rows[block][..., columns]
        return picked

    def replicate(counts: Float64) -> Replicates:
        each = of_own([_defined(resample.replicate(counts)) for resample in resamples])
        return Replicates(mean_of_varying(each), each)

    per_factor = of_own(per_code_block)
    parts = {
        "r2": r2,
        "own": [names[i] for i in own],
        "code_blocks": names,
        "factor_blocks": list(factor_blocks),
    }
    shared = set(names) & set(factor_blocks)
    choices = {
        "code_blocks": {name: list(map(int, each)) for name, each in code_blocks.items()},
        "factor_blocks": {name: list(map(int, each)) for name, each in factor_blocks.items()},
        "own": "the block of the same name" if shared else "the best block",
        "regression": dict(results[0].choices),
    }
    return MetricResult(
        float(mean_of_varying(per_factor)),
        per_factor,
        parts,
        choices,
        Resample(resamples[0].folds, replicate),
    )


def _own_blocks(r2: Float64, factor_blocks: Sequence[str], code_blocks: list[str]) -> list[int]:
    """Choose the block of codes that each block of factors is scored on.

    Args:
        r2: (blocks of codes, blocks of factors), NaN where it is not defined.
        factor_blocks: names of the blocks of factors.
        code_blocks: names of the blocks of codes.
    """
    best = np.nan_to_num(r2, nan=-np.inf).argmax(0)
    return [
        code_blocks.index(name) if name in code_blocks else int(best[i])
        for i, name in enumerate(factor_blocks)
    ]


def _defined(scores: MetricResult | Replicates) -> Float64:
    assert scores.per_factor is not None
    return scores.per_factor


def _check_blocks(blocks: Blocks, width: int, kind: str) -> None:
    if not blocks:
        raise UsageError(f"expected at least one block of {kind}s, found none")
    for name, columns in blocks.items():
        if not len(columns) or not all(0 <= column < width for column in columns):
            raise UsageError(
                f"{kind} block {name!r} must name some of the columns 0 to {width - 1}, found "
                f"{list(columns)}"
            )
