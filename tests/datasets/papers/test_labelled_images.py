from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from threedident.datasets.dataset import ImageDataset
from threedident.datasets.formats import open_dataset
from threedident.datasets.papers import cifar10, image_folder
from threedident.errors import DatasetError, UsageError


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_a_folder_of_images_is_read_by_class(tmp_path: Path) -> None:
    images = noise(5, 12, 9, 3)
    image_folder.write(tmp_path / "set", images, ["dog", "cat", "dog", "cat", "ant"])
    source = open_dataset(tmp_path / "set")
    assert (source.form, source.shape) == ("image-folder", (12, 9, 3))
    assert source.factor_columns[0].values == ("ant", "cat", "dog")
    assert source.factors[:, 0].tolist() == [0, 1, 1, 2, 2]
    assert np.array_equal(source.images([4, 0, 1]), images[[2, 4, 1]])
    assert len(source.files()) == 5
    dataset = ImageDataset(tmp_path / "set")
    assert dataset[0][0].shape == (3, 12, 9)
    with pytest.raises(UsageError, match="no splits"):
        open_dataset(tmp_path / "set", "train")


def test_grey_images_and_jpegs_become_three_channels(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((8, 8), 77, np.uint8)).save(tmp_path / name / "grey.png")
        Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(tmp_path / name / "x.jpeg")
    images = open_dataset(tmp_path).images([0, 1])
    assert images.shape == (2, 8, 8, 3)
    assert (images[0] == 77).all() and (abs(images[1].astype(int) - 200) <= 2).all()


def test_images_of_several_sizes_are_refused_when_they_are_read(tmp_path: Path) -> None:
    image_folder.write(tmp_path, noise(2, 8, 8, 3), ["a", "b"])
    Image.fromarray(noise(9, 8, 3)).save(tmp_path / "b" / "larger.png")
    source = open_dataset(tmp_path)
    with pytest.raises(DatasetError, match=r"larger\.png is 8 x 9, and image 0 is 8 x 8"):
        source.images([2])


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    image_folder.write(tmp_path, noise(3, 8, 8, 3), ["a", "b", "c"])
    (tmp_path / "c" / "notes.txt").write_text("no image")
    with pytest.raises(DatasetError, match=r"notes\.txt is no image"):
        open_dataset(tmp_path)
    (tmp_path / "c" / "notes.txt").unlink()
    (tmp_path / "a" / "000000.png").write_bytes(b"no image either")
    with pytest.raises(DatasetError, match=r"cannot read .*000000\.png"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["README.md", "a/nested/x.png"])
def test_other_folders_are_not_taken_for_classes(tmp_path: Path, name: str) -> None:
    image_folder.write(tmp_path, noise(2, 8, 8, 3), ["a", "b"])
    assert image_folder.find(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("something")
    assert not image_folder.find(tmp_path)


def write_cifar(folder: Path) -> np.ndarray:
    images = noise(12, 32, 32, 3)
    for number, name in enumerate((*cifar10.TRAIN, *cifar10.TEST)):
        pair = slice(2 * number, 2 * number + 2)
        cifar10.write(folder / name, images[pair], [number, 9])
    return images


def test_cifar10_is_read_in_its_binary_version(tmp_path: Path) -> None:
    images = write_cifar(tmp_path / "cifar-10-batches-bin")
    train = open_dataset(tmp_path)
    assert (train.form, len(train), train.shape) == ("cifar10", 10, (32, 32, 3))
    assert train.factors[:, 0].tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert np.array_equal(train.images([9, 0, 3]), images[[9, 0, 3]])
    for test in (
        open_dataset(tmp_path, "test"),
        open_dataset(tmp_path / "cifar-10-batches-bin" / "test_batch.bin"),
    ):
        assert np.array_equal(test.images([0, 1]), images[10:])
    # The layout: a class, then the planes of red, green and blue.
    content = (tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin").read_bytes()
    assert content[0] == 1 and content[1] == images[2, 0, 0, 0] and content[2] == images[2, 0, 1, 0]
    assert content[1025] == images[2, 0, 0, 1]
    with pytest.raises(UsageError, match="train and test"):
        open_dataset(tmp_path, "val")


def test_damaged_and_pickled_cifar10_is_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(DatasetError, match="a multiple of 3,073"):
        open_dataset(tmp_path)
    path.write_bytes(bytes([10]) + whole[1:])
    with pytest.raises(DatasetError, match="it names class 10"):
        open_dataset(tmp_path)
    path.unlink()
    with pytest.raises(DatasetError, match=r"cannot read .*data_batch_3\.bin"):
        open_dataset(tmp_path)
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "data_batch_1").write_bytes(b"\x80")
    with pytest.raises(DatasetError, match="pickles and could run any code"):
        open_dataset(tmp_path / "python")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000), "mode I;16"),
        (Image.fromarray(np.full((8, 8, 4), 100, np.uint8), "RGBA"), "transparent in places"),
    ],
)
def test_images_that_conversion_would_change_are_refused(image, said, tmp_path: Path) -> None:
    """Pillow makes white of most 16-bit greys, and leaves out that a pixel is transparent."""
    image_folder.write(tmp_path, noise(2, 8, 8, 3), ["a", "b"])
    image.save(tmp_path / "b" / "x.png")
    with pytest.raises(DatasetError, match=said):
        open_dataset(tmp_path).images([2])


def test_opaque_alpha_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    pixels = noise(8, 8, 4)
    pixels[..., 3] = 255
    for name in ("a", "b"):
        Image.fromarray(pixels, "RGBA").save(tmp_path / name / "x.png")
    assert np.array_equal(open_dataset(tmp_path).images([1])[0], pixels[..., :3])
