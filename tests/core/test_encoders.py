"""Encoders of the papers, their files, and their export to ONNX."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import warnings
import zipfile

import numpy as np
import pytest
import torch
from helpers.fake_dataset import make
from torch import nn

from threedident.datasets.dataset import ThreeDIdent
from threedident.encoders import (
    BoxOutput,
    ImageEncoder,
    MLPEncoder,
    ResNetEncoder,
    SphereOutput,
    UnboundedOutput,
    VectorEncoder,
    WhitenedMLP,
    build,
    load_encoder,
    read_encoder,
    save_encoder,
)
from threedident.errors import DatasetError, UsageError
from threedident.evaluate.runner.process import Limits, run_encoder
from threedident.evaluate.submissions import onnx_export as exporting
from threedident.evaluate.submissions.submission import identify

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8))


def image_encoder(output=None, codes=10):
    torch.manual_seed(1)
    return ImageEncoder(
        [0.4, 0.5, 0.6], [0.2, 0.3, 0.1], ResNetEncoder(codes), output or UnboundedOutput()
    )


def test_the_encoders_have_the_papers_layers():
    resnet = ResNetEncoder(7)
    assert resnet.layers[0].fc.out_features == 70
    assert [type(m).__name__ for m in resnet.layers[1:]] == ["LeakyReLU", "ExactLinear"]
    assert (resnet.layers[2].in_features, resnet.layers[2].out_features) == (70, 7)
    mlp = MLPEncoder(10)
    shapes = [m.weight.shape[::-1] for m in mlp.layers if isinstance(m, torch.nn.Linear)]
    widths = [10, 100, 500, 500, 500, 500, 100, 10]
    assert shapes == list(itertools.pairwise(widths))
    slopes = [m.negative_slope for m in mlp.layers if isinstance(m, torch.nn.LeakyReLU)]
    assert slopes == [0.01] * 6
    assert MLPEncoder(4, 6)(torch.zeros(2, 4)).shape == (2, 6)
    with pytest.raises(UsageError, match="unknown architecture 'vgg'"):
        ResNetEncoder(10, "vgg")


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_a_narrow_resnet_has_all_its_channels_scaled_and_is_kept(tmp_path, arch):
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in ResNetEncoder(3, arch).state_dict().items()}
    narrow = ResNetEncoder(3, arch, 16)
    assert narrow.spec["width"] == 16
    assert "width" not in ResNetEncoder(3, "resnet18").spec  # its files are what they were

    def scaled(name, shape):
        """Channels by 16 / 64; not the image's, the outputs, nor what follows them."""
        if name.startswith("layers.2.") or name == "layers.0.fc.bias":
            return tuple(shape)
        fixed = 1 if name in ("layers.0.conv1.weight", "layers.0.fc.weight") else 2
        parts = list(shape)
        if name == "layers.0.fc.weight":
            parts[1] //= 4
        else:
            parts[:fixed] = [each // 4 for each in parts[:fixed]]
        return tuple(parts)

    assert {k: tuple(v.shape) for k, v in narrow.state_dict().items()} == {
        k: scaled(k, shape) for k, shape in shapes.items()
    }
    encoder = ImageEncoder((0.5,) * 3, (0.2,) * 3, narrow, UnboundedOutput()).eval()
    save_encoder(tmp_path / "encoder.pt", encoder)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    loaded = load_encoder(tmp_path / "encoder.pt")
    assert loaded.spec == encoder.spec
    with torch.no_grad():
        assert torch.equal(loaded(images), encoder(images))
        assert encoder(images).std() > 0
    for width in (0, "wide"):
        spec = {**encoder.spec, "encoder": {**narrow.spec, "width": width}}
        with pytest.raises(UsageError, match="width must be"):
            build(spec)


def test_the_output_spaces():
    codes = torch.tensor([[3.0, -4.0], [0.0, 2.0]])
    assert torch.equal(UnboundedOutput()(codes), codes)
    sphere = SphereOutput(2.0, learned=True)
    assert torch.allclose(sphere(codes), torch.tensor([[1.2, -1.6], [0.0, 2.0]]))
    box = BoxOutput(2)
    assert torch.allclose(box(codes), torch.sigmoid(codes))
    learned = BoxOutput(2, learned=True)
    with torch.no_grad():
        learned.bound.copy_(torch.tensor([2.0, 5.0]))
    assert torch.allclose(learned(codes), torch.sigmoid(codes) * torch.tensor([2.0, 5.0]))
    free = [
        [p.requires_grad for p in m.parameters()] for m in (sphere, SphereOutput(), learned, box)
    ]
    assert free == [[True], [False], [True], [False]]
    with pytest.raises(UsageError, match="above 0"):
        SphereOutput(0.0)


def test_an_image_encoder_normalises():
    encoder = image_encoder(SphereOutput()).eval()
    mean, std = (torch.tensor(v)[:, None, None] for v in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.1]))
    with torch.inference_mode():
        expected = encoder.encoder((IMAGES / 255 - mean) / std)
        found = encoder(IMAGES)
    assert torch.allclose(found.norm(dim=1), torch.ones(3))
    assert torch.allclose(found, expected / expected.norm(dim=1, keepdim=True), atol=1e-5)
    with pytest.raises(UsageError, match="uint8"):
        encoder(IMAGES.float())


