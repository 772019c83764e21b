from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from threedident.baselines.reproduce.readouts import READOUT, read_readout
from threedident.baselines.reproduce.runs import reproduce
from threedident.cli import main
from threedident.datasets.dataset import ImageDataset
from threedident.datasets.papers import image_folder
from threedident.distributions.torch_sampler import seeded
from threedident.encoders import (
    ImageEncoder,
    MLPEncoder,
    MLPImageEncoder,
    ResNetEncoder,
    SphereOutput,
    UnboundedOutput,
    VectorEncoder,
    save_encoder,
)
from threedident.encoders.features import backbone_and_codes
from threedident.errors import DatasetError, UsageError
from threedident.evaluate.readout import AUGMENTATIONS, Readout, _coins, read_out

SIDE, COUNT = 8, 200


def make_images(folder: Path, *, grey: bool = False) -> Path:
    """Noise around a colour: of class a bright, of class b dark."""
    generator = np.random.default_rng(0)
    bright = np.arange(COUNT) % 2 == 0
    colour = np.array([30.0, 0.0, -30.0]) if not grey else np.zeros(3)
    levels = np.where(bright, 170.0, 70.0)[:, None, None, None] + colour
    noise = generator.normal(0, 12, (COUNT, SIDE, SIDE, 1 if grey else 3))
    images = np.clip(levels + noise, 0, 255).astype(np.uint8)
    image_folder.write(folder, images, ["a" if each else "b" for each in bright])
    return folder


def colours_encoder() -> ImageEncoder:
    """An encoder whose backbone sees mean colours, and whose codes see the brightness alone."""
    body = MLPImageEncoder(1, 3 * SIDE * SIDE, 6)
    mean = torch.zeros(3, 3, SIDE, SIDE)
    for channel in range(3):
        mean[channel, channel] = 1 / SIDE**2
    with torch.no_grad():
        first, second, third = (body.layers[k] for k in (0, 2, 4))
        first.weight.copy_(torch.cat([mean, -mean]).flatten(1))
        second.weight.copy_(torch.eye(6))
        third.weight.copy_(torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]))
        for layer in (first, second, third):
            layer.bias.zero_()
    return ImageEncoder((0.0,) * 3, (1.0,) * 3, body, UnboundedOutput())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images") / "set")


def accuracy(result: Readout, name: str, place: str) -> float:
    return next(p.accuracy for p in result.probes if (p.name, p.place) == (name, place))


def test_a_resnets_backbone_is_what_its_averages_are() -> None:
    encoder = ImageEncoder((0.5,) * 3, (0.2,) * 3, ResNetEncoder(4, width=8), SphereOutput()).eval()
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    features, codes = backbone_and_codes(encoder, images)
    body = encoder.encoder.layers[0]
    x = encoder.normalize(images)
    for name, layer in body.named_children():
        x = layer(x) if name != "fc" else x
    torch.testing.assert_close(features, x.flatten(1))
    torch.testing.assert_close(codes, encoder(images))
    assert features.shape == (5, 64) and not body.fc._forward_pre_hooks


