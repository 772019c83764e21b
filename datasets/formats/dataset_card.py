"""The dataset card of an export: what a folder of WebDataset or Parquet files holds."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from threedident.datasets.formats.png_folder import Card, parse_card
from threedident.errors import DatasetError, UsageError
from threedident.factors import FACTORS, NUM_FACTORS
from threedident.render.mesh import SHAPES
from threedident.storage.atomic_files import read_json
from threedident.storage.manifest import Manifest
from threedident.storage.shard_record import Part
from threedident.version import toolkit_version

FORMAT = "3dident-export"
FORMAT_VERSION = 1
SPLITS = ("train", "validation", "test")
#: What a dataset's own splits are called there.
SPLIT_NAMES = {"train": "train", "val": "validation", "test": "test"}
#: The folder of the data files, beside the card.
DATA = "data"

_NO_CONTENT = ("mean", "std", "manifest", "parts", "wanted")
_SUFFIX = {"webdataset": "tar", "parquet": "parquet"}
_RECORD = "3dident-"
_MARK = "<!-- 3dident-card "
_SIZES = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of an export.

    Attributes:
        form: webdataset or parquet.
        name: train, validation or test.
        images: how many.
        height, width: of each, in pixels.
        images_per_file: in each file but the last.
        raw_latents_sha256, latents_sha256: of the arrays as little-endian float32.
        fingerprint: of the dataset's settings; None where they are not recorded.
        mean, std: of each channel, in [0, 1], as `ThreeDIdent` has them; None if not recorded.
        manifest: what made the images; None where it is not recorded.
        parts: the shards that the images were in; empty where it is not recorded.
        wanted: how many images were asked for; None where it is not recorded.
    """

    form: str
    name: str
    images: int
    height: int
    width: int
    images_per_file: int
    raw_latents_sha256: str
    latents_sha256: str
    fingerprint: str | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    manifest: Manifest | None
    parts: tuple[Part, ...] = ()
    wanted: int | None = None

    @property
    def pairs(self) -> bool:
        """Whether images 2i and 2i + 1 are a positive pair."""
        return self.manifest is not None and self.manifest.pair_process is not None

    @property
    def pattern(self) -> str:
        """A glob of its files, from the card's folder."""
        return f"{DATA}/{self.name}-*.{_SUFFIX[self.form]}"

    def files(self) -> dict[str, range]:
        """The images of each file, by the file's name."""
        size = self.images_per_file
        starts = range(0, self.images, size)
        if self.form == "webdataset":
            names = [f"{self.name}-{i:06d}.tar" for i in range(len(starts))]
        else:
            names = [
                f"{self.name}-{i:05d}-of-{len(starts):05d}.parquet" for i in range(len(starts))
            ]
        stops = (min(start + size, self.images) for start in starts)
        return {name: range(*ends) for name, *ends in zip(names, starts, stops, strict=True)}

    def content(self) -> dict[str, Any]:
        """What must be the same for an export to be gone on with."""
        names = [field.name for field in dataclasses.fields(self)]
        return {n: getattr(self, n) for n in names if n not in _NO_CONTENT}

    def generator(self) -> dict[str, Any]:
        """What must be the same for two splits to share a folder."""
        settings = self.manifest.settings if self.manifest else {}
        return {
            "form": self.form,
            "height": self.height,
            "width": self.width,
            "preset": settings.get("preset"),
            "mesh_sha256": settings.get("mesh_sha256"),
        }

    def as_dict(self) -> dict[str, Any]:
        """The content of the split's JSON file; without the command, which names local files."""
        manifest = self.manifest and dataclasses.replace(self.manifest, command="")
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **self.content(),
            "mean": self.mean,
            "std": self.std,
            **Card(manifest, self.parts, self.wanted).as_dict(),
        }


def split_name(name: str) -> str:
    """What exports call a split: val is their validation.

    Raises:
        UsageError: there is no such split.
    """
    name = SPLIT_NAMES.get(name, name)
    if name not in SPLITS:
        raise UsageError(f"split must be one of {', '.join(SPLIT_NAMES)}, found {name!r}")
    return name


