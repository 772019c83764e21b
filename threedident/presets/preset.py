"""A generator as plain data: `Preset`, what it hides from any encoder, and its best R2."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import plain_data
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, NUM_FACTORS, factor_index
from threedident.plain_data import Misfit

MATERIALS = ("rubber", "metal", "crystal")
HUES = ("unwrapped", "wrapped")
#: The saturation of each colour, at value 1: only the hues vary.
SATURATION = {"object_hue": 1.0, "spotlight_hue": 0.8, "background_hue": 0.6}

_LARGEST = 1e4  # m or rad: scenes beyond it are not what floats can render
_ROTATION = ("phi", "theta", "psi")
_FULL_TURN = 2 * math.pi
_NEARLY = 1e-6  # rad: ranges that meet a bound up to rounding
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
        description: a line that says what it is.
        ranges: the scene values at raw -1 and +1 (m, rad), per factor.
        hue: "unwrapped" hands negative hues to the colour conversion as the published code
            does (whole ranges then share one colour); "wrapped" takes the hue modulo 1.
        shape: a built-in shape or the path of a mesh file.
        material: rubber, metal or crystal.
        scale: the object's scale.
        fixed: the raw values of factors that are held fixed, by name.
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
        """Map raw latents (N, 10) to scene values (N, 10) float32, affinely in every factor."""
        low, high = np.array([self.ranges[name] for name in FACTOR_NAMES]).T
        raw = raw_latents.astype(np.float64)
        return ((low + high) / 2 + (high - low) / 2 * raw).astype(np.float32)

    def hold_fixed(self, raw_latents: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Set the fixed factors of raw latents (N, 10) to their values, in a copy."""
        raw = raw_latents.copy()
        for name, value in self.fixed.items():
            raw[:, factor_index(name)] = value
        return raw

    def require_fixed(self, raw_latents: npt.NDArray[np.float32], source: str) -> None:
        """Check that raw latents (N, 10) have the fixed factors at their values.

        Args:
            raw_latents: the raw latents.
            source: the name of their source in errors.

        Raises:
            UsageError: a row has another value.
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
        """The reasons why the generator is not injective, a line each; none where it is."""
        reasons = []
        if self.hue == "unwrapped":
            flat = [
                name for name in SATURATION if name not in self.fixed and self._flat_share(name)
            ]
            if flat:
                reasons.append(
                    "the hue is not wrapped: ranges of " + ", ".join(flat) + " share one colour"
                )
        turning = [name for name in _ROTATION if name not in self.fixed]
        if self.shape in _SYMMETRIC and turning:
            reasons.append(_SYMMETRIC[self.shape])
        elif self.shape != "teapot" and turning:
            reasons.append("the symmetries of a user's mesh are not known")
        reasons += [
            f"{name} spans a full turn or more"
            for name in (*turning, *SATURATION)
            if name not in self.fixed and self._span(name) >= _FULL_TURN
        ]
        if "phi" in turning and "psi" in turning and self._reach("theta") >= math.pi / 2 - _NEARLY:
            reasons.append("gimbal lock: at theta = +-pi/2, phi and psi turn about one axis")
        return reasons

    def computed_best_r2(self) -> dict[str, float]:
        """The best R2 that any encoder can reach on uniform latents, as far as it is known.

        It is 1 for a factor that the image shows in full, if the object is in the frame, and 0
        for one that it hides. Of an unwrapped hue a share s of the range has one colour; there
        the best prediction is the middle, and R2 is 1 - s^3. Left out are the rotations of
        shapes with symmetries that are partial or not known, and angles whose range passes that
        of the published generator so far that values may look alike.
        """
        best = {}
        for name in FACTOR_NAMES:
            if name in self.fixed:
                continue
            if self._span(name) == 0:
                best[name] = 0.0
            elif name in SATURATION and self.hue == "unwrapped":
                low, high = self.ranges[name]
                if low >= -math.pi / 2 - _NEARLY and high < _FULL_TURN:
                    best[name] = 1.0 - self._flat_share(name) ** 3
            elif name in _ROTATION:
                if self.shape == "sphere":
                    best[name] = 0.0
                elif self._shows_rotation():
                    best[name] = 1.0
            elif name in ("x", "y", "z") or self._span(name) < _FULL_TURN:
                best[name] = 1.0
        return best

    def _shows_rotation(self) -> bool:
        """Whether images tell any two rotations apart, but for single values of theta."""
        if self.shape != "teapot":
            return False
        turning = [name for name in _ROTATION if name not in self.fixed]
        return self._turns_apart() and all(self._span(name) < _FULL_TURN for name in turning)

    def _turns_apart(self) -> bool:
        """Whether phi and psi turn about different axes, but for single values of theta.

        Beyond a quarter turn of theta, other angles give the same rotation. Where theta is held
        at just that, only the sum or the difference of phi and psi matters.
        """
        turning = [name for name in _ROTATION if name not in self.fixed]
        bound = math.pi / 2 + (_NEARLY if "theta" in turning else -_NEARLY)
        return len(turning) < 2 or self._reach("theta") <= bound

    def _flat_share(self, name: str) -> float:
        """The share of an unwrapped hue's range whose values have one colour.

        Between -1/6 and 0 of a turn only one channel varies, and it is negative, so taken
        as 0, up to (s - 1) / s of that stretch at saturation s.
        """
        low, high = self.ranges[name]
        end = (SATURATION[name] - 1) / SATURATION[name] * math.pi / 3
        stretch = min(high, end) - max(low, -math.pi / 3)
        return stretch / (high - low) if stretch > 0 else 0.0

    def _span(self, name: str) -> float:
        low, high = self.ranges[name]
        return high - low

    def _reach(self, name: str) -> float:
        """The largest absolute scene value of a factor."""
        low, high = self.ranges[name]
        if name in self.fixed:
            return abs((low + high) / 2 + (high - low) / 2 * self.fixed[name])
        return max(abs(low), abs(high))

    def changed(
        self,
        *,
        fixed: Mapping[str, float] | None = None,
        shape: str | None = None,
        material: str | None = None,
    ) -> Preset:
        """This preset with more factors fixed, or another shape or material.

        Its best R2 is kept only where it still holds.

        Args:
            fixed: the raw values of more factors that are held fixed, by name.
            shape: another shape.
            material: another material.

        Raises:
            UsageError: a value does not fit.
        """

        merged = {**self.fixed, **(fixed or {})}
        best = {name: value for name, value in self.best_r2.items() if name not in merged}
        if "theta" in (fixed or {}) and not dataclasses.replace(self, fixed=merged)._turns_apart():
            best = {name: value for name, value in best.items() if name not in _ROTATION}
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
        """The fields that describe the generator and decide no pixel, as plain data."""
        return {"description": self.description, "best_r2": dict(self.best_r2)}

    def as_dict(self) -> dict[str, Any]:
        """The preset as plain data, as in a TOML file."""
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


def parse_preset(data: Mapping[str, Any], source: str) -> Preset:
    """Make a preset from plain data, every field checked.

    Args:
        data: the fields, as `Preset.as_dict` returns them.
        source: the name of their source in errors.

    Raises:
        UsageError: a field is unknown, missing, of the wrong type or out of range.
    """

    with plain_data.explaining(source):
        return _parse(data)


def _parse(data: Mapping[str, Any]) -> Preset:
    plain_data.refuse_unknown(data, sorted(field.name for field in dataclasses.fields(Preset)))
    pairs, ranges = _factors(data, "ranges"), {}
    for name in FACTOR_NAMES:
        if name not in pairs:
            raise Misfit(f"ranges lacks {name}: expected all {NUM_FACTORS} factors")
        ranges[name] = _parse_range(pairs[name], f"ranges.{name}")
    scale = plain_data.number(data.get("scale", 1.5), "scale", _LARGEST)
    if scale <= 0:
        raise Misfit(f"scale must be > 0, found {scale}")
    fixed, best = _factors(data, "fixed"), _factors(data, "best_r2")
    return Preset(
        name=plain_data.text(data.get("name", "unnamed"), "name"),
        description=plain_data.text(data.get("description", ""), "description"),
        ranges=ranges,
        hue=plain_data.choice(data.get("hue", "unwrapped"), "hue", HUES),
        shape=plain_data.text(data.get("shape", "teapot"), "shape"),
        material=plain_data.choice(data.get("material", "rubber"), "material", MATERIALS),
        scale=scale,
        fixed={
            name: _parse_share(fixed[name], f"fixed.{name}", -1, "is a raw value in [-1, 1]")
            for name in FACTOR_NAMES
            if name in fixed
        },
        best_r2={
            name: _parse_share(best[name], f"best_r2.{name}", 0, "must lie in [0, 1]")
            for name in FACTOR_NAMES
            if name in best
        },
    )


def _factors(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table of factors; empty where the data have none."""
    values = plain_data.table(data.get(key, {}), key, "factors")
    for name in values:
        if name not in FACTOR_NAMES:
            raise Misfit(
                f"unknown factor {name!r:.60} in {key}: expected some of {', '.join(FACTOR_NAMES)}"
            )
    return values


def _parse_range(pair: Any, where: str) -> tuple[float, float]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise Misfit(f"{where} must be [low, high], found {pair!r:.80}")
    low, high = (plain_data.number(value, where, _LARGEST) for value in pair)
    if low > high:
        raise Misfit(f"{where} must be [low, high], found {pair!r:.80}")
    return low, high


def _parse_share(value: Any, where: str, least: float, rule: str) -> float:
    """A number from `least` to 1."""
    share = plain_data.number(value, where, _LARGEST)
    if not least <= share <= 1:
        raise Misfit(f"{where} {rule}, found {share}")
    return share
