"""The part of the page that shows the dataset: filters, its images, and those near the sliders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

from threedident import plain_data
from threedident.errors import UsageError
from threedident.explore.explorer import Answer, Explorer, Handler, point_of, slot_of
from threedident.explore.scene_part import png
from threedident.explore.scenes import RenderedScene, Scene, look_of
from threedident.explore.stored_images import Axis, Filters, StoredImages
from threedident.plain_data import Misfit

MOST_ON_A_PAGE = 200
MOST_NEAR = 48
_LARGEST_SIDE = 4096
_NAMED = 3  # factors, in a sentence
#: Images that are read at once; other work keeps its threads.
_READING = anyio.CapacityLimiter(4)


def require_stored(explorer: Explorer) -> StoredImages:
    """The dataset that the page shows.

    Raises:
        UsageError: none was given.
    """
    if explorer.stored is None:
        raise UsageError("no dataset was given: start `3dident explore DATASET` to see one")
    return explorer.stored


async def dataset(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the facts about the dataset, and the histograms of all its images."""
    stored = require_stored(explorer)
    return {"facts": stored.facts(), "counts": _plain(stored.histograms)}


async def dataset_filter(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with what passes filters: histograms, the number of images, and those of a page."""
    stored = require_stored(explorer)
    filters = check_filters(stored, data.get("filters", {}))
    page = plain_data.whole(data.get("page", 0), "page")
    size = plain_data.whole(data.get("size", 48), "size", 1, MOST_ON_A_PAGE)
    shuffle = data.get("shuffle", False)
    if not isinstance(shuffle, bool):
        raise Misfit(f"shuffle must be true or false, found {shuffle!r:.40}")

    def answer() -> dict[str, Any]:
        passing = stored.filter(filters)
        pages = max(1, -(-len(passing.numbers) // size))
        shown = min(page, pages - 1)
        numbers = stored.page(passing.numbers, shown, size, shuffle=shuffle)
        return {
            "counts": _plain(passing.counts),
            "passing": len(passing.numbers),
            "page": shown,
            "pages": pages,
            "numbers": numbers.tolist(),
            "values": stored.values[numbers].tolist(),
        }

    return await stored.latest.run(answer, slot_of(data))


async def dataset_nearest(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the images whose factors are nearest to the sliders' point.

    Where the sliders move other factors than the dataset has, `reason` says so, and there are none.
    """
    stored = require_stored(explorer)
    scene, values = point_of(explorer, data)
    count = plain_data.whole(data.get("count", 8), "count", 1, MOST_NEAR)
    filters = check_filters(stored, data.get("filters", {}))
    unknown = _unknown(stored, scene)
    if unknown:
        return {
            "images": [],
            "distance": "",
            "note": "",
            "reason": f"The sliders of {scene.title} have no {_some(unknown)} as the images of "
            f"{stored.name} have. So none of them can be said to be near.",
        }
    places = [scene.names.index(column.name) for column in stored.columns]
    point = values[places]

    def answer() -> dict[str, Any]:
        numbers, distances = stored.nearest(point, count)
        failed: list[list[str]] = [[] for _ in numbers]
        for name, wanted in filters.items():
            for row in np.flatnonzero(~stored.passes(name, wanted, numbers)):
                failed[row].append(name)
        return {
            "images": [
                {"number": number, "distance": distance, "values": row, "fails": names}
                for number, distance, row, names in zip(
                    numbers.tolist(),
                    distances.tolist(),
                    stored.values[numbers].tolist(),
                    failed,
                    strict=True,
                )
            ],
            "distance": stored.distance,
            "note": _otherwise(stored, scene),
            "reason": "",
        }

    return await stored.latest.run(answer, slot_of(data))


async def dataset_image_facts(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with all that is known of one image."""
    stored = require_stored(explorer)
    number = _number(stored, data)
    return await anyio.to_thread.run_sync(stored.facts_of, number)


async def stored_image(explorer: Explorer, data: Mapping[str, Any]) -> Answer:
    """Answer with an image of the dataset, at its own size or reduced."""
    stored = require_stored(explorer)
    number = _number(stored, data)
    size = None
    if data.get("size") is not None:
        size = plain_data.whole(data["size"], "size", 1, _LARGEST_SIDE)
    content = await anyio.to_thread.run_sync(
        lambda: png(stored.image(number, size)), limiter=_READING
    )
    return Answer(content, "image/png")


def check_filters(stored: StoredImages, value: Any) -> Filters:
    """Check the filters that the page has sent, by the factor's name.

    Raises:
        Misfit: a factor is unknown, a class or an end is no number, or a range is empty.
    """
    data = plain_data.table(value, "filters", "factors")
    axes = {axis.column.name: axis for axis in stored.axes}
    plain_data.refuse_unknown(data, tuple(axes), "filters")
    return {name: _check_filter(axes[name], wanted) for name, wanted in data.items()}


def _check_filter(axis: Axis, value: Any) -> tuple[float, ...]:
    where = f"filters.{axis.column.name}"
    if axis.classes:
        numbers = plain_data.sequence(
            value, where, plain_data.whole, least=0, most=len(axis.classes)
        )
        for number in numbers:
            if number >= len(axis.classes):
                raise Misfit(
                    f"{where} must be classes from 0 to {len(axis.classes) - 1}, found {number}"
                )
        return tuple(sorted(set(numbers)))
    low, high = plain_data.sequence(value, where, plain_data.number, least=2, most=2)
    if low > high and axis.column.kind != "circular":
        raise Misfit(f"{where} must be a range, its low end first, found [{low:g}, {high:g}]")
    return low, high


def _number(stored: StoredImages, data: Mapping[str, Any]) -> int:
    number = plain_data.whole(plain_data.needed(data, "number"), "number")
    if number >= len(stored):
        raise Misfit(f"there is no image {number}: expected 0 to {len(stored) - 1}")
    return number


def _unknown(stored: StoredImages, scene: Scene) -> list[str]:
    """The factors of a dataset that the sliders do not move, or with other values."""
    sliders = {control.name: control.column for control in scene.controls}
    if scene.kind == "stored":  # the dataset's own
        return []
    return [
        c.name
        for c in stored.columns
        if c.name not in sliders or not c.means_the_same(sliders[c.name])
    ]


def _otherwise(stored: StoredImages, scene: Scene) -> str:
    """What to mind where the images were made by another generator than the sliders move."""
    if not isinstance(scene, RenderedScene):
        return ""
    if stored.preset is None:
        return "It is not recorded which generator made these images: only the numbers are near."
    if look_of(scene.preset) == look_of(stored.preset):
        return ""
    return (
        f"The sliders move {scene.title}; these images were made by {stored.preset.name}, with "
        "other settings. The numbers are near; what they show may differ."
    )


def _some(names: list[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} or {len(names) - _NAMED} more"
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _plain(counts: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: each.tolist() for name, each in counts.items()}


HANDLERS: dict[str, Handler] = {
    "dataset": dataset,
    "dataset-filter": dataset_filter,
    "dataset-nearest": dataset_nearest,
    "dataset-image-facts": dataset_image_facts,
    "stored-image": stored_image,
}
