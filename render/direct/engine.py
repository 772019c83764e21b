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
_LIGHTS = Grid(28, 2)  # on which light without shadows is computed: nothing there is small
_FIXED_SAMPLES, _SPOT_SAMPLES = 64, 8  # of each light there
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
        self._sphere = mesh.sphere()
        triangles = mesh.triangles()
        with wp.ScopedDevice(self.device):
            self._mesh = wp.Mesh(
                points=wp.array(mesh.vertices.astype(np.float32), dtype=wp.vec3),
                indices=wp.array(mesh.corners[triangles].astype(np.int32).ravel(), dtype=int),
            )
            corner_normals = mesh.normals[triangles.ravel()].astype(np.float32)
            self._normals = wp.array(corner_normals, dtype=wp.vec3)
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
        body = kernels.Body()
        body.mesh = self._mesh.id
        body.material = _CODES[preset.material]
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        body.centre = wp.vec3(*((low + high) / 2).tolist())
        body.sides = wp.vec3(*np.maximum(high - low, 1e-6).tolist())
        self._body = body
        self._lamps = _lamps()
        self._fine = self._view(Grid(resolution))
        shadows = ground_grid(resolution, quality.coarseness)
        self._smooth = shadows.pixels >= _FINE
        self._shadows, self._lights = self._view(shadows), self._view(_LIGHTS)
        with wp.ScopedDevice(self.device):
            self._shadow_taps = _upload(_taps(spline_matrix(shadows, resolution)))
            up = spline_matrix(_LIGHTS, resolution)
            self._light_taps = _upload(_taps(up))
            self._fixed = self._fixed_lights(up)

    def _fixed_lights(self, up: Array) -> Any:
        """Compute what sun and area light, which never move, do to the bare ground: (H, W)."""
        shot = kernels.Shot()
        shot.ground = -self._builder.size
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
        fixed = np.einsum("ik,jl,klc->ijc", up, up, coarse, optimize=True)
        return wp.array(fixed.astype(np.float32), dtype=wp.vec4)

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
        with wp.ScopedDevice(self.device):
            shots = wp.array([_shot(s, self._sphere) for s in scenes], dtype=kernels.Shot)
            ground = self._ground(shots)
            layer = wp.empty(ground.shape, dtype=wp.vec4)
            spread = wp.empty(ground.shape, dtype=float)
            counts = wp.empty(ground.shape, dtype=int)
            common = [self._body, self._lamps, self._fine, self._samples, self._normals, shots]
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
        return ground, layer, counts

    def _ground(self, shots: Any) -> Any:
        """Make the ground's light as if the object could not be seen: (B, H, W) of vec3."""
        count, side, quality = len(shots), self._resolution, self._quality
        n, m = self._shadows.side, self._lights.side
        common = [self._body, self._lamps, self._shadows, self._samples, shots]
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
                *(self._lamps, self._lights, self._samples, shots),
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
                self._fixed,
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


def _upload(taps: tuple[Array, Array]) -> tuple[Any, Any]:
    return wp.array(taps[0], dtype=int), wp.array(taps[1], dtype=float)


def _shot(scene: Scene, sphere: tuple[Array, float]) -> kernels.Shot:
    shot = kernels.Shot()
    centre, radius = sphere
    shot.centre = wp.vec3(*scene.place(centre[None])[0].tolist())
    shot.radius = radius * scene.scale
    shot.location = wp.vec3(*scene.location)
    matrix = scene.matrix()
    shot.rotation = wp.mat33(*(matrix / scene.scale).ravel().tolist())
    shot.inverse = wp.mat33(*(matrix.T / scene.scale**2).ravel().tolist())
    shot.scale, shot.ground = scene.scale, scene.ground_height
    shot.spot = wp.vec3(*scene.spot_location)
    aim = np.subtract(scene.location, scene.spot_location)
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
