"""The 3DIdent scene as plain data, places and colours; it knows no renderer."""

from __future__ import annotations

import colorsys
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.factors import NUM_FACTORS
from threedident.presets import OBJECT_FACTORS, SATURATION, Preset
from threedident.render.color import to_uint8
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
class Body:
    """One object of a scene.

    Attributes:
        location: the place of the object's origin, m.
        rotation: the object's Euler angles about x, y and z in rad; it is turned by
            Rz(psi) Ry(theta) Rx(phi).
        scale: the scale of the object.
        color: the linear RGB of the object, >= 0 (values above 1 stay).
        shape: the number of its shape among the preset's.
        material: the number of its material among the preset's.
    """

    location: Vector
    rotation: Vector
    scale: float
    color: Vector
    shape: int = 0
    material: int = 0

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
        spot_color: the linear RGB of every spotlight.
        ground_color: the linear RGB of the ground.
        shape: the number of the object's shape among the preset's.
        material: the number of the object's material among the preset's.
        others: the other objects, if there are any.
        other_spots: the places of their spotlights, each aimed at its object; empty where the
            first object's is the only one.
    """

    location: Vector
    rotation: Vector
    scale: float
    ground_height: float
    spot_location: Vector
    object_color: Vector
    spot_color: Vector
    ground_color: Vector
    shape: int = 0
    material: int = 0
    others: tuple[Body, ...] = ()
    other_spots: tuple[Vector, ...] = ()

    @property
    def body(self) -> Body:
        """The first object."""
        return Body(
            self.location,
            self.rotation,
            self.scale,
            self.object_color,
            self.shape,
            self.material,
        )

    @property
    def bodies(self) -> tuple[Body, ...]:
        """All objects, the first one first."""
        return (self.body, *self.others)

    @property
    def spots(self) -> tuple[tuple[Vector, Vector], ...]:
        """The place of every spotlight, and the place that it is aimed at."""
        others = zip(self.other_spots, self.others, strict=bool(self.other_spots))
        return (
            (self.spot_location, self.location),
            *((place, other.location) for place, other in others),
        )

    def matrix(self) -> Array:
        """The scale and rotation of the first object, (3, 3)."""
        return self.body.matrix()

    def place(self, points: Array) -> Array:
        """Move points of the first object, (N, 3), to their places in the scene."""
        return self.body.place(points)

    def place_all(self, points: Sequence[Array]) -> Array:
        """Move points of every object to their places in the scene, one after the other.

        Args:
            points: the points (N, 3) of each of the preset's shapes, by number.
        """
        return np.concatenate([body.place(points[body.shape]) for body in self.bodies])


def hue_color(value: float, saturation: float, *, wrap: bool) -> Vector:
    """Convert HSV(value / 2 pi, saturation, 1) to linear RGB.

    With `wrap` false a negative hue goes to the conversion as it is, as in the published
    generator: channels then leave [0, 1], and the renderer takes negative ones as 0.
    """
    hue = value / (2 * math.pi)
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0 if wrap else hue, saturation, 1.0)
    return max(0.0, red), max(0.0, green), max(0.0, blue)


def hue_colors(preset: Preset, name: str, count: int = 61) -> tuple[str, ...]:
    """The colours of a hue, evenly spaced from raw -1 to raw 1, as CSS writes them.

    They are those of the surface in white light, which an image shows shaded. Unwrapped hues can
    be brighter than a screen shows: they then stay at the brightest.

    Args:
        preset: the generator.
        name: the hue's name.
        count: the number of colours.
    """
    low, high = preset.ranges[name]
    wrap = preset.hue == "wrapped"
    linear = [hue_color(hue, SATURATION[name], wrap=wrap) for hue in np.linspace(low, high, count)]
    return tuple(f"#{r:02x}{g:02x}{b:02x}" for r, g, b in to_uint8(np.array(linear)).tolist())


class SceneBuilder:
    """The builder of a preset's scenes; holds what they share: the meshes and their sizes."""

    def __init__(self, preset: Preset) -> None:
        self.preset = preset
        #: The mesh of each shape, by number.
        self.meshes: tuple[Mesh, ...] = tuple(
            get_mesh(name, preset.shape_table) for name in preset.drawn_shapes
        )
        #: The largest bounding-box side of each shape, scaled and unrotated, m.
        self.sizes = tuple(preset.scale * mesh.extent for mesh in self.meshes)
        self._columns = {name: column for column, name in enumerate(preset.columns)}
        self._fixed_ground: float | None = None
        if preset.ground != "object":
            known = dict(zip(preset.drawn_shapes, self.sizes, strict=True))
            self._fixed_ground = -max(
                known[name]
                if name in known
                else preset.scale * get_mesh(name, preset.shape_table).extent
                for name in preset.ground
            )
        self._boxes = []  # the corners of each mesh's box
        for mesh in self.meshes:
            low, high = mesh.vertices.min(0), mesh.vertices.max(0)
            self._boxes.append(np.where(np.indices((2, 2, 2)).reshape(3, -1).T, high, low))

    @property
    def mesh(self) -> Mesh:
        """The mesh of the first shape, which is the only one of most presets."""
        return self.meshes[0]

    @property
    def size(self) -> float:
        """The largest bounding-box side of the scaled, unrotated first shape, m."""
        return self.sizes[0]

    def ground_height(self, shape: int) -> float:
        """The z of the ground, m, in an image whose largest object has a shape, by its number."""
        return -self.sizes[shape] if self._fixed_ground is None else self._fixed_ground

    def mesh_warnings(self) -> list[str]:
        """List what may go wrong in images of the user's own meshes, a line each."""
        lines = []
        for name, mesh in zip(self.preset.drawn_shapes, self.meshes, strict=True):
            if name in self.preset.mesh_files:
                which = f"{name}: " if self.preset.shapes else ""
                lines += [f"{which}{text}" for text in mesh.warnings()]
        return lines

    def build(self, latents: Array) -> Scene:
        """Build the scene of one image.

        Args:
            latents: a row of scene values as stored (float32), (W,), as `Preset.columns` names
                them.

        Raises:
            UsageError: the row has another width, or a class that the preset has not.
        """
        preset = self.preset
        if len(latents) != len(self._columns):
            raise UsageError(
                f"preset {preset.name!r}: a scene row has {len(self._columns)} columns "
                f"({', '.join(self._columns)}), found {len(latents)}"
            )
        x, y, z, phi, theta, psi, angle, *hues = (float(v) for v in latents[:NUM_FACTORS])
        wrap = preset.hue == "wrapped"
        object_hue, spot_hue, ground_hue = hues
        numbers = [""] + [f"_{k}" for k in range(2, preset.objects + 1)]
        shapes = [self._class(latents, "shape" + end, preset.shapes) for end in numbers]
        largest = max(shapes, key=lambda shape: self.sizes[shape])
        size = self.sizes[largest]
        lift = size / 2 if preset.lift == "half" else 0.0

        def color(hue: float) -> Vector:
            return hue_color(hue, SATURATION["object_hue"], wrap=wrap)

        def spot(angle: float) -> Vector:
            return (
                SPOT.orbit * math.sin(angle),
                SPOT.orbit * math.cos(angle),
                SPOT.height + size,
            )

        others, other_spots = [], []
        for end, shape in zip(numbers[1:], shapes[1:], strict=True):
            own = {name: float(latents[self._columns[name + end]]) for name in OBJECT_FACTORS}
            others.append(
                Body(
                    location=(own["x"], own["y"], own["z"] + lift),
                    rotation=(own["phi"], own["theta"], own["psi"]),
                    scale=preset.scale,
                    color=color(own["object_hue"]),
                    shape=shape,
                    material=self._class(latents, "material" + end, preset.materials),
                )
            )
            if preset.spotlights == "each":
                column = self._columns["spotlight_position" + end]
                other_spots.append(spot(float(latents[column])))
        return Scene(
            location=(x, y, z + lift),
            rotation=(phi, theta, psi),
            scale=preset.scale,
            ground_height=self.ground_height(largest),
            spot_location=spot(angle),
            object_color=color(object_hue),
            spot_color=hue_color(spot_hue, SATURATION["spotlight_hue"], wrap=wrap),
            ground_color=hue_color(ground_hue, SATURATION["background_hue"], wrap=wrap),
            shape=shapes[0],
            material=self._class(latents, "material", preset.materials),
            others=tuple(others),
            other_spots=tuple(other_spots),
        )

    def _class(self, latents: Array, column: str, names: Sequence[str]) -> int:
        """The number that a row has in a column of classes; 0 where there is no such column."""
        if not names:
            return 0
        value = float(latents[self._columns[column]])
        if value not in range(len(names)):
            classes = ", ".join(f"{k} {name}" for k, name in enumerate(names))
            raise UsageError(
                f"preset {self.preset.name!r}: {column} is {value:g}, which is no class: expected "
                f"one of {classes}"
            )
        return int(value)

    def share_in_frame(self, latents: Array) -> Array:
        """The share of all objects' vertices that is inside the frame, (N,), for rows (N, W)."""
        scenes = [self.build(row) for row in latents]
        corners = np.array([scene.place_all(self._boxes) for scene in scenes])
        # In most images the bounding boxes are wholly inside, and so is all that they hold.
        inside = _in_frame(corners.reshape(-1, 3), margin=1e-6)
        whole = inside.reshape(-1, self.preset.objects * len(self._boxes[0])).all(1)
        shares = np.ones(len(scenes))
        vertices = [mesh.vertices for mesh in self.meshes]
        for i in np.flatnonzero(~whole):
            shares[i] = _in_frame(scenes[i].place_all(vertices)).mean()
        return shares


def _in_frame(points: Array, margin: float = 0.0) -> npt.NDArray[np.bool_]:
    """Whether points (N, 3) are inside the frame, by a margin in sides of the image, (N,)."""
    column, line, depth = CAMERA.project(points, 1)
    least, most = margin, 1 - margin
    inside = (column >= least) & (column <= most) & (line >= least) & (line <= most)
    return inside & (depth > margin)
