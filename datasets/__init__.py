"""Datasets in any of their forms, positive pairs, and the synthetic benchmark.

A name is imported at its first use, so reading, checking and converting datasets need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.datasets import release_check as _release
    from threedident.datasets.augmented_views import TwoViews as TwoViews
    from threedident.datasets.augmented_views import simclr as simclr
    from threedident.datasets.dataset import ImageDataset as ImageDataset
    from threedident.datasets.dataset import ThreeDIdent as ThreeDIdent
    from threedident.datasets.formats import open_dataset as open_dataset
    from threedident.datasets.formats import verify as _verify
    from threedident.datasets.formats.convert import convert as convert
    from threedident.datasets.formats.describe import describe as describe
    from threedident.datasets.formats.hdf5 import pack as pack
    from threedident.datasets.grid_pairs import GridPairs as GridPairs
    from threedident.datasets.groups import ImageGroups as ImageGroups
    from threedident.datasets.latent_matcher import LatentMatcher as LatentMatcher
    from threedident.datasets.loader import Batch as Batch
    from threedident.datasets.loader import PairLoader as PairLoader
    from threedident.datasets.pairs import PositivePairs as PositivePairs
    from threedident.datasets.papers.sprites import SpriteSource as SpriteSource
    from threedident.datasets.rendered_pairs import RenderedPairs as RenderedPairs
    from threedident.datasets.sequence_pairs import SequencePairs as SequencePairs
    from threedident.datasets.sequence_pairs import TablePairs as TablePairs
    from threedident.datasets.synthetic import Mixing as Mixing
    from threedident.datasets.synthetic import SyntheticPairs as SyntheticPairs
    from threedident.datasets.zenodo import download as download
    from threedident.distributions import Change as Change
    from threedident.distributions import DiscreteLaplace as DiscreteLaplace
    from threedident.distributions import GeneralizedNormal as GeneralizedNormal
    from threedident.distributions import Grid as Grid
    from threedident.distributions import Laplace as Laplace
    from threedident.distributions import Normal as Normal
    from threedident.distributions import PairProcess as PairProcess
    from threedident.distributions import PerFactor as PerFactor
    from threedident.distributions import ProjectedNormal as ProjectedNormal
    from threedident.distributions import Unchanged as Unchanged
    from threedident.distributions import Uniform as Uniform
    from threedident.distributions import UniformFactors as UniformFactors
    from threedident.distributions import VonMisesFisher as VonMisesFisher
    from threedident.distributions.spaces import Box as Box
    from threedident.distributions.spaces import Product as Product
    from threedident.distributions.spaces import Sphere as Sphere
    from threedident.distributions.spaces import Unbounded as Unbounded
    from threedident.encoders.inputs import Normalize as Normalize

    compare_release = _release.compare
    verify = _verify.verify_any

_MODULES = {
    "threedident.datasets.formats.convert": ("convert",),
    "threedident.datasets.formats.describe": ("describe",),
    "threedident.datasets.formats.hdf5": ("pack",),
    "threedident.datasets.zenodo": ("download",),
    "threedident.datasets.dataset": ("ImageDataset", "ThreeDIdent"),
    "threedident.datasets.grid_pairs": ("GridPairs",),
    "threedident.datasets.groups": ("ImageGroups",),
    "threedident.datasets.latent_matcher": ("LatentMatcher",),
    "threedident.datasets.formats": ("open_dataset",),
    "threedident.datasets.loader": ("Batch", "PairLoader"),
    "threedident.datasets.pairs": ("PositivePairs",),
    "threedident.datasets.papers.sprites": ("SpriteSource",),
    "threedident.datasets.rendered_pairs": ("RenderedPairs",),
    "threedident.datasets.sequence_pairs": ("SequencePairs", "TablePairs"),
    "threedident.datasets.synthetic": ("Mixing", "SyntheticPairs"),
    "threedident.datasets.augmented_views": ("TwoViews", "simclr"),
    "threedident.distributions": (
        *("Change", "DiscreteLaplace", "GeneralizedNormal", "Grid", "Laplace", "Normal"),
        *("PairProcess", "PerFactor", "ProjectedNormal", "Unchanged", "Uniform"),
        *("UniformFactors", "VonMisesFisher"),
    ),
    "threedident.distributions.spaces": ("Box", "Product", "Sphere", "Unbounded"),
    "threedident.encoders.inputs": ("Normalize",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

_PLACES["verify"] = "threedident.datasets.formats.verify:verify_any"

_PLACES["compare_release"] = "threedident.datasets.release_check:compare"

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
