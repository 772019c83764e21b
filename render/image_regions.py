"""Image regions and spline upsampling for layered rendering.

A region is where in the image a layer can differ from what is known without it: the
object's own outline, its shadow on the ground, the spotlight's pool of light. Regions are
never too small: they bound convex sets through points that enclose them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.render.scene import AREA, CAMERA, SPOT, SUN, Camera, Scene

Array = npt.NDArray[Any]

NEAR = 2.0  # m
_GROUND_PADDING = 2  # pixels of the ground's grid beyond the frame, for the splines
_COARSEST = 56  # pixels: small images do not make the ground's grid coarser than this
_MARGIN = 2  # pixels: the filter reaches 1.5 pixels out
_CORNERS = 8  # of the polygon drawn around a round light


@dataclasses.dataclass(frozen=True)
class Region:
    """Columns left..right and rows top..bottom of an image, ends not included."""

    left: int
    right: int
    top: int
    bottom: int

    @property
    def empty(self) -> bool:
        """Whether it holds no pixel."""
        return self.right <= self.left or self.bottom <= self.top

    @property
    def window(self) -> tuple[slice, slice]:
        """The region as an index of an image: slices of rows and columns."""
        return slice(self.top, self.bottom), slice(self.left, self.right)


@dataclasses.dataclass(frozen=True)
class Grid:
    """A square pixel grid over the camera's view, wider than it by a padding on every side.

    Attributes:
        pixels: the pixels along each side of the view.
        padding: the pixels beyond the view, on each side.
    """

    pixels: int
    padding: int = 0

    @property
    def side(self) -> int:
        """The number of pixels along each side, padding included."""
        return self.pixels + 2 * self.padding

    @property
    def camera(self) -> Camera:
        """The scene's camera, its sensor widened to the whole grid."""
        width = CAMERA.sensor_width * self.side / self.pixels
        return dataclasses.replace(CAMERA, sensor_width=width)

    @property
    def whole(self) -> Region:
        """The region of the whole grid."""
        return Region(0, self.side, 0, self.side)

    def around(self, points: Array) -> Region:
        """Bound the convex hull of points (N, 3) by a region; the whole grid if in doubt."""
        if not len(points) or not np.isfinite(points).all():
            return self.whole
        column, row, depth = self.camera.project(points, self.side)
        if depth.min() <= 1e-3:
            return self.whole

        def limit(value: float) -> int:
            return int(min(max(value, 0), self.side))

        return Region(
            limit(math.floor(column.min()) - _MARGIN),
            limit(math.ceil(column.max()) + _MARGIN),
            limit(math.floor(row.min()) - _MARGIN),
            limit(math.ceil(row.max()) + _MARGIN),
        )


def _polygon(radius: float) -> Array:
    """The corners (8, 2) of a polygon around a disk."""
    angle = 2 * np.pi * np.arange(_CORNERS) / _CORNERS
    return radius / math.cos(np.pi / _CORNERS) * np.stack([np.cos(angle), np.sin(angle)], 1)


def enclosing_points(vertices: Array, most: int = 5000) -> Array:
    """Find few points (M, 3) whose convex hull holds that of `vertices` (N, 3).

    Large meshes are cut into cells, and each cell's vertices are replaced by their box.
    """
    if len(vertices) <= most:
        return vertices
    low, high = vertices.min(0), vertices.max(0)
    cell = np.floor(8 * (vertices - low) / np.maximum(high - low, 1e-30)).clip(0, 7)
    _, group = np.unique(cell, axis=0, return_inverse=True)
    boxes = []
    order = np.argsort(group.reshape(-1), kind="stable")
    starts = np.flatnonzero(np.diff(group.reshape(-1)[order], prepend=-1))
    for bound in (np.minimum, np.maximum):
        boxes.append(bound.reduceat(vertices[order], starts, axis=0))
    corners = np.indices((2, 2, 2)).reshape(3, -1).T
    return np.where(corners[None], boxes[1][:, None], boxes[0][:, None]).reshape(-1, 3)


