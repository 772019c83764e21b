"""3DIdent as a toolkit: render the dataset of ten latent factors, load it, train, score.

    import threedident as tdi

    data = tdi.ThreeDIdent("data/3dident")
    pairs = tdi.PositivePairs(data, conditional=tdi.Normal(0.3))

Every name is imported when it is first used: `import threedident` itself loads next to nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from threedident._lazy import lazy_names

_HERE = os.path.dirname(__file__)  # noqa: PTH120
if not os.path.isdir(os.path.join(_HERE, "datasets")):  # noqa: PTH112, PTH118
    # In the checkout itself, where the subpackages are the folders beside this one.
    __path__.append(os.path.dirname(_HERE))  # noqa: PTH120

if TYPE_CHECKING:
    from threedident import baselines as baselines
    from threedident import datasets as datasets
    from threedident import evaluate as evaluate
    from threedident import render as render
    from threedident.baselines.losses import info_nce as info_nce
    from threedident.baselines.training.loop import train as train
    from threedident.causal import CausalModel as CausalModel
    from threedident.causal import Sampling as Sampling
    from threedident.causal import load_model as load_model
    from threedident.datasets.augmented_views import TwoViews as TwoViews
    from threedident.datasets.dataset import ThreeDIdent as ThreeDIdent
    from threedident.datasets.formats import open_dataset as open_dataset
    from threedident.datasets.grid_pairs import GridPairs as GridPairs
    from threedident.datasets.groups import ImageGroups as ImageGroups
    from threedident.datasets.pairs import PositivePairs as PositivePairs
    from threedident.datasets.rendered_pairs import RenderedPairs as RenderedPairs
    from threedident.datasets.sequence_pairs import SequencePairs as SequencePairs
    from threedident.datasets.sequence_pairs import TablePairs as TablePairs
    from threedident.datasets.synthetic import Mixing as Mixing
    from threedident.datasets.synthetic import SyntheticPairs as SyntheticPairs
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
    from threedident.encoders import load_encoder as load_encoder
    from threedident.encoders import save_encoder as save_encoder
    from threedident.errors import ThreeDIdentError as ThreeDIdentError
    from threedident.evaluate import evaluation as _run
    from threedident.evaluate.evaluation import score_codes as score_codes
    from threedident.evaluate.metrics import linear_r2 as linear_r2
    from threedident.evaluate.metrics import mcc as mcc
    from threedident.evaluate.scoring import score as score
    from threedident.factors import FACTOR_NAMES as FACTOR_NAMES
    from threedident.factors import FACTORS as FACTORS
    from threedident.presets import Preset as Preset
    from threedident.presets import load_preset as load_preset
    from threedident.render.dataset import render_dataset as render_dataset
    from threedident.render.images import render_images as render_images

    evaluate_encoder = _run.evaluate
    __version__: str

_MODULES = {
    "threedident.baselines.losses": ("info_nce",),
    "threedident.baselines.training.loop": ("train",),
    "threedident.datasets.dataset": ("ThreeDIdent",),
    "threedident.causal": ("CausalModel", "Sampling", "load_model"),
    "threedident.datasets.formats": ("open_dataset",),
    "threedident.datasets.grid_pairs": ("GridPairs",),
    "threedident.datasets.groups": ("ImageGroups",),
    "threedident.datasets.pairs": ("PositivePairs",),
    "threedident.datasets.rendered_pairs": ("RenderedPairs",),
    "threedident.datasets.sequence_pairs": ("SequencePairs", "TablePairs"),
    "threedident.datasets.synthetic": ("Mixing", "SyntheticPairs"),
    "threedident.datasets.augmented_views": ("TwoViews",),
    "threedident.distributions": (
        "Change",
        "DiscreteLaplace",
        "GeneralizedNormal",
        "Grid",
        "Laplace",
        "Normal",
        "PairProcess",
        "PerFactor",
        "ProjectedNormal",
        "Unchanged",
        "Uniform",
        "UniformFactors",
        "VonMisesFisher",
    ),
    "threedident.encoders": ("load_encoder", "save_encoder"),
    "threedident.errors": ("ThreeDIdentError",),
    "threedident.evaluate.metrics": ("linear_r2", "mcc"),
    "threedident.evaluate.evaluation": ("score_codes",),
    "threedident.evaluate.scoring": ("score",),
    "threedident.factors": ("FACTORS", "FACTOR_NAMES"),
    "threedident.presets": ("Preset", "load_preset"),
    "threedident.render.dataset": ("render_dataset",),
    "threedident.render.images": ("render_images",),
    "threedident.distributions.spaces": ("Box", "Product", "Sphere", "Unbounded"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}
#: `threedident.evaluate` is the package of all that scores.
_PLACES["evaluate_encoder"] = "threedident.evaluate.evaluation:evaluate"
_PLACES |= {name: f"threedident.{name}" for name in ("baselines", "datasets", "evaluate", "render")}

__all__ = ["__version__", *sorted(_PLACES)]  # noqa: PLE0604

_get, _names = lazy_names(__name__, _PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from threedident.version import toolkit_version

        return toolkit_version()
    return _get(name)


def __dir__() -> list[str]:
    return ["__version__", *_names()]
