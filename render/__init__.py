"""Rendering 3DIdent: from latents to scenes, images and a dataset on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.render.dataset import RenderInterrupted as RenderInterrupted
    from threedident.render.dataset import render_dataset as render_dataset
    from threedident.render.direct.engine import jacobian as jacobian
    from threedident.render.direct.engine import render as render
    from threedident.render.estimate import Estimate as Estimate
    from threedident.render.estimate import estimate_render as estimate_render
    from threedident.render.images import render_images as render_images
    from threedident.render.job import Summary as Summary
    from threedident.render.settings import EngineSettings as EngineSettings

_PLACES = {
    "EngineSettings": "threedident.render.settings",
    "Estimate": "threedident.render.estimate",
    "RenderInterrupted": "threedident.render.dataset",
    "Summary": "threedident.render.job",
    "estimate_render": "threedident.render.estimate",
    "jacobian": "threedident.render.direct.engine",
    "render": "threedident.render.direct.engine",
    "render_dataset": "threedident.render.dataset",
    "render_images": "threedident.render.images",
}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
