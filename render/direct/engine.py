"""The direct engine: the scene's image by direct integration, on NVIDIA Warp.

With no bounces an image is an integral over the pixel filter and three lights, and a few ray
queries a pixel solve it. Every light is sampled at every point, with scrambled Sobol points
that depend on the seed and the pixel alone. As in the Blender engine's `Layered` levels,
the ground is integrated on a coarser grid, as if the object could not be seen, and the object
at full resolution where it is; its edges get more samples than its inside.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.defaults import QUALITY, RESOLUTION
from threedident.errors import MissingExtraError, UsageError
from threedident.latents import check_raw_latents
from threedident.presets import Preset, load_preset
from threedident.render.image_regions import (
    Grid,
    enclosing_points,
    ground_grid,
    is_near_light,
    spline_matrix,
)
from threedident.render.mesh import SHAPES, Mesh
from threedident.render.quality import Integrated, Quality, check_material, get_quality
from threedident.render.scene import AREA, CAMERA, SPOT, SUN, Scene, SceneBuilder

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
        """Build the mesh's search tree on the device.

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
        check_material(preset.material, "direct")
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
        mesh = self._builder.mesh
        self._outline = enclosing_points(mesh.vertices)
        triangles = mesh.triangles()
        with wp.ScopedDevice(self.device):
            self._mesh = wp.Mesh(
                points=wp.array(mesh.vertices.astype(np.float32), dtype=wp.vec3),
                indices=wp.array(mesh.corners[triangles].astype(np.int32).ravel(), dtype=int),
            )
            corner_normals = mesh.normals[triangles.ravel()].astype(np.float32)
            self._normals = wp.array(corner_normals, dtype=wp.vec3)
            self._table = wp.array(filter_table(), dtype=float)
        body = kernels.Body()
        body.mesh = self._mesh.id
        body.material = _CODES[preset.material]
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        body.centre = wp.vec3(*((low + high) / 2).tolist())
        body.sides = wp.vec3(*np.maximum(high - low, 1e-6).tolist())
        self._body = body
        self._lamps = _lamps()
        self._fine = Grid(resolution)
        self._coarse = ground_grid(resolution, quality.coarseness)
        first, weights = _taps(spline_matrix(self._coarse, resolution))
        with wp.ScopedDevice(self.device):
            self._first = wp.array(first, dtype=int)
            self._weights = wp.array(weights, dtype=float)

    def render_batch(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Render latents (B, 10), scene values, into images (B, H, W, 3), uint8 sRGB."""
        return self.encode(self.render_linear(latents)).numpy()

    def render_linear(self, latents: Array) -> Any:
        """Render images in linear light, neither clamped nor rounded.

        Args:
            latents: the scene values, (B, 10).

        Returns:
            A `wp.array` (B, H, W) of vec3 on the engine's device.
        """
        shots = []
        for row in latents:
            scene = self._builder.build(row)
            near = is_near_light(scene.place(self._outline))
            shots.append(_shot(scene, self._quality.near_light if near else 1))
        count, side, coarse = len(shots), self._resolution, self._coarse.side
        with wp.ScopedDevice(self.device):
            scenes = wp.array(shots, dtype=kernels.Shot)
            ground = wp.empty((count, coarse, coarse), dtype=wp.vec3)
            wp.launch(
                kernels.ground_kernel,
                ground.shape,
                inputs=[
                    *(self._body, self._lamps, self._view(self._coarse), self._table, scenes),
                    *(self._quality.ground, self._seed),
                ],
                outputs=[ground],
            )
            fine = self._view(self._fine)
            scouted = wp.empty((count, side, side), dtype=wp.int8)
            wp.launch(
                kernels.scout_kernel,
                scouted.shape,
                inputs=[self._body, fine, self._table, scenes, self._seed],
                outputs=[scouted],
            )
            layer = wp.empty((count, side, side), dtype=wp.vec4)
            wp.launch(
                kernels.object_kernel,
                layer.shape,
                inputs=[
                    *(self._body, self._lamps, fine, self._table, self._normals, scenes, scouted),
                    *(self._quality.inside, self._quality.edge, self._seed),
                ],
                outputs=[layer],
            )
            rows = wp.empty((count, side, coarse), dtype=wp.vec3)
            wp.launch(
                kernels.rows_kernel,
                rows.shape,
                inputs=[self._first, self._weights, ground],
                outputs=[rows],
            )
            image = wp.empty((count, side, side), dtype=wp.vec3)
            wp.launch(
                kernels.compose_kernel,
                image.shape,
                inputs=[self._first, self._weights, rows, layer],
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

    @property
    def mesh(self) -> Mesh:
        """The object's mesh."""
        return self._builder.mesh

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


def _shot(scene: Scene, effort: int) -> kernels.Shot:
    shot = kernels.Shot()
    shot.effort = effort
    shot.location = wp.vec3(*scene.location)
    shot.rotation = wp.mat33(*(scene.matrix() / scene.scale).ravel().tolist())
    shot.scale, shot.ground = scene.scale, scene.ground_height
    shot.spot = wp.vec3(*scene.spot_location)
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
    preset.require_fixed(raw, "raw latents")
    latents = preset.to_scene(raw)
    engine = DirectEngine(
        preset, get_quality(quality, "direct"), resolution=resolution, device=device, seed=seed
    )
    if preset.shape not in SHAPES:
        for text in engine.mesh.warnings():
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
