"""What a path or a name means."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.submissions import codes

from threedident.errors import UsageError
from threedident.evaluate.submissions.submission import digest, identify

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def test_no_such_submission(tmp_path):
    for text, said in (
        ("encoder.exe", "cannot tell what 'encoder.exe' is"),
        ("none.npy", "there is no file none.npy"),
        ("reference:best", "unknown reference encoder 'best'"),
        ("reference:supervised", "which checkpoint"),
        ("reference:encoder", "which checkpoint"),
        ("reference:supervised=none.pt", "there is no file none.pt"),
    ):
        with pytest.raises(UsageError, match=said):
            identify(text)
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=r"empty is a folder without encoder\.pt: expected"):
        identify("empty")
    with pytest.raises(UsageError, match=r"found Linear: compute its codes.*score_codes.*ONNX"):
        identify(torch.nn.Linear(2, 2))
    os.mkfifo("pipe.npy")
    with pytest.raises(UsageError, match=r"there is no file pipe\.npy"):
        identify("pipe.npy")
    np.save(tmp_path / "a.npy", codes())
    with pytest.raises(UsageError, match="--checkpoint is for a Python factory"):
        identify(tmp_path / "a.npy", checkpoint=Path("a"))
    with pytest.raises(UsageError, match="there is no module no_such_thing"):
        digest(identify("no_such_thing:make", trust=True))
