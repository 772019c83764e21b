"""A dataset directory: its manifest and shards, and how it is begun and continued."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.causal import Draws
from threedident.defaults import ENGINE, QUALITY, RESOLUTION, VERSION_JOINT
from threedident.distributions.philox_sampler import sample_pair_latents
from threedident.errors import DatasetError
from threedident.latents import check_raw_latents, latents_digest, sample_raw_latents
from threedident.presets import DEFAULT_PRESET
from threedident.storage.atomic_files import (
    create_json,
    explaining_write_errors,
    read_json,
    read_npy,
    replacing,
    write_json,
)
from threedident.storage.locks import LOCK, hold_shards, is_written_to, locked
from threedident.storage.manifest import (
    MANIFEST,
    Manifest,
    differences,
    read_manifest,
    without_consequences,
)
from threedident.storage.shard_plan import Interval, default_shard_size, list_shards
from threedident.storage.shards import Shard, check_compression, read_shard, read_sums
from threedident.storage.statistics import ImageSums, statistics

STATS = "stats.json"
WANTED = "wanted.json"
GIVEN_LATENTS = "given_raw_latents"
LOGS = "logs"
_MOST_WANTED = 10**9  # images
#: By which variables and raw latents of a model may differ from one machine to another.
NEARLY = 1e-5
# Whose versions an engine's version is made of.
_PACKAGES = {"cycles": ("bpy", "warp-lang"), "direct": ("warp-lang",)}

Float32 = npt.NDArray[np.float32]


def default_out(
    preset: str = DEFAULT_PRESET,
    split: str = "train",
    *,
    engine: str = ENGINE,
    quality: str = QUALITY,
    resolution: int = RESOLUTION,
    pairs: bool = False,
) -> Path:
    """The directory of a dataset by default: data/3dident, data/3dident-test, ...

    The name has the preset (for a file, its stem), and whatever of the other arguments is not
    the default, in this order: engine, quality, resolution, pairs, split.
    """
    own = str(preset).endswith(".toml")
    name = [Path(preset).stem if own else preset]
    name += [engine] * (engine != ENGINE) + [quality] * (quality != QUALITY)
    name += [str(resolution)] * (resolution != RESOLUTION) + ["pairs"] * pairs
    name += [split] * (split != "train")
    return Path("data") / "-".join(name)


def check_place(root: Path) -> None:
    """Check that a dataset can be begun or continued in a directory, which may be missing.

    Raises:
        DatasetError: the path is a file, or holds something else.
    """
    if root.exists() and not root.is_dir():
        raise DatasetError(f"{root} is a file, not a directory: choose another --out")
    if not root.exists() or (root / MANIFEST).exists():
        return
    foreign = sorted(
        p.name
        for p in root.iterdir()
        if p.name not in (LOGS, WANTED, LOCK)
        and not p.name.startswith((".tmp-", ".render-", GIVEN_LATENTS))
    )
    # Once more: another process may have begun the dataset meanwhile.
    if foreign and not (root / MANIFEST).exists():
        raise DatasetError(
            f"{root} is not empty and is no dataset (it holds {', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}): choose a new directory"
        )


class DatasetDir:
    """An open dataset directory.

    Args:
        root: the directory.
        manifest: its manifest.
        given: the raw latents (N, 10) that it was given, where they are at hand already.
    """

    def __init__(self, root: Path, manifest: Manifest, given: Float32 | None = None) -> None:
        self.root = root
        self.manifest = manifest
        self._given = given

    @classmethod
    def open(cls, root: str | Path) -> DatasetDir:
        """Open an existing dataset.

        Raises:
            DatasetError: the directory holds no dataset, or a damaged one.
        """
        return cls(Path(root), read_manifest(Path(root)))

    @classmethod
    def create_or_open(
        cls,
        root: Path,
        settings: Mapping[str, Any],
        *,
        shard_size: int | None,
        compression: str | None,
        about: Mapping[str, Any] | None = None,
        given: Float32 | None = None,
        any_device: bool = False,
        kept: Manifest | None = None,
        command: str | None = None,
    ) -> DatasetDir:
        """Create a dataset with these settings, or open the existing one that has them.

        Several processes may call this at once: one creates it, the others open it.

        Args:
            root: the directory; created if it is missing.
            settings: the settings, as in `Manifest`.
            shard_size: the images to a shard; None takes the dataset's, or the default.
            compression: the shards' compression; None takes the dataset's, or none.
            about: the description of the preset, as in `Manifest`.
            given: the raw latents, if they do not come from the seed.
            any_device: whether a dataset made on another kind of device may be continued.
            kept: the manifest that another form of the dataset has kept, written as it is.
            command: the command that a new dataset records as what made it; None: "Python".

        Raises:
            DatasetError: the directory holds something else, or a dataset with other
                settings; or it cannot be written to.
            UsageError: given latents are not at the values of the preset's fixed factors.
        """
        check_compression(compression or "none")
        check_place(root)
        with explaining_write_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        if not (root / MANIFEST).exists():
            size = shard_size or default_shard_size(settings["resolution"])
            manifest = kept or Manifest.new(
                settings, size, compression or "none", about or {}, command
            )
            if given is not None:
                if kept is None and manifest.preset is not None:
                    manifest.preset.require_fixed(given, "the given latents")
                # Before the manifest: a dataset that is there has all it refers to.
                with (
                    replacing(_given_path(root, latents_digest(given))) as temporary,
                    temporary.open("wb") as file,
                ):
                    np.save(file, given)
            create_json(root / MANIFEST, manifest.as_dict())
        dataset = cls.open(root)
        dataset._refuse_other(settings, shard_size, compression, any_device=any_device)
        return dataset

    def _refuse_other(
        self,
        settings: Mapping[str, Any],
        shard_size: int | None,
        compression: str | None,
        *,
        any_device: bool,
    ) -> None:
        """Raise a DatasetError where the dataset has other settings than these."""
        # JSON first: the written settings may differ in type (tuples) from the wanted ones.
        wanted = json.loads(json.dumps(settings))
        unequal = differences(self.manifest.settings, wanted)
        if any_device:
            unequal = [d for d in unequal if d[0] != "engine.device"]
        unequal = without_consequences(unequal)
        storage = {"shard_size": shard_size, "compression": compression}
        for key, value in storage.items():
            if value is not None and value != getattr(self.manifest, key):
                unequal.append((key, getattr(self.manifest, key), value))
        if not unequal:
            return
        self._refuse_recipe(unequal)
        lines = [f"  {name}: the dataset has {a!r}, this command {b!r}" for name, a, b in unequal]
        hint = how = ""
        if self.manifest.preset is not None:
            how = f" (`3dident render --extend {shlex.quote(str(self.root))}` takes them from it)"
        names = [name for name, _, _ in unequal]
        if names == ["engine.device"]:
            hint = " (--any-device continues it all the same, and records it in each shard)"
        cure = f"Give the same settings to continue it{how}, or another --out{hint}"
        packages = _PACKAGES.get(self.manifest.engine["name"])
        if names == ["engine.version"] and packages:
            versions = str(unequal[0][1]).split(VERSION_JOINT)
            pairs = zip(packages, versions, strict=False)
            words = " ".join(f"'{package}=={version}'" for package, version in pairs)
            cure = (
                "Pixels depend on the engine's version. To continue it install that one "
                f"(pip install {words}), or give another --out"
            )
        raise DatasetError(
            f"{self.root} was made with other settings:\n"
            + "\n".join(lines)
            + f"\nIt was made by: {self.manifest.command}\n{cure}"
        )

    def _refuse_recipe(self, unequal: Sequence[tuple[str, Any, Any]]) -> None:
        """Raise a DatasetError where another version of the toolkit made other pixels."""
        recipes = {name: (here, now) for name, here, now in unequal}.get("engine.recipe")
        if recipes is None:
            return
        engine = self.manifest.engine
        raise DatasetError(
            f"{self.root} was begun by version {self.manifest.toolkit} of this toolkit. Since "
            f"then the pixels of engine {engine['name']}, quality {engine['quality']}, have "
            f"changed (recipe {recipes[0]}, now {recipes[1]}), and a dataset does not mix them. "
            "It can be read as before. To add images, use that version of the toolkit, or render "
            "all of it anew into another --out"
        )

    def given_latents(self) -> Float32 | None:
        """The raw latents (N, 10) that the dataset was given; None if they come from the seed.

        Raises:
            DatasetError: the file of given latents is missing or has been changed.
        """
        source = self.manifest.settings["latents"]
        if source["source"] != "file":
            return None
        if self._given is None:
            self._given = self._read_given(source["sha256"])
        return self._given

    def draws(self, indices: Iterable[int]) -> Draws | None:
        """Draw the variables of images; None for a dataset that is not of a causal model.

        Args:
            indices: the images' numbers.
        """
        sampling, settings = self.manifest.sampling, self.manifest.settings
        if sampling is None:
            return None
        return sampling.draw(indices, seed=settings["seed"], split=settings["split"])

    def raw_latents(self, indices: Iterable[int], draws: Draws | None = None) -> Float32:
        """The raw latents (N, 10) that images have by this dataset's settings.

        Args:
            indices: the images' numbers.
            draws: what `draws` gives for them, where it is at hand.

        Raises:
            DatasetError: the file of given latents is missing or has been changed.
        """
        source = self.manifest.settings["latents"]
        if source["source"] == "seed":
            raw = sample_raw_latents(
                indices, seed=self.manifest.settings["seed"], split=self.manifest.settings["split"]
            )
        elif source["source"] == "model":
            draws = self.draws(indices) if draws is None else draws
            assert draws is not None and self.manifest.sampling is not None
            raw = self.manifest.sampling.model.raw_latents(draws.variables)
        elif source["source"] == "pairs":
            process = self.manifest.pair_process
            assert process is not None
            raw = sample_pair_latents(
                indices,
                seed=self.manifest.settings["seed"],
                split=self.manifest.settings["split"],
                conditional=process.conditional,
            )
        elif source["source"] == "imported":
            raise DatasetError(f"{self.root} was imported: its latents are in its shards alone")
        else:
            numbers = list(indices)
            given = self.given_latents()
            assert given is not None
            if numbers and max(numbers) >= len(given):
                raise DatasetError(
                    f"{self.root} was made from {len(given)} given latents: there is none for "
                    f"image {max(numbers)}"
                )
            raw = given[numbers]
        preset = self.manifest.preset
        return preset.hold_fixed(raw) if preset else raw

    def _read_given(self, digest: str) -> Float32:
        path = _given_path(self.root, digest)
        try:
            given = check_raw_latents(read_npy(path), str(path))
        except ValueError as error:
            raise DatasetError(f"cannot read {error}") from error
        if latents_digest(given) != digest:
            raise DatasetError(f"{path} is not what this dataset was made from")
        return given

    def read_shard(self, path: Path) -> Shard:
        """Read a shard whole and check it: form, checksums, and latents as the settings give them.

        Args:
            path: the shard's file.

        Raises:
            DatasetError: the shard is damaged, of other settings, or has other latents.
        """
        shard = read_shard(
            path,
            resolution=self.manifest.resolution,
            fingerprint=self.manifest.fingerprint,
            variables=self.manifest.variable_count,
        )
        where = str(self.root / shard.interval.file_name)
        self.check_rows(shard.interval, shard.raw_latents, shard.latents, where, shard.draws)
        return shard

    def check_rows(
        self,
        interval: Interval,
        raw: Float32,
        scene: Float32,
        where: str,
        held: Draws | None = None,
    ) -> None:
        """Check that the latents of some images are those that the dataset's settings give.

        Args:
            interval: the images.
            raw: their raw latents, (k, 10).
            scene: their latents, (k, 10).
            where: the name of their source in errors.
            held: what is stored of what was drawn of a causal model; None where there is none.

        Raises:
            DatasetError: a latent, or a value of `held`, is another one.
        """
        preset = self.manifest.preset
        if preset is None:  # an imported dataset has no other record of them
            return
        drawn = self.draws(interval.indices)
        expected = self.raw_latents(interval.indices, drawn)
        wrong = expected != raw
        if self.manifest.sampling is not None:
            # Sines and quantiles may differ in the last bit from one machine to another.
            wrong &= ~np.isclose(expected, raw, rtol=0, atol=NEARLY)
            expected = raw
        for name, off in (
            ("raw_latents", wrong),
            ("latents", preset.to_scene(expected) != scene),
        ):
            if off.any():
                row = interval.first + int(np.argwhere(off.any(1))[0, 0])
                raise DatasetError(
                    f"{where}: the {name} of image {row} are not those that the dataset's "
                    "settings give"
                )
        if drawn is None or held is None:
            return
        for field in dataclasses.fields(Draws):
            right, own = getattr(drawn, field.name), getattr(held, field.name)
            off = ~np.isclose(right, own, rtol=0, atol=NEARLY * (field.name == "variables"))
            if off.any():
                row = interval.first + int(np.argwhere(off)[0, 0])
                raise DatasetError(
                    f"{where}: {field.name} of image {row} is not what the dataset's settings give"
                )

    def wanted(self) -> int | None:
        """The largest number of images that this directory was ever asked to hold.

        It is None where none is recorded: in datasets of older versions, or not rendered here.

        Raises:
            DatasetError: the record is damaged.
        """
        path = self.root / WANTED
        if not path.exists():
            return None
        advice = "remove it; the next `3dident render` writes it again"
        try:
            data = read_json(path)
        except DatasetError as error:
            raise DatasetError(f"{error}: {advice}") from error
        count = data.get("images") if isinstance(data, dict) else None
        if type(count) is not int or not 1 <= count <= _MOST_WANTED:
            raise DatasetError(f"{path} is damaged, it holds no number of images: {advice}")
        return count

    def record_wanted(self, count: int) -> None:
        """Record that the directory shall hold its first `count` images; it never shrinks.

        Members of a job array may call this at once.

        Raises:
            DatasetError: the record is damaged, or cannot be written.
        """
        if count <= (self.wanted() or 0):
            return
        with locked(self.root):
            if count > (self.wanted() or 0):
                write_json(self.root / WANTED, {"images": count})

    @contextlib.contextmanager
    def only_render(self, part: int = 0, parts: int = 1) -> Iterator[None]:
        """Hold the shards whose number is `part` modulo `parts` for this process to write.

        The kernel ends the lock with the process, however that ends. Disks without locks hold
        nothing.

        Raises:
            UsageError: another process writes some of these shards.
            DatasetError: the directory cannot be written to.
        """
        with hold_shards(self.root, part, parts):
            yield

    def shards(self) -> dict[Interval, Path]:
        """The shard files, by first image."""
        return list_shards(self.root)

    def write_stats(self) -> dict[str, Any]:
        """Compute the statistics, write them into `stats.json`, and return them.

        Raises:
            DatasetError: the directory holds no shard or an unreadable one, or the disk is full.
        """
        while True:
            shards = self.shards()
            stats = self.compute_stats()
            write_json(self.root / STATS, stats)
            # Otherwise another member of a job array has added some. One that still is at work
            # does this itself when it ends; shards can come quicker than they are counted here.
            if self.shards() == shards or is_written_to(self.root):
                return stats

    def compute_stats(self) -> dict[str, Any]:
        """Compute the statistics from the sums that every shard holds.

        Raises:
            DatasetError: the directory holds no shard, or an unreadable one.
        """
        shards = self.shards()
        if not shards:
            raise DatasetError(f"{self.root} holds no finished shard yet: run `3dident render`")
        sums = ImageSums()
        for path in shards.values():
            sums = sums + read_sums(path)
        return statistics(sums)


def _given_path(root: Path, digest: str) -> Path:
    return root / f"{GIVEN_LATENTS}-{digest[:12]}.npy"
