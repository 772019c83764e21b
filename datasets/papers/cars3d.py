"""Cars3D as published: `nips2015-analogy-data.tar.gz`, or its folder `data/cars`.

`list.txt` names the types in their order, a line each, without an ending; `TYPE.mat` holds `im`
(128, 128, 3, 24, 4): azimuths, elevations. The grid is elevation 4, azimuth 24, type 183. Images
of more than 64 pixels a side are made smaller, to 64 x 64, with Pillow's Lanczos filter, as
disentanglement_lib does. Archives are read as streams: nothing is extracted to disk.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
from PIL import Image

from threedident.datasets.formats.source import ImageSource, UInt8
from threedident.datasets.papers import matlab, refuse_split
from threedident.datasets.papers.image_arrays import (
    ArraySource,
    HeldImages,
    check_image_shape,
    explaining,
    varying,
)
from threedident.distributions.grid import Grid
from threedident.errors import DatasetError
from threedident.progress import Progress
from threedident.storage.atomic_files import explaining_write_errors, replacing

FORM = "cars3d"
NAMES = ("elevation", "azimuth", "type")
SIDE = 64
LIST = "list.txt"
_FOLDERS = (".", "cars", "data/cars")
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_ARRAY = "im"
_TYPE = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MOST_TYPES = 10_000
_DAMAGE = (tarfile.TarError, zlib.error)
_LONGEST_LIST = 1 << 20  # bytes
_LONGEST_READ = 1 << 27  # bytes that the parser of archives may ask for at once
_LONGEST_ARCHIVE = 1 << 32  # bytes, unpacked
_SEARCHED = 1 << 29  # bytes of an archive that are searched for cars


def find(root: Path) -> bool:
    """Whether it is the folder or the archive, by the files in it."""
    if root.is_dir():
        return _folder(root) is not None
    if not root.is_file() or not root.name.lower().endswith(_ARCHIVES):
        return False
    with contextlib.suppress(DatasetError):
        for name, _ in _members(root, _SEARCHED):
            if name == LIST or name.endswith("_mesh.mat"):
                return True
    return False


def open(root: Path, split: str | None = None) -> ImageSource:
    """Open the folder or the archive.

    Raises:
        UsageError: a split is named; there is none.
        DatasetError: a file is missing or damaged.
    """
    refuse_split(root, split)
    with explaining(root, *_DAMAGE):
        types, shapes = _contents(root)
    first = next(iter(shapes))
    shape = shapes[first]
    if len(shape) != 5 or min(shape) < 1:
        raise DatasetError(
            f"{root}: {_ARRAY} of {first} is {shape}, expected (height, width, 3, azimuths, "
            "elevations)"
        )
    height, width, channels, azimuths, elevations = shape
    if max(height, width) > SIDE:
        height = width = SIDE
    grid = Grid(
        (elevations, azimuths, len(types)),
        NAMES,
        categorical=("type",),
        periods={"azimuth": azimuths},
    )
    size = (len(grid), height, width, channels)
    check_image_shape(root, _ARRAY, size, (3,))
    images = HeldImages(root, size, functools.partial(_load, root, types, shape, size))
    return ArraySource(root, FORM, images, grid=varying(grid), files=_files(root))


def _folder(root: Path) -> Path | None:
    """The folder that holds the cars."""
    for name in _FOLDERS:
        if any((root / name).glob("car_*_mesh.mat")):
            return root / name
    return None


def _files(root: Path) -> list[Path]:
    folder = _folder(root) if root.is_dir() else None
    return [root] if folder is None else sorted(folder.glob("*.mat"))


def _contents(root: Path) -> tuple[list[str], Mapping[str, tuple[int, ...]]]:
    """The types in their order, and the sizes of the array of one of them."""
    names: set[str] = set()
    shapes: dict[str, tuple[int, ...]] = {}
    types: list[str] | None = None
    for name, file in _members(root, _LONGEST_ARCHIVE):
        if name == LIST:
            types = _parse_list(file.read(_LONGEST_LIST + 1), root)
        elif name.endswith(".mat"):
            names.add(name.removesuffix(".mat"))
            if not shapes:
                shapes[name] = matlab.shape_of(file, _ARRAY, name)
    if types is None:
        raise DatasetError(
            f"{root} lacks cars/{LIST}, which gives the order of the types: the order of the files "
            "is not fixed"
        )
    lacking = [name for name in types if name not in names]
    if lacking:
        raise DatasetError(
            f"{root} lacks {lacking[0]}.mat, and {len(lacking) - 1} more of the {len(types)} types "
            f"in {LIST}"
        )
    return types, shapes


def _parse_list(content: bytes, root: Path) -> list[str]:
    names = [line.strip() for line in content.decode("latin-1").splitlines()]
    types = [name.removesuffix(".mat") for name in names if name]
    plain = all(_TYPE.fullmatch(name) for name in types)
    if not plain or not types or len(set(types)) < len(types) or len(types) > _MOST_TYPES:
        raise DatasetError(
            f"{root}: {LIST} is damaged: expected up to {_MOST_TYPES} different names of files "
            "such as car_001_mesh, a line each"
        )
    return types


def _load(root: Path, types: Sequence[str], shape: tuple[int, ...], size: tuple[int, ...]) -> UInt8:
    """Read the images of all types, in the order of the grid."""
    *_, azimuths, elevations = shape
    places = {f"{name}.mat": k for k, name in enumerate(types)}
    images = np.empty((elevations, azimuths, len(types), *size[1:]), np.uint8)
    with Progress(f"reading {root.name}", len(types)) as progress, explaining(root, *_DAMAGE):
        for name, file in _members(root, _LONGEST_ARCHIVE):
            if name not in places:
                continue
            array = matlab.read_array(file, _ARRAY, name)
            if array.shape != shape:
                raise DatasetError(
                    f"{root}: {_ARRAY} of {name} is {array.shape}, expected {shape} as in others"
                )
            pictures = np.ascontiguousarray(array.transpose(4, 3, 0, 1, 2))
            images[:, :, places.pop(name)] = _resize(pictures, size)
            progress.advance()
    if places:
        raise DatasetError(f"{root} lacks {min(places)}")
    return images.reshape(size)


def _resize(pictures: UInt8, size: tuple[int, ...]) -> UInt8:
    """Make pictures (elevations, azimuths, H, W, 3) as large as images are."""
    if pictures.shape[2:] == size[1:]:
        return pictures
    flat = pictures.reshape(-1, *pictures.shape[2:])
    sides = (size[2], size[1])
    smaller = [Image.fromarray(each).resize(sides, Image.Resampling.LANCZOS) for each in flat]
    return np.stack([np.asarray(each) for each in smaller]).reshape(*pictures.shape[:2], *size[1:])


def _members(root: Path, limit: int) -> Iterator[tuple[str, IO[bytes]]]:
    """The names and contents of the cars' files, each to be read before the next one."""
    folder = _folder(root) if root.is_dir() else None
    if folder is not None:
        for path in sorted(folder.iterdir()):
            if path.name == LIST or path.suffix == ".mat":
                with explaining(path), path.open("rb") as file:
                    yield path.name, file
        return
    with contextlib.ExitStack() as opened:
        opened.enter_context(explaining(root, *_DAMAGE))
        raw = opened.enter_context(root.open("rb"))
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        plain: IO[bytes] = raw
        if packed:
            plain = cast(IO[bytes], opened.enter_context(gzip.GzipFile(fileobj=raw)))
        stream = _Stream(plain, limit)
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            while member := tar.next():
                tar.members = []  # type: ignore[attr-defined]  # or it remembers them all
                parts = PurePosixPath(member.name).parts[-2:]
                if len(parts) == 2 and parts[0] == "cars" and member.isreg():
                    content = tar.extractfile(member)
                    if content is not None:
                        yield parts[1], content


