"""The Blender engine: Cycles through the bpy package. bpy is imported here and nowhere else."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.defaults import RESOLUTION, VERSION_JOINT
from threedident.errors import MissingExtraError, RenderError, UsageError
from threedident.render.color import to_uint8
from threedident.render.image_regions import (
    Grid,
    Region,
    area_shadow,
    enclosing_points,
    ground_grid,
    is_near_light,
    spline_matrix,
    spot_pool,
    sun_shadow,
)
from threedident.render.mesh import Mesh
from threedident.render.quality import (
    Integrated,
    Layered,
    Quality,
    Whole,
    check_layers,
    takes_direct,
)
from threedident.render.scene import (
    AREA,
    CAMERA,
    GROUND_SIDE,
    ORIGIN,
    SPOT,
    SUN,
    Body,
    Scene,
    SceneBuilder,
    Vector,
)

Array = npt.NDArray[Any]

#: What bpy links against beyond what a bare Debian has.
DEBIAN_PACKAGES = (
    "libx11-6 libxrender1 libxfixes3 libxi6 libxkbcommon0 libxext6 libsm6 libice6 libgl1"
)
#: Cycles' names of the GPU backends, the preferred one first.
GPU_BACKENDS = {
    "optix": "OPTIX",
    "cuda": "CUDA",
    "hip": "HIP",
    "oneapi": "ONEAPI",
    "metal": "METAL",
}
LIGHTS = ("sun", "area", "spot")
_BASE_SAMPLES = 32  # of the ground under sun and area light without a shadow, rendered once


def import_bpy(threads: int = 1) -> Any:
    """Import the bpy module, set up for renders on so many threads.

    Raises:
        MissingExtraError: it is not installed.
        RenderError: it is, but a shared library of the system is missing.
    """
    if "bpy" not in sys.modules:
        # Blender puts folders of its own on the path, which processes started from here inherit;
        # the `bpy` in one of them only works inside of Blender.
        sys.path[:] = [p for p in sys.path if Path(p).parts[-2:] != ("scripts", "modules")]
    # Blender's task scheduler counts the processors when it is loaded, and where it finds
    # more of them than a render has threads, it keeps one more spinning: twice the CPU time
    # for renders on one thread. So it is loaded while this process may use just as many
    # processors, and all of them are given back afterwards.
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = affinity(0) if affinity else None
    if allowed:
        os.sched_setaffinity(0, set(sorted(allowed)[:threads]))
    try:
        import bpy
    except ModuleNotFoundError as error:
        if error.name != "bpy":
            raise
        package = "bpy (Blender 4.5 or 5.0, CPython 3.11)"
        raise MissingExtraError(package, "render", "rendering") from error
    except ImportError as error:
        raise RenderError(
            f"bpy is installed but does not load: {error}. It needs shared libraries of the "
            f"system; on Debian or Ubuntu: apt-get install {DEBIAN_PACKAGES}"
        ) from error
    finally:
        if allowed:
            for thread in Path("/proc/self/task").iterdir():
                try:
                    os.sched_setaffinity(int(thread.name), allowed)
                except OSError:  # a thread that has just ended
                    continue
    return bpy


@contextlib.contextmanager
def quiet_blender() -> Iterator[None]:
    """Silence what Blender prints below Python, for engines in one's own process."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def blender_version() -> str:
    """The version of Blender, such as 4.5.15."""
    return ".".join(str(part) for part in import_bpy().app.version)


def engine_version() -> str:
    """The versions that decide the pixels, such as 4.5.15, Warp 1.19.0.

    Raises:
        MissingExtraError: Blender or Warp is not installed.
    """
    from threedident.render.direct.engine import warp_version

    return f"{blender_version()}{VERSION_JOINT}{warp_version()}"


