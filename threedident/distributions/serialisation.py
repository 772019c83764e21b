"""Spaces and distributions from and to plain data, as in `dataset.json` and experiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from threedident.distributions.families import (
    SPELLING,
    Distribution,
    GeneralizedNormal,
    Laplace,
    Normal,
    ProjectedNormal,
    Uniform,
    VonMisesFisher,
)
from threedident.distributions.grid import Grid
from threedident.distributions.pair_process import Change, PerFactor, Unchanged
from threedident.distributions.spaces import Box, Product, Space, Sphere, Unbounded
from threedident.distributions.transitions import DiscreteLaplace, UniformFactors
from threedident.errors import UsageError

_SPACES: dict[str, type[Any]] = {"box": Box, "sphere": Sphere, "unbounded": Unbounded}
#: The distributions that hold no others, by name.
_KINDS: dict[str, type[Distribution]] = {
    kind.name: kind
    for kind in (
        Uniform,
        Normal,
        Laplace,
        GeneralizedNormal,
        VonMisesFisher,
        ProjectedNormal,
        Unchanged,
        UniformFactors,
        DiscreteLaplace,
    )
}
#: Values of the fields in examples.
_EXAMPLES = {"sigma": 0.1, "lam": 0.1, "beta": 3.0, "kappa": 10.0, "Lambda": 10.0}


def space_as_dict(space: Space) -> dict[str, Any]:
    """Turn a space into plain data, as in `dataset.json`."""
    if isinstance(space, Product):
        return {"name": "product", "parts": [space_as_dict(part) for part in space.parts]}
    if isinstance(space, Grid):
        fields = dataclasses.asdict(space)
        return {"name": "grid", **{name: _listed(value) for name, value in fields.items()}}
    name = next(name for name, kind in _SPACES.items() if isinstance(space, kind))
    return {"name": name, **dataclasses.asdict(space)}


def parse_space(data: Any) -> Space:
    """Parse plain data that describe a space.

    Args:
        data: the data, as `space_as_dict` returns them.

    Raises:
        UsageError: they describe no space.
    """
    if isinstance(data, Mapping):
        fields = {key: value for key, value in data.items() if key != "name"}
        parts = fields.get("parts")
        if data.get("name") == "product" and len(fields) == 1 and isinstance(parts, list):
            try:
                return Product(*map(parse_space, parts))
            except RecursionError:
                raise UsageError("the description of a space is nested too deeply") from None
        if data.get("name") == "grid":
            return _parse_grid(fields, data)
        kind = _SPACES.get(str(data.get("name")))
        if kind is not None and set(fields) == {f.name for f in dataclasses.fields(kind)}:
            numbers = all(type(v) in (int, float) for v in fields.values())
            if numbers:
                space: Space = kind(**fields)
                return space
    raise UsageError(f"expected the description of a space, found {data!r:.200}")


def _listed(value: Any) -> Any:
    """Tuples as lists, as JSON and TOML have them."""
    return [_listed(each) for each in value] if isinstance(value, tuple) else value


def _parse_grid(fields: dict[str, Any], data: Any) -> Grid:
    expected = {field.name for field in dataclasses.fields(Grid)}
    try:
        if "sizes" not in fields or not set(fields) <= expected:
            raise TypeError(f"expected {', '.join(sorted(expected))}")
        return Grid(fields.pop("sizes"), **fields)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"expected the description of a grid, found {data!r:.200}: {error}"
        ) from error


def _require_fields(name: str, fields: Mapping[str, Any]) -> None:
    """Raises a UsageError that shows an example, where a field without a default is missing."""
    needed = [
        field.name
        for field in dataclasses.fields(_KINDS[name])  # type: ignore[arg-type]
        if field.default is field.default_factory is dataclasses.MISSING
    ]
    missing = [SPELLING.get(each, each) for each in needed if each not in fields]
    if missing:
        values = ", ".join(f"{SPELLING.get(each, each)} = {_EXAMPLES[each]}" for each in needed)
        raise UsageError(
            f"{name} lacks {' and '.join(missing)}: expected, for example, "
            f'{{ name = "{name}", {values} }}'
        )


def parse_distribution(data: Any) -> Distribution:
    """Parse plain data that describe a distribution.

    Args:
        data: the data, as `Distribution.as_dict` returns them; `lambda` stands for `lam`, too.

    Raises:
        UsageError: they describe no distribution.
    """
    if isinstance(data, str) and data in _KINDS:  # a name alone, as on the command line
        _require_fields(data, {})
        raise UsageError(f'expected {{ name = "{data}" }}, found {data!r}')
    try:
        fields = dict(data)
        name = fields.pop("name")
        for field, spelling in SPELLING.items():
            if spelling in fields:
                fields[field] = fields.pop(spelling)
        kinds = (*_KINDS, PerFactor.name, Change.name)
        if name not in kinds:
            raise UsageError(f"unknown distribution {name!r:.100}: expected {', '.join(kinds)}")
        if name in _KINDS:
            expected = [f.name for f in dataclasses.fields(_KINDS[name])]  # type: ignore[arg-type]
            for key in fields:
                if key not in expected:
                    raise UsageError(
                        f"{name} has no {key!r:.100}: expected {', '.join(expected) or 'no field'}"
                    )
            _require_fields(name, fields)
        if name == PerFactor.name:
            blocks = [
                (tuple(p["columns"]), parse_distribution(p["distribution"]))
                for p in fields.pop("parts")
            ]
            return PerFactor(tuple(blocks), **fields)
        if name == Change.name:
            return Change(parse_distribution(fields.pop("conditional")), **fields)
        return _KINDS[name](**fields)
    except RecursionError:
        raise UsageError("the description of a distribution is nested too deeply") from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"expected the description of a distribution, found {data!r:.200}") from (
            error
        )