def record_path(out: Path, name: str) -> Path:
    """Where an export keeps what it says of a split."""
    return out / f"{_RECORD}{name}.json"


def records(folder: Path) -> dict[str, Path]:
    """The files in which an export describes its splits, by split; empty for any other folder."""
    paths = {name: record_path(folder, name) for name in SPLITS}
    return {name: path for name, path in paths.items() if path.is_file()}


def is_record(path: Path) -> bool:
    """Whether a file has the name of one that describes a split of an export."""
    return path in records(path.parent).values()


def read_splits(folder: Path) -> dict[str, Split]:
    """The splits that a folder holds, or was to hold when an export was interrupted.

    Raises:
        DatasetError: one is described wrongly.
    """
    return {name: read_split(path, name) for name, path in records(folder).items()}


def read_split(path: Path, name: str) -> Split:
    """The split that a file describes.

    Raises:
        DatasetError: it is damaged, or of a split of another name.
    """
    split = parse_split(read_json(path), path)
    if split.name != name:
        raise DatasetError(f"{path} describes the split {split.name}: rename it")
    return split


def parse_split(data: Any, path: Path) -> Split:
    """The split that a JSON document describes.

    Raises:
        DatasetError: it describes none; `path` names where it came from.
    """

    def numbers(name: str) -> tuple[float, ...] | None:
        return None if data[name] is None else tuple(map(float, data[name]))

    try:
        if data["format"] != FORMAT or data["format_version"] != FORMAT_VERSION:
            raise ValueError(f"expected format {FORMAT} {FORMAT_VERSION}")
        counts = ("images", "height", "width", "images_per_file")
        if data["form"] not in _SUFFIX or data["name"] not in SPLITS:
            raise ValueError("its form or name is not known")
        card = parse_card(data, path, int(data["images"]))
        split = Split(
            form=data["form"],
            name=data["name"],
            **{name: int(data[name]) for name in counts},
            raw_latents_sha256=str(data["raw_latents_sha256"]),
            latents_sha256=str(data["latents_sha256"]),
            fingerprint=data["fingerprint"],
            mean=numbers("mean"),
            std=numbers("std"),
            manifest=card.manifest,
            parts=card.parts,
            wanted=card.wanted,
        )
        if min(getattr(split, name) for name in counts) < 1:
            raise ValueError("expected positive counts")
        fits = split.manifest is None or split.manifest.fingerprint == split.fingerprint
        if not fits or not isinstance(split.fingerprint, str | None):
            raise ValueError("its fingerprint is not that of its settings")
    except (KeyError, TypeError, ValueError, OverflowError, DatasetError) as error:
        raise DatasetError(
            f"{path} is not what `3dident convert` writes beside an export "
            f"({type(error).__name__}: {error}): restore it, or choose another folder"
        ) from error
    return split


def card(splits: Sequence[Split]) -> str:
    """The card of some splits of one generator, in Markdown, YAML first; ends with a mark."""
    first = splits[0]
    parts = [
        _front_matter(splits),
        _summary(splits),
        *map(_about, splits),
        _columns(first),
        _factors(first.manifest),
        _reading(splits),
        _LICENCES[_is_ours(splits)],
        _CITATION,
    ]
    text = "\n\n".join(parts) + "\n\n"
    return f"{text}{_MARK}{_digest(text)} -->\n"


def is_unchanged(text: str) -> bool:
    """Whether a card is as `card` made it, for whatever splits."""
    body, mark, end = text.rpartition(_MARK)
    return bool(mark) and end == f"{_digest(body)} -->\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_ours(splits: Sequence[Split]) -> bool:
    """Whether this toolkit rendered everything, from what it comes with alone."""
    presets = [split.manifest.preset if split.manifest else None for split in splits]
    return all(preset is not None and preset.shape in SHAPES for preset in presets)


def _size(count: int) -> str:
    if count < _SIZES[0]:
        return "n<1K"
    below = max(size for size in _SIZES if size <= count)
    names = {10**3: "K", 10**6: "M", 10**9: "B"}

    def name(size: int) -> str:
        unit = max(u for u in names if u <= size)
        return f"{size // unit}{names[unit]}"

    return f"{name(below)}<n<{name(10 * below)}"


