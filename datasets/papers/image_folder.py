"""Folders of images by class, as torchvision's `ImageFolder` takes them: ROOT/CLASS/NAME.png.

PNG and JPEG files of one size; the one factor is the class, numbered in the order of the names.
Grey images become images of three equal channels, as there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from threedident.columns import Column
from threedident.datasets.formats.source import ImageSource, UInt8, check_numbers
from threedident.datasets.papers import refuse_split
from threedident.errors import DatasetError
from threedident.storage.atomic_files import explaining_write_errors

FORM = "image-folder"
SUFFIXES = (".png", ".jpg", ".jpeg")
_FORMATS = ("PNG", "JPEG")
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_LOOKED_AT = 2  # folders of a class, by which the form is known
_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    UnidentifiedImageError,
    Image.DecompressionBombError,
)


def find(root: Path) -> bool:
    """Whether it holds folders alone, two or more, and these hold images alone."""
    from threedident.datasets.formats.family import find_family

    folders = _classes(root)
    if len(folders) < _LOOKED_AT:
        return False
    for folder in folders[:_LOOKED_AT]:
        names = _names(folder)
        if not names or not all(name.lower().endswith(SUFFIXES) for name in names):
            return False
    return find_family(root) is None


def _classes(root: Path) -> list[Path]:
    """The folders of a folder that holds nothing else, sorted by name; otherwise none."""
    if not root.is_dir():
        return []
    folders = []
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                return []
            folders.append(Path(entry.path))
    return sorted(folders)


def _names(folder: Path) -> list[str]:
    """The names of a folder's files, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith("."))


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open a folder of images by class.

    Raises:
        UsageError: a split is named; there is none.
        DatasetError: a class has no image, or something else lies among the images.
    """
    refuse_split(root, split)
    return _FolderSource(root)


class _FolderSource(ImageSource):
    form = FORM

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = _classes(root)
        self._paths: list[Path] = []
        classes: list[int] = []
        for number, folder in enumerate(folders):
            names = _names(folder)
            for name in names:
                if not name.lower().endswith(SUFFIXES):
                    raise DatasetError(
                        f"{folder / name} is no image: a folder of images by class holds "
                        f"{', '.join(SUFFIXES)} files"
                    )
            if not names:
                raise DatasetError(f"{folder} holds no image: remove the folder, or add images")
            self._paths += [folder / name for name in names]
            classes += [number] * len(names)
        if not self._paths:
            raise DatasetError(f"{root} holds no image")
        names_of_classes = tuple(folder.name for folder in folders)
        self.factor_columns = (Column("class", "discrete", None, names_of_classes),)
        self.factors = np.array(classes, np.float32)[:, None]
        self.shape = _read(self._paths[0], None).shape

    def read(self, indices: Sequence[int], out: UInt8) -> None:
        """Read images into an array (k, H, W, 3)."""
        for row, number in enumerate(check_numbers(indices, len(self))):
            out[row] = _read(self._paths[number], self.shape)

    def files(self) -> list[Path]:
        """The images."""
        return list(self._paths)


def _read(path: Path, shape: tuple[int, ...] | None) -> UInt8:
    """Read an image, (H, W, 3).

    Raises:
        DatasetError: it cannot be read, or has another size than image 0.
    """
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if shape is not None and (image.height, image.width) != shape[:2]:
                raise DatasetError(
                    f"{path} is {image.width} x {image.height}, and image 0 is {shape[1]} x "
                    f"{shape[0]}: expected one size; crop and resize the images to it first"
                )
            _check_mode(image, path)
            return np.asarray(image.convert("RGB"))
    except _UNREADABLE as error:
        raise DatasetError(f"cannot read {path}: {error}") from error


def _check_mode(image: Image.Image, path: Path) -> None:
    """Raise a DatasetError for an image that making it RGB would change without a word."""
    if image.mode not in _MODES:
        raise DatasetError(
            f"{path} has pixels of mode {image.mode}: expected 8 bits a channel (one of "
            f"{', '.join(_MODES)}); convert the images first"
        )
    clear = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    if clear and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        raise DatasetError(
            f"{path} is transparent in places: expected opaque images; put them on a background "
            "first"
        )


def write(root: Path, images: UInt8, classes: Sequence[str]) -> None:
    """Write a folder of PNG files by class.

    Args:
        root: the folder.
        images: the images, (N, H, W, 3).
        classes: the name of each image's class.

    Raises:
        DatasetError: a file cannot be written.
    """
    with explaining_write_errors(root):
        for number, (pixels, name) in enumerate(zip(images, classes, strict=True)):
            (root / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / name / f"{number:06d}.png", format="PNG")
