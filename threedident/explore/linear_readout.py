"""`LinearReadout`: factors predicted linearly from codes, and how well on other images."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.columns import Column
from threedident.datasets.formats.grouping import grouping
from threedident.datasets.formats.source import ImageSource
from threedident.errors import UsageError
from threedident.evaluate.metrics._arrays import varying
from threedident.evaluate.metrics._kinds import Points, kinds_of_columns
from threedident.evaluate.metrics._linear_fit import determination, fit_linear
from threedident.evaluate.sampled_source import SampledSource, sampled
from threedident.explore.controls import Control
from threedident.explore.stored_images import StoredImages

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: The images that it is fitted on, and those that it is measured on.
FITTED, MEASURED = 2000, 1000
#: Fewer images of a dataset give no read-out.
LEAST = 30


@dataclasses.dataclass(frozen=True)
class Sample:
    """Images of a dataset, to fit a read-out on some of them and measure it on the others.

    Attributes:
        source: the reader of the images.
        numbers: (k,), their numbers there, ascending.
        fitted: (k,), whether an image is one to fit on.
        columns: the factors; where the dataset has variables, these before them.
        values: (k, n) float32, their values.
    """

    source: ImageSource
    numbers: npt.NDArray[np.int64]
    fitted: Bools
    columns: tuple[Column, ...]
    values: Float32


def draw_sample(stored: StoredImages, fitted: int = FITTED, measured: int = MEASURED) -> Sample:
    """Choose images of a dataset, evenly spread over it, and which of them are fitted on.

    Of a dataset in the order of a grid or of time, images that `sampled` draws. Where images
    depend on those beside them (pairs, views, sequences), the two lots are parts of the dataset.

    Args:
        stored: the dataset.
        fitted: the most images to fit on.
        measured: the most images to measure on; half as many as those fitted on, or fewer.

    Raises:
        UsageError: the dataset has no factors, or too few images.
    """
    source = stored.source
    columns, values = _columns_of(stored)
    if not columns:
        raise UsageError(f"{source.root} names no factors, so that there is nothing to read out")
    chosen = sampled(source, None)
    if isinstance(chosen, SampledSource):
        values = values[chosen.numbers]
    if len(chosen) < LEAST:
        raise UsageError(
            f"{source.root} has {len(chosen)} images; a read-out is fitted and measured on at "
            f"least {LEAST}"
        )
    count = min(len(chosen), fitted + measured)
    numbers = np.linspace(0, len(chosen) - 1, count).round().astype(np.int64)
    share = measured / (fitted + measured)
    if _depends_on_neighbours(source):
        places = chosen.numbers[numbers] if isinstance(chosen, SampledSource) else numbers
        late = places >= np.quantile(places, 1 - share)
    else:
        late = np.diff(np.floor(np.arange(count + 1) * share)) > 0
    return Sample(chosen, numbers, ~late, columns, values[numbers])


def _columns_of(stored: StoredImages) -> tuple[tuple[Column, ...], Float32]:
    """A dataset's factors and their values (N, n); where it has variables, these before them."""
    source = stored.source
    rest = [k for k, each in enumerate(source.factor_columns) if each not in stored.columns]
    columns = (*stored.columns, *(source.factor_columns[place] for place in rest))
    return columns, np.concatenate([stored.values, source.factors[:, rest]], 1)


def _depends_on_neighbours(source: ImageSource) -> bool:
    paired = source.manifest is not None and source.manifest.pair_process is not None
    return paired or grouping(source)[0] != "single" or source.sequences is not None


@dataclasses.dataclass(frozen=True)
class ReadoutScore:
    """How well a factor is read out, on images that the read-out was not fitted on.

    Attributes:
        r2: its R2, of a circular factor that of the point on the circle, of a discrete one that of
            its classes' indicators; None where it does not vary.
        accuracy: the share of images whose class is told; None of a factor without classes.
    """

    r2: float | None
    accuracy: float | None = None


