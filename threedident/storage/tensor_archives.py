"""Archives of tensors, as torch writes them: checkpoints and encoders."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 32


def write_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain data into a file.

    Python opens the file, so that errors name the disk; those of torch name lines of C++.
    """
    import torch

    with path.open("wb") as file:
        torch.save(dict(content), file)


def check_archive(path: Path) -> None:
    """Refuse a file of tensors that unfolds to more than it holds, before any of it is read.

    Raises:
        ValueError, NotImplementedError, BadZipFile: it does, or it is no archive of tensors.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not stored or sum(entry.file_size for entry in entries) > _MOST_BYTES:
        raise ValueError(f"it is compressed, or declares more than {_MOST_BYTES} bytes")
