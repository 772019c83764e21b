"""Lazy names of a package: each is imported when it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package (PEP 562), which shows public names alone.

    Args:
        package: the package's `__name__`.
        places: the module of each name, or `module:name` where it has another name there. A
            submodule's place is the submodule itself: `package.name`.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, original = places[name].partition(":")
        loaded = importlib.import_module(module)
        if module == f"{package}.{name}":
            return loaded
        return getattr(loaded, original or name)

    def names() -> list[str]:
        # Not the modules and helpers that the package's own code has imported.
        dunders = [each for each in vars(sys.modules[package]) if each.startswith("__")]
        return sorted({*dunders, *places})

    return get, names
