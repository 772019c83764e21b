"""`StoredImages`: the dataset that the page shows, its filters, and what lies near a point.

All of it is numpy over the factors of all images, which are in memory; images are read one by one.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from threedident.causal import CausalModel
from threedident.columns import Column
from threedident.datasets import papers
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.family import TITLES, FamilySource
from threedident.datasets.formats.grouping import grouping
from threedident.datasets.formats.source import ImageSource, Source
from threedident.errors import DatasetError
from threedident.explore.latest import Latest
from threedident.factors import FACTOR_NAMES, FACTORS
from threedident.presets import Preset
from threedident.render.figures import picture
from threedident.storage.shard_plan import list_shards

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

BINS = 40  # of a factor of any value
_MOST_STEPS = 64  # of an ordered factor of a grid that has a bin for each value
_NARROW = 0.5  # the share of its range within which all values lie, so that the rest is not shown
_KEPT = 4  # answers to filters
_APART = 2.0  # the distance of two classes: that of the two ends of a range

_FORMS = {
    "shards": "a folder of shards",
    "packed": "a packed file",
    "published": "the published layout",
    "webdataset": "WebDataset",
    "parquet": "Parquet",
    **{form: f"the published layout of {title}" for form, title in TITLES.items()},
    **papers.FORMS,
}

#: Filters by the factor's name: the ends of a range, or the numbers of classes.
Filters = Mapping[str, tuple[float, ...]]


@dataclasses.dataclass(frozen=True)
class Axis:
    """The values of a factor as a histogram shows them.

    Attributes:
        column: the factor.
        low: the left end of the first bin.
        high: the right end of the last bin.
        bins: the number of bins; of a discrete factor one for each class.
        step: the distance from one value to the next, where values are whole numbers; 0 elsewhere.
        classes: the names of a discrete factor's classes.
        label: its caption.
        unit: the unit of its scene values; empty for none.
        scene: the scene values at the low and the high end; None where they are not known.
    """

    column: Column
    low: float
    high: float
    bins: int
    step: float = 0.0
    classes: tuple[str, ...] = ()
    label: str = ""
    unit: str = ""
    scene: tuple[float, float] | None = None

    @property
    def edges(self) -> Float32:
        """The ends of the bins, (bins + 1,) float32, as the page computes them."""
        places = np.arange(self.bins + 1)
        edges = self.low + ((self.high - self.low) * places) / self.bins
        return edges.astype(np.float32)

    @property
    def turn(self) -> float | None:
        """The length of a turn of a circular factor; None of others."""
        if self.column.kind != "circular" or self.column.range is None:
            return None
        return self.column.range[1] - self.column.range[0]

    @property
    def half(self) -> float:
        """Half of the range of its values: the unit of distances."""
        if self.turn:
            return self.turn / 2
        return (self.high - self.low - self.step) / 2 or 1.0

    def as_dict(self) -> dict[str, Any]:
        """The axis as plain data for the page."""
        return {
            "name": self.column.name,
            "label": self.label or self.column.name.replace("_", " "),
            "kind": self.column.kind,
            "range": self.column.range,
            "low": self.low,
            "high": self.high,
            "bins": self.bins,
            "step": self.step,
            "classes": list(self.classes),
            "turn": self.turn,
            "unit": self.unit,
            "scene": self.scene,
        }


@dataclasses.dataclass(frozen=True)
class Filtered:
    """The images that pass filters.

    Attributes:
        numbers: the numbers of those that pass all of them, ascending.
        counts: for each factor the images in each bin that pass the filters of all others.
    """

    numbers: Int64
    counts: Mapping[str, Int64]


class StoredImages:
    """The dataset that the page shows, opened once.

    Attributes:
        root: its path, or the name of images that are drawn.
        source: the reader of its files; needs no torch.
        columns: the n factors to filter by: of a causal model its variables.
        values: their values, (N, n) float32.
        axes: the histograms' axes, one for each factor.
        histograms: the counts of all images, by the factor's name.
        latest: the thread in which filters and distances are computed.
    """

    source: ImageSource
    columns: tuple[Column, ...]
    values: Float32

    def __init__(self, root: str | Path, split: str | None = None) -> None:
        """Open a dataset in any form.

        Args:
            root: the path of a dataset, or the name of images that are drawn.
            split: the split, where its form has several.

        Raises:
            DatasetError: it is none, or a damaged one.
        """
        self._take(root, open_dataset(root, split))

    @classmethod
    def of(cls, source: ImageSource) -> StoredImages:
        """Take a dataset that is open.

        Raises:
            DatasetError: a factor has values that are no numbers.
        """
        stored = cls.__new__(cls)
        stored._take(source.root, source)
        return stored

    def _take(self, root: str | Path, source: ImageSource) -> None:
        self.root = root
        self.source = source
        self.columns, values = _factors(source)
        if not np.isfinite(values).all():
            raise DatasetError(f"{root} has factors that are no finite numbers")
        self.values = np.asfortranarray(values, np.float32)  # each factor is read by itself
        self.axes = tuple(
            self._axis(column, self.values[:, k]) for k, column in enumerate(self.columns)
        )
        self._bins = [_bins_of(axis, self.values[:, k]) for k, axis in enumerate(self.axes)]
        self.histograms: dict[str, Int64] = {
            axis.column.name: np.bincount(bins, minlength=axis.bins)
            for axis, bins in zip(self.axes, self._bins, strict=True)
        }
        self._places = {column.name: k for k, column in enumerate(self.columns)}
        self._filtered: collections.OrderedDict[Any, Filtered] = collections.OrderedDict()
        self._lock = threading.Lock()  # of what is kept
        self._files = _Files(source)
        self.latest = Latest()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def name(self) -> str:
        """Its name: the last part of its path, or that of images that are drawn."""
        return str(self.root) if papers.is_drawn(self.root) else Path(self.root).absolute().name

    @property
    def preset(self) -> Preset | None:
        """The generator of its images; None where it is not recorded."""
        return self.source.preset

    @property
    def model(self) -> CausalModel | None:
        """The causal model that drew its images; None where there is none."""
        manifest = self.source.manifest
        return manifest.sampling.model if manifest and manifest.sampling else None

    @functools.cached_property
    def wanted(self) -> int | None:
        """The number of images that were asked for; None where it is not recorded."""
        try:
            return self.source.wanted()
        except DatasetError:  # its record is damaged; the images need not be
            return None

    @property
    def distance(self) -> str:
        """The distance by which images are near, in words."""
        if self.columns == Source.factor_columns:
            return "Euclidean distance of the ten factors in raw units, where a range is 2 long"
        kinds = {column.kind for column in self.columns}
        words = f"Euclidean distance of the {len(self.columns)} factors, where each range is 2 long"
        if len(self.columns) == 1:
            words = "distance of the factor, whose range is 2 long"
        if "circular" in kinds:
            words += "; factors that come round again count the short way"
        if "discrete" in kinds:
            words += f"; another class counts {_APART:g}"
        return words

    def facts(self) -> dict[str, Any]:
        """What the page says of it, as plain data."""
        kind, frames = grouping(self.source)
        sequences = None if self.source.sequences is None else len(self.source.sequences) - 1
        if sequences is None and kind == "sequence":
            sequences = -(-len(self) // frames)
        return {
            "name": self.name,
            "form": _FORMS.get(self.source.form, self.source.form),
            "count": len(self),
            "wanted": self.wanted,
            "shape": list(self.source.shape),
            "grid": self.source.grid is not None,
            "sequences": sequences,
            "preset": self.preset.name if self.preset else None,
            "model": self.model.name if self.model else None,
            "factors": [axis.as_dict() for axis in self.axes],
            "distance": self.distance,
        }

    def _axis(self, column: Column, values: Float32) -> Axis:
        """The axis of a factor with values (N,)."""
        least, most = float(values.min()), float(values.max())
        if column.kind == "discrete":
            count = max(len(column.values), int(most) + 1)
            classes = (*column.values, *map(str, range(len(column.values), count)))
            return Axis(column, -0.5, count - 0.5, count, 1.0, classes)
        low, high = column.range or (least, most)
        low, high = min(low, least), max(high, most)
        if self.source.grid is not None:
            count = round(high - low) + 1
            if column.kind == "circular" and most < high:  # the end of the turn is its start
                high, count = most, round(most - low) + 1
            bins = count if count <= _MOST_STEPS else BINS
            return Axis(column, low - 0.5, high + 0.5, bins, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        free = column.kind == "continuous" and not isinstance(self.source, Source)
        if free and 0 < most - least < (high - low) * _NARROW:
            low, high = least, most  # as of areas, which could be as large as an image
        return self._in_scene(Axis(column, low, high, BINS))

    def _in_scene(self, axis: Axis) -> Axis:
        """The axis of one of the scene's ten factors, with its unit and its scene values."""
        name, preset = axis.column.name, self.preset
        if not isinstance(self.source, Source) or name not in FACTOR_NAMES:
            return axis
        factor = FACTORS[FACTOR_NAMES.index(name)]
        axis = dataclasses.replace(axis, label=factor.label)
        if preset is None or self.columns != Source.factor_columns:
            return axis
        return dataclasses.replace(axis, unit=factor.unit, scene=preset.ranges[name])

    # Filters.

    def filter(self, filters: Filters) -> Filtered:
        """Find the images that pass filters; safe from threads.

        Args:
            filters: the filters, by the factor's name: of a discrete one the numbers of the classes
                that pass; of others a range, both ends included. A range of a circular factor whose
                low end is above the high one goes through the end of the turn.
        """
        key = tuple(sorted(filters.items()))
        with self._lock:
            if key in self._filtered:
                self._filtered.move_to_end(key)
                return self._filtered[key]
        result = self._filter(filters)
        with self._lock:
            self._filtered[key] = result
            while len(self._filtered) > _KEPT:
                self._filtered.popitem(last=False)
        return result

    def _filter(self, filters: Filters) -> Filtered:
        failed = {
            self._places[name]: ~self.passes(name, values) for name, values in filters.items()
        }
        count = np.zeros(len(self), np.uint8 if len(failed) < 256 else np.uint16)
        for mask in failed.values():
            np.add(count, mask, out=count)
        numbers = np.flatnonzero(count == 0)
        counts = {}
        for k, axis in enumerate(self.axes):
            # Those that fail at this factor at most pass all others.
            rows = np.flatnonzero(count == failed[k]) if k in failed else numbers
            counts[axis.column.name] = (
                self.histograms[axis.column.name]
                if len(rows) == len(self)
                else np.bincount(self._bins[k][rows], minlength=axis.bins)
            )
        return Filtered(numbers, counts)

    def passes(
        self, name: str, wanted: Sequence[float], numbers: Int64 | None = None
    ) -> npt.NDArray[np.bool_]:
        """Whether images pass the filter of a factor.

        Args:
            name: the factor.
            wanted: the filter; see `filter`.
            numbers: the numbers of the images; None: all.
        """
        k = self._places[name]
        column = self.values[:, k] if numbers is None else self.values[numbers, k]
        if self.axes[k].classes:
            table = np.zeros(self.axes[k].bins, bool)
            table[[int(value) for value in wanted]] = True
            passing: npt.NDArray[np.bool_] = table[column.astype(np.int64)]
            return passing
        low, high = np.float32(wanted[0]), np.float32(wanted[1])
        if low <= high:
            return (column >= low) & (column <= high)
        return (column >= low) | (column <= high)

    @functools.cached_property
    def shuffled(self) -> npt.NDArray[np.int32]:
        """The numbers of all images in a random order, always the same."""
        return np.random.default_rng(0).permutation(len(self)).astype(np.int32)

    def page(self, numbers: Int64, page: int, size: int, *, shuffle: bool = False) -> Int64:
        """The numbers of the images of one page.

        Args:
            numbers: those of all pages, ascending.
            page: the number of the page, from 0.
            size: the images to a page.
            shuffle: whether they come in the order of `shuffled`.
        """
        window = slice(page * size, (page + 1) * size)
        if not shuffle:
            return numbers[window]
        if len(numbers) == len(self):
            return self.shuffled[window].astype(np.int64)
        among = np.zeros(len(self), bool)
        among[numbers] = True
        return self.shuffled[among[self.shuffled]][window].astype(np.int64)

    # What is near.

    def nearest(self, point: Float32, count: int) -> tuple[Int64, npt.NDArray[np.float64]]:
        """Find the images whose factors are nearest to a point, by `distance`.

        Args:
            point: the factors, (n,), in the order of `columns`.
            count: the number of images.

        Returns:
            Their numbers, nearest first and among equals by number, and their distances.
        """
        squares = np.zeros(len(self), np.float32)
        for k, axis in enumerate(self.axes):
            if axis.classes:
                squares += np.float32(_APART**2) * (self.values[:, k] != point[k])
                continue
            gaps = self.values[:, k] - np.float32(point[k])
            if axis.turn:
                gaps = np.abs(gaps) % np.float32(axis.turn)
                gaps = np.minimum(gaps, np.float32(axis.turn) - gaps)
            gaps *= np.float32(1 / axis.half)
            gaps *= gaps
            squares += gaps
        count = min(count, len(self))
        limit = np.partition(squares, count - 1)[count - 1]
        near = np.flatnonzero(squares <= limit)  # with all that are as far as the last
        near = near[np.argsort(squares[near], kind="stable")][:count]
        return near, np.sqrt(squares[near].astype(np.float64))

    # Single images.

    def image(self, number: int, size: int | None = None) -> UInt8:
        """Read one image, (H, W, C).

        Args:
            number: its number.
            size: the most pixels along a side, to which a larger image is reduced: a whole multiple
                by the mean of each square, others by Lanczos. None: its own size.

        Raises:
            DatasetError: it cannot be read.
        """
        try:
            image = self.source.image(number)
            self._files.check(number)
        except DatasetError as error:
            raise DatasetError(
                f"image {number} cannot be read: {self._why(number, error)}"
            ) from error
        height, width = image.shape[:2]
        side = max(height, width)
        if size is None or size >= side:
            return image
        whole = side // size
        if side % size == 0 and height % whole == 0 and width % whole == 0:
            reduced = picture(image).reduce(whole)
        else:
            new = (max(1, round(width * size / side)), max(1, round(height * size / side)))
            reduced = picture(image).resize(new, Image.Resampling.LANCZOS)
        pixels = np.asarray(reduced)
        return pixels.reshape(*pixels.shape[:2], image.shape[2])

    def _why(self, number: int, error: DatasetError) -> str:
        """The reason why an image cannot be read, for people, without the path of a folder."""
        root = Path(self.root)
        if not papers.is_drawn(self.root) and not root.exists():
            return (
                f"the dataset {self.name} is no longer there. It was moved or removed after the "
                "page had opened it"
            )
        try:
            self._files.check(number)
        except DatasetError as reason:
            return str(reason)
        text = str(error).removeprefix(f"cannot read image {number}: ")
        for path in dict.fromkeys((str(root.absolute()), str(root))):
            text = text.replace(f"{path}/", "").replace(path, self.name)
        return text

    def place(self, number: int) -> str:
        """The place of an image in its sequence or pair, in words; empty for single images."""
        source = self.source
        if source.sequences is not None:
            which = int(np.searchsorted(source.sequences, number, side="right")) - 1
            first, stop = source.sequences[which : which + 2].tolist()
            return _frame_words(which, number - first, stop - first)
        kind, frames = grouping(source)
        if kind == "sequence":
            item, frame = divmod(number, frames)
            return _frame_words(item, frame, min(frames, len(self) - item * frames))
        manifest = source.manifest
        if manifest is None or (manifest.sampling is None and manifest.pair_process is None):
            return ""
        pair, second = divmod(number, 2)
        names = {"counterfactual": ("before the change", "the counterfactual")}
        if manifest.pair_process is not None:
            names["single"] = ("z", "z~")
        names["views"] = ("view 1 of 2", "view 2 of 2")
        return f"pair {pair}, {names[kind][second]}" if kind in names else ""

    def facts_of(self, number: int) -> dict[str, Any]:
        """All that is known of one image, as plain data: its values, raw and in the scene.

        Args:
            number: its number, in [0, N).
        """
        source = self.source
        rows: list[dict[str, Any]] = []
        for axis, value in zip(self.axes, self.values[number].tolist(), strict=True):
            named = axis.classes[int(value)] if axis.classes else None
            row = {"name": axis.column.name, "value": value, "class": named}
            rows.append(row | {"label": axis.as_dict()["label"], "scene": None, "unit": ""})
        scene: list[dict[str, Any]] = []
        if isinstance(source, Source):
            raw, latents = source.raw_latents[number].tolist(), source.latents[number].tolist()
            for factor, one, other in zip(FACTORS, raw, latents, strict=True):
                scene.append(
                    {
                        "name": factor.name,
                        "label": factor.label,
                        "raw": one,
                        "scene": other,
                        "unit": factor.unit,
                    }
                )
        about = {
            "number": number,
            "place": self.place(number),
            "values": rows,
            "scene": scene,
            "same": self.columns == Source.factor_columns,
        }
        model, draws = self.model, source.draws
        if model is not None and draws is not None and source.manifest is not None:
            sampling = source.manifest.sampling
            environments = sampling.environments if sampling else ()
            about["environment"] = (
                environments[int(draws.environment[number])] if environments else None
            )
            hit = np.flatnonzero(draws.targets[number])
            about["intervened"] = [model.names[k] for k in hit]
        return about


