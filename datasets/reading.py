"""Images and latents of a dataset in any of its forms, without torch."""

from __future__ import annotations

import bisect
import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from threedident.datasets import packed, published
from threedident.errors import DatasetError
from threedident.shards import check_arrays, open_hdf5, require_complete
from threedident.store import MANIFEST, DatasetDir, Manifest

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


class Source(Protocol):
    """A dataset's images and latents.

    Attributes:
        raw_latents, latents: (N, 10) float32.
        manifest: what made it; None for the published layout.
    """

    raw_latents: Float32
    latents: Float32
    manifest: Manifest | None

    def __len__(self) -> int:
        """How many images there are."""

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """One image, (H, W, 3) uint8."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def read_images(source: Source, indices: range) -> npt.NDArray[np.uint8]:
    """Some images of a dataset, (N, H, W, 3).

    Raises:
        DatasetError: one cannot be read, or is not of the size of image 0.
    """
    shape = source.image(0).shape
    images = []
    for index in indices:
        images.append(source.image(index))
        if images[-1].shape != shape:
            raise DatasetError(
                f"image {index} has shape {images[-1].shape}, expected {shape} as image 0"
            )
    return np.stack(images)


class _Files:
    """HDF5 files that are opened when they are first read, and closed together."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._stack.close()

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            if len(self._open) >= 128:  # file handles are scarce: start over
                self._open.clear()
                self._stack.close()
            self._open[path] = self._stack.enter_context(open_hdf5(path))
        return self._open[path]


class ShardSource(_Files):
    """A dataset directory. Its shards must be complete from image 0 on."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        dataset = DatasetDir.open(root)
        self.manifest: Manifest | None = dataset.manifest
        self._starts: list[int] = []
        self._paths: list[Path] = []
        raw, latents = [], []
        shards = dataset.shards()
        require_complete(root, shards)
        for interval, path in shards.items():
            with open_hdf5(path) as file:
                check_arrays(file, path, interval.count, dataset.manifest.resolution)
                raw.append(file["raw_latents"][()])
                latents.append(file["latents"][()])
            self._starts.append(interval.first)
            self._paths.append(path)
        self.raw_latents: Float32 = np.concatenate(raw)
        self.latents: Float32 = np.concatenate(latents)

    def __len__(self) -> int:
        return len(self.raw_latents)

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """One image, (H, W, 3) uint8."""
        shard = bisect.bisect_right(self._starts, index) - 1
        path = self._paths[shard]
        try:
            pixels: npt.NDArray[np.uint8] = self._file(path)["images"][index - self._starts[shard]]
        except OSError as error:
            raise DatasetError(f"cannot read image {index} from {path}: {error}") from error
        return pixels


class PackedSource(_Files):
    """A dataset packed into one HDF5 file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.manifest: Manifest | None
        self.manifest, self.raw_latents, self.latents = packed.read_header(path)

    def __len__(self) -> int:
        return len(self.raw_latents)

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """One image, (H, W, 3) uint8."""
        try:
            pixels: npt.NDArray[np.uint8] = self._file(self._path)["images"][index]
        except OSError as error:
            raise DatasetError(f"cannot read image {index} from {self._path}: {error}") from error
        return pixels


class PublishedSource:
    """The published layout: `images/*.png`, `raw_latents.npy`, `latents.npy`."""

    manifest: Manifest | None = None

    def __init__(self, root: Path) -> None:
        self._root = root
        self.raw_latents, self.latents = published.read_latents(root)
        self._paths = published.image_paths(root, len(self.raw_latents))

    def __len__(self) -> int:
        return len(self._paths)

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """One image, (H, W, 3) uint8."""
        return published.read_image(self._paths[index])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def open_source(root: str | Path) -> Source:
    """A dataset in whichever form it is: a directory of shards, a packed file, PNG files.

    Raises:
        DatasetError: it is none of them, or damaged.
    """
    root = Path(root)
    if root.is_file():
        return PackedSource(root)
    if (root / MANIFEST).is_file():
        return ShardSource(root)
    if (root / published.RAW_LATENTS).is_file() or (root / published.IMAGES).is_dir():
        return PublishedSource(root)
    what = "there is no such file or directory" if not root.exists() else "it is none of these"
    raise DatasetError(
        f"cannot open {root} as a dataset: {what}. Expected a directory made by `3dident render` "
        f"({MANIFEST}), a file made by `3dident pack` (.h5), or the published layout "
        f"({published.IMAGES}/, {published.RAW_LATENTS}, {published.LATENTS})"
    )
