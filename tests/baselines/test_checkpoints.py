from __future__ import annotations

from pathlib import Path

import pytest

from threedident.baselines.training import checkpoints
from threedident.errors import DatasetError


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.save_checkpoint(tmp_path, {"step": step})
    state, damaged = checkpoints.load_checkpoint(tmp_path)
    assert state is not None and state["step"] == 2 and not damaged
    path = tmp_path / checkpoints.CHECKPOINT
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    state, damaged = checkpoints.load_checkpoint(tmp_path)
    assert state is not None and state["step"] == 1 and len(damaged) == 1
    (tmp_path / checkpoints.PREVIOUS).write_bytes(b"")
    with pytest.raises(DatasetError, match="no whole checkpoint is left"):
        checkpoints.load_checkpoint(tmp_path)