@pytest.mark.parametrize(
    "made",
    [
        lambda: image_encoder(SphereOutput(1.5, learned=True)),
        lambda: image_encoder(BoxOutput(4, learned=True), 4),
        lambda: VectorEncoder(MLPEncoder(10), BoxOutput(10)),
    ],
)
def test_a_saved_encoder_comes_back(tmp_path, made):
    encoder = made()
    for parameter in encoder.parameters():  # also those that are not learned
        parameter.data += 0.01
    path = tmp_path / "encoder.pt"
    before = torch.get_rng_state()
    save_encoder(path, encoder, {"steps": 3, "loss": [0.5, None]})
    loaded, about = read_encoder(path)
    assert torch.equal(before, torch.get_rng_state())
    assert about == {"steps": 3, "loss": [0.5, None]}
    assert loaded.spec == encoder.spec
    assert not loaded.training
    given = IMAGES if isinstance(encoder, ImageEncoder) else torch.rand(5, 10)
    with torch.inference_mode():
        assert torch.equal(loaded(given), encoder.eval()(given))
    assert {n for n, p in loaded.named_parameters() if p.requires_grad} == {
        n for n, p in encoder.named_parameters() if p.requires_grad
    }
    assert build(encoder.spec).spec == encoder.spec
    assert [p.name for p in tmp_path.iterdir()] == ["encoder.pt"]


class Trap:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("trapped",))


def content(**changes):
    encoder = VectorEncoder(MLPEncoder(2), UnboundedOutput())
    made = {
        "format": "3dident-encoder",
        "format_version": 1,
        "spec": encoder.spec,
        "state": dict(encoder.state_dict()),
        "about": {},
    }
    return {**made, **changes}


def without_a_weight():
    state = content()["state"]
    state.pop("encoder.layers.0.bias")
    return state


def with_a_weight(value):
    return {**content()["state"], "encoder.layers.0.bias": value}


