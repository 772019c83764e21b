"""Quality levels: where the samples of an image go."""

from __future__ import annotations

import dataclasses

from threedident import defaults
from threedident.errors import UsageError

#: Raised whenever a change here or in an engine changes its pixels, so that no dataset mixes them.
RECIPES = {"cycles": 1, "direct": 1}


@dataclasses.dataclass(frozen=True)
class Whole:
    """The published way: one path-traced image of everything, denoised.

    Attributes:
        samples: per pixel.
        light_tree: whether Cycles picks lights by importance (less noise; not as published).
    """

    samples: int
    light_tree: bool = False


@dataclasses.dataclass(frozen=True)
class Layered:
    """Object and ground apart, and every light apart; no denoiser.

    The object's edges hold most of an image's error and lie in a small part of it, while
    everything on the ground is blurred over many pixels (the lights are wide, and the
    object floats). So the object is rendered at full resolution where it is, and the ground
    on a grid several times coarser, brought up by cubic splines; a light at a time, because
    the random choice between lights is the largest source of noise in a joint render.

    Attributes:
        object_samples, ground_samples: per light, in the order sun, area, spot.
        near_light: how many times more of the object's samples there are where it comes near
            the area light, which then throws hard contrasts on a large object.
        coarseness: image pixels per pixel of the ground's grid, along each side.
    """

    object_samples: tuple[int, int, int]
    ground_samples: tuple[int, int, int]
    near_light: int = 4
    coarseness: int = 4


@dataclasses.dataclass(frozen=True)
class Integrated:
    """The direct engine's way: the same layers, every light at every sample.

    Attributes:
        inside, edge: samples per pixel on the object, and at its edges.
        ground: per pixel of the ground's grid.
        near_light: as in `Layered`, of `inside` and `edge`.
        coarseness: image pixels per pixel of that grid, along each side.
    """

    inside: int
    edge: int
    ground: int
    near_light: int
    coarseness: int


Quality = Whole | Layered | Integrated

QUALITIES: dict[str, dict[str, Quality]] = {
    "cycles": {
        "draft": Layered(object_samples=(1, 1, 4), ground_samples=(4, 2, 4), near_light=2),
        "standard": Layered(object_samples=(4, 4, 8), ground_samples=(32, 8, 16)),
        "reference": Whole(samples=512),
    },
    "direct": {
        "draft": Integrated(inside=2, edge=8, ground=4, near_light=2, coarseness=4),
        "standard": Integrated(inside=8, edge=16, ground=16, near_light=4, coarseness=4),
        "reference": Integrated(inside=32, edge=128, ground=64, near_light=4, coarseness=2),
    },
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
    if engine == "direct" and material == "crystal":
        raise UsageError(
            "the direct engine cannot render crystal (it lets light through): choose another "
            "material, or --engine cycles"
        )
