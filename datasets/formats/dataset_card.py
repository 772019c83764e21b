"""The dataset card of an export: the README.md beside its WebDataset or Parquet files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from threedident.causal import Sampling
from threedident.datasets.formats.export_record import Split
from threedident.factors import FACTORS, NUM_FACTORS
from threedident.storage.manifest import Manifest
from threedident.version import toolkit_version

_MARK = "<!-- 3dident-card "
_TARGETS = "1 where a variable was intervened on, else 0"
_SIZES = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)


def card(splits: Sequence[Split]) -> str:
    """The card of splits of one generator, in Markdown, YAML first; ends with a mark."""
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
    """Check that a card is as `card` wrote it, for any splits."""
    body, mark, end = text.rpartition(_MARK)
    return bool(mark) and end == f"{_digest(body)} -->\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_ours(splits: Sequence[Split]) -> bool:
    """Check that this toolkit rendered everything, from its own shapes alone."""
    presets = [split.manifest.preset if split.manifest else None for split in splits]
    return all(preset is not None and not preset.mesh_files for preset in presets)


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
        what = (
            f" Rendered anew with the preset `{preset.name}` ({preset.description.rstrip('.')}): "
            f"{preset.about_objects(shape='shape ', material='material ')}, hue {preset.hue}."
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
        if manifest.sampling is not None:
            _add_sampling(add, manifest.sampling)
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


def _add_sampling(add: Callable[[str, object], None], sampling: Sampling) -> None:
    """Say what was drawn of a causal model, and which image is which."""
    frames, names = sampling.frames, sampling.environments
    add("causal model", f"{sampling.model.name}; its law is in the JSON file")
    if names:
        place = "i" if frames == 1 else f"floor(i / {frames})"
        add("environments", f"image i is of number {place} mod {len(names)} of {', '.join(names)}")
    if sampling.do:
        add("interventions", f"do `{json.dumps(dict(sampling.do))}`")
    group = {
        "counterfactual": "image 2i + 1 is the counterfactual of image 2i: "
        f"`{json.dumps(dict(sampling.counterfactual))}`",
        "views": f"image 2i + 1 is a second view of image 2i, by the views {sampling.view}",
        "sequence": f"images {frames}s to {frames}s + {frames - 1} are sequence s",
    }
    if sampling.group in group:
        add("groups", f"{group[sampling.group]}; keep the order, or shuffle whole groups")


def _columns(split: Split) -> str:
    sampling = split.manifest.sampling if split.manifest else None
    variables = sampling.model.names if sampling else ()
    of_model = f"variables of the causal model: {', '.join(variables)}"
    if split.form == "parquet":
        lines = [
            "| column | type | content |",
            "| --- | --- | --- |",
            "| `image` | struct of `bytes` (a PNG) and `path`; in `datasets`, an `Image` | image |",
            "| `index` | int64 | its number, from 0 in each split |",
            "| `raw_latents` | 10 float32 | latents as they are drawn, and as models see them |",
            "| `latents` | 10 float32 | what they mean in the scene (m, rad) |",
        ]
        if variables:
            lines.append(f"| `variables` | {len(variables)} float32 | {of_model} |")
            lines.append(f"| `targets` | {len(variables)} float32 | {_TARGETS} |")
    else:
        lines = [
            "| file | type | content |",
            "| --- | --- | --- |",
            "| `KEY.png` | PNG, RGB, 8 bit | image; KEY is its number, from 0 in each split |",
            "| `KEY.raw_latents.npy` | (10,) float32 | latents as they are drawn, and as models "
            "see them |",
            "| `KEY.latents.npy` | (10,) float32 | what they mean in the scene (m, rad) |",
        ]
        if variables:
            lines.append(f"| `KEY.variables.npy` | ({len(variables)},) float32 | {of_model} |")
            lines.append(f"| `KEY.targets.npy` | ({len(variables)},) float32 | {_TARGETS} |")
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
