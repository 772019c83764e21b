"""The direct engine: the scene's image by direct integration, on NVIDIA Warp.

With no bounces an image is an integral over the pixel filter and three lights, and a few ray
queries a pixel solve it. Sample points are scrambled Sobol points that depend on the seed and
the pixel alone. The object and the ground, as if the object could not be seen, are made apart:

- The object at full resolution, every light at every sample. Where the first few samples of a
  pixel or its neighbours differ, more are taken.
- The ground as each light's effect without the object, which is smooth and all but free, times
  the share of the light that is seen past the object. The share is sampled on a coarser grid,
  well only in penumbrae, and smoothed within its noise.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.defaults import QUALITY, RESOLUTION
from threedident.errors import MissingExtraError, UsageError
from threedident.latents import check_raw_latents
from threedident.presets import Preset, load_preset
from threedident.render.image_regions import (
    Grid,
    ground_grid,
    spline_matrix,
)
from threedident.render.mesh import Mesh
from threedident.render.quality import Integrated, Quality, check_material, get_quality
from threedident.render.scene import AREA, CAMERA, ORIGIN, SPOT, SUN, Scene, SceneBuilder

try:
    import warp as wp
except ImportError as error:
    raise MissingExtraError("warp-lang (NVIDIA Warp)", "direct", "the direct engine") from error

from threedident.render.direct import kernels

Array = npt.NDArray[Any]

# What kernels call a material.
_CODES = {"rubber": kernels.RUBBER, "metal": kernels.METAL}

_BYTES_A_PIXEL = 64  # of device memory, while an image is made
_BATCH_BYTES = 2**30
_CPU_PIXELS = 2**13  # of the images in a launch on the CPU: launches of more are no cheaper
_TAPS = 16  # grid pixels that an image pixel is interpolated from
_LIGHTS = Grid(28, 2)  # on which light without shadows is computed: nothing there is small
_FIXED_SAMPLES, _SPOT_SAMPLES = 64, 8  # of each light there
_ROWS = "render scene rows (B, W), as Preset.columns names them, with DirectEngine.render_batch"
_FINE = 100  # pixels across, from which on shadows are wide enough on the grid to be smoothed


def warp_version() -> str:
    """The version of Warp."""
    return str(wp.__version__)


def available_devices() -> dict[str, int]:
    """Count the devices that this engine can use here, by kind: {"cpu": 1, "cuda": ...}."""
    cuda = wp.get_cuda_device_count()
    return {"cpu": 1, "cuda": cuda} if cuda else {"cpu": 1}


def _device_name(device: str, index: int) -> str:
    """Find Warp's name for a device; "auto" is the GPU where there is one."""
    available = available_devices()
    kind = ("cuda" if "cuda" in available else "cpu") if device == "auto" else device
    if kind not in available:
        raise UsageError(
            f"no {device} device for the direct engine; here are: {', '.join(available)}"
        )
    return "cpu" if kind == "cpu" else f"cuda:{index % available['cuda']}"


def filter_table() -> npt.NDArray[np.float32]:
    """Tabulate quantiles, in pixels, of the Blackman-Harris window over +-1.5 pixels."""
    x = np.linspace(-1.5, 1.5, 20_001)
    phase = 2 * np.pi * (x + 1.5) / 3.0
    density = (
        0.35875
        - 0.48829 * np.cos(phase)
        + 0.14128 * np.cos(2 * phase)
        - 0.01168 * np.cos(3 * phase)
    )
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(np.linspace(0, 1, kernels.FILTER_STEPS + 1), mass / mass[-1], x).astype(
        np.float32
    )