def _front_matter(splits: Sequence[Split]) -> str:
    lines = [
        "---",
        f"license: {'mit' if _is_ours(splits) else 'unknown'}",
        "pretty_name: 3DIdent",
        "task_categories:",
        "- image-feature-extraction",
        "tags:",
        *("- identifiability", "- disentanglement", "- representation-learning"),
        *("- contrastive-learning", "- synthetic"),
        "size_categories:",
        f"- {_size(sum(split.images for split in splits))}",
        "configs:",
        "- config_name: default",
        "  data_files:",
    ]
    for split in splits:
        lines += [f"  - split: {split.name}", f"    path: {split.pattern}"]
    return "\n".join([*lines, "---"])


def _summary(splits: Sequence[Split]) -> str:
    first = splits[0]
    total = sum(split.images for split in splits)
    preset = first.manifest.preset if first.manifest else None
    what = ""
    if preset:
        shape = preset.shape if preset.shape in SHAPES else Path(preset.shape).name
        what = (
            f" Rendered anew with the preset `{preset.name}` ({preset.description.rstrip('.')}): "
            f"shape {shape}, material {preset.material}, hue {preset.hue}."
        )
    return (
        f"# 3DIdent\n\n{total} RGB images of {first.width} x {first.height} pixels, each with the "
        f"{NUM_FACTORS} latents behind it.{what} The pixels are lossless. Written by "
        f"`3dident convert`, 3DIdent toolkit {toolkit_version()}."
    )


def _about(split: Split) -> str:
    lines = [f"## Split {split.name}", ""]

    def add(name: str, text: object) -> None:
        lines.append(f"- {name}: {text}")

    add("images", split.images)
    add("files", f"{len(split.files())}, `{split.pattern}`")
    manifest = split.manifest
    if manifest is None or manifest.preset is None:
        add("rendered by", "not recorded: imported from PNG files and latents")
    else:
        settings, engine = manifest.settings, manifest.engine
        seeded = settings["latents"]["source"] != "file"
        add(
            "latents",
            f"drawn with seed {settings['seed']}, {settings['split']} split"
            if seeded
            else "given in a file",
        )
        if manifest.pair_process:
            add(
                "pairs",
                f"images 2i and 2i + 1 are a positive pair, z~ from "
                f"`{manifest.pair_process.conditional}`; keep the order, or shuffle pairs",
            )
        add("engine", f"{engine['name']} {engine['version']} on {engine['device']}")
        add("quality", engine["quality"])
        add("rendered", f"{manifest.created}, 3DIdent toolkit {manifest.toolkit}")
    if split.fingerprint:
        add("SHA-256 of the settings", f"`{split.fingerprint}`")
    add("SHA-256 of raw_latents", f"`{split.raw_latents_sha256}` (little-endian float32)")
    if split.mean and split.std:
        rounded = [", ".join(f"{v:.4f}" for v in values) for values in (split.mean, split.std)]
        add("mean of each channel", f"{rounded[0]}, in [0, 1]")
        add("std of each channel", f"{rounded[1]}, the mean over images of the std within one")
    add("all of this for programs", f"`3dident-{split.name}.json`")
    return "\n".join(lines)


def _columns(split: Split) -> str:
    if split.form == "parquet":
        lines = [
            "| column | type | content |",
            "| --- | --- | --- |",
            "| `image` | struct of `bytes` (a PNG) and `path`; in `datasets`, an `Image` | image |",
            "| `index` | int64 | its number, from 0 in each split |",
            "| `raw_latents` | 10 float32 | latents as they are drawn, and as models see them |",
            "| `latents` | 10 float32 | what they mean in the scene (m, rad) |",
        ]
    else:
        lines = [
            "| file | type | content |",
            "| --- | --- | --- |",
            "| `KEY.png` | PNG, RGB, 8 bit | image; KEY is its number, from 0 in each split |",
            "| `KEY.raw_latents.npy` | (10,) float32 | latents as they are drawn, and as models "
            "see them |",
            "| `KEY.latents.npy` | (10,) float32 | what they mean in the scene (m, rad) |",
        ]
    return "\n".join(["## Content", "", *lines, "", "Images are in order."])


