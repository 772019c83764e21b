"""Presets: what a generator is, as plain data. The built-in ones are the TOML files here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS, factor_index
from threedident.storage.atomic_files import read_toml

MATERIALS = ("rubber", "metal", "crystal")
#: Of each colour, at value 1: the hues' latents are all that varies.
SATURATION = {"object_hue": 1.0, "spotlight_hue": 0.8, "background_hue": 0.6}
_LARGEST = 1e4  # m or rad: scenes beyond it are not what floats can render
HUES = ("unwrapped", "wrapped")
DEFAULT_PRESET = "3dident"

_SYMMETRIC = {
    "sphere": "a sphere hides its rotation",
    "cylinder": "a cylinder hides its turn about its own axis",
    "cube": "a cube hides quarter turns",
}


@dataclasses.dataclass(frozen=True)
class Preset:
    """A generator's settings.

    Attributes:
        name: its name, which files and leaderboards show.
        description: one line.
        ranges: per factor, the scene values at raw -1 and +1 (m, rad).
        hue: "unwrapped" hands negative hues to the colour conversion as the published code
            does (whole ranges then share one colour); "wrapped" takes the hue modulo 1.
        shape: a built-in shape or the path of a mesh file.
        material: rubber, metal or crystal.
        scale: of the object.
        fixed: raw values of factors that are held fixed, by name.
        best_r2: the best coefficient of determination that any encoder can reach, per
            factor, where that is known.
    """

    name: str
    description: str
    ranges: Mapping[str, tuple[float, float]]
    hue: str = "unwrapped"
    shape: str = "teapot"
    material: str = "rubber"
    scale: float = 1.5
    fixed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    best_r2: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def to_scene(self, raw_latents: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scene values, (N, 10) float32, of raw latents (N, 10): affine in every factor."""
        low, high = np.array([self.ranges[name] for name in FACTOR_NAMES]).T
        raw = raw_latents.astype(np.float64)
        return ((low + high) / 2 + (high - low) / 2 * raw).astype(np.float32)

    def hold_fixed(self, raw_latents: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The raw latents with the fixed factors at their values."""
        raw = raw_latents.copy()
        for name, value in self.fixed.items():
            raw[:, factor_index(name)] = value
        return raw

    def require_fixed(self, raw_latents: npt.NDArray[np.float32], source: str) -> None:
        """Checks that raw latents (N, 10) have the fixed factors at their values.

        Raises:
            UsageError: a row has another value; `source` names where the latents came from.
        """
        for name, value in self.fixed.items():
            column = factor_index(name)
            off = np.flatnonzero(raw_latents[:, column] != np.float32(value))
            if len(off):
                raise UsageError(
                    f"{source}: {name} is held at raw {value:g} (by --fix, or by preset "
                    f"{self.name!r}), but row {off[0]} has {raw_latents[off[0], column]:g} "
                    f"({len(off)} rows of {len(raw_latents)} differ). Given latents are not "
                    f"altered: set column {column} to {value!r} in all rows, or do not hold {name}"
                )

    def ambiguities(self) -> list[str]:
        """Why the generator is not injective, a line a reason; empty where it is."""
        reasons = []
        if self.hue == "unwrapped":
            flat = [name for name in SATURATION if name not in self.fixed and self._is_flat(name)]
            if flat:
                reasons.append(
                    "the hue is not wrapped: ranges of " + ", ".join(flat) + " share one colour"
                )
        turning = [name for name in ("phi", "theta", "psi") if name not in self.fixed]
        if self.shape in _SYMMETRIC and turning:
            reasons.append(_SYMMETRIC[self.shape])
        elif self.shape != "teapot" and turning:
            reasons.append("the symmetries of a user's mesh are not known")
        for name in (*turning, *SATURATION):
            low, high = self.ranges[name]
            if name not in self.fixed and high - low >= 2 * math.pi:
                reasons.append(f"{name} spans a full turn or more")
        if "phi" in turning and "psi" in turning:
            reach = max(map(abs, self.ranges["theta"]))
            if "theta" in self.fixed:
                reach = abs(self._fixed_scene_value("theta"))
            if reach >= math.pi / 2 - 1e-6:
                reasons.append("gimbal lock: at theta = +-pi/2, phi and psi turn about one axis")
        return reasons

    def _is_flat(self, name: str) -> bool:
        """Whether an unwrapped hue takes values that share one colour.

        Between -1/6 and 0 of a turn only one channel varies, and it is negative, so taken
        as 0, up to (s - 1) / s of that stretch at saturation s.
        """
        low, high = self.ranges[name]
        end = (SATURATION[name] - 1) / SATURATION[name] * math.pi / 3
        return low < end and high > -math.pi / 3

    def _fixed_scene_value(self, name: str) -> float:
        low, high = self.ranges[name]
        return (low + high) / 2 + (high - low) / 2 * self.fixed[name]

    def changed(
        self,
        *,
        fixed: Mapping[str, float] | None = None,
        shape: str | None = None,
        material: str | None = None,
    ) -> Preset:
        """This preset with more factors fixed, or another shape or material.

        What is known of the best score is kept only where it still holds.
        """
        merged = {**self.fixed, **(fixed or {})}
        best = {name: value for name, value in self.best_r2.items() if name not in merged}
        if shape is not None and shape != self.shape:
            for name in ("phi", "theta", "psi"):
                best.pop(name, None)
                if shape == "sphere" and name not in merged:
                    best[name] = 0.0
        new = dataclasses.replace(
            self,
            fixed=merged,
            best_r2={name: best[name] for name in FACTOR_NAMES if name in best},
            shape=self.shape if shape is None else shape,
            material=self.material if material is None else material,
        )
        return parse_preset(new.as_dict(), f"preset {self.name!r}")

    def about(self) -> dict[str, Any]:
        """The part of `as_dict` that describes the generator and decides no pixel."""
        return {"description": self.description, "best_r2": dict(self.best_r2)}

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in a preset's TOML file."""
        return {
            "name": self.name,
            "description": self.description,
            "hue": self.hue,
            "shape": self.shape,
            "material": self.material,
            "scale": self.scale,
            "ranges": {name: list(self.ranges[name]) for name in FACTOR_NAMES},
            "fixed": dict(self.fixed),
            "best_r2": dict(self.best_r2),
        }


def preset_names() -> list[str]:
    """The names of the built-in presets, the default first."""
    folder = resources.files(__name__)
    names = (p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    return sorted(names, key=lambda name: (name != DEFAULT_PRESET, name))


def load_preset(name: str | Path) -> Preset:
    """A built-in preset by name, or a user's from a .toml file.

    Raises:
        UsageError: an unknown name, or a file that is missing or does not fit.
    """
    own = str(name).endswith(".toml")
    source = f"preset file {name}" if own else f"preset {name}"
    if not own and name not in preset_names():
        raise UsageError(
            f"unknown preset {str(name)!r}: expected one of {', '.join(preset_names())}, "
            "or the path of a .toml file"
        )
    data = read_toml(Path(name) if own else Path(__file__).with_name(f"{name}.toml"), source)
    if own:
        data.setdefault("name", Path(name).stem)
        shape = data.get("shape")
        # A mesh is named relative to the preset that uses it.
        if isinstance(shape, str) and "." in shape and not Path(shape).is_absolute():
            data["shape"] = str(Path(name).parent / shape)
    return parse_preset(data, source)


def parse_preset(data: Mapping[str, Any], source: str) -> Preset:
    """A preset from plain data, every field checked.

    Raises:
        UsageError: a field is unknown, missing, of the wrong type or out of range.
    """

    def fail(message: str) -> UsageError:
        return UsageError(f"{source}: {message}")

    known = {field.name for field in dataclasses.fields(Preset)}
    for key in data:
        if key not in known:
            raise fail(f"unknown field {key!r}: expected some of {', '.join(sorted(known))}")

    def text(key: str, default: str, choices: tuple[str, ...] = ()) -> str:
        value = data.get(key, default)
        if not isinstance(value, str) or (choices and value not in choices):
            wanted = f"one of {', '.join(choices)}" if choices else "a string"
            raise fail(f"{key} must be {wanted}, found {value!r}")
        return value

    def number(value: Any, what: str) -> float:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not abs(value) <= _LARGEST:
            raise fail(f"{what} must be a finite number, at most {_LARGEST:g}, found {value!r:.40}")
        return float(value)

    def table(key: str) -> dict[str, Any]:
        value = data.get(key, {})
        if not isinstance(value, Mapping):
            raise fail(f"{key} must be a table of factors, found {value!r}")
        for name in value:
            if name not in FACTOR_NAMES:
                raise fail(
                    f"unknown factor {name!r} in {key}: expected some of {', '.join(FACTOR_NAMES)}"
                )
        return dict(value)

    ranges: dict[str, tuple[float, float]] = {}
    given = table("ranges")
    for name in FACTOR_NAMES:
        if name not in given:
            raise fail(f"ranges lacks {name}: expected all {NUM_FACTORS} factors")
        pair = given[name]
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise fail(f"ranges.{name} must be [low, high], found {pair!r}")
        low, high = (number(v, f"ranges.{name}") for v in pair)
        if low > high:
            raise fail(f"ranges.{name} must be [low, high], found {pair!r}")
        ranges[name] = (low, high)
    fixed = {name: number(value, f"fixed.{name}") for name, value in table("fixed").items()}
    for name, value in fixed.items():
        if not -1 <= value <= 1:
            raise fail(f"fixed.{name} is a raw value in [-1, 1], found {value}")
    best = {name: number(value, f"best_r2.{name}") for name, value in table("best_r2").items()}
    for name, value in best.items():
        if not 0 <= value <= 1:
            raise fail(f"best_r2.{name} must lie in [0, 1], found {value}")
    scale = number(data.get("scale", 1.5), "scale")
    if scale <= 0:
        raise fail(f"scale must be > 0, found {scale}")
    return Preset(
        name=text("name", "unnamed"),
        description=text("description", ""),
        ranges=ranges,
        hue=text("hue", "unwrapped", HUES),
        shape=text("shape", "teapot"),
        material=text("material", "rubber", MATERIALS),
        scale=scale,
        fixed={name: fixed[name] for name in FACTOR_NAMES if name in fixed},
        best_r2={name: best[name] for name in FACTOR_NAMES if name in best},
    )
