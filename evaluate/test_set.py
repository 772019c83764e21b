"""`TestSet`: a dataset as scoring sees it, without torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.source import Source
from threedident.errors import UsageError
from threedident.evaluate.scores_file import DataRecord, DatasetIdentity
from threedident.evaluate.seen import split_of
from threedident.factors import FACTOR_NAMES, factor_columns
from threedident.latents import latents_digest

if TYPE_CHECKING:
    from threedident.datasets.dataset import ThreeDIdent


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The images and latents that codes are scored against.

    Attributes:
        root: the dataset's path.
        source: its files, open.
        factor_names: names of the factors that count, the order of the latents' columns.
    """

    __test__ = False  # pytest takes the name for that of a test

    root: Path
    source: Source
    factor_names: tuple[str, ...]

    @classmethod
    def open(cls, root: str | Path, factors: Sequence[str] = ()) -> TestSet:
        """Open a dataset in any form.

        Args:
            root: the dataset's path.
            factors: names of factors or groups that count; none: all ten.

        Raises:
            UsageError: there is no such factor.
            DatasetError: it is no dataset, or damaged.
        """
        names = tuple(FACTOR_NAMES[c] for c in factor_columns(factors or FACTOR_NAMES))
        return cls(Path(root), open_dataset(root), names)

    @classmethod
    def take(cls, data: ThreeDIdent | str | Path, factors: Sequence[str] = ()) -> TestSet:
        """Open a dataset by its path, or take one that is open.

        Args:
            data: the dataset, or its path.
            factors: names of factors or groups that count, where `data` is a path; none: all ten.

        Raises:
            UsageError: it is neither, there is no such factor, or factors are given for a dataset
                that is open.
            DatasetError: it is no dataset, or damaged.
        """
        if isinstance(data, str | Path):
            return cls.open(data, factors)
        if not isinstance(getattr(data, "source", None), Source):
            raise UsageError(
                f"the test set must be a ThreeDIdent or the path of a dataset, found "
                f"{type(data).__name__}"
            )
        if factors:
            raise UsageError("factors goes with a path: choose them when the dataset is opened")
        return cls.of(data)

    @classmethod
    def of(cls, dataset: ThreeDIdent) -> TestSet:
        """Take the files and the factors of a dataset that is open."""
        return cls(dataset.root, dataset.source, dataset.factor_names)

    def __len__(self) -> int:
        return len(self.source)

    @functools.cached_property
    def raw_latents(self) -> npt.NDArray[np.float32]:
        """(N, n), the raw latents of the factors that count."""
        return self.source.raw_latents[:, list(factor_columns(self.factor_names))]

    @property
    def identity(self) -> DatasetIdentity:
        """The identity of the dataset."""
        return identity_of(self.source)

    def as_dataset(self) -> ThreeDIdent:
        """Open the same images as a PyTorch dataset.

        Raises:
            MissingExtraError: torch is not installed.
        """
        from threedident.datasets.dataset import ThreeDIdent

        return ThreeDIdent(self.root, factors=self.factor_names)

    def record(self) -> DataRecord:
        """Describe it as scores.json does."""
        manifest = self.source.manifest
        preset = manifest.preset if manifest else None
        settings = manifest.settings if manifest else {}
        best = manifest.best_r2 if manifest else {}
        identity = self.identity
        return DataRecord(
            fingerprint=identity.fingerprint,
            images=identity.images,
            preset=preset.name if preset else None,
            split=split_of(self.source),
            seed=settings.get("seed"),
            resolution=int(self.source.shape[0]),
            engine=dict(manifest.engine) if manifest else None,
            factors=self.factor_names,
            not_injective=tuple(preset.ambiguities()) if preset else None,
            best_r2={name: best[name] for name in self.factor_names if name in best},
            why_no_best_r2=manifest.why_no_best_r2
            if manifest
            else "what drew the latents and rendered the images is not recorded",
        )


def identity_of(source: Source) -> DatasetIdentity:
    """Tell a dataset from others, and from itself before it was extended.

    By the fingerprint of its settings, or of its latents in the published layout, which records
    no settings; and by the number of its images.
    """
    manifest = source.manifest
    fingerprint = latents_digest(source.raw_latents) if manifest is None else manifest.fingerprint
    return DatasetIdentity(fingerprint, len(source))
