"""Distributions of the latents and of positive pairs, and the spaces they live in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.distributions.families import Additive as Additive
    from threedident.distributions.families import Change as Change
    from threedident.distributions.families import Distribution as Distribution
    from threedident.distributions.families import GeneralizedNormal as GeneralizedNormal
    from threedident.distributions.families import Laplace as Laplace
    from threedident.distributions.families import Normal as Normal
    from threedident.distributions.families import PairProcess as PairProcess
    from threedident.distributions.families import PerFactor as PerFactor
    from threedident.distributions.families import ProjectedNormal as ProjectedNormal
    from threedident.distributions.families import Unchanged as Unchanged
    from threedident.distributions.families import Uniform as Uniform
    from threedident.distributions.families import VonMisesFisher as VonMisesFisher
    from threedident.distributions.families import check_matchable as check_matchable
    from threedident.distributions.families import parse_distribution as parse_distribution
    from threedident.distributions.families import raw_box as raw_box
    from threedident.distributions.spaces import Box as Box
    from threedident.distributions.spaces import Product as Product
    from threedident.distributions.spaces import Space as Space
    from threedident.distributions.spaces import Sphere as Sphere
    from threedident.distributions.spaces import Unbounded as Unbounded

_MODULES = {
    "threedident.distributions.families": (
        "Additive",
        "Change",
        "Distribution",
        "GeneralizedNormal",
        "Laplace",
        "Normal",
        "PairProcess",
        "PerFactor",
        "ProjectedNormal",
        "Unchanged",
        "Uniform",
        "VonMisesFisher",
        "check_matchable",
        "parse_distribution",
        "raw_box",
    ),
    "threedident.distributions.spaces": (
        "Box",
        "Product",
        "Space",
        "Sphere",
        "Unbounded",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
