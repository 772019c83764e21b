"""`explore`: a page on which one moves the factors, and image, pairs and codes answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threedident._lazy import lazy_names

if TYPE_CHECKING:
    from threedident.explore.app import explore as explore

_PLACES = {"explore": "threedident.explore.app"}

__all__ = sorted(_PLACES)  # noqa: PLE0605

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
