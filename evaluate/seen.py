"""`check_seen`: warnings where an encoder has seen its test images, or they do not fit it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from threedident.datasets.formats import (
    ImageSource,
    Source,
    count_shared,
    count_shared_images,
    open_rendered,
)
from threedident.datasets.formats.export import ExportSource
from threedident.datasets.formats.export_record import SPLIT_NAMES
from threedident.errors import DatasetError, ThreeDIdentError
from threedident.evaluate.assumptions import ScoreWarning
from threedident.evaluate.sampled_source import SampledSource
from threedident.evaluate.submissions.manifest import SubmissionManifest
from threedident.latents import latents_digest
from threedident.storage.atomic_files import read_json

#: Warnings with which scores are no entry of a leaderboard.
UNRANKED = ("training_split", "seen_images")
_OWN_NAMES = {export: own for own, export in SPLIT_NAMES.items()}
_RESULT, _PLACES = "result.json", "data.json"  # of a run, beside its encoder
_MOST_SIDE = 1 << 16
_CLAIMED = ("images", "latents", "preset", "resolution")  # in an ONNX file


def training_record(checkpoint: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Read what is recorded of the images that an encoder was fitted on.

    Args:
        checkpoint: the encoder's file; `result.json` of its run may lie beside it.
        about: the record in the file itself.

    Returns:
        `latents` (their digest) and `resolution`, among others, as far as it is recorded.
    """
    if isinstance(about.get("data"), dict):
        return dict(about["data"])
    try:
        result = read_json(checkpoint.parent / _RESULT)
        same = all(
            recorded == about[key]
            for key, recorded in (
                ("experiment", result["experiment"]["name"]),
                ("seed", result["experiment"]["training"]["seed"]),
                ("steps", result["steps"]),
            )
        )
        return dict(result["data"]) if same else {}
    except (DatasetError, OSError, KeyError, TypeError, ValueError):
        return {}


def write_claim(record: Mapping[str, Any]) -> str:
    """Write the claim of an ONNX file on the images that its encoder was trained on."""
    return json.dumps({key: record[key] for key in _CLAIMED if key in record}, sort_keys=True)


def read_claim(text: Any) -> dict[str, Any]:
    """Read the claim of an ONNX file; anyone can have written it, so that it only warns."""
    try:
        plain = json.loads(text)
        latents, side = plain.get("latents"), plain.get("resolution")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    record: dict[str, Any] = {"latents": latents} if isinstance(latents, str) else {}
    if type(side) is int and 0 < side < _MOST_SIDE:
        record["resolution"] = side
    return record


def split_of(source: ImageSource) -> str | None:
    """Return the split of a dataset: train, val or test; None where nobody says.

    The split that was rendered counts first; of imported images, the one in their export.
    """
    split = source.manifest.settings.get("split") if source.manifest else None
    if split is None and isinstance(source, ExportSource):
        return _OWN_NAMES[source.split.name]
    return split


def check_seen(
    test: ImageSource,
    *,
    declared: SubmissionManifest | None = None,
    fitted_on: ImageSource | None = None,
    trained_on: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
) -> Iterator[ScoreWarning]:
    """Warn of a test set that is no test of the encoder, or is of another kind.

    Args:
        test: the images that it is scored on.
        declared: the declaration of its authors.
        fitted_on: the images that reference:pca was fitted on, where they are not the test set.
        trained_on: the record of the training of an encoder of this toolkit.
        checkpoint: the file of such an encoder; its run's folder says where the images were.
    """
    manifest = test.manifest
    split = manifest.settings.get("split") if manifest else None
    if split is None and split_of(test) == "train":
        yield ScoreWarning(
            "training_split",
            "the export calls these images its split `train`, as `3dident convert` does where "
            "nobody names one: encoders are fitted on that, and a leaderboard does not take such "
            "scores. If they are a test set, import them with `3dident convert --split test`",
        )
    elif split == "train":
        yield ScoreWarning(
            "training_split",
            "the test set is of the split `train`: encoders are fitted on that, and a leaderboard "
            "does not take such scores. `3dident render --split test` makes a test set",
        )
    recorded = trained_on or {}
    reason = _why_seen(test, declared, fitted_on, recorded, checkpoint)
    if reason:
        yield ScoreWarning(
            "seen_images",
            f"{reason}: the scores are those of images it has seen, and say nothing of new ones",
        )
    side = recorded.get("resolution")
    if isinstance(side, int) and side != test.shape[0]:
        yield ScoreWarning(
            "other_resolution",
            f"the encoder was trained on images of {side} pixels along each side, and these have "
            f"{test.shape[0]}: it was never fitted to such. Score it on a test set of {side} "
            "pixels",
        )
    if isinstance(test, SampledSource) and test.whole.sequences is not None:
        yield ScoreWarning(
            "paired_images",
            f"the test set is of {len(test.whole.sequences) - 1:,} sequences, whose frames depend "
            "on each other: there are fewer independent samples than images, so that the intervals "
            "are too narrow. No sequence is in both halves of the images, but for the one in the "
            "middle",
        )
    sampling = None if manifest is None else manifest.sampling
    grouped = sampling is not None and sampling.frames > 1
    if grouped or (manifest is not None and manifest.pair_process is not None):
        way = "sequences" if sampling is not None and sampling.group == "sequence" else "pairs"
        yield ScoreWarning(
            "paired_images",
            f"the test set was rendered in {way}, whose images depend on each other: there are "
            "fewer independent samples than images, so that the intervals are too narrow. Score "
            "on single images",
        )


def _why_seen(
    test: ImageSource,
    declared: SubmissionManifest | None,
    fitted_on: ImageSource | None,
    recorded: Mapping[str, Any],
    checkpoint: Path | None,
) -> str | None:
    """Say why the encoder has seen images of the test set; None where nothing shows that."""
    shared = 0 if fitted_on is None else count_shared_images(fitted_on, test)
    if shared:
        return (
            f"the principal components were fitted on images of the same latents (--train) as "
            f"{shared} of these {len(test)}"
        )
    same = recorded.get("latents") == test.fingerprint
    count = 0 if same else _count_trained_on(test, recorded, checkpoint)
    if same or count:
        extent = "" if same else f" as {count} of these {len(test)}"
        return (
            f"the encoder was trained on images of the same latents{extent}, as is recorded with it"
        )
    manifest = test.manifest
    if declared is None or manifest is None or manifest.preset is None:
        return None
    settings = manifest.settings
    split, seed = settings.get("split"), settings.get("seed")
    if split == "train" and seed in declared.data_seeds and manifest.preset.name == declared.preset:
        return (
            f"the manifest says that the encoder was trained on images of seed {seed}, which is "
            "that of this training split"
        )
    return None


def _count_trained_on(
    test: ImageSource, recorded: Mapping[str, Any], checkpoint: Path | None
) -> int:
    """Count the images of a test set with latents of images that a run was trained on.

    0 where the run's dataset is not to be found, or is another by now.
    """
    if checkpoint is None or not recorded or not isinstance(test, Source):
        return 0
    try:
        with open_rendered(read_json(checkpoint.parent / _PLACES)["data"]) as source:
            latents = source.raw_latents[: recorded.get("images")]  # it may have been extended
    except (ThreeDIdentError, OSError, KeyError, TypeError, ValueError):
        return 0
    if latents_digest(latents) != recorded.get("latents"):
        return 0
    return count_shared(latents, test.raw_latents)
