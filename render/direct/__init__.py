"""The second engine: direct integration of the same image, by Warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.render.direct.engine import DirectEngine as DirectEngine
    from threedident.render.direct.engine import jacobian as jacobian
    from threedident.render.direct.engine import render as render

_MODULES = {
    "threedident.render.direct.engine": (
        "DirectEngine",
        "jacobian",
        "render",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
