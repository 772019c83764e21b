"""Content: all that decides what a dataset holds, whatever renders it and however."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.causal import Sampling
from threedident.distributions import Distribution, PairProcess, check_free, raw_box
from threedident.distributions.philox_sampler import check_renderable
from threedident.distributions.serialisation import space_as_dict
from threedident.errors import UsageError
from threedident.latents import latents_digest, sample_raw_latents
from threedident.presets import Preset
from threedident.render.image_regions import enclosing_points
from threedident.render.scene import CAMERA, SceneBuilder
from threedident.render.settings import EngineSettings
from threedident.storage.directory import DatasetDir

_LOOKED_AT = 128  # latents, of which the object may miss the frame in this share
_MAY_MISS = 0.05


@dataclasses.dataclass(frozen=True)
class Content:
    """The content that a dataset shall have, whatever device renders it.

    Attributes:
        preset: the generator.
        resolution: the pixels along each side.
        quality: the quality level: draft, standard or reference.
        engine: the engine's name.
        seed: the seed of the latents.
        split: the split of the latents: train, val or test.
        given: raw latents (N, 10) that do not come from the seed.
        conditional: the conditional that makes images 2i and 2i + 1 a positive pair.
        sampling: the causal model, whose scene the preset is, and what is drawn of it.
    """

    preset: Preset
    resolution: int = defaults.RESOLUTION
    quality: str = defaults.QUALITY
    engine: str = defaults.ENGINE
    seed: int = 0
    split: str = "train"
    given: npt.NDArray[np.float32] | None = None
    conditional: Distribution | None = None
    sampling: Sampling | None = None

    @classmethod
    def of(cls, dataset: DatasetDir, shape: str | None = None) -> Content:
        """Read off the content of a dataset.

        Args:
            dataset: a dataset that was rendered.
            shape: the mesh file, where the dataset's object is one, or the folder of its mesh
                files, where it has a shape table: it does not hold those files.

        Raises:
            UsageError: it was imported, or a mesh file is missing, or is not wanted.
            DatasetError: its given latents are damaged.
        """
        root, manifest = dataset.root, dataset.manifest
        preset = manifest.preset
        if preset is None:
            raise UsageError(f"{root} was imported: what rendered it is not known")
        if preset.shape_table:
            preset = _with_meshes(preset, root, shape)
        elif preset.mesh_files:
            if shape is None:
                raise UsageError(
                    f"the object of {root} is the mesh file {preset.shape}, which the dataset "
                    "does not hold: add --shape FILE"
                )
            preset = preset.changed(shape=shape)
        elif shape is not None:
            names = " or ".join(preset.drawn_shapes)
            raise UsageError(f"the object of {root} is a {names}: leave out --shape")
        process = manifest.pair_process
        seed, split = manifest.settings["seed"], manifest.settings["split"]
        return cls(
            preset,
            manifest.resolution,
            manifest.engine["quality"],
            manifest.engine["name"],
            0 if seed is None else seed,
            "train" if split is None else split,
            dataset.given_latents(),
            process.conditional if process else None,
            manifest.sampling,
        )

    @property
    def images_per_item(self) -> int:
        """The images that one of the n asked for means: 2 for pairs, T for sequences, else 1."""
        if self.sampling is not None:
            return self.sampling.frames
        return 1 if self.conditional is None else 2

    def engine_settings(self, device: str, version: str = "") -> EngineSettings:
        """Add a kind of device and a version of the engine.

        Raises:
            UsageError: engine, quality, material, resolution or device do not fit together.
        """
        return EngineSettings(
            self.preset, self.resolution, self.quality, device, self.engine, version
        )

    def dataset_settings(self, settings: EngineSettings) -> dict[str, Any]:
        """Collect all that decides the dataset's content; see `dataset_settings`."""
        return dataset_settings(
            settings,
            seed=self.seed,
            split=self.split,
            given=self.given,
            conditional=self.conditional,
            sampling=self.sampling,
        )

    def about(self) -> dict[str, Any]:
        """The texts and facts that decide nothing, for `dataset.json`."""
        about = self.preset.about()
        if self.sampling is not None:
            about["model"] = self.sampling.model.about()
        return about

    def mesh_warnings(self) -> list[str]:
        """List what is unusual about the user's own mesh files; empty for built-in shapes."""
        return SceneBuilder(self.preset).mesh_warnings() if self.preset.mesh_files else []

    def held_warning(self) -> str | None:
        """Word a warning where shifted variables end at their ranges' ends; None elsewhere."""
        if self.sampling is None:
            return None
        share = self.sampling.held_share(seed=self.seed, split=self.split)
        if not share:
            return None
        examples = []
        for name, by in self.sampling.shifts().items():
            low, high = self.sampling.model[name].range
            low, high = low - min(by, 0.0), high - max(by, 0.0)
            examples.append(f'{name} = {{ kind = "uniform", low = {low:g}, high = {high:g} }}')
        return (
            f"in about {share:.1%} of the images a shift would take a variable out of its range, "
            "and it ends at the range's end. To keep the whole shift, give the variable a "
            f"mechanism that leaves room for it in the model's file, such as {', '.join(examples)}"
        )

    def circle_warning(self) -> str | None:
        """Word a warning where a circular variable's image does not come round; None elsewhere."""
        if self.sampling is None:
            return None
        model = self.sampling.model
        jumps = []
        for variable in model.variables:
            low, high = model.scene_range(variable)
            turns = (high - low) / (2 * math.pi)
            whole = turns > 0.5 and abs(turns - round(turns)) < 1e-3
            if variable.kind == "circular" and variable.renders and not whole:
                jumps.append(f"{variable.name} ({low:.4g} to {high:.4g})")
        if not jumps:
            return None
        return (
            f"{', '.join(jumps)}: the variable is circular, but its scene values are not a whole "
            "turn, so that images jump where the circle closes. Give it scene = "
            "[0.0, 6.283185307179586], or make it continuous"
        )

    def _some_rows(self) -> npt.NDArray[np.float32]:
        """The scene rows, (N, W), of some of the images."""
        if self.sampling is not None:
            count = _LOOKED_AT * self.sampling.frames
            numbers = range(0, count, max(1, count // _LOOKED_AT))
            draws = self.sampling.draw(numbers, seed=self.seed, split=self.split)
            return self.sampling.model.scene_rows(draws.variables)
        raw = self.given
        if raw is None:
            raw = sample_raw_latents(range(_LOOKED_AT), seed=self.seed, split=self.split)
            raw = self.preset.hold_fixed(raw)
        return self.preset.to_scene(raw[:: max(1, len(raw) // _LOOKED_AT)])

    def frame_warning(self, rows: npt.NDArray[np.float32] | None = None) -> str | None:
        """Word a warning where an object is out of sight in many images; None where it is not.

        Args:
            rows: the scene rows (N, W) of some images. None: some of the content's own.
        """
        rows = self._some_rows() if rows is None else rows
        builder = SceneBuilder(self.preset)
        points = [enclosing_points(mesh.vertices) for mesh in builder.meshes]
        missed = [
            any(CAMERA.misses(body.place(points[body.shape])) for body in builder.build(row).bodies)
            for row in rows
        ]
        share = float(np.mean(missed))
        if share <= _MAY_MISS:
            return None
        camera = ", ".join(f"{each:g}" for each in CAMERA.location)
        which = "the object" if self.preset.objects == 1 else "an object"
        return (
            f"{which} is wholly outside the frame in about {share:.0%} of the images (looked "
            f"at: {len(rows)}). The camera stands at ({camera}) m and looks at the origin: choose "
            "smaller ranges of x, y and z, or a smaller scale"
        )


def _with_meshes(preset: Preset, root: Path, place: str | None) -> Preset:
    """A dataset's preset with its mesh files where they lie here.

    Args:
        preset: the preset, whose shape table has the files' names alone.
        root: the dataset's directory.
        place: the folder of the files; of a single one, its own path will do.

    Raises:
        UsageError: no place is given, or a file is not there.
    """
    files = preset.mesh_files
    if place is None:
        raise UsageError(
            f"{root} shows mesh files of your own ({', '.join(files.values())}), which the dataset "
            "does not hold: add --shape FOLDER, the folder that they lie in"
        )
    if len(files) == 1 and not Path(place).is_dir():
        found = dict.fromkeys(files, Path(place))
    else:
        found = {name: Path(place) / Path(file).name for name, file in files.items()}
    for name, path in found.items():
        if not path.is_file():
            raise UsageError(f"the shape {name!r} of {root}: there is no mesh file {path}")
    table = {
        name: dataclasses.replace(entry, file=str(found[name]))
        for name, entry in preset.shape_table.items()
    }
    shape = str(found.get(preset.shape, preset.shape))
    return dataclasses.replace(
        preset, shape_table=table, shape=preset.shape if preset.shape in table else shape
    )


def dataset_settings(
    settings: EngineSettings,
    *,
    seed: int,
    split: str,
    given: npt.NDArray[np.float32] | None = None,
    conditional: Distribution | None = None,
    sampling: Sampling | None = None,
) -> dict[str, Any]:
    """Collect all that decides a dataset's content, for `dataset.json`.

    Args:
        settings: the settings that decide the pixels.
        seed: the seed of the latents.
        split: the split of the latents: train, val or test.
        given: the raw latents (N, 10), if they do not come from the seed.
        conditional: the conditional that makes images 2i and 2i + 1 a positive pair.
        sampling: the causal model, whose scene the preset is, and what is drawn of it.
    """
    preset = settings.preset.as_dict()
    for key in settings.preset.about():
        del preset[key]
    # The content of mesh files decides, not where they lie.
    digests = {
        Path(name).name: hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for name, file in settings.preset.mesh_files.items()
    }
    preset["shape"] = Path(preset["shape"]).name
    for entry in preset.get("shape_table", {}).values():
        entry["file"] = Path(entry["file"]).name
    mesh: Any = next(iter(digests.values()), None)
    if settings.preset.shape_table:
        mesh = digests
    latents: dict[str, Any] = {"source": "seed"}
    if given is not None:
        latents = {"source": "file", "count": len(given), "sha256": latents_digest(given)}
    elif conditional is not None:
        check_renderable(conditional)
        check_free(conditional, settings.preset.fixed)
        process = PairProcess(raw_box(), conditional)
        latents = {
            "source": "pairs",
            "space": space_as_dict(process.space),
            "marginal": process.marginal.as_dict(),
            "conditional": conditional.as_dict(),
        }
    elif sampling is not None:
        latents = {"source": "model", **sampling.as_dict()}
    return {
        "preset": preset,
        "mesh_sha256": mesh,
        # Given latents depend on neither.
        "seed": seed if given is None else None,
        "split": split if given is None else None,
        "latents": latents,
        "resolution": settings.resolution,
        "engine": settings.as_dict(),
    }