SPEC = {"kind": "vector", "encoder": {"kind": "mlp", "n": 2, "codes": 2}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "no encoder of this toolkit"),
        ({"format_version": 2}, "format version 2; this toolkit reads version 1"),
        ({"about": Trap()}, "cannot read .* as an encoder"),
        ({"about": None}, "lacks `about`"),
        ({"state": [1]}, "no tensors by name"),
        ({"state": without_a_weight()}, "damaged: .*Missing key"),
        ({"state": with_a_weight(torch.zeros(3))}, "damaged: .*size mismatch"),
        ({"state": with_a_weight(torch.zeros(20).double())}, "is torch.float64, expected"),
        ({"state": with_a_weight(torch.full((20,), torch.nan))}, "not finite"),
        ({"spec": None}, "description of an encoder's part"),
        ({"spec": {**SPEC, "output": {"kind": "box", "n": 3, "learned": True}}}, "box of as many"),
        ({"spec": {**SPEC, "output": {"kind": "box", "n": 2}}}, "box is described by n, learned"),
        ({"spec": {**SPEC, "output": {"kind": "sphere", "radius": 1, "learned": 0}}}, "must be"),
        # Weights of 25 terabytes, which must not be made.
        (
            {
                "spec": {
                    "kind": "vector",
                    "encoder": {"kind": "mlp", "n": 50_000, "codes": 2},
                    "output": {"kind": "unbounded"},
                }
            },
            "damaged: .*size mismatch",
        ),
        (
            {"spec": {**SPEC, "encoder": {**SPEC["encoder"], "n": 10**9}, "output": {}}},
            "from 1 to|of kind",
        ),
    ],
)
def test_a_file_that_is_no_encoder_of_ours(tmp_path, changes, said):
    path = tmp_path / "encoder.pt"
    torch.save(content(**changes), path)
    with pytest.raises(DatasetError, match=said):
        load_encoder(path)
    assert not (tmp_path / "trapped").exists()


def test_other_files_are_no_encoders(tmp_path):
    path = tmp_path / "encoder.pt"
    with pytest.raises(DatasetError, match="there is no such file"):
        load_encoder(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DatasetError, match="no encoder of this toolkit"):
        load_encoder(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10_000_000))
    with pytest.raises(DatasetError, match="compressed, or declares more"):
        load_encoder(path)
    assert not (tmp_path / "trapped").exists()
    with pytest.raises(UsageError, match="plain data for JSON"):
        save_encoder(path, image_encoder(), {"loss": float("nan")})


def test_export_gives_one_file_with_torchs_codes(cli, tmp_path):
    encoder = image_encoder(BoxOutput(4, learned=True), 4)
    encoder.train()
    with torch.no_grad():  # statistics of batch normalisation that are not 0 and 1
        encoder(IMAGES)
    save_encoder(tmp_path / "encoder.pt", encoder)
    said = cli("export", "encoder.pt", "--out", "made/encoder.onnx", "--resolution", 32).stdout
    assert "4 codes, opset 18" in said
    path = tmp_path / "made" / "encoder.onnx"
    assert [p.name for p in path.parent.iterdir()] == ["encoder.onnx"]
    assert str(tmp_path).encode() not in path.read_bytes()
    assert b"encoders.py" not in path.read_bytes()
    make(tmp_path / "data", 20, side=32)
    data = ThreeDIdent(tmp_path / "data")
    with torch.inference_mode():
        expected = load_encoder(tmp_path / "encoder.pt")(data.images(range(20))).numpy()
    found = run_encoder(identify(path), data, Limits(batch_size=8)).codes
    assert np.abs(found - expected).max() < 1e-4
    assert np.abs(expected - expected.mean(0)).max() > 1e-3  # or anything would agree


def test_an_export_that_differs_is_refused(tmp_path):
    class Means(UnboundedOutput):
        """Takes less time to export than a ResNet."""

        def forward(self, images):
            return images.mean((2, 3))

    class Off(UnboundedOutput):
        """Gives other codes when it is exported."""

        def forward(self, codes):
            return codes + 0.01 if torch.compiler.is_exporting() else codes

    encoder = ImageEncoder([0.4, 0.5, 0.6], [0.2, 0.3, 0.1], Means(), Off())
    with pytest.raises(UsageError, match=r"differ from torch's by 0\.01.*not written"):
        exporting.export_encoder(encoder, tmp_path / "a.onnx", resolution=32)
    assert not list(tmp_path.iterdir())


def test_what_export_refuses(tmp_path):
    path, out = tmp_path / "vector.pt", tmp_path / "a.onnx"
    save_encoder(path, VectorEncoder(MLPEncoder(2), UnboundedOutput()))
    with pytest.raises(UsageError, match="encoder of vectors"):
        exporting.export(path, out)
    with pytest.raises(UsageError, match=r"must end in \.onnx"):
        exporting.export(path, tmp_path / "a.pt")
    with pytest.raises(DatasetError, match="no such file"):
        exporting.export(tmp_path / "none.pt", out)
    assert not out.exists()