def _taps(matrix: Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Find the largest entries in every row of a banded matrix: first columns, and values."""
    count = min(_TAPS, matrix.shape[1])
    centre = np.abs(matrix).argmax(1)
    first = np.clip(centre - count // 2, 0, matrix.shape[1] - count).astype(np.int32)
    weights = np.take_along_axis(matrix, first[:, None] + np.arange(count), axis=1)
    # What is cut off (some 1e-5) goes to the rest, so that a constant stays one.
    return first, (weights / weights.sum(1, keepdims=True)).astype(np.float32)


class DirectEngine:
    """An engine that integrates scenes of one preset, many at a time."""

    def __init__(
        self,
        preset: Preset,
        quality: Quality,
        *,
        resolution: int = RESOLUTION,
        device: str = "auto",
        device_index: int = 0,
        seed: int = 0,
    ) -> None:
        """Prepare tables on the device; a shape's search tree is built when it first shows.

        Args:
            preset: the generator; materials rubber and metal.
            quality: the settings that say where the samples go.
            resolution: the pixels along each side.
            device: the kind of device: auto, cpu or cuda.
            device_index: the number of the GPU.
            seed: the seed of the sample points.

        Raises:
            UsageError: a material, device or quality that this engine does not have.
        """
        for material in preset.drawn_materials:
            check_material(material, "direct")
        if not isinstance(quality, Integrated):
            raise UsageError(f"the direct engine has no {type(quality).__name__} quality")
        #: What Warp calls the device.
        self.device = _device_name(device, device_index)
        #: How many images go into one launch.
        pixels = _CPU_PIXELS if self.device == "cpu" else _BATCH_BYTES // _BYTES_A_PIXEL
        self.batch = min(256, max(1, pixels // resolution**2))
        self._builder = SceneBuilder(preset)
        self._quality = quality
        self._resolution = resolution
        self._seed = wp.uint32(seed & 0xFFFFFFFF)
        with wp.ScopedDevice(self.device):
            self._points = wp.empty((kernels.PAIRS, kernels.POINTS), dtype=wp.vec2ui)
            wp.launch(
                kernels.points_kernel,
                self._points.shape,
                inputs=[wp.uint32(0)],
                outputs=[self._points],
            )
            self._filter = wp.array(filter_table(), dtype=float)
        self._samples = kernels.Samples()
        self._samples.points, self._samples.filter = self._points, self._filter
        self._lamps, self._spot_alone = _lamps(), _lamps()
        self._spot_alone.sun = self._spot_alone.area = 0.0
        self._fine = self._view(Grid(resolution))
        shadows = ground_grid(resolution, quality.coarseness)
        self._smooth = shadows.pixels >= _FINE
        self._shadows, self._lights = self._view(shadows), self._view(_LIGHTS)
        self._up = spline_matrix(_LIGHTS, resolution)
        with wp.ScopedDevice(self.device):
            self._shadow_taps = _upload(_taps(spline_matrix(shadows, resolution)))
            self._light_taps = _upload(_taps(self._up))
            self._no_lights = wp.zeros((resolution, resolution), dtype=wp.vec4)
        # What images share, made when it is first needed: by shape, and by the ground's height.
        self._shapes: dict[int, _Shape] = {}
        self._fixed: dict[float, Any] = {}

    def _shape(self, number: int) -> _Shape:
        """What images share of a shape, by its number."""
        if number not in self._shapes:
            self._shapes[number] = _Shape(self._builder.meshes[number])
        return self._shapes[number]

    def _solid(self, shape: int = 0, material: int = 0) -> _Solid:
        """One object of a shape and a material, by their numbers."""
        with wp.ScopedDevice(self.device):
            return self._shape(shape).solid(self._code(material))

    def _code(self, material: int) -> int:
        """What kernels call a material, by its number."""
        return int(_CODES[self._builder.preset.drawn_materials[material]])

    def _merged(self, scene: Scene) -> _Solid:
        """All objects of a scene as one, in the scene's coordinates."""
        shapes = [self._shape(thing.shape) for thing in scene.bodies]
        turns = [thing.matrix() / thing.scale for thing in scene.bodies]
        points = [
            thing.place(shape.mesh.vertices)
            for thing, shape in zip(scene.bodies, shapes, strict=True)
        ]
        offsets = np.cumsum([0, *map(len, points)])
        parts = []
        for thing, shape, turn in zip(scene.bodies, shapes, turns, strict=True):
            part = kernels.Part()
            part.location = wp.vec3(*thing.location)
            part.rotation = wp.mat33(*turn.ravel().tolist())
            part.inverse = wp.mat33(*(turn.T / thing.scale).ravel().tolist())
            part.centre, part.sides = shape.box
            part.color = wp.vec3(*thing.color)
            part.material = self._code(thing.material)
            centre, radius = shape.sphere
            part.middle = wp.vec3(*thing.place(centre[None])[0].tolist())
            part.radius = radius * thing.scale
            parts.append(part)
        vertices = np.concatenate(points)
        low, high = vertices.min(0), vertices.max(0)
        centre = (low + high) / 2
        tree = _Tree(
            vertices,
            np.concatenate([s.indices + k for s, k in zip(shapes, offsets, strict=False)]),
            np.concatenate([s.normals @ t.T for s, t in zip(shapes, turns, strict=True)]),
        )
        part_of = np.repeat(np.arange(len(shapes)), [len(s.indices) // 3 for s in shapes])
        tree.parts = wp.array(parts, dtype=kernels.Part)
        tree.part_of = wp.array(part_of.astype(np.int32), dtype=int)
        body = tree.body()
        radius = float(np.linalg.norm(vertices - centre, axis=1).max())
        return _Solid(tree, body, (centre, radius))

    def _fixed_lights(self, height: float) -> Any:
        """Compute what sun and area light, which never move, do to the bare ground: (H, W)."""
        if height in self._fixed:
            return self._fixed[height]
        shot = kernels.Shot()
        shot.ground = height
        shots = wp.array([shot], dtype=kernels.Shot)
        terms = []
        for light in (kernels.SUN, kernels.AREA):
            out = wp.empty((1, self._lights.side, self._lights.side), dtype=wp.vec4)
            wp.launch(
                kernels.light_kernel,
                out.shape,
                inputs=[
                    *(self._lamps, self._lights, self._samples, shots),
                    *(light, _FIXED_SAMPLES),
                ],
                outputs=[out],
            )
            terms.append(out.numpy()[0, ..., :2])
        coarse = np.concatenate(terms, axis=-1).astype(float)
        fixed = np.einsum("ik,jl,klc->ijc", self._up, self._up, coarse, optimize=True)
        self._fixed[height] = wp.array(fixed.astype(np.float32), dtype=wp.vec4)
        return self._fixed[height]

    def render_batch(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Render scene rows (B, W) into images (B, H, W, 3), uint8 sRGB.

        Args:
            latents: the rows, as `Preset.columns` names their columns: of most presets the ten
                scene values.
        """
        return self.encode(self.render_linear(latents)).numpy()

    def render_linear(self, latents: Array) -> Any:
        """Render images in linear light, neither clamped nor rounded.

        Args:
            latents: the scene rows, (B, W), as `Preset.columns` names their columns.

        Returns:
            A `wp.array` (B, H, W) of vec3 on the engine's device.
        """
        image, layer, _ = self._layers([self._builder.build(row) for row in latents])
        with wp.ScopedDevice(self.device):
            wp.launch(kernels.compose_kernel, image.shape, inputs=[layer], outputs=[image])
        return image

    def render_layers(self, scenes: Sequence[Scene]) -> tuple[Array, Array, Array]:
        """Render the ground and the object apart, for the Blender engine.

        Args:
            scenes: the B scenes.

        Returns:
            The ground's linear light without the object, (B, H, W, 3) float32; the object's and
            the share of the pixel that it covers, (B, H, W, 4) float32; and where samples
            differ, so that more than the first of them were taken, (B, H, W) bool.
        """
        ground, layer, counts = self._layers(scenes)
        return ground.numpy(), layer.numpy(), counts.numpy() > self._quality.inside

    def _layers(self, scenes: Sequence[Scene]) -> tuple[Any, Any, Any]:
        """Make the ground (B, H, W), the object over it, and the samples of each pixel."""
        groups: dict[Any, list[int]] = {}
        for i, scene in enumerate(scenes):
            # Those that share a mesh are made at once; several objects are a mesh of their own.
            own = (scene.shape, scene.material) if not scene.others else (i,)
            groups.setdefault((own, scene.ground_height), []).append(i)
        with wp.ScopedDevice(self.device):
            parts = [self._group([scenes[i] for i in group]) for group in groups.values()]
            if len(parts) == 1:
                return parts[0]
            shape = (len(scenes), self._resolution, self._resolution)
            whole = tuple(wp.empty(shape, dtype=array.dtype) for array in parts[0])
            for group, arrays in zip(groups.values(), parts, strict=True):
                for place, i in enumerate(group):
                    for target, source in zip(whole, arrays, strict=True):
                        wp.copy(target[i], source[place])
        return whole[0], whole[1], whole[2]

    def _group(self, scenes: Sequence[Scene]) -> tuple[Any, Any, Any]:
        """Make scenes of one mesh and one height of the ground, as `_layers` does."""
        first = scenes[0]
        merged = bool(first.others)
        solid = self._merged(first) if merged else self._solid(first.shape, first.material)
        # Light adds up: every spotlight but the first has a pass of its own, without the others.
        passes = []
        for number in range(len(first.spots)):
            shots = wp.array(
                [_shot(s, solid.sphere, spot=number, merged=merged) for s in scenes],
                dtype=kernels.Shot,
            )
            fixed = self._no_lights if number else self._fixed_lights(first.ground_height)
            passes.append((shots, self._spot_alone if number else self._lamps, fixed))
        ground = self._ground(solid.body, *passes[0])
        for shots, lamps, fixed in passes[1:]:
            more = self._ground(solid.body, shots, lamps, fixed)
            wp.launch(kernels.add_ground_kernel, ground.shape, inputs=[more], outputs=[ground])
        layer, counts = self._objects(solid, ground, *passes[0][:2])
        for shots, lamps, _ in passes[1:]:
            wp.launch(
                kernels.add_object_kernel,
                layer.shape,
                inputs=[*self._objects(solid, ground, shots, lamps)],
                outputs=[layer, counts],
            )
        return ground, layer, counts

    def _objects(self, solid: _Solid, ground: Any, shots: Any, lamps: Any) -> tuple[Any, Any]:
        """Make the object's light and cover, (B, H, W) of vec4, and the samples of each pixel."""
        layer = wp.empty(ground.shape, dtype=wp.vec4)
        spread = wp.empty(ground.shape, dtype=float)
        counts = wp.empty(ground.shape, dtype=int)
        common = [solid.body, lamps, self._fine, self._samples, solid.tree.normals, shots]
        quality = self._quality
        wp.launch(
            kernels.look_at_object_kernel,
            ground.shape,
            inputs=[*common, ground, quality.inside, self._seed],
            outputs=[layer, spread, counts],
        )
        wp.launch(
            kernels.object_kernel,
            ground.shape,
            inputs=[*common, spread, quality.edge, quality.tolerance / 255, self._seed],
            outputs=[layer, counts],
        )
        return layer, counts

    def _ground(self, body: Any, shots: Any, lamps: Any, fixed: Any) -> Any:
        """Make the ground's light as if the object could not be seen: (B, H, W) of vec3."""
        count, side, quality = len(shots), self._resolution, self._quality
        n, m = self._shadows.side, self._lights.side
        common = [body, lamps, self._shadows, self._samples, shots]
        shares = wp.empty((count, n, n), dtype=wp.vec4)
        unsure = wp.empty((count, n, n), dtype=wp.int8)
        wp.launch(
            kernels.look_at_ground_kernel,
            shares.shape,
            inputs=[*common, quality.look, quality.ground, self._seed],
            outputs=[shares, unsure],
        )
        wp.launch(
            kernels.ground_kernel,
            shares.shape,
            inputs=[*common, unsure, quality.ground, self._seed],
            outputs=[shares],
        )
        if self._smooth:
            smooth = wp.empty(shares.shape, dtype=wp.vec4)
            wp.launch(
                kernels.smooth_kernel,
                shares.shape,
                inputs=[shares, quality.ground],
                outputs=[smooth],
            )
            shares = smooth
        spot = wp.empty((count, m, m), dtype=wp.vec4)
        wp.launch(
            kernels.light_kernel,
            spot.shape,
            inputs=[
                *(lamps, self._lights, self._samples, shots),
                *(kernels.SPOT, _SPOT_SAMPLES),
            ],
            outputs=[spot],
        )
        rows = wp.empty((count, side, n), dtype=wp.vec4)
        wp.launch(
            kernels.rows_kernel, rows.shape, inputs=[*self._shadow_taps, shares], outputs=[rows]
        )
        spot_rows = wp.empty((count, side, m), dtype=wp.vec4)
        wp.launch(
            kernels.rows_kernel,
            spot_rows.shape,
            inputs=[*self._light_taps, spot],
            outputs=[spot_rows],
        )
        image = wp.empty((count, side, side), dtype=wp.vec3)
        wp.launch(
            kernels.compose_ground_kernel,
            image.shape,
            inputs=[
                *(shots, *self._shadow_taps, rows, *self._light_taps, spot_rows),
                fixed,
            ],
            outputs=[image],
        )
        return image

    def encode(self, linear: Any) -> Any:
        """Encode what `render_linear` returns as 8-bit sRGB, a `wp.array` (B, H, W, 3) of uint8."""
        out = wp.empty((*linear.shape, 3), dtype=wp.uint8, device=self.device)
        wp.launch(
            kernels.encode_kernel, linear.shape, inputs=[linear], outputs=[out], device=self.device
        )
        return out

    def mesh_warnings(self) -> list[str]:
        """List what may go wrong in images of the user's own meshes, a line each."""
        return self._builder.mesh_warnings()

    def shrink(self) -> None:
        """Halve the batch after the device has run out of memory, with a warning."""
        self.batch //= 2
        warnings.warn(
            f"too little memory on {self.device}: going on with {self.batch} images at a time",
            RuntimeWarning,
            stacklevel=3,
        )

    def close(self) -> None:
        """Free what the engine holds: nothing outlives its arrays."""

    def _view(self, grid: Grid) -> kernels.View:
        view = kernels.View()
        view.side = grid.side
        camera = grid.camera
        view.zoom = camera.sensor_width / (2 * camera.focal_length)
        view.width = grid.pixels / self._resolution
        view.camera = CAMERA.location[0]
        return view


def _lamps() -> kernels.Lamps:
    lamps = kernels.Lamps()
    lamps.sun, lamps.sun_radius = SUN.irradiance, math.tan(SUN.angle / 2)
    lamps.area, lamps.area_side, lamps.area_height = AREA.power, AREA.side, AREA.location[2]
    lamps.spot, lamps.spot_radius = SPOT.power, SPOT.radius
    lamps.spot_cos, lamps.spot_blend = math.cos(SPOT.cone / 2), SPOT.blend
    return lamps


def _upload(taps: tuple[Array, Array]) -> tuple[Any, Any]:
    return wp.array(taps[0], dtype=int), wp.array(taps[1], dtype=float)


class _Tree:
    """A mesh on the device: its search tree, and the normals of its corners."""

    def __init__(self, vertices: Array, indices: Array, normals: Array) -> None:
        self.mesh = wp.Mesh(
            points=wp.array(vertices.astype(np.float32), dtype=wp.vec3),
            indices=wp.array(indices.astype(np.int32), dtype=int),
        )
        self.normals = wp.array(normals.astype(np.float32), dtype=wp.vec3)
        self.parts = wp.empty(0, dtype=kernels.Part)
        self.part_of = wp.empty(0, dtype=int)

    def body(self) -> kernels.Body:
        """The object of it, as kernels need it; it lives as long as this tree."""
        body = kernels.Body()
        body.mesh, body.parts, body.part_of = self.mesh.id, self.parts, self.part_of
        return body


@dataclasses.dataclass(frozen=True)
class _Solid:
    """What rays meet.

    Attributes:
        tree: the mesh; of one object in its own coordinates, of several in the scene's.
        body: the same, as kernels need it.
        sphere: the centre and the radius of a sphere around it.
    """

    tree: _Tree
    body: kernels.Body
    sphere: tuple[Array, float]


class _Shape:
    """A shape, as one object or a part of several."""

    def __init__(self, mesh: Mesh) -> None:
        triangles = mesh.triangles()
        self.mesh = mesh
        self.indices = mesh.corners[triangles].ravel()
        self.normals = mesh.normals[triangles.ravel()]
        self.sphere = mesh.sphere()
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        #: The centre and the sides of the bounding box.
        self.box = (
            wp.vec3(*((low + high) / 2).tolist()),
            wp.vec3(*np.maximum(high - low, 1e-6).tolist()),
        )
        self._tree: _Tree | None = None
        self._solids: dict[int, _Solid] = {}

    def solid(self, material: int) -> _Solid:
        """One object of this shape, of a material by its code."""
        if self._tree is None:
            self._tree = _Tree(self.mesh.vertices, self.indices, self.normals)
        if material not in self._solids:
            body = self._tree.body()
            body.material = material
            body.centre, body.sides = self.box
            self._solids[material] = _Solid(self._tree, body, self.sphere)
        return self._solids[material]


def _shot(
    scene: Scene, sphere: tuple[Array, float], *, spot: int = 0, merged: bool = False
) -> kernels.Shot:
    """A scene as kernels need it, one of its spotlights lit.

    Args:
        scene: the scene.
        sphere: the centre and the radius of a sphere around what rays meet.
        spot: the number of the spotlight.
        merged: whether that is in the scene's coordinates already.
    """
    shot = kernels.Shot()
    centre, radius = sphere
    location, scale, matrix = scene.location, scene.scale, scene.matrix()
    middle = scene.place(centre[None])[0]
    if merged:
        location, scale, matrix, middle = ORIGIN, 1.0, np.eye(3), centre
    shot.centre = wp.vec3(*middle.tolist())
    shot.radius = radius * scale
    shot.location = wp.vec3(*location)
    shot.rotation = wp.mat33(*(matrix / scale).ravel().tolist())
    shot.inverse = wp.mat33(*(matrix.T / scale**2).ravel().tolist())
    shot.scale, shot.ground = scale, scene.ground_height
    place, target = scene.spots[spot]
    shot.spot = wp.vec3(*place)
    aim = np.subtract(target, place)
    shot.aim = wp.vec3(*(aim / np.linalg.norm(aim)).tolist())
    shot.object_color = wp.vec3(*scene.object_color)
    shot.spot_color = wp.vec3(*scene.spot_color)
    shot.ground_color = wp.vec3(*scene.ground_color)
    return shot


def render(
    raw_latents: npt.ArrayLike,
    preset: Preset | str,
    *,
    resolution: int = RESOLUTION,
    quality: str = QUALITY,
    device: str = "auto",
    seed: int = 0,
    dtype: str = "uint8",
) -> Any:
    """Render raw latents in this process.

    The sample points depend on `seed` and the pixel alone: images of nearby latents share
    their noise, and their difference has little.

    Args:
        raw_latents: the raw latents, (N, 10) in [-1, 1]; factors that the preset holds fixed at
            their values, as `Preset.hold_fixed` puts them.
        preset: the generator, or its name; materials rubber and metal.
        resolution: the pixels along each side.
        quality: the quality level: draft, standard or reference.
        device: the kind of device: auto, cpu or cuda.
        seed: the seed of the sample points.
        dtype: "uint8" for sRGB, "float32" for linear light, neither clamped nor rounded.

    Returns:
        (N, H, W, 3): a numpy array from the CPU; from a GPU a `wp.array` there, which
        `torch.from_dlpack` takes over without a copy.

    Raises:
        UsageError: an argument does not fit.
    """
    if dtype not in ("uint8", "float32"):
        raise UsageError(f"unknown dtype {dtype!r}: expected uint8 or float32")
    raw = check_raw_latents(raw_latents)
    preset = load_preset(preset) if isinstance(preset, str) else preset
    preset.require_ten_columns(_ROWS)
    preset.require_fixed(raw, "raw latents")
    latents = preset.to_scene(raw)
    engine = DirectEngine(
        preset, get_quality(quality, "direct"), resolution=resolution, device=device, seed=seed
    )
    for text in engine.mesh_warnings():
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    shape = (len(latents), resolution, resolution, 3)
    kind = wp.uint8 if dtype == "uint8" else wp.float32
    try:
        images = wp.empty(shape, dtype=kind, device=engine.device)
    except (RuntimeError, MemoryError) as error:
        size = math.prod(shape) * (1 if dtype == "uint8" else 4)
        raise UsageError(
            f"{len(latents)} images need {size / 1e9:.1f} GB on {engine.device}, more than there "
            "is: render them in several calls"
        ) from error
    done = 0
    while done < len(latents):
        rows = latents[done : done + engine.batch]
        try:
            linear = engine.render_linear(rows)
            made = engine.encode(linear) if dtype == "uint8" else linear.view(wp.float32)
        except RuntimeError as error:
            if "allocat" not in str(error) or engine.batch == 1:
                raise
            engine.shrink()
            continue
        wp.copy(images[done : done + len(rows)], made.reshape((len(rows), *shape[1:])))
        done += len(rows)
    return images.numpy() if engine.device == "cpu" else images


def jacobian(
    raw_latents: npt.ArrayLike,
    preset: Preset | str,
    *,
    step: float = 0.01,
    resolution: int = 32,
    quality: str = QUALITY,
    device: str = "auto",
    seed: int = 0,
) -> npt.NDArray[np.float32]:
    """Compute the Jacobian of the generator, raw latents to linear light, by central differences.

    Its smallest singular value says how close the generator is to losing a direction of the
    latents: `np.linalg.svd(jacobian(...), compute_uv=False)`.

    Args:
        raw_latents: the raw latents, (N, 10) in [-1, 1]; factors that the preset holds fixed at
            their values.
        preset: the generator, or its name.
        step: the half of the distance between the two images of a difference; at the ends of the
            range, where one of them would lie outside, it is cut short.
        resolution: the pixels along each side.
        quality: the quality level: draft, standard or reference.
        device: the kind of device: auto, cpu or cuda.
        seed: the seed of the sample points, which both images of a difference share.

    Returns:
        (N, H * W * 3, 10) float32; columns of factors held fixed are 0.

    Raises:
        UsageError: an argument does not fit.
    """
    if not 0 < step <= 0.5:
        raise UsageError(f"step must lie in (0, 0.5], found {step}")
    raw = check_raw_latents(raw_latents)
    preset = load_preset(preset) if isinstance(preset, str) else preset
    preset.require_ten_columns(_ROWS)
    preset.require_fixed(raw, "raw latents")
    count = raw.shape[1]
    ends = np.repeat(raw[:, None, None], 2, axis=1).repeat(count, axis=2)  # (N, 2, 10, 10)
    each = np.arange(count)
    ends[:, 0, each, each] = np.maximum(raw - step, -1)
    ends[:, 1, each, each] = np.minimum(raw + step, 1)
    width = (ends[:, 1] - ends[:, 0])[:, each, each]
    images = render(
        preset.hold_fixed(ends.reshape(-1, count)),
        preset,
        resolution=resolution,
        quality=quality,
        device=device,
        seed=seed,
        dtype="float32",
    )
    values = np.asarray(images if isinstance(images, np.ndarray) else images.numpy())
    low, high = np.moveaxis(values.reshape(len(raw), 2, count, -1), 1, 0)
    return np.moveaxis((high - low) / width[..., None], 1, 2)
