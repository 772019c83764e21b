"""Drawing of sprites, numpy alone: patches with hard edges, and polygons with smooth ones.

All coordinates are in pixels. Pixel (r, c) covers the square from (c, r) to (c + 1, r + 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]
Float64 = npt.NDArray[np.float64]

#: Pixels along each side of a drawn image.
SIDE = 64

# The three shapes of dSprites. Their published sizes are unknown; these are ours.

DSPRITES_SHAPES = ("square", "ellipse", "heart")
#: Places of a sprite along each axis, a pixel apart. Its centre is at least 16.5 pixels from the
#: frame, and no shape reaches farther than 16 pixels from its centre.
PLACES = 32
#: Pixels along each side of a patch, which holds a sprite in any size and orientation.
PATCH = SIDE - PLACES + 1

_HALF_SQUARE = 11.1  # at scale 1, half a side of the square
_AREA = (2 * _HALF_SQUARE) ** 2  # of all three shapes at scale 1
_ASPECT = 1.5  # of the ellipse
_HEART_AREA = 3.66015  # of the curve (x^2 + y^2 - 1)^3 = x^2 y^3
_HEART_CENTER = 0.2935  # y of its centroid

# The four of Natural Sprites.

NATURAL_SHAPES = ("square", "triangle", "star_4", "spoke_4")
#: The angle after which each looks alike (degrees).
NATURAL_TURNS = {"square": 90, "triangle": 120, "star_4": 90, "spoke_4": 90}
_AT_ONCE = 256  # images
#: Samples along each side of a pixel of a smooth image.
SAMPLES = 5


def hard_patch(shape: str, scale: float, orientation: float) -> UInt8:
    """Draw one of dSprites' shapes in the middle of a patch, (33, 33), with values 0 and 255.

    A pixel is white where its centre lies in the shape.

    Args:
        shape: square, ellipse or heart.
        scale: its size, 0 to 1.
        orientation: the angle by which it is turned, clockwise (rad).
    """
    return np.where(_depth(shape, scale, orientation) > 0, 255, 0).astype(np.uint8)


def _depth(shape: str, scale: float, orientation: float) -> Float64:
    """How far inside a shape each pixel's centre lies, (33, 33): negative outside; no distance."""
    steps = (np.arange(PATCH) - PATCH // 2) / scale
    right, down = np.meshgrid(steps, steps)
    x = math.cos(orientation) * right + math.sin(orientation) * down
    y = math.sin(orientation) * right - math.cos(orientation) * down  # upwards
    if shape == "square":
        return 1 - np.maximum(np.abs(x), np.abs(y)) / _HALF_SQUARE
    if shape == "ellipse":
        short = math.sqrt(_AREA / math.pi / _ASPECT)
        return 1 - (x / (short * _ASPECT)) ** 2 - (y / short) ** 2
    unit = math.sqrt(_AREA / _HEART_AREA)
    x, y = x / unit, y / unit + _HEART_CENTER
    return x**2 * y**3 - (x**2 + y**2 - 1) ** 3


def paste(patches: UInt8, rows: npt.ArrayLike, columns: npt.ArrayLike, out: UInt8) -> None:
    """Put a patch on each image, and black around it.

    Args:
        patches: the patches, (k, 33, 33).
        rows: the first row of each, in [0, 32).
        columns: the first column of each, in [0, 32).
        out: the images to fill, (k, 64, 64).
    """
    out[:] = 0
    # numpy's types know no tuple of axes.
    window_view: Any = np.lib.stride_tricks.sliding_window_view
    windows = window_view(out, (PATCH, PATCH), (1, 2), writeable=True)
    windows[np.arange(len(out)), rows, columns] = patches


def natural_vertices(shape: str) -> Float64:
    """The vertices of one of Natural Sprites' shapes, (V, 2): anticlockwise, of area 1, y upwards.

    Args:
        shape: square, triangle, star_4 (four points, twice as far out as the notches between them)
            or spoke_4 (a cross: a square with a square on each side).
    """
    points: list[tuple[float, float]]
    if shape == "square":
        points = [(1, 1), (-1, 1), (-1, -1), (1, -1)]
    elif shape == "triangle":
        points = [_polar(1, 90), _polar(1, 210), _polar(1, 330)]
    elif shape == "star_4":
        points = [_polar(1 + k % 2, 45 + 45 * k) for k in range(8)]
    else:
        points = []
        for k in range(4):  # a corner of the inner square, between those of two spokes
            corner, before, after = (_polar(1, 45 + 90 * k + turn) for turn in (0, -45, 45))
            points += [
                (corner[0] + before[0], corner[1] + before[1]),
                corner,
                (corner[0] + after[0], corner[1] + after[1]),
            ]
    vertices = np.array(points, np.float64)
    following = np.roll(vertices, -1, 0)
    twice = vertices[:, 0] * following[:, 1] - vertices[:, 1] * following[:, 0]
    return vertices / math.sqrt(twice.sum() / 2)


def _polar(radius: float, degrees: float) -> tuple[float, float]:
    return (
        radius * math.cos(math.radians(degrees)),
        radius * math.sin(math.radians(degrees)),
    )


def fill_polygons(vertices: Float64, out: UInt8, samples: int = SAMPLES) -> None:
    """Draw a white polygon on each image, black around it; what leaves the frame is cut off.

    A pixel's value is 255 times the share of its samples x samples points that lie inside,
    rounded. The polygons may be concave, but not cross themselves.

    Args:
        vertices: the vertices, (k, V, 2), (x, y) with y downwards; anticlockwise as one sees
            them.
        out: the images to fill, (k, H, W).
        samples: the points along each side of a pixel.
    """
    count, height, width = out.shape
    # In samples: sample s lies at s + 1/2.
    x, y = vertices[..., 0] * samples, vertices[..., 1] * samples
    next_x, next_y = np.roll(x, -1, 1), np.roll(y, -1, 1)
    low, high = np.minimum(y, next_y), np.maximum(y, next_y)
    first = np.clip(np.ceil(low - 0.5), 0, height * samples).astype(np.int64)
    last = np.clip(np.ceil(high - 0.5), 0, height * samples).astype(np.int64)
    # One entry for each edge and row of samples that it crosses.
    lengths = (last - first).ravel()
    edges = np.repeat(np.arange(lengths.size), lengths)
    starts = np.cumsum(lengths) - lengths
    row = np.arange(len(edges)) - starts[edges] + first.ravel()[edges]
    rise = np.where(next_y == y, 1.0, next_y - y)
    slope, sign = (next_x - x) / rise, np.where(next_y > y, 1, -1)
    at = x.ravel()[edges] + (row + 0.5 - y.ravel()[edges]) * slope.ravel()[edges]
    # The samples of the row from this one on are on the other side of the edge.
    sample = np.clip(np.ceil(at - 0.5), 0, width * samples).astype(np.int64)
    weight = sign.ravel()[edges]
    pixel, rest = sample // samples, sample % samples
    image = edges // vertices.shape[1]
    cell = (image * height + row // samples) * (width + 2) + pixel
    size = count * height * (width + 2)
    changes = np.bincount(cell, weight * (samples - rest), size)
    changes += np.bincount(cell + 1, weight * rest, size)
    covered = np.cumsum(changes.reshape(count, height, width + 2), 2)[..., :width]
    np.rint(covered * (255 / samples**2), out=covered)
    out[:] = covered


def place_natural(
    shapes: Sequence[int] | npt.NDArray[np.int64],
    x: Float64,
    y: Float64,
    scale: Float64,
    degrees: Float64,
    out: UInt8,
) -> None:
    """Draw Natural Sprites: white polygons on black.

    Args:
        shapes: the shapes, (k,), numbers in `NATURAL_SHAPES`.
        x: the centres from the left, (k,), of a frame of width 1.
        y: the centres from below, (k,), of a frame of height 1.
        scale: the roots of the areas, (k,), of a frame of area 1.
        degrees: the angles by which the shapes are turned, (k,), anticlockwise.
        out: the images to fill, (k, H, W, C).
    """
    numbers = np.asarray(shapes)
    height, width = out.shape[1:3]
    drawn = np.empty((min(len(out), _AT_ONCE), height, width), np.uint8)
    for number, name in enumerate(NATURAL_SHAPES):
        vertices, members = natural_vertices(name), np.flatnonzero(numbers == number)
        for start in range(0, len(members), _AT_ONCE):
            rows = members[start : start + _AT_ONCE]
            # What looks alike is drawn alike, to the last bit.
            angles = np.radians(degrees[rows, None] % NATURAL_TURNS[name])
            across = np.cos(angles) * vertices[:, 0] - np.sin(angles) * vertices[:, 1]
            up = np.sin(angles) * vertices[:, 0] + np.cos(angles) * vertices[:, 1]
            right = width * (x[rows, None] + scale[rows, None] * across)
            down = height * (1 - y[rows, None] - scale[rows, None] * up)
            fill_polygons(np.stack([right, down], -1), drawn[: len(rows)])
            out[rows] = drawn[: len(rows), ..., None]
