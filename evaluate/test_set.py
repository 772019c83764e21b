"""`TestSet`: a dataset as scoring sees it, without torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from threedident.causal import OBSERVED, CausalModel, Sampling
from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.source import ImageSource, Source, columns_of
from threedident.datasets.papers import FORMS
from threedident.errors import UsageError
from threedident.evaluate.causal_data import kinds_of, parents_of
from threedident.evaluate.metrics._arrays import varying
from threedident.evaluate.metrics._kinds import Kind, kinds_of_columns
from threedident.evaluate.metrics._values import recurring
from threedident.evaluate.metrics.registry import (
    all_metrics,
    check_metrics,
    check_metrics_fit,
    default_metrics,
)
from threedident.evaluate.sampled_source import SampledSource, sampled
from threedident.evaluate.scores_file import DataRecord, DatasetIdentity
from threedident.evaluate.seen import split_of
from threedident.factors import FACTOR_NAMES

if TYPE_CHECKING:
    from threedident.datasets.dataset import ImageDataset


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The images that codes are scored on, and the factors that they are scored against.

    The factors of a dataset of a causal model are its variables.

    Attributes:
        root: the dataset's path.
        source: its files, open; of a dataset in the order of a grid or of time the images of it
            that are scored, see `sampled_source`.
        factor_names: names of the factors that count, the order of the values' columns.
    """

    __test__ = False  # pytest takes the name for that of a test

    root: Path
    source: ImageSource
    factor_names: tuple[str, ...]

    @classmethod
    def open(
        cls, root: str | Path, factors: Sequence[str] = (), samples: int | None = None
    ) -> TestSet:
        """Open a dataset in any form.

        Args:
            root: the dataset's path.
            factors: names of factors or groups that count, or of variables of a causal model;
                none: all.
            samples: the number of images that are scored of a dataset in the order of a grid or
                of time; None: 10,000.

        Raises:
            UsageError: there is no such factor, or `samples` does not fit.
            DatasetError: it is no dataset, or damaged.
        """
        source = sampled(open_dataset(root), samples)
        model = _model(source)
        if model is None:
            columns = columns_of(source, factors or None)
            names = tuple(source.factor_names[c] for c in columns)
        else:
            names = _variables(model, factors) if factors else model.names
        return cls(Path(root), source, names)

    @classmethod
    def take(
        cls,
        data: ImageDataset | str | Path,
        factors: Sequence[str] = (),
        samples: int | None = None,
    ) -> TestSet:
        """Open a dataset by its path, or take one that is open.

        Args:
            data: the dataset, or its path.
            factors: names of factors or groups that count, where `data` is a path; none: all.
            samples: the number of images that are scored; see `open`.

        Raises:
            UsageError: it is neither, there is no such factor, factors are given for a dataset
                that is open, or `samples` does not fit.
            DatasetError: it is no dataset, or damaged.
        """
        if isinstance(data, str | Path):
            return cls.open(data, factors, samples)
        if not isinstance(getattr(data, "source", None), ImageSource):
            raise UsageError(
                f"the test set must be a ThreeDIdent or the path of a dataset, found "
                f"{type(data).__name__}"
            )
        if factors:
            raise UsageError("factors goes with a path: choose them when the dataset is opened")
        return cls.of(data, samples)

    @classmethod
    def of(cls, dataset: ImageDataset, samples: int | None = None) -> TestSet:
        """Take the files and the factors of a dataset that is open.

        Args:
            dataset: the dataset.
            samples: the number of images that are scored; see `open`.

        Raises:
            UsageError: it is of a causal model, and was opened with factors that are none of its
                variables; or `samples` does not fit.
        """
        names, model = dataset.factor_names, _model(dataset.source)
        if model is not None:
            whole = len(names) == len(FACTOR_NAMES)
            names = model.names if whole else _variables(model, names)
        return cls(dataset.root, sampled(dataset.source, samples), names)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def sampling(self) -> Sampling | None:
        """The causal model, and what was drawn of it; None for a dataset of no model."""
        manifest = self.source.manifest
        return manifest.sampling if manifest else None

    @functools.cached_property
    def values(self) -> npt.NDArray[np.float32]:
        """(N, n), the values of the factors that count: raw latents, or a model's variables."""
        if self.sampling is None:
            return self.source.factors[:, self._columns]
        draws, names = self.source.draws, self.sampling.model.names
        assert draws is not None, "a dataset of a causal model has draws"
        return draws.variables[:, [names.index(name) for name in self.factor_names]]

    @property
    def _columns(self) -> list[int]:
        """The places of the factors among those of the source."""
        return list(columns_of(self.source, self.factor_names))

    @property
    def kinds(self) -> tuple[Kind, ...] | None:
        """The kind of each factor; None for the ten of 3DIdent, which are numbers."""
        if isinstance(self.source, Source) and self.sampling is None:
            return None
        if self.sampling is None:
            columns = self.source.factor_columns
            return kinds_of_columns([columns[c] for c in self._columns])
        kinds = kinds_of(self.sampling.model)
        return tuple(kinds[name] for name in self.factor_names)

    @functools.cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]] | None:
        """The parents of each factor in its own image; None for a dataset of no model."""
        if self.sampling is None:
            return None
        parents = parents_of(self.sampling)
        return {name: parents[name] for name in self.factor_names}

    @property
    def scored_parents(self) -> Mapping[str, tuple[str, ...]] | None:
        """The parents of each factor; None where one of them is not among the factors."""
        named = {each for parents in (self.parents or {}).values() for each in parents}
        return self.parents if named <= set(self.factor_names) else None

    def choose_metrics(self, metrics: Sequence[str] | None) -> tuple[str, ...]:
        """Return the metrics to compute.

        Args:
            metrics: their names, "all" for all that can score these factors; None: those that are
                computed where nobody chooses.

        Raises:
            UsageError: one is unknown, or cannot score these factors.
        """
        parents = self.scored_parents
        columns = None
        if parents is not None:
            places = {name: place for place, name in enumerate(self.factor_names)}
            columns = tuple(
                tuple(places[each] for each in parents[name]) for name in self.factor_names
            )
        values = self.values.astype(np.float64)
        about = self.kinds, varying(values), columns, recurring(values)
        if metrics is None:
            return default_metrics(*about)
        if not isinstance(metrics, str) and "all" in metrics:
            return all_metrics(*about)
        check_metrics(metrics)
        if parents is None and self.parents is not None and "r2_beyond_parents" in metrics:
            others = {each for names in self.parents.values() for each in names}
            lacking = ", ".join(sorted(others - set(self.factor_names)))
            raise UsageError(
                "metric r2_beyond_parents needs the parents of every factor that is scored: add "
                f"{lacking} to the factors, or leave it out"
            )
        check_metrics_fit(metrics, *about)
        return tuple(metrics)

    @property
    def identity(self) -> DatasetIdentity:
        """The identity of the dataset."""
        return identity_of(self.source)

    def as_dataset(self) -> ImageDataset:
        """Open the same images as a PyTorch dataset.

        Raises:
            MissingExtraError: torch is not installed.
        """
        from threedident.datasets.dataset import images_of, open_images

        if isinstance(self.source, SampledSource):
            return images_of(self.source, self.factor_names)
        return open_images(self.root, self.factor_names if self.sampling is None else None)

    def record(self) -> DataRecord:
        """Describe it as scores.json does."""
        manifest = self.source.manifest
        preset = manifest.preset if manifest else None
        settings = manifest.settings if manifest else {}
        best = manifest.best_r2 if manifest else {}
        identity, sampling = self.identity, self.sampling
        unknown = "what drew the latents and rendered the images is not recorded"
        if not isinstance(self.source, Source):
            unknown = f"none is known of {FORMS[self.source.form]}"
        rendered = {name: name for name in self.factor_names}
        if sampling is not None:
            rendered = {
                each.name: each.renders
                for each in sampling.model.variables
                if each.name in self.factor_names and each.kind == "continuous"
            }
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
            best_r2={name: best[each] for name, each in rendered.items() if each in best},
            why_no_best_r2=manifest.why_no_best_r2 if manifest else unknown,
            model=None if sampling is None else sampling.model.name,
            drawn=None if sampling is None else _drawn(sampling),
            sample=self.source.as_dict() if isinstance(self.source, SampledSource) else None,
        )


def _model(source: ImageSource) -> CausalModel | None:
    sampling = source.manifest.sampling if source.manifest else None
    return sampling.model if sampling else None


def _variables(model: CausalModel, names: Sequence[str]) -> tuple[str, ...]:
    """Return names of variables, each once.

    Raises:
        UsageError: the model has no such variable.
    """
    return tuple(dict.fromkeys(model[name].name for name in names))


def _drawn(sampling: Sampling) -> dict[str, Any]:
    """Describe what was drawn of a model, as plain data."""
    plain = sampling.as_dict()
    return {
        "group": sampling.group,
        "environments": list(sampling.environments or (OBSERVED,)),
        **{key: plain[key] for key in ("do", "counterfactual", "view", "steps")},
    }


def identity_of(source: ImageSource) -> DatasetIdentity:
    """Tell a dataset from others, and from itself before it was extended.

    By the fingerprint of its settings, or of its latents in the published layout, which records
    no settings; and by the number of its images.
    """
    manifest = source.manifest
    fingerprint = source.fingerprint if manifest is None else manifest.fingerprint
    count = len(source.whole) if isinstance(source, SampledSource) else len(source)
    return DatasetIdentity(fingerprint, count)
