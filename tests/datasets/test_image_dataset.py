"""`ImageDataset` on datasets whose factors are not the ten of 3DIdent, and what stands in front."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from threedident.cli import main
from threedident.datasets import ImageDataset, PositivePairs, ThreeDIdent, TwoViews, open_dataset
from threedident.datasets.dataset import open_images, require_images
from threedident.datasets.formats.preview import preview
from threedident.datasets.single_images import SingleImages
from threedident.encoders import ImageEncoder, ResNetEncoder, UnboundedOutput
from threedident.encoders.files import load_encoder, save_encoder
from threedident.errors import UsageError

SPRITES = "drawn:sprites:3x2x4x4x4"
NAMES = ("shape", "scale", "orientation", "posX", "posY")


@pytest.fixture(scope="module")
def sprites():
    return ImageDataset(SPRITES)


def test_an_item_is_a_grey_image_and_its_place_in_the_grid(sprites):
    image, factors = sprites[200]
    assert image.shape == (1, 64, 64) and image.dtype == torch.uint8
    assert factors.tolist() == sprites.source.grid.points(np.array(200)).tolist()
    assert sprites.factor_names == NAMES and len(sprites) == 3 * 2 * 4**3
    assert [column.kind for column in sprites.factor_columns][:3] == [
        "discrete",
        "continuous",
        "circular",
    ]


def test_factors_are_chosen_and_ordered_by_name():
    chosen = ImageDataset(SPRITES, factors=["posY", "shape"])
    assert chosen.factor_names == ("posY", "shape") and chosen.columns == (4, 0)
    assert chosen.factors.shape == (384, 2)
    with pytest.raises(UsageError, match=r"has no factor 'hue': expected some of shape, scale"):
        ImageDataset(SPRITES, factors="hue")
    with pytest.raises(UsageError, match="factors names no factor"):
        ImageDataset(SPRITES, factors=[])


def test_a_transform_gets_a_grey_picture():
    modes = []

    def transform(picture: Image.Image) -> torch.Tensor:
        modes.append(picture.mode)
        return torch.tensor(picture.size)

    dataset = ImageDataset(SPRITES, transform, lambda factors: factors * 2)
    image, factors = dataset[7]
    assert modes == ["L"] and image.tolist() == [64, 64]
    assert (factors == 2 * dataset.factors[7]).all()


def test_a_copy_in_memory_holds_the_same_images(sprites):
    cached = ImageDataset(SPRITES, cache="ram")
    numbers = [3, 383, 0]
    assert torch.equal(cached.images(numbers), sprites.images(numbers))


def test_mean_and_std_are_of_one_channel(sprites):
    images = sprites.images(range(384)).float() / 255
    assert sprites.mean == pytest.approx([images.mean().item()], abs=1e-5)
    within = images.std((1, 2, 3), unbiased=False).mean().item()
    assert sprites.std == pytest.approx([within], abs=1e-5)
    assert sprites.normalization()(sprites.images([0])).shape == (1, 1, 64, 64)


def test_the_kind_of_dataset_is_found(small_dataset):
    assert type(open_images(SPRITES)) is ImageDataset
    rendered = require_images(small_dataset)
    assert type(rendered) is ThreeDIdent
    assert torch.equal(rendered.factors, rendered.raw_latents)
    assert torch.equal(ImageDataset(small_dataset).factors, rendered.raw_latents)


def test_what_needs_the_ten_latents_says_so(sprites):
    with pytest.raises(UsageError, match=r"with the factors shape, .*this needs the ten latents"):
        ThreeDIdent(SPRITES)
    with pytest.raises(UsageError, match=r"has the factors shape, .*this needs the ten latents"):
        PositivePairs(sprites)


def test_views_and_single_images_hold_the_factors(sprites):
    views = TwoViews(sprites, batch_size=8)
    (z, z_tilde), (x, _) = views.batch(0, 0)
    assert torch.equal(z, z_tilde) and z.shape == (8, 5) and x.shape == (8, 1, 64, 64)
    (z,), (x,) = SingleImages(sprites, 16, 0).batch(0, 1)
    numbers = sprites.source.grid.index(z.long())
    assert torch.equal(sprites.images(numbers), x)


def test_fingerprints_tell_images_apart_and_not_forms(sprites):
    same, other = open_dataset(SPRITES), open_dataset("drawn:sprites:3x2x4x4x5")
    assert same.fingerprint == sprites.source.fingerprint != other.fingerprint


def test_an_encoder_of_grey_images_comes_back_from_its_file(tmp_path):
    encoder = ImageEncoder([0.1], [0.3], ResNetEncoder(3, width=8, channels=1), UnboundedOutput())
    save_encoder(tmp_path / "encoder.pt", encoder.eval())
    images = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    assert torch.equal(load_encoder(tmp_path / "encoder.pt")(images), encoder(images))
    with pytest.raises(UsageError, match="1 or 3 channels, found 2"):
        ResNetEncoder(3, channels=2)


def test_a_sheet_of_a_grid_is_a_fixed_sample(sprites):
    sheet = preview(sprites.source, 9)
    assert np.array_equal(np.asarray(sheet), np.asarray(preview(sprites.source, 9)))
    assert sheet.size[0] == 3 * (64 + 4) + 4


def test_a_sheet_of_sequences_has_one_in_a_row():
    source = open_dataset("drawn:blobs")
    sheet = preview(source, 24)
    assert sheet.size[0] == 12 * (64 + 4) + 4
    frame = np.asarray(sheet)[4:68, 4:68, 0]
    assert np.array_equal(frame, source.image(0)[..., 0])


@pytest.mark.parametrize("command", ["info", "stats", "preview"])
def test_commands_take_the_name_of_drawn_images(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [command, SPRITES])
    assert result.exit_code == 0, result.output
    if command == "preview":
        assert (tmp_path / "drawn-sprites-3x2x4x4x4-preview.png").exists()


def test_info_lists_the_factors_as_they_are():
    result = CliRunner().invoke(main, ["info", SPRITES, "--json"])
    other = json.loads(result.output)["other"]
    assert [each["name"] for each in other["factors"]] == list(NAMES)
    assert [each["size"] for each in other["factors"]] == [3, 2, 4, 4, 4]
    assert other["factors"][0]["values"] == ["square", "ellipse", "heart"]
