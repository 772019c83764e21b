"""The part of the page that shows an encoder: codes and read-out, here and along a factor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import numpy as np
import numpy.typing as npt

from threedident import plain_data
from threedident.errors import UsageError
from threedident.explore.controls import Control
from threedident.explore.explorer import Explorer, Handler, point_of, slot_of
from threedident.explore.linear_readout import error_of
from threedident.explore.renderers import RESTING, WAITING
from threedident.explore.scenes import Scene

if TYPE_CHECKING:
    from threedident.explore.encoder import LiveEncoder

Float32 = npt.NDArray[np.float32]

#: The codes that the page shows of an image.
SHOWN = 64
STEPS, MOST_STEPS = 21, 64
_PIECE = 4  # images of a traversal that are rendered and encoded at once


def _encoder_of(explorer: Explorer) -> LiveEncoder:
    if explorer.encoder is None:
        raise UsageError(
            "there is no encoder: `3dident explore --encoder FILE.onnx` shows one beside the "
            "sliders"
        )
    return explorer.encoder


async def encoder(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with what is known of the encoder, and how far its read-out and a traversal are.

    The traversal is that of the request's `slot`.
    """
    plain_data.refuse_unknown(data, ("tab", "slot"))
    live = _encoder_of(explorer)
    live.start()
    done, total = live.progress(slot_of(data))
    return {**live.describe(), "traversal": {"done": done, "total": total}}


async def codes(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the codes of the image at the sliders' values, and the factors read out."""
    plain_data.refuse_unknown(data, ("generator", "values", "tab", "slot"))
    live = _encoder_of(explorer)
    scene, values = point_of(explorer, data)
    slot = slot_of(data)
    turn = live.turn(slot)
    view = await live.view(scene)
    images = await scene.images(values[None], view, slot=slot, priority=RESTING)
    found = await live.encode(images, slot=slot, turn=turn)
    return await anyio.to_thread.run_sync(_at_a_point, live, scene, values, found)


def _at_a_point(
    live: LiveEncoder, scene: Scene, values: Float32, found: Float32
) -> Mapping[str, Any]:
    readout = live.readout
    scaled = None if readout is None else readout.scaled(found)[0, :SHOWN].tolist()
    factors = []
    told = [] if readout is None else readout.predict(found)
    for control, value, place in zip(
        scene.controls, values.tolist(), _places(live, scene), strict=True
    ):
        each: dict[str, Any] = {"name": control.name, "true": value, "predicted": None}
        if readout is not None and place is not None:
            predicted = float(told[place][0])
            each |= {
                "predicted": predicted,
                "error": error_of(readout.columns[place], value, predicted),
                **dataclasses.asdict(readout.scores[place]),
                "best_r2": live.best_r2.get(control.name),
            }
        factors.append(each)
    return {
        "codes": found[0, :SHOWN].astype(float).tolist(),
        "count": found.shape[1],
        "scaled": scaled,
        "factors": factors,
        "differs": live.differs(scene) if readout is not None else "",
    }


def _places(live: LiveEncoder, scene: Scene) -> list[int | None]:
    """The places of a scene's controls among what is read out; None where one is not."""
    if live.readout is None:
        return [None] * len(scene.controls)
    stored = scene.kind == "stored"
    return [live.readout.place_of(control, stored=stored) for control in scene.controls]


async def traversal(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with codes, and factors read out, along a factor; the others as the sliders are."""
    plain_data.refuse_unknown(data, ("generator", "values", "factor", "steps", "tab", "slot"))
    live = _encoder_of(explorer)
    scene, values = point_of(explorer, data)
    name = plain_data.choice(data.get("factor"), "factor", scene.names)
    place = scene.names.index(name)
    control = scene.controls[place]
    along = points_along(control, data.get("steps", STEPS))
    rows = np.repeat(values[None], len(along), axis=0)
    rows[:, place] = along
    slot = slot_of(data)
    turn = live.turn(slot)
    view = await live.view(scene)
    parts = []
    for start in range(0, len(rows), _PIECE):
        live.note_progress(slot, start, len(rows))
        piece = rows[start : start + _PIECE]
        images = await scene.images(piece, view, slot=slot, priority=WAITING)
        parts.append(await live.encode(images, slot=slot, turn=turn))
    live.note_progress(slot, len(rows), len(rows))
    found = np.concatenate(parts)
    return await anyio.to_thread.run_sync(_along, live, scene, control, along, found)


def points_along(control: Control, steps: Any = STEPS) -> Float32:
    """The values of a control along its range, all classes of a discrete one.

    Args:
        control: the control.
        steps: the number of values, as the page has sent it.

    Raises:
        Misfit: the number does not fit.
        UsageError: it cannot move, or has too many classes.
    """
    count = plain_data.whole(steps, "steps", 2, MOST_STEPS)
    if control.held or control.high <= control.low:
        raise UsageError(f"{control.name} is held at {control.start:g}: there is nothing along it")
    span = int(control.high - control.low)
    if control.kind == "discrete":
        if span >= MOST_STEPS:
            raise UsageError(
                f"{control.name} has {span + 1} classes: at most {MOST_STEPS} are shown"
            )
        count = span + 1
    return control.along(count)


def _along(
    live: LiveEncoder, scene: Scene, control: Control, along: Float32, found: Float32
) -> Mapping[str, Any]:
    readout = live.readout
    own = found.astype(np.float64)
    curves = own if readout is None else readout.scaled(own)
    most = np.argsort(-np.ptp(curves, axis=0), kind="stable")[:SHOWN]  # those that move most
    curves, own = curves[:, most], own[:, most]
    told = [] if readout is None else readout.predict(found)
    if readout is None:
        low, high = curves.min(0), curves.max(0)
        curves = (curves - low) / np.where(high > low, high - low, 1)
    return {
        "factor": control.name,
        "along": along.tolist(),
        "codes": most.tolist(),
        "curves": curves.T.tolist(),
        "scaled_by": "range" if readout is None else "dataset",
        "ranges": np.ptp(own, axis=0).tolist(),
        "count": found.shape[1],
        "factors": [
            {"name": each.name, "predicted": None}
            if readout is None or place is None
            else {
                "name": each.name,
                "predicted": told[place].tolist(),
                "circular": readout.columns[place].kind == "circular",
            }
            for each, place in zip(scene.controls, _places(live, scene), strict=True)
        ],
        "differs": live.differs(scene) if readout is not None else "",
    }


HANDLERS: dict[str, Handler] = {
    "encoder": encoder,
    "encoder-codes": codes,
    "encoder-traversal": traversal,
}
