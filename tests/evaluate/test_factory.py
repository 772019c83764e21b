"""Python factories and torch's own files, which run their author's code."""

from __future__ import annotations

import textwrap
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.submissions import SIDE, channel_means, codes_of, refusal

from threedident.errors import UsageError
from threedident.evaluate.submissions.submission import digest, identify

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def test_code_needs_trust(tmp_path, data):
    (tmp_path / "mine.py").write_text("open('ran', 'w')")
    for name in ("a.pt2", "a.ts", "a.pt"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("a/code/x.py", "")
        with pytest.raises(UsageError, match=r"can run any code of its author.*Add --trust"):
            identify(tmp_path / name)
    with pytest.raises(UsageError, match=r"can run any code of its author.*Add --trust"):
        identify("mine:make")
    assert len(digest(identify("mine:make", trust=True))) == 64
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("factories")
def test_a_python_factory_gives_its_codes(tmp_path, data):
    (tmp_path / "checkpoint").write_text("2")
    submission = identify("mine:good", trust=True, checkpoint=tmp_path / "checkpoint")
    assert np.allclose(codes_of(submission, data), 2 * channel_means(data), rtol=1e-4)
    before = digest(submission)
    (tmp_path / "checkpoint").write_text("3")
    assert digest(submission) != before


class Means(torch.nn.Module):
    def forward(self, images):
        return images.float().mean((2, 3))


@pytest.fixture(scope="module")
def torch_files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    images = torch.zeros((2, 3, SIDE, SIDE), dtype=torch.uint8)
    batch = ({0: torch.export.Dim("B")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Means(), (images,), dynamic_shapes=batch)
        torch.export.save(program, folder / "a.pt2")
        torch.jit.save(torch.jit.script(Means()), folder / "a.ts")
    return folder


@pytest.mark.parametrize("name", ["a.pt2", "a.ts"])
def test_torch_files_give_their_codes(torch_files, data, name):
    submission = identify(torch_files / name, trust=True)
    assert submission.kind == "torch"
    assert np.allclose(codes_of(submission, data), channel_means(data), rtol=1e-4)


#: Takes torch's place where only the fate of the process is tested: torch takes seconds to load.
LIGHT_TORCH = """
    import contextlib

    class Tensor:
        pass

    def set_num_threads(count):
        pass

    def from_numpy(array):
        return array

    inference_mode = contextlib.nullcontext
"""


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("name", "said", "limits"),
    [
        ("sleeps", "mine:sleeps was stopped after 3 s", {"time": 3}),
        ("exits", "ended with exit code 7, with 0 of 40 images done", {}),
        ("crashes", "was ended by SIGSEGV", {}),
        ("raises", "mine:raises failed, with 0 of 40 images done: RuntimeError: no luck", {}),
        ("leaves", "SystemExit: gone", {}),
        ("allocates", "needs more than the 6 GB of memory it may use", {}),
        ("shares", "needs more than the 1.5 GB of memory it may use", {"memory": 1.5}),
        ("lies", "sent what makes no sense", {}),
        ("many", "gave 5000 codes for an image, expected 1 to 4096", {}),
        ("nothing", "has no function 'nothing'", {}),
    ],
)
def test_factories_that_do_not_fit(tmp_path, data, name, said, limits):
    (tmp_path / "torch.py").write_text(textwrap.dedent(LIGHT_TORCH))
    assert said in refusal(f"mine:{name}", data, trust=True, **limits)
