from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import fake_dataset as made


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images") / "data"
    made.make(root, 80, side=32)
    return root
