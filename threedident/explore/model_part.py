"""The part of the page that draws from a causal model, and finds stored images for sliders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import numpy as np

from threedident import plain_data
from threedident.causal import Draws
from threedident.errors import UsageError
from threedident.explore.explorer import Answer, Explorer, Handler, point_of, slot_of
from threedident.explore.model_scene import KINDS, ModelScene, Unit, command_of
from threedident.explore.renderers import RESTING
from threedident.explore.scene_part import data_url
from threedident.explore.scenes import check_view
from threedident.explore.stored_scene import StoredScene
from threedident.plain_data import Misfit

LARGEST_SMALL = 128  # pixels along a side of the images that stand in a row


def _scene_of(explorer: Explorer, data: Mapping[str, Any]) -> ModelScene:
    scene = explorer.scene(plain_data.needed(data, "generator"))
    if not isinstance(scene, ModelScene):
        raise UsageError(f"{scene.title} is no causal model: choose one first")
    return scene


def _unit_of(explorer: Explorer, data: Mapping[str, Any]) -> tuple[ModelScene, Unit]:
    scene = _scene_of(explorer, data)
    return scene, scene.check_unit(data)


def _kind_of(data: Mapping[str, Any]) -> tuple[str, str | None]:
    """What of a unit is drawn, and the name of the views, as a request says."""
    kind = plain_data.choice(data.get("kind", "image"), "kind", KINDS)
    view = data.get("view")
    return kind, None if view is None else plain_data.text(view, "view")


async def models(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with all models: what each is, and the mesh files that it lacks."""
    return {"models": await anyio.to_thread.run_sync(explorer.models.describe)}


async def draw(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the variables of a unit: with its interventions, and without them."""
    scene, unit = _unit_of(explorer, data)

    def both() -> tuple[Draws, Draws]:
        plain = Unit(unit.number, unit.environment, {})
        return scene.draw(unit), scene.draw(plain)

    changed, plain = await anyio.to_thread.run_sync(both)
    return {
        "values": changed.variables[0].tolist(),
        "without": plain.variables[0].tolist(),
        "intervened": _hit(scene, changed, 0),
    }


async def images(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with small images of a unit: its first frames, two views, or a counterfactual pair."""
    scene, unit = _unit_of(explorer, data)
    kind, name = _kind_of(data)
    view = check_view({"resolution": 96, **data})
    if view.resolution > LARGEST_SMALL:
        raise Misfit(f"resolution must be at most {LARGEST_SMALL}, found {view.resolution}")
    draws = await anyio.to_thread.run_sync(scene.draw, unit, kind, name)
    pixels = await scene.images(draws.variables, view, slot=slot_of(data), priority=RESTING)

    def encode() -> list[str]:
        return [data_url(image) for image in pixels]

    return {
        "images": await anyio.to_thread.run_sync(encode),
        "values": draws.variables.tolist(),
        "intervened": [_hit(scene, draws, row) for row in range(len(draws))],
    }


def _hit(scene: ModelScene, draws: Draws, row: int) -> list[str]:
    """The variables that are intervened on in a drawn image."""
    return [scene.names[column] for column in np.flatnonzero(draws.targets[row])]


async def graph(explorer: Explorer, data: Mapping[str, Any]) -> Answer:
    """Answer with a picture of the graph, without the edges that interventions cut."""
    scene, unit = _unit_of(explorer, data)
    picture = await anyio.to_thread.run_sync(scene.graph, unit)
    return Answer(picture.encode(), "image/svg+xml")


async def command(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the command that renders what is drawn of a unit."""
    scene, unit = _unit_of(explorer, data)
    kind, name = _kind_of(data)
    view = check_view(data)
    return {
        "command": command_of(
            scene, unit, kind, view=name, resolution=view.resolution, quality=view.quality
        )
    }


async def stored(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the number of the stored image that the sliders' values show."""
    scene, values = point_of(explorer, data)
    if not isinstance(scene, StoredScene):
        raise UsageError(f"{scene.title} is rendered: its images have no numbers")
    numbers, distances = await anyio.to_thread.run_sync(scene.numbers, values[None])
    number = int(numbers[0])
    return {
        "number": number,
        "distance": float(distances[0]),
        "values": scene.values_of(number).tolist(),
    }


HANDLERS: dict[str, Handler] = {
    "model-list": models,
    "model-draw": draw,
    "model-images": images,
    "model-graph": graph,
    "model-command": command,
    "stored-number": stored,
}