def available_devices() -> dict[str, int]:
    """Count the devices that Cycles can use here, by kind: {"cpu": 1, ...}."""
    preferences = import_bpy().context.preferences.addons["cycles"].preferences
    preferences.refresh_devices()
    counts = {"cpu": 1}
    for kind, backend in GPU_BACKENDS.items():
        try:
            devices = preferences.get_devices_for_type(backend)
        except (TypeError, ValueError):  # a backend that this build of Blender lacks
            continue
        count = sum(device.type == backend for device in devices or ())
        if count:
            counts[kind] = count
    return counts


class BlenderEngine:
    """An engine that renders with Cycles. One to a process: Blender is global state."""

    def __init__(
        self,
        builder: SceneBuilder,
        quality: Quality,
        *,
        resolution: int = RESOLUTION,
        device: str = "cpu",
        device_index: int = 0,
        threads: int = 1,
        scratch: Path | None = None,
    ) -> None:
        """Start Blender in this process.

        Args:
            builder: the builder of the preset's scenes.
            quality: the settings that say where the samples go.
            resolution: the pixels along each side.
            device: a kind of device, resolved.
            device_index: the number of the device among those of its kind.
            threads: the threads of a render on the CPU.
            scratch: a folder, best in memory, that Blender hands its pixels over through.

        Raises:
            UsageError: a quality or device that this engine does not have, or that does not fit to
                the preset.
        """
        shared = isinstance(quality, Layered) and takes_direct(builder.preset)
        if isinstance(quality, Layered) and not (shared and quality.direct):
            check_layers(builder.preset)
        self._bpy = import_bpy(threads)
        self._bpy.ops.wm.read_factory_settings(use_empty=True)
        self._builder = builder
        self._resolution = resolution
        self._threads = threads
        self._device = device
        if device != "cpu":
            self._use_gpu(device, device_index)
        self._scratch = tempfile.TemporaryDirectory(prefix="blender-", dir=scratch)
        self._build_objects()
        self._draw: _WholeImage | _LayeredImage | _SharedImage
        if isinstance(quality, Whole):
            self._draw = _WholeImage(self, quality)
        elif not isinstance(quality, Layered):
            raise UsageError(f"the Blender engine has no {type(quality).__name__} quality")
        elif shared and quality.direct is not None:
            self._draw = _SharedImage(self, quality, quality.direct)
        else:
            self._draw = _LayeredImage(self, quality)

    #: How many images go into one call of the renderer.
    batch = 1

    def render_batch(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Render scene rows (B, W) into images (B, H, W, 3), uint8 sRGB.

        Args:
            latents: the rows, as `Preset.columns` names their columns: of most presets the ten
                scene values.
        """
        return np.stack([self.render(row) for row in latents])

    def render(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Render one scene row, (W,), into an image (H, W, 3), uint8 sRGB."""
        return np.ascontiguousarray(to_uint8(self.render_linear(latents)))

    def render_linear(self, latents: Array) -> npt.NDArray[np.float32]:
        """Render the same in linear light, (H, W, 3) float32, neither clamped nor rounded."""
        scene = self._builder.build(latents)
        self._pose(scene)
        return self._draw(scene)

    def close(self) -> None:
        """Drop Blender's data and the scratch files."""
        self._bpy.ops.wm.read_factory_settings(use_empty=True)
        self._scratch.cleanup()

    # --- What every scene of the preset shares ---

    def _use_gpu(self, device: str, index: int) -> None:
        preferences = self._bpy.context.preferences.addons["cycles"].preferences
        backend = GPU_BACKENDS[device]
        preferences.compute_device_type = backend
        preferences.refresh_devices()
        matching = [d for d in preferences.devices if d.type == backend]
        if not matching:
            raise UsageError(f"no {device} device found: try --device cpu")
        for d in preferences.devices:
            d.use = False
        matching[index % len(matching)].use = True

    def _build_objects(self) -> None:
        data = self._bpy.data
        self._world = data.worlds.new("world")
        self._world.use_nodes = True
        self._world.node_tree.nodes["Background"].inputs["Strength"].default_value = 0.0

        preset = self._builder.preset
        self._things = [_Thing(self, number) for number in range(preset.objects)]
        # The object as the ground's layer sees it: by its shadow alone.
        self._shadow = self._add("shadow", self._things[0].blender.data)
        self._shadow.visible_camera = False

        half = GROUND_SIDE / 2
        plane = data.meshes.new("ground")
        plane.from_pydata(
            [(-half, -half, 0), (half, -half, 0), (half, half, 0), (-half, half, 0)],
            [],
            [(0, 1, 2, 3)],
        )
        material, self._ground_color = self._material("rubber")
        plane.materials.append(material)
        self._ground = self._add("ground", plane)
        self._holdout = self._add("holdout", plane)
        self._holdout.is_holdout = True

        sun = data.lights.new("sun", "SUN")
        sun.energy, sun.angle = SUN.irradiance, SUN.angle
        area = data.lights.new("area", "AREA")
        area.shape, area.size, area.energy = "SQUARE", AREA.side, AREA.power
        self._lights = {
            "sun": self._add("sun", sun),
            "area": self._add("area", area, AREA.location),
        }
        self._spots = []
        count = preset.objects if preset.spotlights == "each" else 1
        for name in ("spot", *(f"spot_{k}" for k in range(2, count + 1))):
            spot = data.lights.new(name, "SPOT")
            spot.energy, spot.shadow_soft_size = SPOT.power, SPOT.radius
            spot.spot_size, spot.spot_blend = SPOT.cone, SPOT.blend
            self._lights[name] = self._add(name, spot)
            self._spots.append(self._lights[name])

    def _add(self, name: str, data: Any, location: Vector = ORIGIN) -> Any:
        thing = self._bpy.data.objects.new(name, data)
        thing.location = location
        return thing

    def _mesh(self, mesh: Mesh) -> Any:
        data = self._bpy.data.meshes.new("object")
        data.vertices.add(len(mesh.vertices))
        data.vertices.foreach_set("co", mesh.vertices.astype(np.float32).ravel())
        data.loops.add(len(mesh.corners))
        data.loops.foreach_set("vertex_index", mesh.corners.astype(np.int32))
        data.polygons.add(len(mesh.sizes))
        data.polygons.foreach_set("loop_start", mesh.starts.astype(np.int32))
        data.update(calc_edges=True)
        data.polygons.foreach_set("use_smooth", np.full(len(mesh.sizes), mesh.smooth))
        if not mesh.native_normals:
            data.normals_split_custom_set(mesh.normals.astype(np.float32))
        data.update()
        return data

    def _material(self, kind: str) -> tuple[Any, Any]:
        """Make a material; return it and the socket that sets its colour."""
        material = self._bpy.data.materials.new(kind)
        material.use_nodes = True
        tree = material.node_tree
        tree.nodes.clear()
        color = tree.nodes.new("ShaderNodeRGB").outputs[0]

        def node(kind: str, /, **inputs: Any) -> Any:
            new = tree.nodes.new(kind)
            for name, value in inputs.items():
                socket = new.inputs[name.replace("_", " ")]
                if isinstance(value, self._bpy.types.NodeSocket):
                    tree.links.new(value, socket)
                else:
                    socket.default_value = value
            return new

        def mix(factor: Any, first: Any, second: Any) -> Any:
            new = node("ShaderNodeMixShader", Fac=factor)
            tree.links.new(first, new.inputs[1])
            tree.links.new(second, new.inputs[2])
            return new.outputs[0]

        def glossy(distribution: str, **inputs: Any) -> Any:
            new = node("ShaderNodeBsdfAnisotropic", **inputs)
            new.distribution = distribution
            return new.outputs[0]

        if kind == "rubber":
            velvet = node("ShaderNodeBsdfSheen", Color=color, Roughness=0.6)
            velvet.distribution = "ASHIKHMIN"
            diffuse = node("ShaderNodeBsdfDiffuse", Color=color, Roughness=0.0)
            inner = mix(
                node("ShaderNodeFresnel", IOR=1.4).outputs[0], diffuse.outputs[0], velvet.outputs[0]
            )
            coat = glossy("BECKMANN", Color=(0.8, 0.8, 0.8, 1.0), Roughness=math.sqrt(0.35))
            surface = mix(node("ShaderNodeFresnel", IOR=1.2).outputs[0], inner, coat)
        elif kind == "metal":
            wide = glossy("GGX", Color=color, Roughness=0.447)
            narrow = glossy("GGX", Color=color, Roughness=0.1, Anisotropy=0.25)
            surface = mix(0.6, wide, narrow)
        elif kind == "crystal":
            glass = node("ShaderNodeBsdfGlass", Color=color, Roughness=math.sqrt(0.02), IOR=1.5)
            glass.distribution = "BECKMANN"
            clear = node("ShaderNodeBsdfTransparent").outputs[0]
            path = node("ShaderNodeLightPath").outputs
            deep = node("ShaderNodeMath")
            deep.operation = "GREATER_THAN"
            tree.links.new(path["Ray Depth"], deep.inputs[0])
            deep.inputs[1].default_value = 4.0
            through: Any = deep.outputs[0]
            for ray in ("Is Shadow Ray", "Is Reflection Ray"):
                either = node("ShaderNodeMath")
                either.operation = "MAXIMUM"
                tree.links.new(through, either.inputs[0])
                tree.links.new(path[ray], either.inputs[1])
                through = either.outputs[0]
            surface = mix(through, mix(0.5, glass.outputs[0], clear), clear)
        else:
            raise UsageError(f"unknown material {kind!r}")
        out = tree.nodes.new("ShaderNodeOutputMaterial")
        tree.links.new(surface, out.inputs["Surface"])
        return material, color

    def _pose(self, scene: Scene) -> None:
        from mathutils import Vector as BlenderVector

        for thing, body in zip(self._things, scene.bodies, strict=True):
            thing.pose(body)
        first = self._things[0].blender
        self._shadow.location, self._shadow.scale = first.location, first.scale
        self._shadow.rotation_euler = first.rotation_euler
        for spot, (place, target) in zip(self._spots, scene.spots, strict=True):
            spot.location = place
            aim = BlenderVector(target) - BlenderVector(place)
            spot.rotation_euler = aim.to_track_quat("-Z", "X").to_euler()
            spot.data.color = scene.spot_color
        for plane in (self._ground, self._holdout):
            plane.location = (0.0, 0.0, scene.ground_height)
        self.set_ground_color(scene.ground_color)

    def set_ground_color(self, color: Vector) -> None:
        """Colour the ground in every view."""
        self._ground_color.default_value = (*color, 1.0)

    # --- One view of it ---

    def new_view(
        self,
        name: str,
        objects: list[Any],
        grid: Grid,
        samples: int,
        *,
        filter_width: float = 1.5,
        transparent: bool = False,
        light_tree: bool = False,
    ) -> _View:
        """Make a Blender scene of its own over some of the objects, seen on a pixel grid."""
        from mathutils import Vector as BlenderVector

        data = self._bpy.data
        scene = data.scenes.new(name)
        scene.world = self._world
        lens = data.cameras.new(name)
        lens.lens, lens.sensor_width = CAMERA.focal_length, grid.camera.sensor_width
        lens.sensor_fit = "HORIZONTAL"
        camera = self._add(f"{name}-camera", lens, CAMERA.location)
        towards = -BlenderVector(CAMERA.location)
        camera.rotation_euler = towards.to_track_quat("-Z", "Y").to_euler()
        for thing in (*objects, camera):
            scene.collection.objects.link(thing)
        scene.camera = camera

        render = scene.render
        render.engine = "CYCLES"
        render.resolution_x = render.resolution_y = grid.side
        render.resolution_percentage = 100
        render.film_transparent = transparent
        render.dither_intensity = 0.0
        render.threads_mode, render.threads = "FIXED", self._threads
        render.use_persistent_data = True
        render.use_compositing = render.use_sequencer = False
        render.filepath = str(Path(self._scratch.name) / f"{name}.exr")
        image = render.image_settings
        image.file_format, image.color_mode, image.color_depth = "OPEN_EXR", "RGBA", "32"
        image.exr_codec = "NONE"
        scene.view_settings.view_transform = "Standard"

        cycles = scene.cycles
        cycles.device = "CPU" if self._device == "cpu" else "GPU"
        cycles.samples = samples
        cycles.seed = 0
        cycles.max_bounces = 0
        cycles.blur_glossy = 2.0
        cycles.sample_clamp_direct = cycles.sample_clamp_indirect = 0.0
        cycles.use_adaptive_sampling = False
        cycles.use_light_tree = light_tree
        cycles.pixel_filter_type, cycles.filter_width = "BLACKMAN_HARRIS", filter_width
        cycles.use_denoising = False
        # The object moves from image to image: its own search tree is built once.
        cycles.debug_bvh_type = "DYNAMIC_BVH"
        return _View(self._bpy, scene, grid)


class _Thing:
    """An object of every scene; its shape, material, place and colour are those of the image."""

    def __init__(self, engine: BlenderEngine, number: int) -> None:
        preset = engine._builder.preset
        # Its own of each, as two objects of a shape may differ in material, and in colour.
        self._meshes = [engine._mesh(mesh) for mesh in engine._builder.meshes]
        self._materials = [engine._material(kind) for kind in preset.drawn_materials]
        for mesh in self._meshes:
            mesh.materials.append(self._materials[0][0])
        name = "object" if number == 0 else f"object_{number + 1}"
        self.blender = engine._add(name, self._meshes[0])

    def pose(self, body: Body) -> None:
        """Make it one of an image's objects."""
        mesh, thing = self._meshes[body.shape], self.blender
        material, color = self._materials[body.material]
        # Where nothing changes, Blender shall not think that something does.
        if mesh.materials[0] != material:
            mesh.materials[0] = material
        if thing.data != mesh:
            thing.data = mesh
        thing.location = body.location
        thing.rotation_euler = body.rotation
        thing.scale = (body.scale,) * 3
        color.default_value = (*body.color, 1.0)


class _View:
    """A Blender scene that yields pixels."""

    def __init__(self, bpy: Any, scene: Any, grid: Grid) -> None:
        self._bpy = bpy
        self.scene = scene
        self.grid = grid
        #: This view's part of all the samples of a sequence.
        self.share = 1.0

    def remove(self) -> None:
        """Take the view and its camera out of Blender."""
        camera = self.scene.camera
        self._bpy.data.scenes.remove(self.scene)
        self._bpy.data.objects.remove(camera)

    def take_samples(self, first: int, count: int, total: int) -> None:
        """Use samples first..first+count of a sequence that several views share."""
        cycles = self.scene.cycles
        self.share = count / total
        cycles.samples = total
        cycles.use_sample_subset = True
        cycles.sample_offset, cycles.sample_subset_length = first, count
        # Without it, low light is dropped at random: noise in the dark parts.
        cycles.light_sampling_threshold = 0.0

    def shoot(self, region: Region | None = None) -> Array:
        """Render a region, or all: linear, premultiplied RGBA, (rows, columns, 4) float32."""
        render = self.scene.render
        side = self.grid.side
        expected = (side, side)
        render.use_border = render.use_crop_to_border = region is not None
        if region is not None:
            # A quarter of a pixel inside, so that rounding cannot move a border.
            render.border_min_x = (region.left + 0.25) / side
            render.border_max_x = (region.right + 0.25) / side
            render.border_min_y = 1 - (region.bottom - 0.25) / side
            render.border_max_y = 1 - (region.top - 0.25) / side
            expected = (region.bottom - region.top, region.right - region.left)
        self._bpy.ops.render.render(write_still=True, scene=self.scene.name)
        image = self._bpy.data.images.load(render.filepath, check_existing=False)
        image.colorspace_settings.name = "Non-Color"
        image.alpha_mode = "PREMUL"
        width, height = image.size
        pixels = np.empty(width * height * 4, np.float32)
        image.pixels.foreach_get(pixels)
        self._bpy.data.images.remove(image)
        if (height, width) != expected:
            raise RenderError(f"Blender rendered {height} x {width} pixels, expected {expected}")
        return pixels.reshape(height, width, 4)[::-1]


def _light_views(
    engine: BlenderEngine,
    kind: str,
    things: list[Any],
    grid: Grid,
    samples: Sequence[int],
    **options: Any,
) -> dict[str, _View]:
    """Make a view of some objects under each light alone."""
    views = {}
    # Every spotlight has the samples of one.
    counts = [*samples, *[samples[2]] * (len(engine._lights) - len(samples))]
    # The lights share one sequence of sample points, so that together they cover a pixel
    # evenly; the spotlight, which has most of them, comes first.
    taken = 0
    order = sorted(zip(engine._lights, counts, strict=True), key=lambda x: -x[1])
    for light, count in order:
        lamp = engine._lights[light]
        view = engine.new_view(f"{kind}-{light}", [*things, lamp], grid, count, **options)
        view.take_samples(taken, count, sum(counts))
        taken += count
        views[light] = view
    return views


def _object_views(engine: BlenderEngine, kind: str, samples: Sequence[int]) -> dict[str, _View]:
    """Make a view of the object, over nothing, under each light alone."""
    things = [*(thing.blender for thing in engine._things), engine._holdout]
    grid = Grid(engine._resolution)
    return _light_views(engine, kind, things, grid, samples, transparent=True)


def _shoot_object(views: Mapping[str, _View], region: Region) -> Array:
    """Render the object under all lights: light and covered share, (rows, columns, 4)."""
    total = np.zeros((region.bottom - region.top, region.right - region.left, 4))
    for view in views.values():
        layer = view.shoot(region)
        total[..., :3] += layer[..., :3]
        total[..., 3] += layer[..., 3] * view.share
    return total


class _WholeImage:
    """The published way to render: everything in one view, denoised."""

    def __init__(self, engine: BlenderEngine, quality: Whole) -> None:
        things = [thing.blender for thing in engine._things]
        objects = [*things, engine._ground, *engine._lights.values()]
        self._view = engine.new_view(
            "whole",
            objects,
            Grid(engine._resolution),
            quality.samples,
            light_tree=quality.light_tree,
        )
        cycles = self._view.scene.cycles
        cycles.use_denoising = True
        cycles.denoiser = "OPENIMAGEDENOISE"
        cycles.denoising_input_passes = "RGB_ALBEDO_NORMAL"
        cycles.denoising_prefilter, cycles.denoising_quality = "ACCURATE", "HIGH"
        cycles.denoising_use_gpu = False

    def __call__(self, scene: Scene) -> npt.NDArray[np.float32]:
        return self._view.shoot()[..., :3]


class _LayeredImage:
    """The layered way to render: object over ground, each a sum over the lights (`Layered`)."""

    def __init__(self, engine: BlenderEngine, quality: Layered) -> None:
        self._outline = enclosing_points(engine._builder.mesh.vertices)
        self._holdout = engine._holdout
        resolution = engine._resolution
        self._grid = Grid(resolution)
        self._coarse = ground_grid(resolution, quality.coarseness)
        self._up = spline_matrix(self._coarse, resolution)
        # The ground is sampled under the image's own pixel filter, only farther apart.
        filter_width = 1.5 * self._coarse.pixels / resolution
        more = tuple(quality.near_light * count for count in quality.object_samples)
        self._objects = _object_views(engine, "object", quality.object_samples)
        # The object, where it is near the area light.
        self._near = _object_views(engine, "near", more)
        self._grounds = _light_views(
            engine,
            "ground",
            [engine._shadow, engine._ground],
            self._coarse,
            quality.ground_samples,
            filter_width=filter_width,
        )
        # Sun and area light never move: what they do to a ground without a shadow is linear
        # in its colour, and known once it is rendered black and white.
        self._base: dict[str, tuple[Array, Array]] = {}
        engine._ground.location = (0.0, 0.0, engine._builder.ground_height(0))
        for light in ("sun", "area"):
            view = engine.new_view(
                f"base-{light}",
                [engine._ground, engine._lights[light]],
                self._coarse,
                _BASE_SAMPLES,
                filter_width=filter_width,
            )
            view.take_samples(0, _BASE_SAMPLES, _BASE_SAMPLES)
            engine.set_ground_color((0.0, 0.0, 0.0))
            black = view.shoot()[..., :3]
            engine.set_ground_color((1.0, 1.0, 1.0))
            self._base[light] = black, view.shoot()[..., :3]
            view.remove()

    def __call__(self, scene: Scene) -> npt.NDArray[np.float32]:
        points = scene.place(self._outline)
        image = self._ground(scene, points)
        region = self._grid.around(points)
        # Rays that miss the object cost little, a ground that hides none of it still some.
        self._holdout.hide_render = bool(points[:, 2].min() > scene.ground_height)
        if not region.empty:
            views = self._near if is_near_light(points) else self._objects
            layer = _shoot_object(views, region)
            image[region.window] = layer[..., :3] + (1 - layer[..., 3:]) * image[region.window]
        return image.astype(np.float32)

    def _ground(self, scene: Scene, points: Array) -> Array:
        """The ground's light at full resolution, as if the object could not be seen."""
        reached = {
            "sun": sun_shadow(scene, points),
            "area": area_shadow(scene, points),
            "spot": spot_pool(scene),
        }
        total = np.zeros((self._coarse.side, self._coarse.side, 3))
        for light in LIGHTS:
            layer = np.zeros_like(total)
            if light in self._base:
                black, white = self._base[light]
                layer += black + np.array(scene.ground_color) * (white - black)
            region = self._coarse.around(reached[light])
            if not region.empty:
                layer[region.window] = self._grounds[light].shoot(region)[..., :3]
            total += layer
        # Both axes: rows of the image from rows of the grid, columns from columns.
        rows = np.tensordot(self._up, total, (1, 0))
        return np.tensordot(self._up, rows, (1, 1)).transpose(1, 0, 2)


class _SharedImage:
    """The layered way with the direct engine's code for all that is hard (`Layered.direct`).

    Blender makes the object where a few samples are enough. Edges, the object's own shadows
    and highlights would take it as many samples everywhere, and so would the ground's shadows.
    """

    def __init__(self, engine: BlenderEngine, quality: Layered, direct: Integrated) -> None:
        from threedident.render.direct.engine import DirectEngine

        self._outlines = [enclosing_points(mesh.vertices) for mesh in engine._builder.meshes]
        self._holdout = engine._holdout
        self._grid = Grid(engine._resolution)
        self._objects = _object_views(engine, "object", quality.object_samples)
        self._direct = DirectEngine(
            engine._builder.preset,
            direct,
            resolution=engine._resolution,
            device="cuda" if engine._device in ("cuda", "optix") else "cpu",
        )

    def __call__(self, scene: Scene) -> npt.NDArray[np.float32]:
        (image,), (layer,), (differ,) = self._direct.render_layers([scene])
        points = scene.place_all(self._outlines)
        region = self._grid.around(points)
        self._holdout.hide_render = bool(points[:, 2].min() > scene.ground_height)
        if not region.empty:
            steady = ~differ[region.window]
            part = layer[region.window]
            part[steady] = _shoot_object(self._objects, region)[steady]
        composed: npt.NDArray[np.float32] = layer[..., :3] + (1 - layer[..., 3:]) * image
        return composed