def is_near_light(points: Array) -> bool:
    """Whether one of the points (N, 3), all of the object, is within 2 m of the area light."""
    centre = np.array(AREA.location)
    beyond = np.abs(points - centre) - np.array([AREA.side / 2, AREA.side / 2, 0.0])
    distance = np.linalg.norm(np.maximum(beyond, 0.0), axis=1)
    return bool(distance.min() < NEAR)


def sun_shadow(scene: Scene, points: Array) -> Array:
    """Find points on the ground whose convex hull holds the sun's shadow of `points` (N, 3)."""
    lean = _polygon(math.tan(SUN.angle / 2))
    height = points[:, 2] - scene.ground_height
    xy = points[:, None, :2] + height[:, None, None] * lean[None]
    z = np.full((*xy.shape[:2], 1), scene.ground_height)
    return np.concatenate([xy, z], axis=2).reshape(-1, 3)


def area_shadow(scene: Scene, points: Array) -> Array:
    """Find the same for the area light; not finite where the object reaches up to the light."""
    half = AREA.side / 2
    corners = np.array([[-half, -half], [-half, half], [half, -half], [half, half]])
    corners = corners + np.array(AREA.location[:2])
    drop = AREA.location[2] - points[:, 2]
    if drop.min() < 0.05:
        return np.full((1, 3), np.nan)
    reach = (AREA.location[2] - scene.ground_height) / drop
    xy = corners[None] + reach[:, None, None] * (points[:, None, :2] - corners[None])
    z = np.full((*xy.shape[:2], 1), scene.ground_height)
    return np.concatenate([xy, z], axis=2).reshape(-1, 3)


def spot_pool(scene: Scene) -> Array:
    """Find points on the ground whose convex hull holds all that the spotlight can reach.

    The light is a disk: the union of its points' cones lies in the cone whose tip stands
    radius / sin(half angle) behind it.
    """
    half = SPOT.cone / 2
    spot = np.array(scene.spot_location)
    axis = np.array(scene.location) - spot
    axis /= np.linalg.norm(axis)
    side = np.cross(axis, [0.0, 0.0, 1.0] if abs(axis[2]) < 0.9 else [1.0, 0.0, 0.0])
    side /= np.linalg.norm(side)
    frame = np.stack([side, np.cross(axis, side)])
    tip = spot - axis * SPOT.radius / math.sin(half)
    rays = axis + _polygon(math.tan(half)) @ frame
    if rays[:, 2].max() > -1e-3:
        return np.full((1, 3), np.nan)
    reach = (scene.ground_height - tip[2]) / rays[:, 2]
    return tip + reach[:, None] * rays


def ground_grid(resolution: int, coarseness: int) -> Grid:
    """Make the grid of an image's ground, `coarseness` times coarser than the image."""
    pixels = max(min(resolution, _COARSEST), round(resolution / coarseness))
    return Grid(pixels, _GROUND_PADDING)


def spline_matrix(grid: Grid, resolution: int) -> Array:
    """Make the matrix (resolution, grid.side) of spline interpolation from a grid to an image.

    Natural cubic splines through the values, evaluated at the centres of the image's pixels.
    Applied along both axes it brings an image up.
    """
    n = grid.side
    # A coefficient beyond either end continues the line through the last two.
    collocation = (4 * np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)) / 6
    collocation[0, :2] = collocation[-1, :-3:-1] = 1.0, 0.0
    position = (np.arange(resolution) + 0.5) * grid.pixels / resolution - 0.5 + grid.padding
    first = np.floor(position).astype(int)
    t = position - first
    weights = np.stack(
        [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1
    )
    pixel = np.arange(resolution)
    evaluation = np.zeros((resolution, n + 2))  # a coefficient more at either end
    for k in range(4):
        evaluation[pixel, first + k] += weights[:, k] / 6
    ends = np.zeros((n + 2, n))
    ends[1:-1] = np.eye(n)
    ends[0, :2] = ends[-1, :-3:-1] = 2.0, -1.0
    return evaluation @ ends @ np.linalg.inv(collocation)