class _Files:
    """The files of shards as they were when they were opened.

    Plain images are read from where they lie in their file. In one that was written anew since
    then, something else may lie there: better no image than a wrong one.
    """

    def __init__(self, source: ImageSource) -> None:
        self._starts: list[int] = []
        self._shards: list[tuple[Path, tuple[int, ...] | None]] = []
        files = {0: source.root} if source.form in ("packed", "packed-images") else {}
        if source.form == "shards":
            files = {interval.first: path for interval, path in list_shards(source.root).items()}
        for first, path in files.items():
            self._starts.append(first)
            self._shards.append((path, _signature(path)))

    def check(self, number: int) -> None:
        """Check that the file of an image is still what it was.

        Raises:
            DatasetError: it is gone, or another.
        """
        place = bisect.bisect_right(self._starts, number) - 1
        if place < 0:
            return
        path, before = self._shards[place]
        now = _signature(path)
        if now is None:
            raise DatasetError(f"{path.name} is no longer there")
        if now != before:
            raise DatasetError(
                f"{path.name} has changed since the page opened it. End `3dident explore` and "
                "start it again; `3dident verify` names all that is damaged"
            )


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _factors(source: ImageSource) -> tuple[tuple[Column, ...], Float32]:
    """The factors to filter by, and their values: the variables of a model, where there is one."""
    manifest, draws = source.manifest, source.draws
    if manifest is not None and manifest.sampling is not None and draws is not None:
        columns = tuple(
            Column(each.name, each.kind, None if each.values else each.range, each.values)
            for each in manifest.sampling.model.variables
        )
        return columns, draws.variables
    if isinstance(source, FamilySource):
        return source.columns, source.variables
    return source.factor_columns, source.factors


def _bins_of(axis: Axis, values: Float32) -> npt.NDArray[Any]:
    """The number of each value's bin, (N,): uint8 where that is enough."""
    # In the numbers that filters compare, so that a range from edge to edge passes whole bins.
    numbers = np.searchsorted(axis.edges, values, side="right") - 1
    numbers = np.clip(numbers, 0, axis.bins - 1)  # the high end is in the last bin
    return numbers.astype(np.min_scalar_type(axis.bins - 1))


def _frame_words(sequence: int, frame: int, frames: int) -> str:
    return f"sequence {sequence}, frame {frame} of 0 to {frames - 1}"
