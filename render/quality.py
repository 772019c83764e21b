"""Quality levels: where the samples of an image go."""

from __future__ import annotations

import dataclasses

from threedident.errors import UsageError

#: Raised whenever a change here or in an engine changes pixels, so that no dataset mixes them.
RECIPE = 1


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
        coarseness: image pixels per pixel of the ground's grid, along each side.
    """

    object_samples: tuple[int, int, int]
    ground_samples: tuple[int, int, int]
    coarseness: int = 4


QUALITIES: dict[str, Whole | Layered] = {
    "draft": Layered(object_samples=(1, 1, 4), ground_samples=(4, 2, 4)),
    "standard": Layered(object_samples=(4, 4, 8), ground_samples=(32, 8, 16)),
    "reference": Whole(samples=512),
}
DEFAULT_QUALITY = "standard"


def get_quality(name: str) -> Whole | Layered:
    """The settings of a quality level.

    Raises:
        UsageError: there is no such level.
    """
    if name not in QUALITIES:
        raise UsageError(f"unknown quality {name!r}: expected one of {', '.join(QUALITIES)}")
    return QUALITIES[name]
