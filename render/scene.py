"""The 3DIdent scene as plain data, places and colours; it knows no renderer."""

from __future__ import annotations

import colorsys
import dataclasses
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.presets import SATURATION, Preset
from threedident.render.mesh import Mesh, get_mesh

Array = npt.NDArray[Any]
Vector = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class Camera:
    """A perspective camera looking at the origin, its y axis up in the image."""

    location: Vector = (8.0, 0.0, 8.0)
    focal_length: float = 35.0  # mm
    sensor_width: float = 50.0  # mm

    @functools.cached_property
    def axes(self) -> tuple[Array, Array, Array]:
        """The directions in which the camera looks, and to the right and up in its image."""
        location = np.array(self.location)
        forward = -location / np.linalg.norm(location)
        right = np.cross(forward, [0.0, 0.0, 1.0])
        right /= np.linalg.norm(right)
        return forward, right, np.cross(right, forward)

    def project(self, points: Array, resolution: int) -> tuple[Array, Array, Array]:
        """Project points (N, 3): column and row in pixels, and depth in m, (N,) each.

        The image spans [0, resolution] in both; a point at depth <= 0 is behind the camera.
        """
        offset = np.asarray(points, float) - np.array(self.location)
        # Not by BLAS: its second thread goes on spinning, on a processor that could render.
        depth, across, upwards = (np.einsum("ij,j->i", offset, axis) for axis in self.axes)
        zoom = 2 * self.focal_length / self.sensor_width
        with np.errstate(divide="ignore", invalid="ignore"):
            column = (1 + zoom * across / depth) * resolution / 2
            row = (1 - zoom * upwards / depth) * resolution / 2
        return column, row, depth

    def misses(self, points: Array) -> bool:
        """Whether the convex hull of points (N, 3) is to one side of the frame, or behind."""
        column, row, depth = self.project(points, 2)
        # Times the depth: signed distances to the frame's sides, right also behind the camera.
        right, below = (column - 1) * depth, (row - 1) * depth
        sides = (depth, depth + right, depth - right, depth + below, depth - below)
        return any(bool((side < 0).all()) for side in sides)


@dataclasses.dataclass(frozen=True)
class Sun:
    """Parallel light from straight above."""

    irradiance: float = 0.5  # W / m^2
    angle: float = 0.19933730363845825  # rad, the sun's angular diameter


@dataclasses.dataclass(frozen=True)
class AreaLight:
    """A square that faces down."""

    location: Vector = (0.0, 0.0, 7.0)
    side: float = 1.0  # m
    power: float = 39.2699089050293  # W


@dataclasses.dataclass(frozen=True)
class SpotLight:
    """A spotlight that is aimed at the object; its place and colour are latents."""

    power: float = 3000.0  # W
    radius: float = 0.5  # m
    cone: float = math.radians(35)  # rad, the full opening angle
    blend: float = 0.1
    orbit: float = 4.0  # m, its distance from the z axis
    height: float = 6.0  # m, above the object's extent


CAMERA = Camera()
SUN = Sun()
AREA = AreaLight()
SPOT = SpotLight()
GROUND_SIDE = 1500.0  # m
ORIGIN: Vector = (0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Scene:
    """One scene.

    Attributes:
        location: the place of the object's origin, m.
        rotation: the object's Euler angles about x, y and z in rad; it is turned by
            Rz(psi) Ry(theta) Rx(phi).
        scale: the scale of the object.
        ground_height: the z of the ground plane, m.
        spot_location: the place of the spotlight, m; it is aimed at `location`.
        object_color: the linear RGB of the object, >= 0 (values above 1 stay).
        spot_color: the linear RGB of the spotlight.
        ground_color: the linear RGB of the ground.
    """

    location: Vector
    rotation: Vector
    scale: float
    ground_height: float
    spot_location: Vector
    object_color: Vector
    spot_color: Vector
    ground_color: Vector

    def matrix(self) -> Array:
        """The scale and rotation of the object, (3, 3)."""
        (cx, cy, cz), (sx, sy, sz) = np.cos(self.rotation), np.sin(self.rotation)
        about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
        about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
        about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
        return self.scale * about_z @ about_y @ about_x

    def place(self, points: Array) -> Array:
        """Move points of the object, (N, 3), to their places in the scene."""
        return np.asarray(points, float) @ self.matrix().T + np.array(self.location)


def hue_color(value: float, saturation: float, *, wrap: bool) -> Vector:
    """Convert HSV(value / 2 pi, saturation, 1) to linear RGB.

    With `wrap` false a negative hue goes to the conversion as it is, as in the published
    generator: channels then leave [0, 1], and the renderer takes negative ones as 0.
    """
    hue = value / (2 * math.pi)
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0 if wrap else hue, saturation, 1.0)
    return max(0.0, red), max(0.0, green), max(0.0, blue)


class SceneBuilder:
    """The builder of a preset's scenes; holds what they share: the mesh and its size."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        self.mesh: Mesh = get_mesh(preset.shape)
        #: The largest bounding-box side of the scaled, unrotated object, m.
        self.size = preset.scale * self.mesh.extent
        low, high = self.mesh.vertices.min(0), self.mesh.vertices.max(0)
        self._box = np.where(np.indices((2, 2, 2)).reshape(3, -1).T, high, low)  # its corners

    def build(self, latents: Array) -> Scene:
        """Build the scene of one image's latents, (10,) scene values as stored (float32)."""
        x, y, z, phi, theta, psi, angle, *hues = (float(v) for v in latents)
        wrap = self.preset.hue == "wrapped"
        object_hue, spot_hue, ground_hue = hues
        return Scene(
            location=(x, y, z + self.size / 2),
            rotation=(phi, theta, psi),
            scale=self.preset.scale,
            ground_height=-self.size,
            spot_location=(
                SPOT.orbit * math.sin(angle),
                SPOT.orbit * math.cos(angle),
                SPOT.height + self.size,
            ),
            object_color=hue_color(object_hue, SATURATION["object_hue"], wrap=wrap),
            spot_color=hue_color(spot_hue, SATURATION["spotlight_hue"], wrap=wrap),
            ground_color=hue_color(ground_hue, SATURATION["background_hue"], wrap=wrap),
        )

    def share_in_frame(self, latents: Array) -> Array:
        """The share of the object's vertices inside the frame, (N,), for latents (N, 10)."""
        scenes = [self.build(row) for row in latents]
        corners = np.array([scene.place(self._box) for scene in scenes]).reshape(-1, 3)
        # In most images all of the bounding box is inside, and so is all that it holds.
        whole = _in_frame(corners, margin=1e-6).reshape(-1, len(self._box)).all(1)
        shares = np.ones(len(scenes))
        for i in np.flatnonzero(~whole):
            shares[i] = _in_frame(scenes[i].place(self.mesh.vertices)).mean()
        return shares


def _in_frame(points: Array, margin: float = 0.0) -> npt.NDArray[np.bool_]:
    """Whether points (N, 3) are inside the frame, by a margin in sides of the image, (N,)."""
    column, line, depth = CAMERA.project(points, 1)
    least, most = margin, 1 - margin
    inside = (column >= least) & (column <= most) & (line >= least) & (line <= most)
    return inside & (depth > margin)
