"""Presets by name and from TOML files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from threedident import plain_data
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
    path = Path(name) if own else _built_in(str(name))
    data = read_toml(path, source)
    data.setdefault("name", path.stem)
    return build_preset(data, path.parent, source)


def build_preset(data: Mapping[str, Any], folder: Path, source: str) -> Preset:
    """Make a preset from the fields of a TOML file, or of a table in one.

    Args:
        data: the fields; a `base` adds those of a built-in preset.
        folder: the folder in which mesh files with relative paths are looked up first.
        source: the name of their source in errors.

    Raises:
        UsageError: a field does not fit, or the base is no built-in preset.
    """
    fields = complete_preset(dict(data), folder, source)
    computed = fields.get("best_r2") == COMPUTED
    if computed:
        del fields["best_r2"]
    preset = parse_preset(fields, source)
    return dataclasses.replace(preset, best_r2=preset.computed_best_r2()) if computed else preset


def _built_in(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.toml")


def complete_preset(data: dict[str, Any], folder: Path, source: str) -> dict[str, Any]:
    """Add the fields of a preset's base to its own; not checked yet.

    Args:
        data: the fields of a preset, as in a file; they are changed.
        folder: the folder in which mesh files with relative paths are looked up first.
        source: the name of their source in errors.

    Raises:
        UsageError: the base is no built-in preset, or a field makes another one useless.
    """
    for one, many in (("shape", "shapes"), ("material", "materials")):
        if one in data and data.get(many):
            raise UsageError(f"{source}: {one} does nothing beside {many}: leave out one of them")
    shape = data.get("shape")
    # A mesh is named relative to the preset that uses it.
    if isinstance(shape, str) and "." in shape and not Path(shape).is_absolute():
        data["shape"] = str(folder / shape)
    if isinstance(data.get("shape_table"), dict):
        data["shape_table"] = {
            name: _beside(entry, folder) for name, entry in data["shape_table"].items()
        }
    if "base" not in data:
        return data
    base = data.pop("base")
    if base not in preset_names():
        raise UsageError(
            f"{source}: base must be one of {', '.join(preset_names())}, found {base!r:.100}"
        )
    path = _built_in(base)
    fields = complete_preset(read_toml(path, f"preset {base}"), path.parent, f"preset {base}")
    fields = {"name": base, **fields}
    fields.pop("description", None)
    for table in _TABLES:
        if isinstance(data.get(table), dict):
            data[table] = {**fields.get(table, {}), **data[table]}
    return {**fields, **data}


def _beside(entry: Any, folder: Path) -> Any:
    """An entry of a shape table, its file found beside the preset's where it lies there."""
    file = entry.get("file") if isinstance(entry, dict) else None
    if isinstance(file, str) and file.isprintable() and plain_data.is_file(folder / file):
        return {**entry, "file": str(folder / file)}
    return entry