class _Stream(io.RawIOBase):
    """A file that hands on no more at once, and no more in all, than an archive needs."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, place: int, whence: int = 0) -> int:
        if whence == 0 and place > self._limit:
            raise ValueError(f"it is longer than {self._limit} bytes")
        return self._file.seek(place, whence)

    def read(self, count: int = -1) -> bytes:
        if not 0 <= count <= _LONGEST_READ or self._file.tell() > self._limit:
            raise ValueError(f"a part of {count} bytes, which no such archive has")
        return self._file.read(count)


def write(
    path: str | Path, images: UInt8, *, types: Sequence[str] | None = None, archive: bool = True
) -> None:
    """Write an archive or a folder of this form.

    Args:
        path: the archive (.tar.gz) or the folder to write.
        images: the images in the order of the grid, (elevations, azimuths, types, H, W, 3).
        types: the names of the types; None: car_001_mesh and so on.
        archive: a flag to write an archive.

    Raises:
        DatasetError: a file cannot be written.
    """
    path = Path(path)
    names = list(types or (f"car_{k + 1:03}_mesh" for k in range(images.shape[2])))
    contents = {LIST: "".join(f"{name}\n" for name in names).encode()}
    for k, name in enumerate(names):
        array = images[:, :, k].transpose(2, 3, 4, 1, 0)
        contents[f"{name}.mat"] = matlab.to_bytes({_ARRAY: array})
    if not archive:
        with explaining_write_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            for name, content in contents.items():
                (path / name).write_bytes(content)
        return
    with replacing(path) as temporary, tarfile.open(temporary, "w:gz") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"data/cars/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