def test_a_checkpoint_is_told_from_torchscript(tmp_path):
    path = tmp_path / "encoder.pt"
    save_encoder(path, VectorEncoder(MLPEncoder(2), UnboundedOutput()))
    assert identify(path) == identify(f"reference:encoder={path}")
    torch.save({"state": torch.zeros(2)}, path)
    with pytest.raises(UsageError, match=r"no TorchScript file, nor an encoder of this toolkit"):
        identify(path, trust=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    assert identify(path, trust=True).kind == "torch"


@pytest.mark.parametrize("side", [16, 32, 64])
def test_small_maps_give_what_convolutions_give(side: int) -> None:
    torch.manual_seed(0)
    encoder = ResNetEncoder(2).double()
    plain = copy.deepcopy(encoder)
    swapped = 0
    for module in plain.modules():
        if isinstance(module, nn.Conv2d) and type(module) is not nn.Conv2d:
            module.__class__ = nn.Conv2d
            swapped += 1
    assert swapped == 16  # of a ResNet-18: all of 3 x 3
    images = torch.randn(4, 3, side, side, dtype=torch.float64)
    gradients = []
    for each in (encoder, plain):
        codes = each(images)
        codes.square().sum().backward()
        gradients.append([codes, *(p.grad for p in each.parameters())])
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_whitening_gives_unit_covariance_and_is_kept(tmp_path):
    torch.manual_seed(0)
    seen = torch.randn(4000, 3) @ torch.tensor([[2.0, 1, 0], [0, 0.1, 0.05], [0, 0, 0.03]]) + 7
    body = WhitenedMLP(3)
    plain = MLPEncoder(3)
    plain.load_state_dict({k: v for k, v in body.state_dict().items() if "layers" in k})
    assert torch.allclose(body(seen), plain(seen))  # until then the identity
    body.whiten(seen)
    white = (seen - body.mean) @ body.matrix
    assert torch.allclose(torch.cov(white.T), torch.eye(3), atol=1e-3)
    assert torch.allclose(white.mean(0), torch.zeros(3), atol=1e-3)
    assert torch.equal(body(seen), plain(white))
    encoder = VectorEncoder(body, UnboundedOutput())
    save_encoder(tmp_path / "encoder.pt", encoder)
    assert torch.equal(load_encoder(tmp_path / "encoder.pt")(seen), encoder(seen))
    with pytest.raises(UsageError, match="do not vary"):
        body.whiten(seen[:, [0, 1, 1]])


def test_only_encoders_of_the_toolkit_are_saved_and_at_paths(tmp_path):
    path = tmp_path / "encoder.pt"
    with pytest.raises(UsageError, match=r"path of a file, found ImageEncoder: save_encoder\(path"):
        save_encoder(image_encoder(), path)
    for other in (torch.nn.Linear(2, 2), "encoder"):
        with pytest.raises(UsageError, match=r"expected an ImageEncoder .* torch\.onnx\.export"):
            save_encoder(path, other)
    assert not path.exists()


@pytest.mark.parametrize(
    ("record", "options", "side", "said"),
    [
        ({"resolution": 32}, (), 32, "for images of 32 x 32 (as it was trained on), "),
        ({}, (), 224, "for images of 224 x 224 (the default), "),
        ({"resolution": 32}, ("--resolution", 64), 64, "for images of 64 x 64, "),
        ({"resolution": "huge"}, (), 224, "for images of 224 x 224 (the default), "),
    ],
)
def test_an_export_takes_images_of_the_resolution_of_the_training(
    cli, tmp_path, monkeypatch, record, options, side, said
):
    save_encoder(tmp_path / "encoder.pt", image_encoder(), {"data": record})
    sides = []

    def export_encoder(encoder, out, *, resolution, trained_on):
        sides.append(resolution)
        return exporting.Exported(out, 1, 18, 4, 0.0, resolution)

    monkeypatch.setattr(exporting, "export_encoder", export_encoder)
    assert said in cli("export", "encoder.pt", "--out", "a.onnx", *options).stdout
    assert sides == [side]
