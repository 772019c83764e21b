"""Whether an encoder has seen the images that it is scored on, and what else may not fit them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from threedident.datasets.formats.dataset_card import SPLIT_NAMES
from threedident.datasets.formats.exports import ExportSource
from threedident.datasets.formats.sources import Source, count_shared, open_source
from threedident.errors import DatasetError, ThreeDIdentError
from threedident.evaluate.assumptions import ScoreWarning
from threedident.evaluate.submissions.manifest import SubmissionManifest
from threedident.storage.atomic_files import read_json
from threedident.storage.directory import latents_digest

#: Warnings with which scores are no entry of a leaderboard.
UNRANKED = ("training_split", "seen_images")
_OWN_NAMES = {export: own for own, export in SPLIT_NAMES.items()}
_RESULT, _PLACES = "result.json", "data.json"  # of a run, beside its encoder
_MOST_SIDE = 1 << 16
_CLAIMED = ("images", "latents", "preset", "resolution")  # in an ONNX file


def training_record(checkpoint: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the images that an encoder was fitted on.

    Args:
        checkpoint: its file; `result.json` of its run may lie beside it.
        about: what the file itself says.

    Returns:
        `latents` (their digest) and `resolution`, among others, as far as it is recorded.
    """
    if isinstance(about.get("data"), dict):
        return dict(about["data"])
    try:
        result = read_json(checkpoint.parent / _RESULT)
        same = all(
            there == about[key]
            for key, there in (
                ("experiment", result["experiment"]["name"]),
                ("seed", result["experiment"]["training"]["seed"]),
                ("steps", result["steps"]),
            )
        )
        return dict(result["data"]) if same else {}
    except (DatasetError, OSError, KeyError, TypeError, ValueError):
        return {}


def write_claim(record: Mapping[str, Any]) -> str:
    """What an ONNX file says of the images that its encoder was trained on."""
    return json.dumps({key: record[key] for key in _CLAIMED if key in record}, sort_keys=True)


def read_claim(text: Any) -> dict[str, Any]:
    """What an ONNX file says of them: anyone can have written it, so that it only warns."""
    try:
        plain = json.loads(text)
        latents, side = plain.get("latents"), plain.get("resolution")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    record: dict[str, Any] = {"latents": latents} if isinstance(latents, str) else {}
    if type(side) is int and 0 < side < _MOST_SIDE:
        record["resolution"] = side
    return record


def split_of(source: Source) -> str | None:
    """Which split a dataset is: train, val or test; None where nobody says.

    What rendered it counts first. Of imported images, the export says what it calls them.
    """
    split = source.manifest.settings.get("split") if source.manifest else None
    if split is None and isinstance(source, ExportSource):
        return _OWN_NAMES[source.split.name]
    return split


def check_seen(
    test: Source,
    *,
    declared: SubmissionManifest | None = None,
    fitted_on: Source | None = None,
    trained_on: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
) -> Iterator[ScoreWarning]:
    """Warnings of a test set that is no test of the encoder, or is of another kind.

    Args:
        test: what it is scored on.
        declared: what its authors say of it.
        fitted_on: what reference:pca was fitted on, where that is not the test set itself.
        trained_on: what is recorded of the training of an encoder of this toolkit.
        checkpoint: the file of such an encoder; its run's folder says where the images were.
    """
    manifest = test.manifest
    settings = manifest.settings if manifest else {}
    preset = manifest.preset if manifest else None
    split, seed = settings.get("split"), settings.get("seed")
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
    digest = latents_digest(test.raw_latents)
    recorded = trained_on or {}
    what = None
    shared = 0 if fitted_on is None else count_shared(fitted_on.raw_latents, test.raw_latents)
    same = recorded.get("latents") == digest
    if shared:
        what = (
            f"the principal components were fitted on images of the same latents (--train) as "
            f"{shared} of these {len(test)}"
        )
    elif same or (some := _count_trained_on(test, recorded, checkpoint)):
        of = "" if same else f" as {some} of these {len(test)}"
        what = f"the encoder was trained on images of the same latents{of}, as is recorded with it"
    elif (
        declared is not None
        and split == "train"
        and seed in declared.data_seeds
        and preset is not None
        and preset.name == declared.preset
    ):
        what = (
            f"the manifest says that the encoder was trained on images of seed {seed}, which is "
            "that of this training split"
        )
    if what:
        yield ScoreWarning(
            "seen_images",
            f"{what}: the scores are those of images it has seen, and say nothing of new ones",
        )
    side = recorded.get("resolution")
    if isinstance(side, int) and side != test.shape[0]:
        yield ScoreWarning(
            "other_resolution",
            f"the encoder was trained on images of {side} pixels along each side, and these have "
            f"{test.shape[0]}: it was never fitted to such. Score it on a test set of {side} "
            "pixels",
        )
    if manifest is not None and manifest.pair_process is not None:
        yield ScoreWarning(
            "paired_images",
            "the test set was rendered in pairs, whose images depend on each other: there are "
            "fewer independent samples than images, so that the intervals are too narrow. Score "
            "on single images",
        )


def _count_trained_on(test: Source, recorded: Mapping[str, Any], checkpoint: Path | None) -> int:
    """How many images of a test set have latents of images that a run was trained on.

    0 where the run's dataset is not to be found, or is another by now.
    """
    if checkpoint is None or not recorded:
        return 0
    try:
        with open_source(read_json(checkpoint.parent / _PLACES)["data"]) as source:
            latents = source.raw_latents[: recorded.get("images")]  # it may have been extended
    except (ThreeDIdentError, OSError, KeyError, TypeError, ValueError):
        return 0
    if latents_digest(latents) != recorded.get("latents"):
        return 0
    return count_shared(latents, test.raw_latents)
