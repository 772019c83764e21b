"""The log of a training: `metrics.csv`, and TensorBoard's files."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threedident.errors import DatasetError, MissingExtraError
from threedident.storage.atomic_files import explaining_write_errors, replacing

METRICS = "metrics.csv"
#: In this order; a field that was not measured at a step is empty.
COLUMNS = (
    *("step", "seconds", "loss", "excess", "linear_r2", "mcc", "isometry"),
    *("scale", "share_self", "share_positive", "share_negatives", "tau", "Lambda", "S", "lr"),
    *("linear_r2_per_factor", "reconstruction", "kl", "transition"),
)
#: How many of them runs have that were begun before there were all: before factors had a column,
#: and before autoencoders.
_COLUMNS_BEFORE = (15, 16)


class TrainingLog:
    """The rows of measurements by step.

    Going on from a checkpoint drops the rows after it, so that a step is never there twice.
    """

    def __init__(self, folder: Path, *, step: int = 0) -> None:
        """Open the files.

        Args:
            folder: the run folder.
            step: the last step that counts; rows beyond it are dropped.

        Raises:
            DatasetError: a file cannot be read or written.
            MissingExtraError: tensorboard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "train", "recording a training") from error
        self._path = folder / METRICS
        kept = [row for row in read_records(folder) if int(row["step"]) <= step]
        with replacing(self._path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Add a row; lists are written as JSON, and number by number on the board.

        Args:
            step: the step.
            values: the measurements by column.

        Raises:
            DatasetError: a file cannot be written.
        """
        row = {"step": step, **values}
        with explaining_write_errors(self._path):
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow({k: _text(v) for k, v in row.items()})
            for name, value in values.items():
                if isinstance(value, list):
                    flat = (
                        [v for row in value for v in row]
                        if value and isinstance(value[0], list)
                        else value
                    )
                    for number, each in enumerate(flat):
                        if each is not None:
                            self._board.add_scalar(f"{name}/{number}", each, step)
                else:
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what waits."""
        self._board.close()


def read_records(folder: Path) -> list[dict[str, str]]:
    """Read the rows of a run so far; a last line that was cut short is left out.

    Args:
        folder: the run folder.

    Raises:
        DatasetError: the file is of another kind.
    """
    path = folder / METRICS
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(whole.splitlines(keepends=True))
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"cannot read {path}: {error}") from error
    numbered = all((row["step"] or "").isdigit() for row in rows if "step" in row)
    columns = tuple(reader.fieldnames or ())
    known = [COLUMNS[:count] for count in (*_COLUMNS_BEFORE, len(COLUMNS))]
    if columns not in known or not numbered:
        raise DatasetError(f"{path} is damaged, or has other columns than this toolkit writes")
    return rows


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value)
    return f"{value:.7g}" if isinstance(value, float) else value
