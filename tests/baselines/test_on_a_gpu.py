"""Losses and encoders on a GPU that is not there: every tensor must be on the same device.

torch's fake tensors have a device and a shape, and no content. An operation on tensors of two
devices fails as it does on a real GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from threedident.baselines import log_sum_exp as sums
from threedident.baselines.criterion import make_criterion
from threedident.baselines.experiment import Loss
from threedident.datasets import Box
from threedident.distributions import torch_sampler
from threedident.distributions.torch_density import powered_distance
from threedident.encoders import (
    BoxOutput,
    ImageEncoder,
    MLPEncoder,
    ResNetEncoder,
    SphereOutput,
    VectorEncoder,
)

CODES, ROWS = 10, 24


@pytest.fixture(autouse=True)
def fake():
    with FakeTensorMode():
        yield


def rows(count: int = ROWS) -> torch.Tensor:
    return torch.rand(count, CODES, device="cuda")


def test_two_devices_do_not_go_together():
    with pytest.raises(RuntimeError, match="device"):
        rows() + torch.rand(ROWS, CODES)


@pytest.mark.parametrize(
    ("options", "hard"),
    [
        ({"kind": "infonce", "p": 1.0}, 0),
        ({"kind": "infonce", "p": 2.0, "learn_tau": True}, 0),
        ({"kind": "infonce", "p": 3.0, "symmetric": True}, 0),
        ({"kind": "infonce", "p": 0.0, "normalize": True}, 0),
        ({"kind": "infonce", "negatives": "both", "own": False}, 0),
        ({"kind": "infonce"}, 2),
        ({"kind": "aninfonce"}, 0),
        ({"kind": "tricl"}, 0),
        ({"kind": "alignment-uniformity"}, 0),
        ({"kind": "mse"}, 0),
    ],
)
def test_losses(options, hard):
    with torch.device("cuda"):
        criterion = make_criterion(Loss(**options), CODES, hard=hard)
    views = [rows(), rows(), *([rows(hard * ROWS)] if hard else [])]
    if options["kind"] == "mse":
        views = views[:1]
    loss = criterion([each.bfloat16() for each in views], views)  # torch's own backward needs a GPU
    assert (loss.device.type, loss.dtype, loss.shape) == ("cuda", torch.float32, ())


@pytest.mark.parametrize("p", [None, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("offset", [None, 0, 5])
def test_both_passes_of_the_sums(p, offset):
    a, b = rows(), rows(2 * ROWS)
    assert sums._choose(a, b, "auto") == "torch"
    value, peak, total = sums._torch_forward(a, b, p, offset)
    assert {each.device.type for each in (value, peak, total)} == {"cuda"}
    of_a, of_b = sums._torch_backward(a, b, p, offset, peak, total)
    assert (of_a.shape, of_b.shape) == (a.shape, b.shape)
    assert of_a.device.type == of_b.device.type == "cuda"


@pytest.mark.parametrize("side", [32, 64, 224])
@pytest.mark.parametrize("last", [True, False])
def test_an_encoder_of_images(side, last):
    memory = torch.channels_last if last else torch.contiguous_format
    with torch.device("cuda"):
        body, output = ResNetEncoder(CODES, width=8), BoxOutput(CODES, learned=True)
        encoder = ImageEncoder((0.5,) * 3, (0.2,) * 3, body, output)
    images = torch.zeros(4, 3, side, side, dtype=torch.uint8, device="cuda")
    codes = encoder(images.contiguous(memory_format=memory))
    assert (codes.device.type, codes.shape) == ("cuda", (4, CODES))


def test_an_encoder_of_vectors():
    with torch.device("cuda"):
        encoder = VectorEncoder(MLPEncoder(CODES), SphereOutput(1.0, True))
    assert encoder(rows()).device.type == "cuda"


@pytest.mark.parametrize("scale", [0.1, tuple(0.1 * k for k in range(1, CODES + 1))])
@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_distances_of_resampling(scale, beta):
    distances = powered_distance(rows(), rows(2 * ROWS), scale, beta)
    assert (distances.device.type, distances.shape) == ("cuda", (ROWS, 2 * ROWS))


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_draws_around_means(beta):
    drawn = torch_sampler.additive(Box(CODES), rows(), 0.1, beta, None)
    assert (drawn.device.type, drawn.dtype, drawn.shape) == ("cuda", torch.float32, (ROWS, CODES))
