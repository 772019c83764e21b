"""What a dataset shall hold, whatever device renders it and however."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.distributions import Distribution
from threedident.errors import UsageError
from threedident.latents import sample_raw_latents
from threedident.presets import Preset
from threedident.render.image_regions import enclosing_points
from threedident.render.mesh import SHAPES, get_mesh
from threedident.render.scene import CAMERA, SceneBuilder
from threedident.render.settings import EngineSettings, dataset_settings
from threedident.storage.directory import DatasetDir

_LOOKED_AT = 128  # latents, of which the object may miss the frame in this share
_MAY_MISS = 0.05


@dataclasses.dataclass(frozen=True)
class Content:
    """What a dataset shall hold, whatever device renders it.

    Attributes:
        preset: the generator.
        resolution: the pixels along each side.
        quality: the quality level: draft, standard or reference.
        engine: the engine's name.
        seed: the seed of the latents.
        split: the split of the latents: train, val or test.
        given: raw latents (N, 10) that do not come from the seed.
        conditional: the conditional that makes images 2i and 2i + 1 a positive pair.
    """

    preset: Preset
    resolution: int = defaults.RESOLUTION
    quality: str = defaults.QUALITY
    engine: str = defaults.ENGINE
    seed: int = 0
    split: str = "train"
    given: npt.NDArray[np.float32] | None = None
    conditional: Distribution | None = None

    @classmethod
    def of(cls, dataset: DatasetDir, shape: str | None = None) -> Content:
        """Read off the content of a dataset.

        Args:
            dataset: a dataset that was rendered.
            shape: the mesh file, where the dataset's object is one: it does not hold that file.

        Raises:
            UsageError: it was imported, or the mesh file is missing, or is not wanted.
            DatasetError: its given latents are damaged.
        """
        root, manifest = dataset.root, dataset.manifest
        preset = manifest.preset
        if preset is None:
            raise UsageError(f"{root} was imported: what rendered it is not known")
        if preset.shape not in SHAPES:
            if shape is None:
                raise UsageError(
                    f"the object of {root} is the mesh file {preset.shape}, which the dataset "
                    "does not hold: add --shape FILE"
                )
            preset = preset.changed(shape=shape)
        elif shape is not None:
            raise UsageError(f"the object of {root} is a {preset.shape}: leave out --shape")
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
        )

    @property
    def images_per_item(self) -> int:
        """The images that one of the n asked for means: 2 for pairs, else 1."""
        return 1 if self.conditional is None else 2

    def engine_settings(self, device: str, version: str = "") -> EngineSettings:
        """Add a kind of device and a version of the engine.

        Raises:
            UsageError: engine, quality, material, resolution or device do not fit together.
        """
        return EngineSettings(
            self.preset, self.resolution, self.quality, device, self.engine, version
        )

    def settings(self, engine: EngineSettings) -> dict[str, Any]:
        """Collect all that decides the dataset's content; see `dataset_settings`."""
        return dataset_settings(
            engine,
            seed=self.seed,
            split=self.split,
            given=self.given,
            conditional=self.conditional,
        )

    def mesh_warnings(self) -> list[str]:
        """What is unusual about the mesh file that is the object; empty for a built-in shape."""
        return [] if self.preset.shape in SHAPES else get_mesh(self.preset.shape).warnings()

    def frame_warning(self) -> str | None:
        """A warning where the object is out of sight in many images; None where it is not."""
        raw = self.given
        if raw is None:
            raw = sample_raw_latents(range(_LOOKED_AT), seed=self.seed, split=self.split)
            raw = self.preset.hold_fixed(raw)
        raw = raw[:: max(1, len(raw) // _LOOKED_AT)]
        builder = SceneBuilder(self.preset)
        points = enclosing_points(builder.mesh.vertices)
        missed = [
            CAMERA.misses(builder.build(row).place(points)) for row in self.preset.to_scene(raw)
        ]
        share = float(np.mean(missed))
        if share <= _MAY_MISS:
            return None
        camera = ", ".join(f"{each:g}" for each in CAMERA.location)
        return (
            f"the object is wholly outside the frame in about {share:.0%} of the images (looked "
            f"at: {len(raw)}). The camera stands at ({camera}) m and looks at the origin: choose "
            "smaller ranges of x, y and z, or a smaller scale"
        )
