"""The papers' tables as files, one a table or figure: rows, published numbers, sources.

`demo.toml` is a plain experiment, and `images.toml` says which images there are. All other files
are tables:

- Fields of the whole table: `title`, `kind` and so on, see `Study`; `source`, that of its
  experiments; `row_title` and `row_block`, of which a row's title and block are made.
- `[base]`: what all rows have in common.
- `columns`, and `[choices.COLUMN]`: what a row can choose in a column, by name. A `label` stands
  for the choice in titles; `{COLUMN.name}` is its name there, and `texts` has more texts.
- `[presets]`: experiments that rows vary, and that are not rows themselves.
- `[rows]`: the rows, in order, each with its choices (`is`, in the order of the columns; "" for
  none). A row with a `preset` varies that experiment. Any other row is an experiment of its own.

A row's fields are merged from the base, the choices and itself. They are the tables of an
experiment, and fields of `Row`, such as the published numbers: in percent, with their standard
deviations. A title or a block can name any of these fields in braces. The conditional of pairs
that are rendered is that of the images.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from threedident.plain_data import read_toml

Plain = dict[str, Any]

_OF_EXPERIMENTS = ("title", "source", "data", "encoder", "loss", "training")

#: The tables, in the order in which they are listed.
TABLES = (
    *("table1", "table2", "table4", "fig2", "aninfonce", "hard-negatives", "ensemble", "tricl"),
    "mnist-vae",
    *("matching", "matching-synthetic", "generators", "content-style", "readout"),
    *("kitti", "dsprites", "natural-sprites"),
)
_FOLDER = Path(__file__).parent
_IMAGES = "images"
#: What a file has besides the fields of `Study`.
_LAYOUT = ("source", "row_title", "row_block", "columns", "base", "choices", "presets", "rows")


class Table(NamedTuple):
    """A table, as plain data.

    Attributes:
        settings: the fields of the whole table, by name.
        rows: the fields of each row, in order, `experiment` among them.
    """

    settings: Plain
    rows: list[Plain]


def merged(*parts: Mapping[str, Any]) -> Plain:
    """Merge nested tables; where two have a value, the later one's counts.

    A space or a distribution, which is a table with a name, is replaced as a whole.

    Args:
        parts: the tables.
    """
    result: Plain = {}
    for part in parts:
        for key, value in part.items():
            nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if nested and "name" not in value else value
    return result


@functools.cache
def read_presets() -> Mapping[str, Plain]:
    """Read the built-in experiments, as plain data by name."""
    presets: dict[str, Plain] = {}
    for name, file in _files().items():
        if "rows" not in file:
            presets[name] = file
            continue
        for key, own in {**file.get("presets", {}), **file["rows"]}.items():
            row = _row(file, own)
            if "preset" not in row:
                presets[_full_name(name, key)] = _experiment(row)
    return presets


@functools.cache
def read_tables() -> Mapping[str, Table]:
    """Read the tables, by name."""
    return {name: _table(name, file) for name, file in _files().items() if "rows" in file}


@functools.cache
def read_images() -> Mapping[str, Plain]:
    """Read what the datasets of images are that rows are trained and scored on, by name."""
    images: dict[str, Plain] = read_toml(_FOLDER / f"{_IMAGES}.toml", _IMAGES)["images"]
    return images


@functools.cache
def _files() -> Mapping[str, Plain]:
    paths = sorted(path for path in _FOLDER.glob("*.toml") if path.stem != _IMAGES)
    return {path.stem: read_toml(path, f"table {path.stem}") for path in paths}


def _table(name: str, file: Plain) -> Table:
    rows = []
    for key, own in file["rows"].items():
        row = _row(file, own)
        row["name"] = full_name = _full_name(name, key)
        varied = _experiment(row) if "preset" in row else {}
        row["experiment"] = merged(read_presets()[row.setdefault("preset", full_name)], varied)
        if "start" in row:
            row["start"] = _full_name(name, row["start"])
        rows.append({key: value for key, value in row.items() if key not in _OF_EXPERIMENTS})
    return Table({key: value for key, value in file.items() if key not in _LAYOUT}, rows)


def _full_name(table: str, key: str) -> str:
    """The name of a row: the table's, and its own, which can be empty."""
    return f"{table}-{key}" if key else table


class _Choice(str):
    """The label of a choice, which also has the choice's name for titles."""

    name: str


def _row(file: Plain, own: Plain) -> Plain:
    """The fields of a row, merged from the base, its choices and itself."""
    choices, labels = [], {}
    for column, name in zip(file.get("columns", ()), own.get("is", ()), strict=False):
        if name:
            choice = dict(file["choices"][column][name])
            labels[column] = _Choice(choice.pop("label", name))
            labels[column].name = name
            choices.append(choice)
    row = merged(*choices, own)
    base = file.get("base", {})
    if "preset" in row:  # which has an experiment and a source
        base = {key: value for key, value in base.items() if key not in _OF_EXPERIMENTS}
    elif "source" in file:
        base = {**base, "source": file["source"]}
    row = merged(base, row)
    for field, template in (("block", "row_block"), ("title", "row_title")):
        # What observations as they are have for a title is the table's matter.
        text = None if row.get("identity") and field == "title" else file.get(template)
        text = row.get(field, text)
        if text is not None:
            row[field] = text.format(**{**row, **row.get("texts", {}), **labels})
    if row.get("data", {}).get("pairs") == "rendered":
        row["data"] = {**row["data"], "conditional": read_images()[row["train_on"]]["conditional"]}
    return {key: value for key, value in row.items() if key not in ("is", "texts")}


def _experiment(row: Plain) -> Plain:
    """The fields of a row that are its experiment's."""
    return {key: row[key] for key in _OF_EXPERIMENTS if key in row}
