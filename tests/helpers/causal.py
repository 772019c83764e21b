"""Causal models as plain data, for tests."""

from __future__ import annotations

import copy
import functools
from typing import Any

from threedident.causal import CausalModel, parse_model
from threedident.factors import FACTOR_NAMES
from threedident.presets import load_preset

UNIFORM = {"kind": "uniform"}
NORMAL = {"kind": "truncated_normal", "mean": 0.0, "std": 0.5}


@functools.cache
def _scene(base: str) -> dict[str, Any]:
    scene = load_preset(base).as_dict()
    return {key: scene[key] for key in scene if key not in ("name", "description", "best_r2")}


def plain(variables: dict[str, Any], base: str = "3dident", **fields: Any) -> dict[str, Any]:
    """A model as plain data, whose scene is that of a preset."""
    scene = {**copy.deepcopy(_scene(base)), **fields.pop("scene", {})}
    return {"name": "model", "scene": scene, "variables": copy.deepcopy(variables), **fields}


def model(variables: dict[str, Any], base: str = "3dident", **fields: Any) -> CausalModel:
    """A model of such plain data."""
    return parse_model(plain(variables, base, **fields), "test")


#: The ten factors, independent and uniform.
TEN = {name: {"mechanism": UNIFORM} for name in FACTOR_NAMES}

#: y depends on x, and z on both; the hue is apart.
CHAIN = {
    "x": {"mechanism": UNIFORM},
    "y": {"mechanism": {"kind": "truncated_normal", "mean": "0.8 * x", "std": 0.3}},
    "z": {"mechanism": {"kind": "truncated_laplace", "mean": "y - x", "scale": 0.2}},
    "object_hue": {"mechanism": NORMAL},
}

_CIRCLE = {"kind": "circular", "range": [0.0, 6.283185307179586]}

#: A variable of each kind, and all mechanisms, in time.
WHOLE: dict[str, Any] = {
    "variables": {
        "switch": {
            "kind": "discrete",
            "values": ["off", "on", "broken"],
            "mechanism": {"kind": "choice", "probabilities": [0.5, 0.25, 0.25]},
            "transition": {"kind": "stay", "redraw": 0.2},
            "note": "it renders nothing",
        },
        "background_hue": {
            **_CIRCLE,
            "mechanism": UNIFORM,
            "transition": {"kind": "step", "goal": "background_hue_goal", "std": 0.15, "rate": 0.5},
            "status": "inferred",
        },
        "background_hue_goal": {**_CIRCLE, "mechanism": UNIFORM},
        "theta": {
            **_CIRCLE,
            "scene": [0.0, 6.283185307179586],
            "mechanism": UNIFORM,
            "transition": {"kind": "step", "goal": "previous(background_hue)", "std": 0.15},
        },
        "x": {
            "range": [-2.0, 2.0],
            "scene": [-2.0, 2.0],
            "mechanism": {
                "kind": "table",
                "by": "switch",
                "cases": {
                    "on": {"kind": "truncated_normal", "mean": "1.5 * sin(theta)", "std": 0.4},
                    "off": {"kind": "uniform", "low": "-0.5", "high": "min(1, 1.5)"},
                },
                "otherwise": {"kind": "constant", "value": "-2"},
            },
            "transition": {"kind": "step", "goal": "1.5 * sin(theta)", "std": 0.1},
        },
        "y": {
            "mechanism": {"kind": "truncated_laplace", "mean": "x / 2", "scale": 0.2},
            "status": "unknown",
        },
        "z": {"mechanism": {"kind": "constant", "value": "0.25 * (x + y)"}},
    },
    "environments": {
        "held": {"x": 0.3, "switch": "broken"},
        "moved": {"y": {"shift": 0.2}, "theta": {"shift": -1.0}},
        "other": {"y": {"kind": "uniform", "low": 0.5, "high": 1.0}},
    },
    "views": {
        "style": {
            "y": {"kind": "truncated_normal", "mean": "first(y)", "std": 0.3},
            "background_hue": UNIFORM,
        }
    },
    "interventions": {
        "targets": "bernoulli",
        "probability": 0.25,
        "groups": [["x", "y"], ["theta"]],
    },
}


def whole(**fields: Any) -> CausalModel:
    """The model `WHOLE`, some of its fields changed."""
    return _changed(**fields) if fields else _whole()


@functools.cache
def _whole() -> CausalModel:
    return _changed()


def _changed(**fields: Any) -> CausalModel:
    data = copy.deepcopy(WHOLE) | fields
    return model(data.pop("variables"), **data)
