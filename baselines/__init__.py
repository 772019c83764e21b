"""Training the papers' baselines: losses, encoders, experiments, and tables of the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.baselines.experiment import Experiment as Experiment
    from threedident.baselines.experiment import load_experiment as load_experiment
    from threedident.baselines.losses import Bilinear as Bilinear
    from threedident.baselines.losses import Dot as Dot
    from threedident.baselines.losses import Power as Power
    from threedident.baselines.losses import Quadratic as Quadratic
    from threedident.baselines.losses import alignment_uniformity as alignment_uniformity
    from threedident.baselines.losses import info_nce as info_nce
    from threedident.baselines.losses import tricl as tricl
    from threedident.baselines.training.loop import resume as resume
    from threedident.baselines.training.loop import train as train
    from threedident.encoders import load_decoder as load_decoder
    from threedident.encoders import load_encoder as load_encoder
    from threedident.encoders import save_decoder as save_decoder
    from threedident.encoders import save_encoder as save_encoder

_MODULES = {
    "threedident.encoders": ("load_decoder", "load_encoder", "save_decoder", "save_encoder"),
    "threedident.baselines.experiment": ("Experiment", "load_experiment"),
    "threedident.baselines.losses": (
        *("Bilinear", "Dot", "Power", "Quadratic"),
        *("alignment_uniformity", "info_nce", "tricl"),
    ),
    "threedident.baselines.training.loop": ("resume", "train"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
