"""Rendering 3DIdent: from latents to scenes, images and a dataset on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.render.direct.engine import jacobian as jacobian
    from threedident.render.direct.engine import render as render
    from threedident.render.engine import EngineSettings as EngineSettings
    from threedident.render.figures import contact_sheet as contact_sheet
    from threedident.render.job import render_images as render_images

_PLACES = {
    "EngineSettings": "threedident.render.engine",
    "contact_sheet": "threedident.render.figures",
    "jacobian": "threedident.render.direct.engine",
    "render": "threedident.render.direct.engine",
    "render_images": "threedident.render.job",
}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