class LinearReadout:
    """A linear regression with intercept from codes to factors.

    A circular factor is predicted by its cosine and sine, a discrete one by the indicators of its
    classes, of which the largest counts.

    Attributes:
        columns: the n factors.
        scores: how well each is read out.
        fitted: the number of images that it was fitted on.
        measured: the number of other images that `scores` is of.
        mean: (m,), the mean of each code over all these images.
        std: (m,), the standard deviation of each code over them.
    """

    def __init__(self, sample: Sample, codes: Float32) -> None:
        """Fit and measure it.

        Args:
            sample: the images.
            codes: (k, m), their codes.
        """
        recovered, true = codes.astype(np.float64), sample.values.astype(np.float64)
        kinds = kinds_of_columns(sample.columns)
        points = Points.of(true, kinds)
        self.columns = sample.columns
        self._parts = [points.columns(place) for place in range(len(kinds))]
        self._turns = [kind.turn for kind in kinds]
        self._classes = [
            np.unique(np.rint(true[:, place])).astype(np.int64) if kind.name == "discrete" else None
            for place, kind in enumerate(kinds)
        ]
        rows = sample.fitted
        self.fitted, self.measured = int(rows.sum()), int((~rows).sum())
        self._fit = fit_linear(recovered[rows], points.values[rows])
        self.mean, self.std = recovered.mean(0), recovered.std(0)
        self._moves = varying(recovered)
        self._varies = varying(true[rows])
        held = recovered[~rows]
        r2 = determination(points.values[~rows], self._fit.predict(held), points.starts)
        told = self.predict(held)
        self.scores = tuple(
            ReadoutScore(
                float(value) if np.isfinite(value) and self._varies[place] else None,
                None if classes is None else float((told[place] == true[~rows, place]).mean()),
            )
            for place, (value, classes) in enumerate(zip(r2, self._classes, strict=True))
        )

    @property
    def underdetermined(self) -> bool:
        """Whether there are as many codes as images to fit on, so that the fit is exact on them."""
        return len(self.mean) >= self.fitted

    def predict(self, codes: Any) -> list[Float64]:
        """Predict each factor (B,) from codes (B, m), in its own units."""
        predicted = self._fit.predict(np.asarray(codes, np.float64))
        values = []
        for column, part, turn, classes in zip(
            self.columns, self._parts, self._turns, self._classes, strict=True
        ):
            block = predicted[:, part]
            if classes is not None:
                values.append(classes[block.argmax(1)].astype(np.float64))
            elif column.kind == "circular":
                low = column.range[0] if column.range else 0.0
                angle = np.arctan2(block[:, 1], block[:, 0]) / (2 * np.pi) * turn
                values.append(low + np.mod(angle - low, turn))
            else:
                values.append(block[:, 0])
        return values

    def scaled(self, codes: Any) -> Float64:
        """Codes (B, m), less their mean over the dataset, in its standard deviations; 0 if none."""
        std = np.where(self._moves, self.std, np.inf)
        scaled: Float64 = (np.asarray(codes, np.float64) - self.mean) / std
        return scaled

    def place_of(self, control: Control, *, stored: bool = False) -> int | None:
        """The place of a control's factor among the columns; None where it was not read out.

        Args:
            control: the control.
            stored: whether it is one of the dataset's own factors, so that its name is enough.
        """
        wanted = control.column
        for place, column in enumerate(self.columns):
            if column.name == wanted.name and (stored or column.means_the_same(wanted)):
                return place if self._varies[place] else None
        return None


def best_r2_of(stored: StoredImages) -> dict[str, float]:
    """The best R2 that any encoder can reach on a dataset's images, by factor, where it is known.

    It holds for the law that drew the dataset's latents: the preset's own does not do for others.

    Args:
        stored: the dataset.
    """
    manifest = stored.source.manifest
    if manifest is None:
        return {}
    best = dict(manifest.best_r2)
    if manifest.sampling is None:
        return best
    return {
        each.name: best[each.renders]
        for each in manifest.sampling.model.variables
        if each.kind == "continuous" and each.renders in best
    }


def error_of(column: Column, true: float, predicted: float) -> float:
    """The error of a prediction, in the factor's units; of a circular one the shorter way round.

    Args:
        column: the factor.
        true: its value.
        predicted: the prediction; of a discrete factor a class number.

    Returns:
        The prediction less the truth; of a discrete factor 0 where it is right and 1 elsewhere.
    """
    if column.kind == "discrete":
        return float(predicted != true)
    error = predicted - true
    if column.kind == "circular" and column.range is not None:
        turn = column.range[1] - column.range[0]
        error = (error + turn / 2) % turn - turn / 2
    return float(error)
