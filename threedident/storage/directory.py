"""A dataset directory: `dataset.json`, its shards and `stats.json`."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.distributions import PairProcess, parse_distribution
from threedident.distributions.philox_sampler import sample_pair_latents
from threedident.distributions.spaces import parse_space
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTORS
from threedident.latents import check_raw_latents, sample_raw_latents
from threedident.presets import DEFAULT_PRESET, Preset, parse_preset
from threedident.storage.atomic_files import (
    create_json,
    explaining_write_errors,
    lock,
    read_json,
    read_npy,
    replacing,
    write_json,
)
from threedident.storage.shards import (
    ImageSums,
    Interval,
    Shard,
    default_shard_size,
    list_shards,
    read_sums,
    storage_options,
)

FORMAT = "3dident"
FORMAT_VERSION = 1
MANIFEST = "dataset.json"
STATS = "stats.json"
WANTED = "wanted.json"
LOCK = ".lock"
_RENDER_LOCK = re.compile(r"\.render-(\d{1,9})-of-([1-9]\d{0,8})\.lock")
_MOST_WANTED = 10**9  # images
_PATIENCE = 60.0  # seconds for a lock that others hold for milliseconds
GIVEN_LATENTS = "given_raw_latents"
LOGS = "logs"

Float32 = npt.NDArray[np.float32]


def toolkit_version() -> str:
    """This package's version."""
    return metadata.version("threedident")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What `dataset.json` says; it never changes once it is there.

    Attributes:
        settings: all that decides the content: preset, mesh, seed, split, latents,
            resolution, engine.
        shard_size: images to a shard.
        compression: of the shards' images.
        toolkit: version of the toolkit that created the dataset.
        command: the command that did.
        created: when, in UTC.
        about: what is known of the preset but decides nothing: description, best scores.
    """

    settings: Mapping[str, Any]
    shard_size: int
    compression: str
    toolkit: str
    command: str
    created: str
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def new(
        cls,
        settings: Mapping[str, Any],
        shard_size: int,
        compression: str,
        about: Mapping[str, Any],
    ) -> Manifest:
        """A manifest for a dataset created now, by this command."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        command = shlex.join(["3dident", *sys.argv[1:]])
        return cls(settings, shard_size, compression, toolkit_version(), command, now, about)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings: equal for datasets of equal content."""
        text = json.dumps(self.settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def preset(self) -> Preset | None:
        """The generator; None for an imported dataset, which does not say."""
        data = self.settings["preset"]
        return None if data is None else parse_preset({**data, **self.about}, MANIFEST)

    @property
    def pair_process(self) -> PairProcess | None:
        """How images 2i and 2i + 1 were drawn as a pair; None where they were not."""
        data = self.settings["latents"]
        if data["source"] != "pairs":
            return None
        return PairProcess(
            parse_space(data["space"]),
            parse_distribution(data["conditional"]),
            parse_distribution(data["marginal"]),
        )

    @property
    def best_r2(self) -> Mapping[str, float]:
        """The best R2 that any encoder can reach, by factor; empty where it is not known.

        A preset's figures are of latents drawn uniformly. `why_no_best_r2` says what they do not
        apply to.
        """
        preset = self.preset
        return preset.best_r2 if preset and self.why_no_best_r2 is None else {}

    @property
    def why_no_best_r2(self) -> str | None:
        """Why `best_r2` is empty, as a clause; None where it is not."""
        source = self.settings["latents"]["source"]
        if source == "imported":
            return "what drew the latents and rendered the images is not recorded"
        if source == "pairs":
            return (
                "the second images of pairs are not uniform, and the figures are of latents drawn "
                "uniformly"
            )
        if source == "file":
            return "the latents were given, and the figures are of latents drawn uniformly"
        preset = self.preset
        if preset is None or not preset.best_r2:
            return "the preset gives no best_r2"
        return None

    @property
    def resolution(self) -> int:
        """Pixels along each side of an image."""
        return int(self.settings["resolution"])

    @property
    def engine(self) -> Mapping[str, Any]:
        """The engine's settings: name, version, device, quality, samples."""
        engine: Mapping[str, Any] = self.settings["engine"]
        return engine

    def as_dict(self) -> dict[str, Any]:
        """The content of `dataset.json`."""
        preset, best = self.preset, self.best_r2
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "created": self.created,
            "command": self.command,
            "toolkit": self.toolkit,
            "fingerprint": self.fingerprint,
            "settings": self.settings,
            "about_preset": self.about,
            "storage": {"shard_size": self.shard_size, "compression": self.compression},
            "factors": [
                {
                    "name": f.name,
                    "group": f.group,
                    "unit": f.unit,
                    "raw_range": [-1.0, 1.0],
                    "scene_range": list(preset.ranges[f.name]) if preset else None,
                    "fixed_raw": preset.fixed.get(f.name) if preset else None,
                    "best_r2": best.get(f.name),
                }
                for f in FACTORS
            ],
            "not_injective": preset.ambiguities() if preset else None,
        }


