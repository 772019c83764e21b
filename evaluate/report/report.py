"""`write_report`: report.html, the page on what an encoder recovered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy.typing as npt

from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import checked
from threedident.evaluate.metrics._kinds import Kinds
from threedident.evaluate.report.header import footing, head, title, warnings
from threedident.evaluate.report.html import page
from threedident.evaluate.report.pictures import correlations, predictions, worst
from threedident.evaluate.report.recovery import Recovery
from threedident.evaluate.report.tables import factor_table, score_table
from threedident.evaluate.scores_file import ScoresFile
from threedident.storage.atomic_files import explaining_write_errors, replacing

if TYPE_CHECKING:
    from threedident.datasets.formats.source import ImageSource


def write_report(
    scores: ScoresFile,
    z: npt.ArrayLike,
    z_hat: npt.ArrayLike,
    images: ImageSource | None,
    out: Path,
    *,
    label: str | None = None,
    kinds: Kinds = None,
) -> None:
    """Write the page.

    Args:
        scores: the content of scores.json.
        z: (N, n), the latents that the scores are of.
        z_hat: (N, m), the codes.
        images: the files whose image i belongs to row i; None where there are none to show.
        out: the file.
        label: the name of a submission without a manifest; None: the one in the scores.
        kinds: the kind of each factor; None: all continuous.

    Raises:
        UsageError: the arrays do not fit each other, the factors or the images.
        DatasetError: an image cannot be read, or the file cannot be written.
    """
    text = report(scores, z, z_hat, images, label=label, kinds=kinds)
    with explaining_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")


def report(
    scores: ScoresFile,
    z: npt.ArrayLike,
    z_hat: npt.ArrayLike,
    images: ImageSource | None = None,
    *,
    label: str | None = None,
    kinds: Kinds = None,
) -> str:
    """Return the page as text; arguments and errors are those of `write_report`."""
    latents, codes = checked(z, z_hat)
    factors = scores.data.factors
    if latents.shape[1] != len(factors):
        raise UsageError(f"the scores name {len(factors)} factors, the latents {latents.shape[1]}")
    if images is not None and len(images) < len(latents):
        raise UsageError(f"the dataset has {len(images)} images, the latents {len(latents)} rows")
    recovery = Recovery.of(latents, codes, kinds)
    heading = title(scores, label)
    return page(
        f"{heading}: scores",
        head(scores, heading),
        warnings(scores),
        score_table(scores),
        factor_table(scores),
        correlations(scores, recovery, factors, kinds),
        predictions(scores, recovery, latents, factors, kinds),
        worst(recovery, latents, factors, images),
        footing(scores),
    )
