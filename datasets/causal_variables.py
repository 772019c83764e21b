"""`CausalVariables`: what a dataset of a causal model has beside its images and factors.

Datasets in a published layout of 3DIdent's family have variables and targets too, but no model.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from threedident.causal import OBSERVED, CausalModel, Draws, Sampling
from threedident.datasets.formats import Source
from threedident.datasets.formats.family import FamilySource
from threedident.errors import MissingExtraError, UsageError

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingExtraError("torch", "train", "loading a dataset in PyTorch") from error


class CausalVariables:
    """The variables, graph, environments and interventions of a dataset of a causal model.

    Attributes:
        root: the dataset's path.
        source: the reader of its files.
    """

    root: Path
    source: Source

    @property
    def sampling(self) -> Sampling | None:
        """The causal model and what was drawn of it; None for a dataset of no model."""
        manifest = self.source.manifest
        return manifest.sampling if manifest else None

    @property
    def model(self) -> CausalModel | None:
        """The causal model; None for a dataset of no model."""
        return self.sampling.model if self.sampling else None

    @functools.cached_property
    def variables(self) -> torch.Tensor:
        """The variables of the causal model, (N, D) float32; a class is its number.

        Raises:
            UsageError: the dataset is of no model, and in no layout of the family.
        """
        if isinstance(self.source, FamilySource):
            return torch.from_numpy(self.source.variables)
        return torch.from_numpy(self._draws().variables)

    @property
    def variable_names(self) -> tuple[str, ...]:
        """The names of the causal model's variables.

        Raises:
            UsageError: the dataset is of no model, and in no layout of the family.
        """
        if isinstance(self.source, FamilySource):
            return self.source.names
        return self._sampling().model.names

    @property
    def graph(self) -> torch.Tensor:
        """The causal graph, (D, D) bool: [i, j] says that variable i is a parent of j.

        Of sequences it is the graph within a frame after the first; `dataset.model` has the edges
        from one frame to the next.

        Raises:
            UsageError: the dataset is of no model.
        """
        sampling = self._sampling()
        model = sampling.model
        graph = model.step_adjacency if sampling.group == "sequence" else model.adjacency
        return torch.from_numpy(graph)

    @functools.cached_property
    def noise(self) -> torch.Tensor:
        """The exogenous noise, (N, D, 3) float32, uniform in (-1, 1).

        Raises:
            UsageError: the dataset is of no model.
        """
        return torch.from_numpy(self._draws().noise)

    @functools.cached_property
    def targets(self) -> torch.Tensor:
        """Whether each variable was intervened on, (N, D) uint8.

        Raises:
            UsageError: the dataset is of no model, and its layout does not say.
        """
        if isinstance(self.source, FamilySource) and self.source.targets is not None:
            return torch.from_numpy(self.source.targets)
        return torch.from_numpy(self._draws().targets)

    @functools.cached_property
    def environment(self) -> torch.Tensor:
        """The number of each image's environment among `environments`, (N,) int64.

        Raises:
            UsageError: the dataset is of no model.
        """
        return torch.from_numpy(self._draws().environment)

    @property
    def environments(self) -> tuple[str, ...]:
        """The names of the environments.

        Raises:
            UsageError: the dataset is of no model.
        """
        return self._sampling().environments or (OBSERVED,)

    @functools.cached_property
    def frame(self) -> torch.Tensor:
        """The number of each image in its pair or sequence, (N,) int64.

        Raises:
            UsageError: the dataset is of no model.
        """
        return torch.from_numpy(self._draws().frame)

    def in_environment(self, name: str) -> data.Subset[Any]:
        """The images of one environment.

        Args:
            name: its name, one of `environments`.

        Raises:
            UsageError: there is no such environment, or the dataset is of no model.
        """
        if name not in self.environments:
            raise UsageError(
                f"{self.root} has no environment {name!r}: expected one of "
                f"{', '.join(self.environments)}"
            )
        number = self.environments.index(name)
        whole: Any = self  # a Dataset, as whatever has these variables is
        return data.Subset(whole, (self.environment == number).nonzero().flatten().tolist())

    def _sampling(self) -> Sampling:
        sampling = self.sampling
        if sampling is None and isinstance(self.source, FamilySource):
            raise UsageError(
                f"{self.root} is in a published layout, which does not record that: it has "
                "variables, but no causal model. `3dident render --model` renders one that has"
            )
        if sampling is None:
            raise UsageError(
                f"{self.root} is not of a causal model: it has factors, and no variables. "
                "`3dident render --model` renders one that is"
            )
        return sampling

    def _draws(self) -> Draws:
        self._sampling()
        draws = self.source.draws
        assert draws is not None
        return draws
