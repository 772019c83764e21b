"""The part of the page that shows the scene: its image, and the generator's Jacobian."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import numpy as np
import numpy.typing as npt
from PIL import Image

from threedident.explore.explorer import Answer, Explorer, Handler, point_of, slot_of
from threedident.explore.renderers import MOVING, RESTING
from threedident.explore.scenes import RenderedScene, View, check_view, require_rendered

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

#: How the Jacobian is taken: the view, the pixels along each side that are averaged, which takes
#: their noise away, and half of the distance of two images, in raw units.
JACOBIAN_VIEW = View(64, "standard")
AVERAGED = 2
STEP = 0.02


def png(image: npt.NDArray[np.uint8]) -> bytes:
    """Encode an image (H, W, C) as PNG, quickly."""
    content = io.BytesIO()
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    Image.fromarray(pixels).save(content, "PNG", compress_level=1)
    return content.getvalue()


def data_url(image: npt.NDArray[np.uint8]) -> str:
    """An image (H, W, C) as the address that an <img> shows, for answers of several images."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


async def image(explorer: Explorer, data: Mapping[str, Any]) -> Answer:
    """Answer with the image of the sliders' values."""
    scene, values = point_of(explorer, data)
    priority = MOVING if data.get("moving") is True else RESTING
    images = await scene.images(
        values[None], check_view(data), slot=slot_of(data), priority=priority
    )
    return Answer(await anyio.to_thread.run_sync(png, images[0]), "image/png")


async def state(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with all that the page needs to open."""
    return explorer.describe()


async def scene(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the scene of a generator."""
    return explorer.scene(data.get("generator")).describe()


async def jacobian(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the Jacobian's singular values at the sliders' point, and their directions."""
    scene, values = point_of(explorer, data)
    rendered = require_rendered(scene, "the Jacobian")
    moved, matrix = await jacobian_at(rendered, values, slot=slot_of(data))
    _, singular, directions = np.linalg.svd(matrix, full_matrices=False)
    return {
        "factors": list(moved),
        "singular_values": singular.tolist(),
        "directions": directions.tolist(),
        "norms": np.linalg.norm(matrix, axis=0).tolist(),
        "side": JACOBIAN_VIEW.resolution // AVERAGED,
        "rendered": JACOBIAN_VIEW.resolution,
        "step": STEP,
    }


async def jacobian_at(
    scene: RenderedScene, values: Float32, *, slot: Any = None
) -> tuple[tuple[str, ...], Float64]:
    """Compute the Jacobian of a scene, from values to linear light, by central differences.

    It is `threedident.render.jacobian` for any controls: those that are held or that choose a
    class are left out.

    Args:
        scene: the scene.
        values: the point, (n,).
        slot: the place on the page that it is for; see `Renderers.images`.

    Returns:
        The names of the k controls that can move, and the matrix (H * W * 3, k), per unit of
        half a range.
    """
    places = [
        place
        for place, control in enumerate(scene.controls)
        if not control.held
        and control.kind in ("continuous", "circular")
        and control.high > control.low
    ]
    ends = np.repeat(values[None].astype(np.float32), 2 * len(places), axis=0)
    for row, place in enumerate(places):
        control = scene.controls[place]
        step = STEP * (control.high - control.low) / 2
        ends[2 * row, place] = max(values[place] - step, control.low)
        ends[2 * row + 1, place] = min(values[place] + step, control.high)
    images = await scene.linear(ends, JACOBIAN_VIEW, slot=slot)
    side = JACOBIAN_VIEW.resolution // AVERAGED
    blocks = images.astype(np.float64).reshape(-1, side, AVERAGED, side, AVERAGED, 3)
    flat = blocks.mean((2, 4)).reshape(len(places), 2, -1)
    halves = np.array([(c.high - c.low) / 2 for c in (scene.controls[p] for p in places)])
    columns = np.array(places)
    widths = ends[1::2, columns].diagonal() - ends[::2, columns].diagonal()
    matrix = (flat[:, 1] - flat[:, 0]) / (widths / halves)[:, None]
    return tuple(scene.names[place] for place in places), matrix.T


HANDLERS: dict[str, Handler] = {
    "state": state,
    "scene": scene,
    "image": image,
    "jacobian": jacobian,
}
