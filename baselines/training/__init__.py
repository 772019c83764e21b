"""Training an experiment into a run folder: the loop, one step, checkpoints and measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.baselines.training.loop import resume as resume
    from threedident.baselines.training.loop import train as train

_PLACES = dict.fromkeys(("resume", "train"), "threedident.baselines.training.loop")

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
