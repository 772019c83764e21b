"""The manifest of a dataset, `dataset.json`: what made it, and how two of them differ."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.causal import OBSERVED, Draws, Sampling
from threedident.causal.sampling import parse_sampling
from threedident.distributions import PairProcess, parse_distribution
from threedident.distributions.serialisation import parse_space
from threedident.errors import DatasetError
from threedident.factors import FACTORS
from threedident.latents import check_seed_and_split
from threedident.presets import Preset, parse_preset
from threedident.storage.atomic_files import read_json
from threedident.version import toolkit_version

FORMAT = "3dident"
FORMAT_VERSION = 1
MANIFEST = "dataset.json"

#: What reading a damaged document raises.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)

#: Why no best R2 is known, by the source of the latents; and of a model, by what was drawn of it.
_NO_BEST_R2 = {
    "imported": "what drew the latents and rendered the images is not recorded",
    "pairs": "the second images of pairs are not uniform, and the figures are of latents drawn "
    "uniformly",
    "file": "the latents were given, and the figures are of latents drawn uniformly",
}
_NO_BEST_R2_DRAWN = (
    "the images are of interventions, in pairs or in sequences, and the figures are of the model's "
    "own single images"
)
_NO_BEST_R2_ALONE = (
    "the figures are of uniform variables that have neither parents nor children, and the model "
    "has none of which one is known"
)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `dataset.json`, which never changes once it is written.

    Attributes:
        settings: all that decides the content: preset, mesh, seed, split, latents,
            resolution, engine.
        shard_size: the images to a shard.
        compression: the compression of the shards' images.
        toolkit: the version of the toolkit that created the dataset.
        command: the command that created it, for people to read.
        created: the time of its creation, in UTC.
        about: the facts about the preset that decide nothing: description, best scores.
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
        command: str | None = None,
    ) -> Manifest:
        """Make the manifest of a dataset that is created now.

        Args:
            settings: the settings.
            shard_size: the images to a shard.
            compression: the compression of the shards' images.
            about: the facts about the preset that decide nothing.
            command: the command that creates the dataset; None: "Python".
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        how = command or "Python"
        return cls(settings, shard_size, compression, toolkit_version(), how, now, about)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the settings: equal for datasets of equal content."""
        return settings_fingerprint(self.settings)

    @property
    def preset(self) -> Preset | None:
        """The generator; None for an imported dataset, which does not say."""
        data = self.settings["preset"]
        texts = {key: value for key, value in self.about.items() if key != "model"}
        return None if data is None else parse_preset({**data, **texts}, MANIFEST)

    @property
    def pair_process(self) -> PairProcess | None:
        """The process by which images 2i and 2i + 1 were drawn; None if they are no pairs."""
        data = self.settings["latents"]
        return _parse_process(data) if data["source"] == "pairs" else None

    @functools.cached_property
    def sampling(self) -> Sampling | None:
        """The causal model and what is drawn of it; None for latents that come from elsewhere."""
        data = self.settings["latents"]
        if data["source"] != "model":
            return None
        return parse_sampling(data, self.settings["preset"], self.about["model"], MANIFEST)

    def scene_rows(
        self, latents: npt.NDArray[np.float32], draws: Draws | None
    ) -> npt.NDArray[np.float32]:
        """The rows (N, W) that engines render of images.

        Args:
            latents: their latents, (N, 10): the rows, unless a causal model's scene has more.
            draws: what was drawn of the causal model; None where there is none.
        """
        if self.sampling is None or draws is None:
            return latents
        return self.sampling.model.scene_rows(draws.variables)

    @property
    def variable_count(self) -> int | None:
        """The number of variables of the causal model; None where there is no model."""
        return None if self.sampling is None else len(self.sampling.model.variables)

    @property
    def best_r2(self) -> Mapping[str, float]:
        """The best R2 that any encoder can reach, by factor; empty where it is not known.

        A preset's figures hold for latents drawn uniformly: of a model for those of its variables
        that are uniform and have neither parents nor children, or in the environment independent.
        `why_no_best_r2` says why they do not apply.
        """
        return self._known_best_r2() if self.why_no_best_r2 is None else {}

    @property
    def why_no_best_r2(self) -> str | None:
        """The reason why `best_r2` is empty, as a clause; None where it is not."""
        source, sampling = self.settings["latents"]["source"], self.sampling
        if source in _NO_BEST_R2:
            return _NO_BEST_R2[source]
        if sampling is not None and not (sampling.is_plain or sampling.is_independent):
            return _NO_BEST_R2_DRAWN
        if not self._known_best_r2():
            return "the preset gives no best_r2" if sampling is None else _NO_BEST_R2_ALONE
        return None

    def _known_best_r2(self) -> Mapping[str, float]:
        """The best R2 of the preset, for variables that are as it takes them."""
        preset = self.preset
        if preset is None:
            return {}
        if self.sampling is not None and self.sampling.is_independent:
            return preset.computed_best_r2()
        return preset.best_r2

    @property
    def resolution(self) -> int:
        """The pixels along each side of an image."""
        return int(self.settings["resolution"])

    @property
    def engine(self) -> Mapping[str, Any]:
        """The engine's settings: name, version, device, quality, samples."""
        engine: Mapping[str, Any] = self.settings["engine"]
        return engine

    def as_dict(self) -> dict[str, Any]:
        """The content of `dataset.json`."""
        preset, best, sampling = self.preset, self.best_r2, self.sampling
        model: dict[str, Any] = {}
        if sampling is not None:
            model = {
                "graph": sampling.model.graph(),
                "environments": list(sampling.environments or (OBSERVED,)),
                "images_per_item": sampling.frames,
            }
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
            **model,
        }


