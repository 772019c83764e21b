"""The convolutional encoder, encoders with a Gaussian output, decoders, and their files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.fake_dataset import make
from torch import nn

from threedident.baselines import experiment_checks
from threedident.datasets.dataset import ThreeDIdent
from threedident.encoders import (
    ConvDecoder,
    ConvEncoder,
    GaussianOutput,
    ImageEncoder,
    MLPDecoder,
    MLPImageEncoder,
    UnboundedOutput,
    build,
    load_decoder,
    load_encoder,
    read_decoder,
    save_decoder,
    save_encoder,
)
from threedident.encoders.conv import SIDES
from threedident.encoders.decoders import build_decoder
from threedident.encoders.outputs import split_gaussian
from threedident.errors import DatasetError, UsageError
from threedident.evaluate.runner.process import Limits, run_encoder
from threedident.evaluate.submissions import onnx_export
from threedident.evaluate.submissions.submission import identify


def layers(network: nn.Module, kind: type[nn.Module]) -> list[tuple[int, ...]]:
    return [tuple(m.weight.shape) for m in network.modules() if isinstance(m, kind)]


def gaussian_encoder(channels: int = 1, side: int = 32, codes: int = 4) -> ImageEncoder:
    torch.manual_seed(1)
    body = ConvEncoder(2 * codes, channels, side)
    return ImageEncoder([0.0] * channels, [1.0] * channels, body, GaussianOutput(codes))


def test_the_networks_have_the_papers_layers():
    encoder, decoder = ConvEncoder(20, 1), ConvDecoder(10, 1)
    assert layers(encoder, nn.Conv2d) == [
        *((32, 1, 4, 4), (32, 32, 4, 4), (64, 32, 4, 4), (64, 64, 4, 4), (256, 64, 4, 4))
    ]
    assert layers(encoder, nn.Linear) == [(20, 256)]
    assert layers(decoder, nn.Linear) == [(256, 10)]
    assert layers(decoder, nn.ConvTranspose2d) == [
        *((256, 64, 4, 4), (64, 64, 4, 4), (64, 32, 4, 4), (32, 32, 4, 4), (32, 1, 4, 4))
    ]
    assert sum(type(m) is nn.ReLU for m in encoder.modules()) == 5
    assert sum(type(m) is nn.ReLU for m in decoder.modules()) == 5


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", SIDES)
def test_shapes(channels: int, side: int) -> None:
    images = torch.rand(2, channels, side, side)
    codes = ConvEncoder(7, channels, side)(images)
    assert codes.shape == (2, 7)
    assert ConvDecoder(7, channels, side)(codes).shape == images.shape
    inputs = channels * side * side
    assert MLPImageEncoder(7, inputs, 16)(images).shape == (2, 7)
    assert MLPDecoder(7, inputs, 16)(codes).shape == (2, inputs)
    assert SIDES == experiment_checks.CONV_SIDES


def test_weights_are_kaiming_normal_and_biases_zero_but_of_transposed_convolutions():
    torch.manual_seed(0)
    encoder, decoder = ConvEncoder(200, 3), ConvDecoder(200, 3)
    drawn = [m for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    drawn += [m for m in decoder.modules() if isinstance(m, nn.Linear)]
    for module in drawn:
        fan_in = module.weight[0].numel()
        assert module.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)
        assert not module.bias.any()
    for module in decoder.modules():
        if isinstance(module, nn.ConvTranspose2d):
            bound = module.weight[0].numel() ** -0.5  # torch's fan-in of a transposed convolution
            assert module.weight.abs().max().item() == pytest.approx(bound, rel=0.05)
            assert module.bias.any()


def test_images_of_another_size_are_refused():
    with pytest.raises(UsageError, match=r"1 x 64 x 64, found 1 x 32 x 32"):
        ConvEncoder(4, 1)(torch.zeros(2, 1, 32, 32))
    with pytest.raises(UsageError, match=r"3 x 64 x 64, found 1 x 64 x 64"):
        ConvEncoder(4, 3)(torch.zeros(2, 1, 64, 64))
    with pytest.raises(UsageError, match="12 numbers, found 1 x 4 x 4"):
        MLPImageEncoder(4, 12, 8)(torch.zeros(2, 1, 4, 4))
    for make_network in (ConvEncoder, ConvDecoder):
        with pytest.raises(UsageError, match=r"images of 64 x 64 \(or 32 x 32\), found 224"):
            make_network(4, 3, 224)
        with pytest.raises(UsageError, match="channels must be 1 or 3, found 4"):
            make_network(4, 4)


def test_a_gaussian_output_gives_the_means():
    encoder = gaussian_encoder()
    images = torch.randint(0, 256, (3, 1, 32, 32), dtype=torch.uint8)
    mean, log_variance = split_gaussian(encoder.before_output(images))
    assert torch.equal(encoder(images), mean)
    assert torch.equal(mean, encoder.encoder(images / 255)[:, :4])  # pixels in [0, 1]
    assert torch.equal(log_variance, encoder.encoder(images / 255)[:, 4:])


@pytest.mark.parametrize(
    "encoder",
    [
        gaussian_encoder(),
        gaussian_encoder(3, 64),
        ImageEncoder([0.0], [1.0], MLPImageEncoder(4, 32 * 32, 16), UnboundedOutput()),
    ],
)
def test_saved_encoders_come_back(tmp_path, encoder):
    save_encoder(tmp_path / "encoder.pt", encoder)
    loaded = load_encoder(tmp_path / "encoder.pt")
    side = encoder.spec["encoder"].get("side", 32)
    images = torch.randint(0, 256, (3, len(encoder.spec["mean"]), side, side), dtype=torch.uint8)
    assert loaded.spec == encoder.spec
    assert torch.equal(loaded(images), encoder(images))


def test_descriptions_that_do_not_fit():
    spec = gaussian_encoder().spec
    for changes, said in (
        ({"output": {"kind": "gaussian", "n": 5}}, "Gaussian over 5 codes needs .* found 8"),
        ({"mean": [0.0] * 3, "std": [1.0] * 3}, "of 1 channels needs a mean for each"),
        ({"encoder": {**spec["encoder"], "side": 48}}, "found 48"),
        ({"encoder": {"kind": "conv", "codes": 8}}, "conv is described by codes, channels, side"),
    ):
        with pytest.raises(UsageError, match=said):
            build({**spec, **changes})


@pytest.mark.parametrize("decoder", [ConvDecoder(3, 1, 32), MLPDecoder(3, 12, 8)])
def test_saved_decoders_come_back(tmp_path, decoder):
    path = tmp_path / "decoder.pt"
    save_decoder(path, decoder, {"steps": 3})
    loaded = load_decoder(path)
    codes = torch.randn(2, 3)
    assert type(loaded) is type(decoder)
    assert torch.equal(loaded(codes), decoder(codes))
    assert read_decoder(path)[1] == {"steps": 3}
    with pytest.raises(DatasetError, match="no encoder of this toolkit"):
        load_encoder(path)
    with pytest.raises(UsageError, match="expected a ConvDecoder or an MLPDecoder, found Linear"):
        save_decoder(path, torch.nn.Linear(2, 2))


def test_files_that_hold_no_decoder(tmp_path):
    path = tmp_path / "decoder.pt"
    save_encoder(path, gaussian_encoder())
    with pytest.raises(DatasetError, match="no decoder of this toolkit"):
        load_decoder(path)
    decoder = MLPDecoder(3, 12, 8)
    save_decoder(path, decoder)
    content = torch.load(path, weights_only=True)
    for spec, said in (
        ({**decoder.spec, "hidden": 10**9}, "hidden must be from 1 to"),
        ({**decoder.spec, "hidden": 90_000}, "size mismatch"),  # never allocated
        ({"kind": "mlp-decoder", "codes": 3}, "whole numbers codes, outputs, hidden"),
        ({"kind": "conv"}, "description of a decoder"),
    ):
        torch.save({**content, "spec": spec}, path)
        with pytest.raises(DatasetError, match=f"damaged: .*{said}"):
            load_decoder(path)
    assert build_decoder(decoder.spec).spec == decoder.spec


def test_an_exported_encoder_gives_torchs_codes_to_an_evaluation(tmp_path):
    encoder = gaussian_encoder(3).eval()
    make(tmp_path / "data", 20, side=32)
    data = ThreeDIdent(tmp_path / "data")
    exported = onnx_export.export_encoder(encoder, tmp_path / "encoder.onnx", resolution=32)
    assert exported.codes == 4
    codes = run_encoder(identify(tmp_path / "encoder.onnx"), data, Limits(batch_size=8)).codes
    with torch.no_grad():
        expected = encoder(data.images(range(20))).numpy()
    assert np.abs(codes - expected).max() < 1e-4
    assert expected.std(0).min() > 1e-3