def test_what_an_encoder_keeps_and_drops_shows_in_its_backbone_and_codes(images: Path) -> None:
    result = read_out(colours_encoder(), images, only=["greyscale", "hue"], bootstrap=50)
    for place in ("backbone", "codes"):  # brightness tells the classes
        assert accuracy(result, "class", place) == 1
    assert accuracy(result, "greyscale", "backbone") > 0.95
    # The brightness of an image hardly changes when it loses its colour.
    assert accuracy(result, "greyscale", "codes") < 0.75
    assert result.sizes == {"backbone": 6, "codes": 1}
    assert (result.fitted, result.scored) == (COUNT // 2, COUNT // 2)
    for probe in result.probes:
        assert probe.low is not None and probe.high is not None
        assert 0 <= probe.low <= probe.accuracy <= probe.high <= 1
        assert probe.chance == 0.5
    assert "greyscale" in result.text() and "50.0" in result.text()


def test_an_augmentation_that_changes_nothing_is_at_chance(tmp_path: Path) -> None:
    grey = make_images(tmp_path / "grey", grey=True)
    result = read_out(colours_encoder(), grey, only="greyscale", bootstrap=0)
    assert 0.3 < accuracy(result, "greyscale", "backbone") < 0.7
    assert result.probes[0].low is None


def test_read_outs_depend_on_the_seed_alone(images: Path) -> None:
    dataset, encoder = ImageDataset(images), colours_encoder()
    state = torch.random.get_rng_state()
    first, again = (read_out(encoder, dataset, only=["contrast"], bootstrap=20) for _ in range(2))
    assert first == again
    assert torch.equal(torch.random.get_rng_state(), state)
    among = read_out(encoder, dataset, only=["blur", "contrast"], bootstrap=20)
    assert among.probes[-2:] == first.probes[-2:]
    other = read_out(encoder, dataset, only=["contrast"], bootstrap=20, seed=1)
    assert other.probes != first.probes


def test_half_of_each_half_is_augmented() -> None:
    coins = _coins(60, seeded(0))
    assert coins[:30].sum() == coins[30:].sum() == 15
    assert coins.tolist() != sorted(coins.tolist())


def test_what_does_not_fit_is_refused(images: Path, tmp_path: Path) -> None:
    encoder = colours_encoder()
    with pytest.raises(UsageError, match="unknown augmentation 'rotation'"):
        read_out(encoder, images, only=["rotation"])
    with pytest.raises(UsageError, match="expected images >= 20"):
        read_out(encoder, images, images=10)
    image_folder.write(tmp_path / "few", np.zeros((4, SIDE, SIDE, 3), np.uint8), ["a", "b"] * 2)
    with pytest.raises(UsageError, match="holds 4 images: expected at least 20"):
        read_out(encoder, tmp_path / "few")
    grey = ImageEncoder((0.0,), (1.0,), MLPImageEncoder(2, SIDE * SIDE, 4), UnboundedOutput())
    with pytest.raises(UsageError, match="takes images of 1 channels"):
        read_out(grey, images)
    digits = ImageEncoder((0.0,), (1.0,), MLPImageEncoder(2, 64, 4), UnboundedOutput())
    with pytest.raises(UsageError, match="hue is for images of three channels"):
        read_out(digits, "sklearn:digits", only=["hue"])
    vectors = tmp_path / "vectors.pt"
    save_encoder(vectors, VectorEncoder(MLPEncoder(4), UnboundedOutput()))
    with pytest.raises(UsageError, match="is an encoder of vectors"):
        read_out(vectors, images)


def test_grey_images_have_the_augmentations_that_change_them() -> None:
    encoder = ImageEncoder((0.0,), (1.0,), MLPImageEncoder(2, 64, 4), UnboundedOutput())
    result = read_out(encoder, "sklearn:digits", images=60, bootstrap=0)
    names = {probe.name for probe in result.probes}
    assert names == {"class", "brightness", "contrast", "crop", "blur"}
    assert {p.chance for p in result.probes if p.name == "class"} == {0.1}
    assert {*AUGMENTATIONS} - names == {"greyscale", "hue", "saturation"}


def test_the_command_prints_and_writes_the_scores(images: Path, tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder.pt", colours_encoder())
    out = tmp_path / "readout.json"
    words = ["readout", str(tmp_path), "--data", str(images), "--augmentations", "greyscale,crop"]
    done = CliRunner().invoke(main, [*words, "--bootstrap", "10", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "probes fitted on 100 images and scored on 100 others" in done.output
    plain = json.loads(out.read_text())
    assert plain["format"] == "3dident-readout"
    assert [p["name"] for p in plain["probes"][::2]] == ["class", "greyscale", "crop"]
    wrong = CliRunner().invoke(main, [*words[:-1], "greyscale,colour"])
    assert wrong.exit_code != 0 and "unknown augmentation 'colour'" in wrong.output


def test_the_study_reads_out_of_its_runs(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name in ("train", "test"):
        pixels = generator.integers(0, 256, (64, 32, 32, 3), np.uint8)
        image_folder.write(tmp_path / name, pixels, ["a", "b"] * 32)
    out = tmp_path / "out"
    table = reproduce(
        "readout",
        out,
        rows="aninfonce",
        scale="smoke",
        data=tmp_path / "train",
        test=tmp_path / "test",
        changes={"training.steps": 2, "encoder.codes": 4},
        device="cpu",
        quiet=True,
    ).read_text("utf-8")
    assert "(80.1)" in table and "| `readout-aninfonce` | codes |" in table
    folder = out / "runs" / "readout-aninfonce" / "seed0"
    scores = read_readout(folder)
    assert scores is not None and {"class_codes", "mean_backbone", "blur_codes"} <= set(scores)
    (folder / READOUT).write_text('{"format": "3dident-readout", "settings": {}, "probes": 3}')
    with pytest.raises(DatasetError, match="Remove it to probe the run again"):
        read_readout(folder)
