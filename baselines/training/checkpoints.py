"""Checkpoints of a training: the last whole one is always there."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from threedident.baselines.training.run_folder import CHECKPOINT, PREVIOUS
from threedident.errors import DatasetError
from threedident.storage.atomic_files import replacing
from threedident.storage.tensor_archives import check_archive, write_tensors

FORMAT_VERSION = 1


def save_checkpoint(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint, in one step, and keeps the one before.

    Args:
        folder: the run folder.
        content: the tensors and plain data to keep.

    Raises:
        DatasetError: the disk is full or cannot be written to.
    """
    path = folder / CHECKPOINT
    with replacing(path) as temporary:
        write_tensors(temporary, {"format_version": FORMAT_VERSION, **content})
        if path.exists():
            path.replace(folder / PREVIOUS)


def load_checkpoint(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The last whole checkpoint of a run, on the CPU, and what was wrong with later ones.

    Nothing but tensors and plain data is unpickled.

    Raises:
        DatasetError: there are checkpoints, and none is whole.
    """
    damaged = []
    for name in (CHECKPOINT, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            check_archive(path)
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
            if broken is not None:
                raise ValueError(f"{broken} is damaged")
            content = torch.load(path, map_location="cpu", weights_only=True)
            if content["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format version {content['format_version']}")
        except Exception as error:  # the unpickler's, the archive's and torch's own
            lines = str(error).strip().splitlines() or [type(error).__name__]
            damaged.append(f"{path} cannot be read ({lines[0]:.200})")
            continue
        return content, damaged
    if damaged:
        raise DatasetError(
            f"{'; '.join(damaged)}: no whole checkpoint is left. Remove {folder} to start anew"
        )
    return None, []
