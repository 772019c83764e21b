"""The part of the page that hands out what it shows: latents, an image, a command, a strip."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shlex
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from threedident import plain_data
from threedident.errors import UsageError
from threedident.explore.controls import Control
from threedident.explore.explorer import Answer, Explorer, Handler, point_of, slot_of
from threedident.explore.model_scene import ModelScene
from threedident.explore.model_scene import command_of as command_of_model
from threedident.explore.scenes import PresetScene, RenderedScene, Scene, View, check_view
from threedident.explore.stored_scene import StoredScene
from threedident.factors import FACTOR_NAMES
from threedident.plain_data import Misfit
from threedident.render.figures import contact_sheet, titled
from threedident.version import toolkit_version

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

LEAST_STEPS, MOST_STEPS = 3, 13
_POINT = ("generator", "values", "tab", "slot")
_VIEW = (*_POINT, "resolution", "quality")
_NEARLY = 1e-6  # raw units: what rounding to float32 can put a value beyond an end


async def take_latents(explorer: Explorer, data: Mapping[str, Any]) -> Answer:
    """Answer with the raw latents of the sliders' point, (1, 10), as a .npy file.

    A stored scene's file has its factors, (1, n).
    """
    plain_data.refuse_unknown(data, _POINT)
    scene, values = point_of(explorer, data)
    latents = await anyio.to_thread.run_sync(latents_of, scene, values)
    content = io.BytesIO()
    np.save(content, latents, allow_pickle=False)
    return Answer(content.getvalue(), "application/octet-stream", latents_name(latents))


async def take_image(explorer: Explorer, data: Mapping[str, Any]) -> Answer:
    """Answer with the image of the sliders' point, as `3dident render` makes it, as PNG."""
    plain_data.refuse_unknown(data, _VIEW)
    scene, values = point_of(explorer, data)
    view = check_view(data)
    images = await scene.images(values[None], view, slot=slot_of(data))
    facts = await anyio.to_thread.run_sync(facts_of, explorer, scene, values, view)
    content = await anyio.to_thread.run_sync(small_png, images[0], facts)
    return Answer(content, "image/png", "3dident-image.png")


async def take_command(explorer: Explorer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the command line that renders the sliders' point, and its latents' file."""
    plain_data.refuse_unknown(data, _VIEW)
    scene, values = point_of(explorer, data)
    view = check_view(data)
    words = await anyio.to_thread.run_sync(command_of, explorer, scene, values, view)
    file = words[words.index("--latents") + 1] if "--latents" in words else None
    return {"command": shlex.join(words), "latents": file}


async def take_strip(explorer: Explorer, data: Mapping[str, Any]) -> Answer:
    """Answer with a traversal of one factor through the sliders' point, as PNG."""
    plain_data.refuse_unknown(data, (*_VIEW, "factor", "steps"))
    scene, values = point_of(explorer, data)
    view = check_view(data)
    name = plain_data.choice(plain_data.needed(data, "factor"), "factor", scene.names)
    place = scene.names.index(name)
    if scene.controls[place].held:
        raise Misfit(f"factor: {name} is held, so that nothing changes along it")
    steps = plain_data.whole(data.get("steps", 7), "steps", LEAST_STEPS, MOST_STEPS)
    along = scene.controls[place].along(steps)
    rows = np.repeat(values[None], len(along), axis=0)
    rows[:, place] = along
    images = await scene.images(rows, view, slot=slot_of(data))
    facts = await anyio.to_thread.run_sync(facts_of, explorer, scene, values, view)
    facts.pop("Command", None)  # of one image
    facts |= {"Factor": name, "Values": json.dumps(_shortest(along))}
    content = await anyio.to_thread.run_sync(strip, images, scene, name, along, facts)
    return Answer(content, "image/png", f"3dident-{name.replace('_', '-')}.png")


def latents_of(scene: Scene, values: Float32) -> Float32:
    """The raw latents (1, 10) that `3dident render --latents` takes for a point.

    Of stored images they are the factors (1, n) of the one that is shown.

    Args:
        scene: the scene.
        values: the values of its controls, (n,).

    Raises:
        UsageError: ten numbers do not say all of its scene.
    """
    if isinstance(scene, StoredScene):
        numbers, _ = scene.numbers(values[None])
        return scene.values_of(int(numbers[0]))[None]
    if not isinstance(scene, RenderedScene) or isinstance(scene, PresetScene):
        return values[None].astype(np.float32)
    cure = "take the command instead, which sets the model's variables by --do"
    preset = scene.preset
    preset.require_ten_columns(cure)
    rows = scene.rows(values[None]).astype(np.float64)
    low, high = np.array([preset.ranges[name] for name in FACTOR_NAMES]).T
    half = (high - low) / 2
    raw = (rows - (low + high) / 2) / np.where(half == 0, 1.0, half)
    if np.abs(raw).max() > 1 + _NEARLY:
        off = FACTOR_NAMES[int(np.abs(raw[0]).argmax())]
        raise UsageError(
            f"{off} lies outside of its range in the scene, where raw latents are in [-1, 1]: "
            f"{cure}"
        )
    return np.clip(raw, -1, 1).astype(np.float32)


def latents_name(latents: Float32) -> str:
    """A name for a file of latents that other latents do not have."""
    return f"latents-{hashlib.sha256(latents.tobytes()).hexdigest()[:8]}.npy"


def command_of(explorer: Explorer, scene: Scene, values: Float32, view: View) -> list[str]:
    """The command that renders a point, as words.

    Args:
        explorer: the page.
        scene: the scene.
        values: the values of its controls, (n,).
        view: the resolution and quality.

    Raises:
        UsageError: no command renders it: the images are stored ones, or no name or file stands
            for the preset or model.
    """
    if not isinstance(scene, RenderedScene):
        raise UsageError(
            f"the images of {scene.title} are stored, so that no command renders them: take the "
            "image and its factors"
        )
    if isinstance(scene, ModelScene):
        free = [
            (control.name, value)
            for control, value in zip(scene.controls, _shortest(values), strict=True)
            if not control.held
        ]
        unit = scene.check_unit({"do": dict(free)})
        line = command_of_model(scene, unit, resolution=view.resolution, quality=view.quality)
        words = shlex.split(line)
        words = words[: words.index("--out")]
    else:
        words = ["3dident", "render", *_preset_options(explorer, scene)]
        words += ["--latents", latents_name(latents_of(scene, values)), "--engine", "direct"]
        words += ["--quality", view.quality, "--resolution", str(view.resolution)]
    if explorer.device != "auto":
        words += ["--device", explorer.device]
    # Two points, or one at two sizes, are two datasets.
    digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]
    return [*words, "--out", f"data/explored-{digest}"]


