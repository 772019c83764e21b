"""Read-outs of a run: which augmentation an image went through, and its class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threedident.baselines.training.run_folder import encoder_digest
from threedident.datasets.formats import open_dataset
from threedident.errors import DatasetError
from threedident.storage.atomic_files import read_json, write_json

#: The file of a run that holds its read-outs.
READOUT = "readout.json"
PLACES = ("backbone", "codes")
#: What is read out, in the order of the tables.
PROBES = (
    "class",
    *("greyscale", "brightness", "contrast", "hue", "saturation", "mean"),
    *("crop", "blur"),
)

_MOST_IMAGES = 4096


def score_readout(folder: Path, test: Path, *, quiet: bool = True) -> None:
    """Probe the encoder of a run into its `readout.json`, unless that has been done.

    Args:
        folder: the run folder.
        test: the images.
        quiet: whether progress is left out.

    Raises:
        UsageError: the images do not fit.
        DatasetError: the encoder or the images cannot be read, or the file not be written.
    """
    with open_dataset(test) as source:
        digest = source.fingerprint
    path, encoder = folder / READOUT, encoder_digest(folder)
    if path.exists():
        before = _read(path)
        if before["settings"].get("data") == digest and before.get("encoder") == encoder:
            return
    from threedident.evaluate.readout import read_out

    result = read_out(folder, test, images=_MOST_IMAGES, quiet=quiet)
    content = result.as_dict()
    content["encoder"] = encoder
    content["means"] = {place: result.mean(place) for place in PLACES}
    write_json(path, content)


def read_readout(folder: Path) -> Mapping[str, float] | None:
    """Read the read-outs of a run, by probe and place, such as hue_backbone; None without a file.

    Of several discrete factors the first one is the class.

    Args:
        folder: the run folder.

    Raises:
        DatasetError: the file is damaged.
    """
    path = folder / READOUT
    if not path.exists():
        return None
    plain = _read(path)
    scores: dict[str, float] = {}
    try:
        for probe in plain["probes"]:
            name = "class" if probe["name"].split(" ")[0] == "class" else probe["name"]
            scores.setdefault(f"{name}_{probe['place']}", float(probe["accuracy"]))
        for place in PLACES:
            scores[f"mean_{place}"] = float(plain["means"][place])
        if not all(map(math.isfinite, scores.values())):
            raise ValueError("there are accuracies that are not finite")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(
            f"{path} is damaged: {type(error).__name__}: {error}. Remove it to probe the run again"
        ) from error
    return scores


def _read(path: Path) -> Mapping[str, Any]:
    """Read the file of a run.

    Raises:
        DatasetError: it is damaged, or another file.
    """
    plain = read_json(path)
    settings = plain.get("settings") if isinstance(plain, dict) else None
    if not isinstance(settings, dict) or plain.get("format") != "3dident-readout":
        raise DatasetError(f"{path} is damaged: it holds no read-outs. Remove it to probe again")
    return plain
