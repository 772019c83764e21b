"""Quality levels of each engine: the settings that say where the samples of an image go."""

from __future__ import annotations

import dataclasses

from threedident import defaults
from threedident.errors import UsageError
from threedident.presets import Preset

#: Raised whenever a change here or in an engine changes its pixels, so that no dataset mixes them.
RECIPES = {
    "cycles": {"draft": 2, "standard": 2, "reference": 1},
    "direct": {"draft": 2, "standard": 2, "reference": 2},
}

#: What the direct engine can render: its rays end at the object.
DIRECT_MATERIALS = ("rubber", "metal")


@dataclasses.dataclass(frozen=True)
class Whole:
    """The published way: one path-traced image of everything, denoised.

    Attributes:
        samples: the samples of every pixel.
        light_tree: whether Cycles picks lights by importance (less noise; not as published).
    """

    samples: int
    light_tree: bool = False


@dataclasses.dataclass(frozen=True)
class Integrated:
    """The direct engine's way: object and ground apart, every light at every sample.

    A first look at each pixel finds out where samples differ: at edges, in penumbrae and
    highlights, at the rim of the spotlight's cone. The other samples are spent there. On the
    ground only the share of each light that is seen is sampled, on a coarser grid.

    Attributes:
        inside: the samples of a pixel on the object, at first.
        edge: the most samples of a pixel there.
        tolerance: the error of a pixel that more samples aim at, in levels of 255.
        look: the samples of a pixel of the ground's grid, at first.
        ground: the samples of such a pixel in a penumbra.
        coarseness: the image pixels to a pixel of that grid, along each side.
    """

    inside: int
    edge: int
    tolerance: float
    look: int
    ground: int
    coarseness: int


@dataclasses.dataclass(frozen=True)
class Layered:
    """Object and ground apart, and every light apart; no denoiser.

    The object's edges hold most of an image's error and lie in a small part of it, while
    everything on the ground is blurred over many pixels (the lights are wide, and the
    object floats). So the object is rendered at full resolution where it is, and the ground
    on a grid several times coarser, brought up by cubic splines; a light at a time, because
    the random choice between lights is the largest source of noise in a joint render.

    Attributes:
        object_samples: the samples of each light on the object: sun, area, spot.
        ground_samples: the same on the ground.
        near_light: the factor by which the object has more samples where it comes near the
            area light, which then throws hard contrasts on a large object.
        coarseness: the image pixels to a pixel of the ground's grid, along each side.
        direct: the settings by which the direct engine makes the ground, and those pixels of the
            object where its samples differ, such as edges; None, and for materials that it does
            not have: Blender makes all.
    """

    object_samples: tuple[int, int, int]
    ground_samples: tuple[int, int, int]
    near_light: int = 4
    coarseness: int = 4
    direct: Integrated | None = None


Quality = Whole | Layered | Integrated

_DIRECT = {
    "draft": Integrated(inside=2, edge=32, tolerance=16.0, look=4, ground=8, coarseness=3),
    "standard": Integrated(inside=4, edge=128, tolerance=4.2, look=4, ground=64, coarseness=2),
    "reference": Integrated(inside=16, edge=512, tolerance=1.5, look=16, ground=256, coarseness=2),
}

QUALITIES: dict[str, dict[str, Quality]] = {
    "cycles": {
        "draft": Layered(
            object_samples=(1, 1, 2),
            ground_samples=(4, 2, 4),
            near_light=2,
            direct=_DIRECT["draft"],
        ),
        "standard": Layered(
            object_samples=(4, 4, 8), ground_samples=(32, 8, 16), direct=_DIRECT["standard"]
        ),
        "reference": Whole(samples=512),
    },
    "direct": {**_DIRECT},
}


def get_quality(name: str, engine: str = defaults.ENGINE) -> Quality:
    """Look up the settings of an engine's quality level.

    Raises:
        UsageError: there is no such engine or level.
    """
    if engine not in QUALITIES:
        raise UsageError(f"unknown engine {engine!r}: expected one of {', '.join(QUALITIES)}")
    if name not in QUALITIES[engine]:
        levels = ", ".join(QUALITIES[engine])
        raise UsageError(f"unknown quality {name!r}: expected one of {levels}")
    return QUALITIES[engine][name]


def quality_name(quality: Quality, engine: str) -> str:
    """Look up the name of a quality level by its settings.

    Raises:
        UsageError: there is no such engine, or the settings are none of its levels.
    """
    get_quality(defaults.QUALITY, engine)
    for name, level in QUALITIES[engine].items():
        if level == quality:
            return name
    raise UsageError(
        f"{quality} is no quality level of the engine {engine}: expected one of "
        f"{', '.join(QUALITIES[engine])}, or the settings of one"
    )


def check_material(material: str, engine: str) -> None:
    """Refuse what an engine cannot render: rays of the direct engine end at the object.

    Raises:
        UsageError: the material lets light through.
    """
    if engine == "direct" and material not in DIRECT_MATERIALS:
        raise UsageError(
            f"the direct engine cannot render {material} (it lets light through): choose another "
            "material, or --engine cycles"
        )


def check_scenes(preset: Preset, engine: str, quality: str) -> None:
    """Refuse a preset whose scenes an engine cannot render at a quality level.

    Raises:
        UsageError: a material lets light through, and the engine or the level cannot take that.
    """
    for material in preset.drawn_materials:
        check_material(material, engine)
    level = get_quality(quality, engine)
    if isinstance(level, Layered) and not takes_direct(preset):
        check_layers(preset)


def takes_direct(preset: Preset) -> bool:
    """Whether the direct engine can render all of a preset's materials."""
    return set(preset.drawn_materials) <= set(DIRECT_MATERIALS)


def check_layers(preset: Preset) -> None:
    """Refuse a preset whose images Blender alone cannot make in layers (`Layered`).

    Raises:
        UsageError: there is more than one shape, material or object.
    """
    if preset.objects > 1 or preset.shapes or preset.materials:
        raise UsageError(
            f"preset {preset.name!r}: where light goes through a material "
            f"({', '.join(preset.drawn_materials)}), qualities draft and standard take one object "
            "of one shape and one material: take --quality reference with --engine cycles, or "
            f"materials of {', '.join(DIRECT_MATERIALS)}"
        )
