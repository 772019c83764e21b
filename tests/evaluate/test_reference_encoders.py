"""Reference encoders: the pixels, principal components, an untrained network."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.fake_dataset import MadeUp
from helpers.submissions import COUNT

from threedident.datasets.dataset import ImageDataset, ThreeDIdent
from threedident.datasets.formats.hdf5 import to_shards
from threedident.encoders import ImageEncoder, ResNetEncoder, UnboundedOutput, save_encoder
from threedident.errors import UsageError
from threedident.evaluate.metrics import linear_r2
from threedident.evaluate.reference_encoders import run_reference
from threedident.evaluate.submissions.submission import identify

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def reference(text, data, **options):
    return run_reference(identify(text), data, **options)


def test_identity_is_the_pixels(data):
    found = reference("reference:identity=4", data).codes
    pixels = data.images(range(COUNT)).double().reshape(COUNT, 3, 4, 4, 4, 4).mean((3, 5)) / 255
    assert np.allclose(found, pixels.flatten(1), atol=1e-6)
    assert reference("reference:identity", data).codes.shape == (COUNT, 16 * 16 * 3)


def test_identity_in_full_is_a_regression_on_all_pixels(data):
    """The same predictions of minimum norm as from the pixels themselves."""
    found = reference("reference:identity=full", data).codes
    assert found.shape == (COUNT, COUNT - 1)
    pixels = data.normalization()(data.images(range(COUNT))).flatten(1).double().numpy()
    z, half = data.raw_latents.double().numpy(), COUNT // 2

    def predicted(x):
        x = x - x[:half].mean(0)
        return x[half:] @ np.linalg.lstsq(x[:half], z[:half] - z[:half].mean(0), rcond=None)[0]

    assert np.allclose(predicted(found.astype(float)), predicted(pixels), atol=1e-3)
    assert np.abs(predicted(pixels)).max() > 0.1


def test_identity_in_full_keeps_what_hardly_varies(tmp_path):
    """One grey level of one pixel, in images that are otherwise black, or half bright."""
    made = MadeUp(COUNT, 16, None)
    bright, one = np.arange(COUNT) % 2, np.arange(COUNT) // 2 % 2
    made.pixels[:] = 0
    made.pixels[:, :, :8] = 200 * bright[:, None, None, None]
    made.pixels[:, 0, 0, 0] += one.astype(np.uint8)
    to_shards(made, tmp_path / "data")
    codes = reference("reference:identity=full", ThreeDIdent(tmp_path / "data")).codes
    assert codes.shape == (COUNT, 2)
    assert linear_r2(np.stack([bright, one], 1), codes).per_factor == pytest.approx(1, abs=1e-6)


def test_pca_gives_the_largest_components(data, root):
    found = reference("reference:pca=5", data)
    assert "fitted on the first half" in found.about
    pixels = data.images(range(COUNT)).flatten(1).double().numpy() / 255
    half = pixels[: COUNT // 2]
    _, spread, axes = np.linalg.svd(half - half.mean(0), full_matrices=False)
    expected = (pixels - half.mean(0)) @ axes[:5].T
    agree = np.abs((found.codes * expected).sum(0)) / (
        np.linalg.norm(found.codes, axis=0) * np.linalg.norm(expected, axis=0)
    )
    assert np.allclose(agree, 1, atol=1e-5)
    assert np.allclose(
        found.codes[: COUNT // 2].std(0), spread[:5] / (COUNT // 2) ** 0.5, rtol=1e-4
    )
    trained = reference("reference:pca=5", data, train=ThreeDIdent(root))
    assert "fitted on 40 training images" in trained.about
    assert not np.allclose(trained.codes, found.codes)
    with pytest.raises(UsageError, match="64 components need more"):
        reference("reference:pca=64", data)


def test_random_depends_on_the_seed_alone(data):
    first, again, other = (reference("reference:random", data, seed=s).codes for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert first.shape == (COUNT, 10)


def test_what_references_refuse(data):
    for text in ("reference:identity=0", "reference:pca=x", "reference:random=3"):
        with pytest.raises(UsageError, match=r"expected a number|takes no option"):
            reference(text, data)
    with pytest.raises(UsageError, match="--train is for reference:pca"):
        reference("reference:random", data, train=data)


def test_grey_images_have_an_untrained_network_of_their_own(tmp_path, data):
    grey = ImageDataset("drawn:sprites:3x1x1x4x4")
    found = reference("reference:random", grey)
    assert found.codes.shape == (48, 10)
    assert found.codes.std() > 0
    assert reference("reference:identity=4", grey).codes.shape == (48, 16)


def test_an_encoder_of_colours_is_refused_for_grey_images(tmp_path, data):
    """Normalised by three means, images of one channel would come to have three."""
    colours = ImageEncoder((0.5,) * 3, (0.2,) * 3, ResNetEncoder(4, width=8), UnboundedOutput())
    save_encoder(tmp_path / "encoder.pt", colours)
    name = f"reference:encoder={tmp_path / 'encoder.pt'}"
    assert reference(name, data).codes.shape == (COUNT, 4)
    with pytest.raises(UsageError, match="takes images of 3 channels, and drawn:sprites"):
        reference(name, ImageDataset("drawn:sprites:3x1x1x4x4"))