def read_manifest(root: Path) -> Manifest:
    """The manifest of a dataset directory.

    Raises:
        DatasetError: the directory is missing, or `dataset.json` is missing, corrupt, or of
            another format.
    """
    path = root / MANIFEST
    if not path.is_file():
        what = "is not a directory" if not root.is_dir() else f"holds no {MANIFEST}"
        raise DatasetError(f"{root} {what}: expected a dataset made by `3dident render`")
    return parse_manifest(read_json(path), path)


def parse_manifest(data: Any, path: Path) -> Manifest:
    """The manifest that a JSON document holds.

    Raises:
        DatasetError: it is damaged, or of another format; `path` names where it came from.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DatasetError(f"{path} does not describe a dataset of this toolkit")
    if data.get("format_version") != FORMAT_VERSION:
        raise DatasetError(
            f"{path} has format version {data.get('format_version')!r}; this toolkit "
            f"({toolkit_version()}) reads version {FORMAT_VERSION}"
        )
    try:
        manifest = Manifest(
            settings=data["settings"],
            shard_size=int(data["storage"]["shard_size"]),
            compression=str(data["storage"]["compression"]),
            toolkit=str(data["toolkit"]),
            command=str(data["command"]),
            created=str(data["created"]),
            about=data["about_preset"],
        )
        manifest.as_dict()
        _check_latents(manifest.settings)
        for key in ("name", "version", "device", "quality"):
            manifest.engine[key]
        if manifest.preset is not None:
            manifest.engine["recipe"]
        manifest.pair_process  # noqa: B018  # complains
        fits = manifest.fingerprint == data["fingerprint"]
        fits = fits and manifest.shard_size > 0 and manifest.resolution > 0
    except (
        *(KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError),
    ) as error:
        raise DatasetError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if not fits:
        raise DatasetError(f"{path} is damaged: its settings do not match its fingerprint")
    return manifest


def _check_latents(settings: Mapping[str, Any]) -> None:
    """Checks what a manifest says of its latents.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or does not fit.
    """
    source, seed, split = settings["latents"], settings["seed"], settings["split"]
    kind = source["source"]
    if kind not in ("seed", "pairs", "file", "imported"):
        raise ValueError(f"latents come from {kind!r:.100}")
    if kind in ("seed", "pairs"):
        if type(seed) is not int:
            raise TypeError(f"the seed is {seed!r:.100}")
        sample_raw_latents((), seed=seed, split=split)
        return
    names = ("sha256", "scene_sha256") if kind == "imported" else ("sha256",)
    if not all(re.fullmatch("[0-9a-f]{64}", source[name]) for name in names):
        raise ValueError(f"{' or '.join(names)} is no SHA-256")
    if type(source["count"]) is not int:
        raise TypeError(f"the count of latents is {source['count']!r:.100}")


def differences(
    there: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """The settings in which two trees differ: dotted name, value there, value asked for."""
    found: list[tuple[str, Any, Any]] = []
    for key in dict.fromkeys((*there, *asked)):
        left, right = there.get(key), asked.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append((prefix + key, left, right))
    return found


def _without_consequences(found: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
    """Differences without those that merely follow from another one of them."""
    changed = {name for name, _, _ in found}
    follows: tuple[str, ...] = ()
    if changed & {"engine.name", "engine.quality"}:
        follows += ("engine.",)  # samples, and of another engine also version and recipe
    if "latents.source" in changed:
        follows += ("latents.", "seed", "split")
    kept = {"engine.name", "engine.quality", "engine.device", "latents.source"}
    if "engine.name" not in changed:
        kept |= {"engine.version", "engine.recipe"}
    return [
        (name, there, asked)
        for name, there, asked in found
        # Seed and split of given latents are null.
        if name in kept
        or not name.startswith(follows)
        or (name in ("seed", "split") and None not in (there, asked))
    ]


def default_out(
    preset: str = DEFAULT_PRESET,
    split: str = "train",
    *,
    engine: str = "cycles",
    quality: str = "standard",
    resolution: int = 224,
    pairs: bool = False,
) -> Path:
    """Where a dataset lies unless one says where: data/3dident, data/3dident-test, ...

    The name has the preset (of a file: its stem), and whatever of the other arguments is not
    the default, in this order: engine, quality, resolution, pairs, split.
    """
    own = str(preset).endswith(".toml")
    name = [Path(preset).stem if own else preset]
    name += [engine] * (engine != "cycles") + [quality] * (quality != "standard")
    name += [str(resolution)] * (resolution != 224) + ["pairs"] * pairs
    name += [split] * (split != "train")
    return Path("data") / "-".join(name)


def check_place(root: Path) -> None:
    """Checks that a dataset can be begun or continued in a directory, which may be missing.

    Raises:
        DatasetError: it is a file, or holds something else.
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
    """A dataset directory, opened."""

    def __init__(self, root: Path, manifest: Manifest, given: Float32 | None = None) -> None:
        self.root = root
        self.manifest = manifest
        self._given = given

    @classmethod
    def open(cls, root: str | Path) -> DatasetDir:
        """An existing dataset.

        Raises:
            DatasetError: it is none, or damaged.
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
    ) -> DatasetDir:
        """A new dataset with these settings, or the one that is there if it has them.

        Several processes may call this at once: one creates it, the others open it.

        Args:
            root: the directory; created if it is missing.
            settings: as in `Manifest`.
            shard_size: None takes the dataset's, or the default.
            compression: None takes the dataset's, or none.
            about: as in `Manifest`.
            given: the raw latents, if they do not come from the seed.
            any_device: whether a dataset made on another kind of device may be continued.
            kept: the manifest that another form of the dataset has kept, written as it is.

        Raises:
            DatasetError: the directory holds something else, or a dataset with other
                settings; or it cannot be written to.
            UsageError: given latents are not at the values of the preset's fixed factors.
        """
        storage_options("images", (), compression or "none")
        check_place(root)
        with explaining_write_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        if not (root / MANIFEST).exists():
            size = shard_size or default_shard_size(settings["resolution"])
            manifest = kept or Manifest.new(settings, size, compression or "none", about or {})
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
        # JSON first: what was written may differ in type (tuples) from what is asked for.
        asked = json.loads(json.dumps(settings))
        found = differences(self.manifest.settings, asked)
        if any_device:
            found = [d for d in found if d[0] != "engine.device"]
        found = _without_consequences(found)
        storage = {"shard_size": shard_size, "compression": compression}
        for key, value in storage.items():
            if value is not None and value != getattr(self.manifest, key):
                found.append((key, getattr(self.manifest, key), value))
        if not found:
            return
        lines = [f"  {name}: the dataset has {a!r}, this command {b!r}" for name, a, b in found]
        hint = how = ""
        if self.manifest.preset is not None:
            how = f" (`3dident render --extend {shlex.quote(str(self.root))}` takes them from it)"
        if [name for name, _, _ in found] == ["engine.device"]:
            hint = " (--any-device continues it all the same, and records it in each shard)"
        raise DatasetError(
            f"{self.root} was made with other settings:\n"
            + "\n".join(lines)
            + f"\nIt was made by: {self.manifest.command}\n"
            + f"Give the same settings to continue it{how}, or another --out{hint}"
        )

    def given_latents(self) -> Float32 | None:
        """The raw latents (N, 10) that the dataset was given; None where it was given none.

        Raises:
            DatasetError: the file of given latents is missing or has been changed.
        """
        source = self.manifest.settings["latents"]
        if source["source"] != "file":
            return None
        if self._given is None:
            self._given = self._read_given(source["sha256"])
        return self._given

    def raw_latents(self, indices: Iterable[int]) -> Float32:
        """The raw latents that images have by this dataset's settings, (N, 10).

        Raises:
            DatasetError: the file of given latents is missing or has been changed.
        """
        source = self.manifest.settings["latents"]
        if source["source"] == "seed":
            raw = sample_raw_latents(
                indices, seed=self.manifest.settings["seed"], split=self.manifest.settings["split"]
            )
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

    def check_latents(self, shard: Shard) -> None:
        """Checks that a shard's latents are those that the dataset's settings give.

        Raises:
            DatasetError: they are not.
        """
        where = str(self.root / shard.interval.file_name)
        self.check_rows(shard.interval, shard.raw_latents, shard.latents, where)

    def check_rows(self, interval: Interval, raw: Float32, scene: Float32, where: str) -> None:
        """Checks that these are the raw latents and latents of some images by the settings.

        Raises:
            DatasetError: they are not; `where` is what the error calls them.
        """
        preset = self.manifest.preset
        if preset is None:  # an imported dataset has no other record of them
            return
        expected = self.raw_latents(interval.indices)
        for name, right, found in (
            ("raw_latents", expected, raw),
            ("latents", preset.to_scene(expected), scene),
        ):
            if not np.array_equal(right, found):
                row = interval.first + int(np.argwhere((right != found).any(1))[0, 0])
                raise DatasetError(
                    f"{where}: the {name} of image {row} are not those that the dataset's "
                    "settings give"
                )

    def wanted(self) -> int | None:
        """The largest number of images that this directory was ever asked to hold.

        None where it is not recorded: in datasets of older versions, or not rendered here.

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
        """Records that the directory shall hold its first `count` images; it never shrinks.

        Members of a job array may call this at once.

        Raises:
            DatasetError: the record is damaged, or cannot be written.
        """
        if count <= (self.wanted() or 0):
            return
        with self._locked():
            if count > (self.wanted() or 0):
                write_json(self.root / WANTED, {"images": count})

    @contextlib.contextmanager
    def only_render(self, part: int = 0, parts: int = 1) -> Iterator[None]:
        """Holds the shards whose number is `part` modulo `parts` for this process to write.

        The kernel ends it with the process, however that ends. Disks without locks hold nothing.

        Raises:
            UsageError: another process writes some of these shards.
            DatasetError: the directory cannot be written to.
        """
        with contextlib.ExitStack() as stack:
            with self._locked():
                for path in self.root.glob(".render-*.lock"):
                    self._refuse_shared(path, part, parts)
                path = self.root / f".render-{part}-of-{parts}.lock"
                with explaining_write_errors(path):
                    file = stack.enter_context(path.open("w", encoding="utf-8"))
                    lock(file)
                    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
                    file.write(f"pid {os.getpid()} on {socket.gethostname()}, since {now}\n")
                    file.flush()
            try:
                yield
            finally:
                # With the lock on names: nobody holds a file that has lost its name.
                with contextlib.suppress(DatasetError, OSError), self._locked():
                    path.unlink()

    def _refuse_shared(self, path: Path, part: int, parts: int) -> None:
        """Raises a UsageError where a lock is held that covers some of the same shards."""
        found = _RENDER_LOCK.fullmatch(path.name)
        if found is None:
            return
        its_part, its_parts = int(found[1]), int(found[2])
        # Some number is `part` modulo `parts` and also `its_part` modulo `its_parts` if and
        # only if the two agree modulo the greatest common divisor.
        if (part - its_part) % math.gcd(parts, its_parts):
            return
        # Open for writing as well: a network file system locks nothing else.
        with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as file:
            if lock(file):  # left behind by a process that was killed
                path.unlink()
                return
            what = "all of it" if its_parts == 1 else f"--shard {its_part}/{its_parts}"
            raise UsageError(
                f"another process writes to {self.root} ({what}): "
                f"{file.readline(200).strip() or 'it does not say which'}. Wait for it, or stop "
                "it and run this command again. To share the work, start all of them with --shard "
                f"I/K. If its machine is gone for good, remove {path}"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the directory's small files for this process; waits while another has them.

        Raises:
            DatasetError: another process does not let go of them, or they cannot be written.
        """
        path = self.root / LOCK
        with explaining_write_errors(path):
            file = path.open("a")
        with file:
            until = time.monotonic() + _PATIENCE
            while not lock(file):
                if time.monotonic() > until:
                    raise DatasetError(
                        f"{path} stays locked by another process: if none is at work on "
                        f"{self.root}, remove it"
                    )
                time.sleep(0.01)
            yield

    def shards(self) -> dict[Interval, Path]:
        """The shard files, by first image."""
        return list_shards(self.root)

    def write_stats(self) -> dict[str, Any]:
        """Rewrites `stats.json`, and returns it.

        Raises:
            DatasetError: there is no shard, one is unreadable, or the disk is full.
        """
        while True:
            shards = self.shards()
            stats = self.compute_stats()
            write_json(self.root / STATS, stats)
            if self.shards() == shards:  # else another member of a job array has added some
                return stats

    def compute_stats(self) -> dict[str, Any]:
        """The statistics, made from the sums that every shard holds.

        Raises:
            DatasetError: there is no shard, or one is unreadable.
        """
        shards = self.shards()
        if not shards:
            raise DatasetError(f"{self.root} holds no finished shard yet: run `3dident render`")
        sums = ImageSums()
        for path in shards.values():
            sums = sums + read_sums(path)
        return statistics(sums)


def statistics(sums: ImageSums) -> dict[str, Any]:
    """Mean and standard deviations, in [0, 1], with their definitions; the share in the frame."""
    mean = sums.total / sums.pixels
    variance = np.maximum(sums.squares / sums.pixels - mean**2, 0)

    def unit(values: npt.NDArray[Any]) -> list[float]:
        return [round(float(v) / 255, 6) for v in values]

    # An imported dataset does not say where its object is.
    known = None if np.isnan(sums.in_frame) else True
    return {
        "images": sums.count,
        "mean": unit(mean),
        "std_all_pixels": unit(np.sqrt(variance)),
        "std_within_image": unit(sums.deviations / sums.count),
        "object_in_frame": known and round(sums.in_frame / sums.count, 6),
        "images_fully_in_frame": known and round(sums.whole / sums.count, 6),
        "definitions": {
            "mean": "per channel (R, G, B), over all pixels of all images, in [0, 1]",
            "std_all_pixels": "per channel, over all pixels of all images",
            "std_within_image": "per channel, the mean over images of the std within one image",
            "object_in_frame": "mean share of the object's vertices inside the frame",
            "images_fully_in_frame": "share of images with all of the object's vertices inside",
        },
    }


def _given_path(root: Path, digest: str) -> Path:
    return root / f"{GIVEN_LATENTS}-{digest[:12]}.npy"


def latents_digest(raw: Float32) -> str:
    """SHA-256 of raw latents."""
    return hashlib.sha256(np.ascontiguousarray(raw, np.float32).tobytes()).hexdigest()