def _factors(manifest: Manifest | None) -> str:
    preset = manifest.preset if manifest else None
    lines = ["## Factors", "", "In the order of both vectors:", ""]
    lines.append("| place | factor | group | scene value at raw -1 and +1 |")
    lines.append("| --- | --- | --- | --- |")
    for place, factor in enumerate(FACTORS):
        span = f"not recorded ({factor.unit})"
        if preset:
            low, high = preset.ranges[factor.name]
            span = f"{low:.6g} and {high:.6g} {factor.unit}"
            if factor.name in preset.fixed:
                span += f"; fixed at raw {preset.fixed[factor.name]:g}"
        lines.append(f"| {place} | {factor.name} | {factor.group} | {span} |")
    if preset:
        lines += ["", "Raw latents lie in [-1, 1]; scene values are affine in them."]
        reasons = preset.ambiguities()
        if reasons:
            lines += ["", "Different latents can share an image:", ""]
            lines += [f"- {reason}" for reason in reasons]
    return "\n".join(lines)


def _reading(splits: Sequence[Split]) -> str:
    first = splits[0]
    text = "## Reading\n\n`DIR` is this folder. With Hugging Face `datasets`, also by its name on "
    if first.form == "parquet":
        text += (
            "the Hub:\n\n```python\nfrom datasets import load_dataset\n\n"
            f'split = load_dataset("DIR", split="{first.name}").with_format("numpy")\n'
            'image, raw_latents = split[0]["image"], split[0]["raw_latents"]\n```'
        )
    else:
        text += (
            "the Hub (`load_dataset` finds the tar files by this card). With WebDataset:\n\n"
            "```python\nimport glob\n\nimport webdataset\n\n"
            f'files = sorted(glob.glob("DIR/{first.pattern}"))\n'
            'split = webdataset.WebDataset(files, shardshuffle=False).decode("rgb8")\n'
            'for image, raw_latents in split.to_tuple("png", "raw_latents.npy"):\n'
            "    print(image.shape, raw_latents)\n```"
        )
    text += "\n\nThe image is (height, width, 3) uint8, the latents are (10,) float32."
    if any(split.pairs for split in splits):
        text += (
            "\n\nWhere a split is of pairs, item 2i and the one after it are a pair, and no file "
            "divides one: read two at a time, then shuffle."
        )
    return text


_LICENCES = {
    True: (
        "## Licence\n\nMIT, as the toolkit and the shapes that it comes with; choose another in "
        "the first lines of this card if you publish your renders under another."
    ),
    False: (
        "## Licence\n\nNot known: the images were imported, or show a mesh that does not come "
        "with the toolkit. Ask whoever made them, and complete the first lines of this card."
    ),
}

#: The papers of CITATION.cff.
_CITATION = """## Citation

```bibtex
@inproceedings{zimmermann2021contrastive,
  title = {Contrastive Learning Inverts the Data Generating Process},
  author = {Zimmermann, Roland S. and Sharma, Yash and Schneider, Steffen and Bethge, Matthias
            and Brendel, Wieland},
  booktitle = {Proceedings of the 38th International Conference on Machine Learning (ICML)},
  year = {2021}
}

@inproceedings{zimmermann2020contrastive,
  title = {Contrastive Learning can Identify the Underlying Generative Factors of the Data},
  author = {Zimmermann, Roland S. and Schneider, Steffen and Sharma, Yash and Bethge, Matthias
            and Brendel, Wieland},
  booktitle = {NeurIPS 2020 Workshop on Self-Supervised Learning: Theory and Practice},
  year = {2020}
}

@inproceedings{rusak2024infonce,
  title = {InfoNCE: Identifying the Gap Between Theory and Practice},
  author = {Rusak, Evgenia and Reizinger, Patrik and Juhos, Attila and Bringmann, Oliver
            and Zimmermann, Roland S. and Brendel, Wieland},
  booktitle = {ICML 2024 Workshop on Geometry-grounded Representation Learning and Generative
               Modeling},
  year = {2024}
}
```"""