def _preset_options(explorer: Explorer, scene: Scene) -> list[str]:
    """The options by which a command chooses a preset's scene."""
    options = [*explorer.preset_options(str(scene.generator["preset"]))]
    if not options:
        raise UsageError(
            f"no command names the preset of {scene.title}, which a dataset or a script has: save "
            "the latents, and call render_dataset with them and that preset"
        )
    for field in ("shape", "material"):
        if scene.generator.get(field) is not None:
            options += [f"--{field}", str(scene.generator[field])]
    return options


def facts_of(explorer: Explorer, scene: Scene, values: Float32, view: View) -> dict[str, str]:
    """The facts that an image carries: program, generator, values and, if there is one, command.

    Args:
        explorer: the page.
        scene: the scene.
        values: the values of its controls, (n,).
        view: how the image is made.
    """
    facts = {"Software": f"threedident {toolkit_version()}", "Scene": scene.title}
    facts["Generator"] = json.dumps(dict(scene.generator), sort_keys=True)
    own = latents_of(scene, values)[0] if isinstance(scene, StoredScene) else values
    named = dict(zip(scene.names, _shortest(own), strict=True))
    facts["Latents"] = json.dumps(named)
    if isinstance(scene, RenderedScene):
        facts["Quality"] = view.quality
        with contextlib.suppress(UsageError):
            facts["Command"] = shlex.join(command_of(explorer, scene, values, view))
    return facts


def _shortest(values: Float32) -> list[float]:
    """Values with as many digits as their float32 needs, and no more."""
    return [float(str(value)) for value in values]


def small_png(image: UInt8, facts: Mapping[str, str]) -> bytes:
    """Encode an image (H, W, C) as a small PNG, with facts as text chunks."""
    return _encoded(Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image), facts)


def _encoded(picture: Image.Image, facts: Mapping[str, str]) -> bytes:
    info = PngInfo()
    for name, text in facts.items():
        info.add_text(name, text)  # as iTXt where Latin-1 does not have its letters
    content = io.BytesIO()
    picture.save(content, "PNG", pnginfo=info, optimize=True)
    return content.getvalue()


def strip(
    images: UInt8, scene: Scene, name: str, along: Float32, facts: Mapping[str, str]
) -> bytes:
    """Lay out a traversal in a row, its values below and the factor's name above, as PNG.

    Args:
        images: the images, (B, H, W, C).
        scene: the scene.
        name: the name of the factor.
        along: the factor's values, (B,).
        facts: the facts that the picture carries.
    """
    control = next(each for each in scene.controls if each.name == name)
    labels = [_label(control, value) for value in along]
    title = f"{scene.title}: {control.label}"
    if control.scene is not None and control.kind in ("continuous", "circular"):
        low, high = control.scene
        ends = f"{control.low:g} to {control.high:g}"
        title += f", {ends} ({low:.4g} to {high:.4g} {control.unit})".replace(" )", ")")
    if isinstance(scene, StoredScene) and scene.stored.source.grid is None:
        title += "; of each value the nearest image"
    sheet = contact_sheet(images, labels, columns=len(images))
    return _encoded(titled(sheet, title), facts)


def _label(control: Control, value: float) -> str:
    if control.kind == "discrete":
        return control.values[int(value)]
    return f"{value:g}" if control.kind == "step" else f"{value:+.2f}"


HANDLERS: dict[str, Handler] = {
    "take-latents": take_latents,
    "take-image": take_image,
    "take-command": take_command,
    "take-strip": take_strip,
}