def settings_fingerprint(settings: Mapping[str, Any]) -> str:
    """The SHA-256 of a dataset's settings: equal for datasets of equal content."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(root: Path) -> Manifest:
    """Read the manifest of a dataset directory.

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
    """Parse the manifest that a JSON document holds.

    Args:
        data: the document.
        path: the file from which it comes, for errors.

    Raises:
        DatasetError: the document is damaged, or has another format.
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
        _check_latents(manifest)
        for key in ("name", "version", "device", "quality"):
            manifest.engine[key]
        if manifest.preset is not None:
            manifest.engine["recipe"]
        fits = manifest.fingerprint == data["fingerprint"]
        fits = fits and manifest.shard_size > 0 and manifest.resolution > 0
    except _DAMAGE as error:
        raise DatasetError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if not fits:
        raise DatasetError(f"{path} is damaged: its settings do not match its fingerprint")
    return manifest


def _parse_process(data: Mapping[str, Any]) -> PairProcess:
    return PairProcess(
        parse_space(data["space"]),
        parse_distribution(data["conditional"]),
        parse_distribution(data["marginal"]),
    )


def _check_latents(manifest: Manifest) -> None:
    """Check what a manifest says of its latents.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or does not fit.
    """
    settings = manifest.settings
    source, seed, split = settings["latents"], settings["seed"], settings["split"]
    kind = source["source"]
    if kind not in ("seed", "pairs", "file", "imported", "model"):
        raise ValueError(f"latents come from {kind!r:.100}")
    if kind in ("seed", "pairs", "model"):
        if type(seed) is not int:
            raise TypeError(f"the seed is {seed!r:.100}")
        check_seed_and_split(seed, split)
        if kind == "pairs":
            _parse_process(source)
        if kind == "model":
            manifest.sampling  # noqa: B018 it is parsed
        return
    names = ("sha256", "scene_sha256") if kind == "imported" else ("sha256",)
    if not all(re.fullmatch("[0-9a-f]{64}", source[name]) for name in names):
        raise ValueError(f"{' or '.join(names)} is no SHA-256")
    if type(source["count"]) is not int:
        raise TypeError(f"the count of latents is {source['count']!r:.100}")


def differences(
    left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """The settings in which two trees differ: dotted name, value left, value right."""
    unequal: list[tuple[str, Any, Any]] = []
    for key in dict.fromkeys((*left, *right)):
        one, other = left.get(key), right.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            unequal += differences(one, other, f"{prefix}{key}.")
        elif one != other:
            unequal.append((prefix + key, one, other))
    return unequal


def without_consequences(unequal: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
    """The differences without those that merely follow from another one of them.

    Args:
        unequal: the differences, as `differences` returns them.
    """
    changed = {name for name, _, _ in unequal}
    follows: tuple[str, ...] = ()
    if changed & {"engine.name", "engine.quality", "engine.recipe"}:
        follows += ("engine.",)  # samples, and of another engine also version and recipe
    if "latents.source" in changed:
        follows += ("latents.", "seed", "split")
    kept = {"engine.name", "engine.quality", "engine.device", "latents.source"}
    if "engine.name" not in changed:
        if not changed & {"engine.quality", "engine.recipe"}:
            kept.add("engine.version")
        if "engine.quality" not in changed:
            kept.add("engine.recipe")
    return [
        (name, left, right)
        for name, left, right in unequal
        # Seed and split of given latents are null.
        if name in kept
        or not name.startswith(follows)
        or (name in ("seed", "split") and None not in (left, right))
    ]
