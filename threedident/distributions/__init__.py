"""Distributions of the latents and of positive pairs, and the spaces they live in.

`spaces`, `families` and, for grids of discrete factors, `transitions` are plain data;
`pair_process` joins two distributions to pairs, and `serialisation` reads and writes all of them.
Two samplers draw the same distributions: `torch_sampler`, with `torch_density` beside it, while
training, and `philox_sampler` while rendering, from counters.
"""

from __future__ import annotations

from threedident.distributions.families import Additive as Additive
from threedident.distributions.families import Distribution as Distribution
from threedident.distributions.families import GeneralizedNormal as GeneralizedNormal
from threedident.distributions.families import Laplace as Laplace
from threedident.distributions.families import Normal as Normal
from threedident.distributions.families import ProjectedNormal as ProjectedNormal
from threedident.distributions.families import Uniform as Uniform
from threedident.distributions.families import VonMisesFisher as VonMisesFisher
from threedident.distributions.grid import Grid as Grid
from threedident.distributions.pair_process import Change as Change
from threedident.distributions.pair_process import PairProcess as PairProcess
from threedident.distributions.pair_process import PerFactor as PerFactor
from threedident.distributions.pair_process import Unchanged as Unchanged
from threedident.distributions.pair_process import check_free as check_free
from threedident.distributions.pair_process import check_matchable as check_matchable
from threedident.distributions.serialisation import parse_distribution as parse_distribution
from threedident.distributions.serialisation import parse_space as parse_space
from threedident.distributions.serialisation import space_as_dict as space_as_dict
from threedident.distributions.spaces import Box as Box
from threedident.distributions.spaces import Product as Product
from threedident.distributions.spaces import Space as Space
from threedident.distributions.spaces import Sphere as Sphere
from threedident.distributions.spaces import Unbounded as Unbounded
from threedident.distributions.spaces import raw_box as raw_box
from threedident.distributions.transitions import DiscreteLaplace as DiscreteLaplace
from threedident.distributions.transitions import UniformFactors as UniformFactors
