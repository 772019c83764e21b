"""Presets by name and from TOML files."""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path
from typing import Any

from threedident.defaults import PRESET
from threedident.errors import UsageError
from threedident.plain_data import read_toml
from threedident.presets.preset import Preset, parse_preset

DEFAULT_PRESET = PRESET
#: Stands for the table best_r2 in a file whose best R2 follows from its other fields.
COMPUTED = "computed"

_TABLES = ("ranges", "fixed")  # of which a file changes single factors of its base's


def preset_names() -> list[str]:
    """The names of the built-in presets, the default first."""
    folder = resources.files("threedident.presets")
    names = (p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    return sorted(names, key=lambda name: (name != DEFAULT_PRESET, name))


def load_preset(name: str | Path) -> Preset:
    """Load a built-in preset by its name, or a user's from a .toml file.

    A file may name a built-in preset as its `base`: it then has the base's fields, except those
    that it states itself.

    Args:
        name: the name, or the file.

    Raises:
        UsageError: the name is unknown, or the file is missing or does not fit.
    """
    own = str(name).endswith(".toml")
    source = f"preset file {name}" if own else f"preset {name}"
    if not own and name not in preset_names():
        raise UsageError(
            f"unknown preset {str(name)!r}: expected one of {', '.join(preset_names())}, "
            "or the path of a .toml file"
        )
    data = _read(Path(name) if own else _built_in(str(name)), source)
    computed = data.get("best_r2") == COMPUTED
    if computed:
        del data["best_r2"]
    preset = parse_preset(data, source)
    return dataclasses.replace(preset, best_r2=preset.computed_best_r2()) if computed else preset


def _built_in(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.toml")


def _read(path: Path, source: str) -> dict[str, Any]:
    """Read the fields of a preset's file and of its base; not checked yet.

    Raises:
        UsageError: the file cannot be read, or its base is no built-in preset.
    """
    data = read_toml(path, source)
    data.setdefault("name", path.stem)
    return complete_preset(data, path.parent, source)


def complete_preset(data: dict[str, Any], folder: Path, source: str) -> dict[str, Any]:
    """Add the fields of a preset's base to its own; not checked yet.

    Args:
        data: the fields of a preset, as in a file.
        folder: the folder of that file, in which its meshes are looked up.
        source: the name of the file in errors.

    Raises:
        UsageError: the base is no built-in preset.
    """
    data = dict(data)
    shape = data.get("shape")
    # A mesh is named relative to the preset that uses it.
    if isinstance(shape, str) and "." in shape and not Path(shape).is_absolute():
        data["shape"] = str(folder / shape)
    if "base" not in data:
        return data
    base = data.pop("base")
    if base not in preset_names():
        raise UsageError(
            f"{source}: base must be one of {', '.join(preset_names())}, found {base!r:.100}"
        )
    fields = _read(_built_in(base), f"preset {base}")
    fields.pop("description", None)
    for table in _TABLES:
        if isinstance(data.get(table), dict):
            data[table] = {**fields.get(table, {}), **data[table]}
    return {**fields, **data}
