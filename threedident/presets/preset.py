"""A generator as plain data: `Preset`, what it hides from any encoder, and its best R2."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import PurePath
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
#: The shapes that come with the toolkit, and what each hides of its rotation; "" is nothing.
BUILT_IN_SHAPES: Mapping[str, str] = {
    "teapot": "",
    "cube": "a cube hides quarter turns",
    "sphere": "a sphere hides its rotation",
    "cylinder": "a cylinder hides its turn about its own axis",
    "torus": "a torus hides its turn about its own axis",
    "cone": "a cone hides its turn about its own axis",
    "capsule": "a capsule hides its turn about its own axis",
    "superquadric": "a superquadric hides half turns",
    "knot": "",
    "horn": "",
    "coil": "",
    "star": "",
    "pebble": "",
    "wedge": "",
}
MOST_OBJECTS = 8
_MOST_NAMES = 100  # of shapes
_SHAPE_NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,59}")
#: The factors that each object has for itself.
OBJECT_FACTORS = ("x", "y", "z", "phi", "theta", "psi", "object_hue")


@dataclasses.dataclass(frozen=True)
class MeshFile:
    """A mesh file of the user's own, as a shape of a preset.

    Attributes:
        file: the path of the file: .obj, .ply, .stl or .glb.
        scale: the factor by which the mesh is scaled, besides the preset's scale.
        rotate: the degrees by which it is turned about x, y and z, in that order.
        smooth: whether normals are interpolated over its faces: those of the file or, without
            any, the mean around each vertex. None: as the file has it.
        licence: the terms under which the file may be used, for people to read.
    """

    file: str
    scale: float = 1.0
    rotate: tuple[float, float, float] = (0.0, 0.0, 0.0)
    smooth: bool | None = None
    licence: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The entry as plain data, without fields at their defaults."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["rotate"] = list(self.rotate)
        plain = {"scale": 1.0, "rotate": [0.0, 0.0, 0.0], "smooth": None, "licence": ""}
        return {key: value for key, value in data.items() if value != plain.get(key, ...)}


@dataclasses.dataclass(frozen=True)
class Preset:
    """A generator's settings.

    Attributes:
        name: its name, which files and leaderboards show.
        description: a line that says what it is.
        ranges: the scene values at raw -1 and +1 (m, rad), per factor.
        hue: "unwrapped" hands negative hues to the colour conversion as the published code
            does (whole ranges then share one colour); "wrapped" takes the hue modulo 1.
        shape: a built-in shape, a name of `shape_table`, or the path of a mesh file; where there
            are `shapes`, the first of them.
        material: rubber, metal or crystal; where there are `materials`, the first of them.
        scale: the object's scale.
        fixed: the raw values of factors that are held fixed, by name.
        best_r2: the best coefficient of determination that any encoder can reach, per
            factor, where that is known.
        shapes: the names that the scene column "shape" numbers; empty: no such column.
        materials: the materials that the scene column "material" numbers; empty: no such column.
        shape_table: the user's mesh files, by the names of their shapes.
        objects: the number of objects in a scene.
        spotlights: "one" aims the only spotlight at the first object; "each" aims one at every
            object, all of the same colour.
        lift: "half" puts objects at z + s / 2, "none" at z, where s is the largest side that one
            of the image's objects has, unrotated.
        ground: "object" puts the ground at z = -s; names of shapes put it at minus the largest
            side of these, whatever an image shows.
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
    shapes: tuple[str, ...] = ()
    materials: tuple[str, ...] = ()
    shape_table: Mapping[str, MeshFile] = dataclasses.field(default_factory=dict)
    objects: int = 1
    spotlights: str = "one"
    lift: str = "half"
    ground: str | tuple[str, ...] = "object"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a scene row: the ten factors, and what more these scenes have.

        The classes `shape` and `material` are numbers of `shapes` and `materials`. Columns of the
        second object end in _2, and so on.
        """
        classes = (*(("shape",) if self.shapes else ()), *(("material",) if self.materials else ()))
        own = (*OBJECT_FACTORS, *classes)
        if self.spotlights == "each":
            own += ("spotlight_position",)
        more = tuple(f"{name}_{k}" for k in range(2, self.objects + 1) for name in own)
        return (*FACTOR_NAMES, *classes, *more)

    @property
    def drawn_shapes(self) -> tuple[str, ...]:
        """The shapes that an object can have, by their numbers."""
        return self.shapes or (self.shape,)

    @property
    def drawn_materials(self) -> tuple[str, ...]:
        """The materials that an object can have, by their numbers."""
        return self.materials or (self.material,)

    @property
    def mesh_files(self) -> dict[str, str]:
        """The mesh files of the user's own that scenes depend on, by the names of their shapes."""
        names = (*self.drawn_shapes, *(() if self.ground == "object" else self.ground))
        return {
            name: self.shape_table[name].file if name in self.shape_table else name
            for name in names
            if name not in BUILT_IN_SHAPES
        }

    def require_ten_columns(self, cure: str) -> None:
        """Check that the ten factors say all of a scene.

        Args:
            cure: what to do where they do not, as a clause.

        Raises:
            UsageError: scenes have more columns.
        """
        if more := self.columns[NUM_FACTORS:]:
            raise UsageError(
                f"a scene of preset {self.name!r} has {len(self.columns)} columns, of which the "
                f"ten factors lack {', '.join(more[:4])}{', ...' if len(more) > 4 else ''}: {cure}"
            )

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
                name for name in SATURATION if name not in self.fixed and self._flat_shares(name)
            ]
            if flat:
                reasons.append(
                    "the hue is not wrapped: ranges of " + ", ".join(flat) + " share one colour"
                )
        turning = [name for name in _ROTATION if name not in self.fixed]
        if turning:
            unknown = "the symmetries of a user's mesh are not known"
            hidden = [BUILT_IN_SHAPES.get(shape, unknown) for shape in self.drawn_shapes]
            reasons += [reason for reason in dict.fromkeys(hidden) if reason]
        if self.objects > 1:
            reasons.append("objects can hide one another, and equal ones can change places")
        reasons += [
            f"{name} spans a full turn or more"
            for name in (*turning, *SATURATION)
            if name not in self.fixed and self._repeats(name)
        ]
        if "phi" in turning and "psi" in turning and self._reach("theta") >= math.pi / 2 - _NEARLY:
            reasons.append("gimbal lock: at theta = +-pi/2, phi and psi turn about one axis")
        return reasons

    def computed_best_r2(self) -> dict[str, float]:
        """The best R2 that any encoder can reach on uniform latents, as far as it is known.

        It is 1 for a factor that the image shows in full, if the object is in the frame, and 0
        for one that it hides. Of an unwrapped hue shares s of the range have one colour each;
        there the best prediction is the middle, and R2 is 1 less the sum of all s^3. Left out are
        the rotations of shapes of which one has symmetries that are partial or not known, angles
        that span a full turn, and all that is a single one's of several objects.
        """
        best = {}
        for name in FACTOR_NAMES:
            if name in self.fixed:
                continue
            if self._span(name) == 0:
                best[name] = 0.0
            elif self.objects > 1 and name in (*OBJECT_FACTORS, "spotlight_position"):
                continue
            elif name in SATURATION and self.hue == "unwrapped":
                low, high = self.ranges[name]
                if low >= -_FULL_TURN - _NEARLY and high < _FULL_TURN:
                    best[name] = 1.0 - sum(share**3 for share in self._flat_shares(name))
            elif name in _ROTATION:
                if set(self.drawn_shapes) == {"sphere"}:
                    best[name] = 0.0
                elif self._shows_rotation():
                    best[name] = 1.0
            elif name in ("x", "y", "z") or self._span(name) < _FULL_TURN:
                best[name] = 1.0
        return best

    def _shows_rotation(self) -> bool:
        """Whether images tell any two rotations apart, but for single values of theta."""
        if any(BUILT_IN_SHAPES.get(shape, "unknown") for shape in self.drawn_shapes):
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

    def flat_ranges(self, name: str) -> list[tuple[float, float]]:
        """The ranges of an unwrapped hue within which all values have one colour, in raw units.

        Down from 0, in every other sixth of a turn, only one channel varies. It is negative,
        so taken as 0, up to (s - 1) / s of that stretch at saturation s. A factor that is no hue,
        or a hue that is wrapped, has none.
        """
        low, high = self.ranges[name]
        if name not in SATURATION or self.hue != "unwrapped" or low == high:
            return []
        ranges = []
        for sixth in (0, -2, -4):
            start = (sixth - 1) * math.pi / 3
            end = ((SATURATION[name] - 1) / SATURATION[name] + sixth) * math.pi / 3
            start, end = max(low, start), min(high, end)
            if end > start:
                middle, half = (low + high) / 2, (high - low) / 2
                ranges.append(((start - middle) / half, (end - middle) / half))
        return ranges

    def _flat_shares(self, name: str) -> list[float]:
        """The shares of an unwrapped hue's range, each of whose values have one colour."""
        return [(end - start) / 2 for start, end in self.flat_ranges(name)]

    def _repeats(self, name: str) -> bool:
        """Whether a range comes back, in the end, to angles that look as those before."""
        low, high = self.ranges[name]
        if name not in SATURATION or self.hue == "wrapped":
            return self._span(name) >= _FULL_TURN
        # Colours below 0 are none of those above; either repeat after a turn.
        return high - max(low, 0.0) >= _FULL_TURN or min(high, 0.0) - low > _FULL_TURN + _NEARLY

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
            UsageError: a value does not fit, or the preset's scenes have a column for it.
        """
        for one, column in ((shape, "shape"), (material, "material")):
            if one is not None and column in self.columns:
                raise UsageError(
                    f"preset {self.name!r} has the {column} of an object as a column of its scenes "
                    f"({', '.join(getattr(self, column + 's'))}): leave out {column} {one!r}"
                )
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
        new = dataclasses.replace(
            new,
            shape_table={
                name: entry for name, entry in self.shape_table.items() if name in new.mesh_files
            },
        )
        return parse_preset(new.as_dict(), f"preset {self.name!r}")

    def about_objects(self, *, shape: str = "", material: str = "") -> str:
        """Name the shapes and materials of the objects, such as "teapot, rubber".

        Args:
            shape: the words before the shapes.
            material: the words before the materials.
        """
        count = f"{self.objects} objects: " if self.objects > 1 else ""
        shapes = " or ".join(PurePath(name).name for name in self.drawn_shapes)
        return f"{count}{shape}{shapes}, {material}{' or '.join(self.drawn_materials)}"

    def about(self) -> dict[str, Any]:
        """The fields that describe the generator and decide no pixel, as plain data."""
        return {"description": self.description, "best_r2": dict(self.best_r2)}

    def as_dict(self) -> dict[str, Any]:
        """The preset as plain data, as in a TOML file.

        What a preset of one object need not say is left out at its default, so that its datasets
        are those of older versions.
        """
        table = {name: entry.as_dict() for name, entry in self.shape_table.items()}
        ground = self.ground if isinstance(self.ground, str) else list(self.ground)
        more = {
            "shapes": list(self.shapes),
            "materials": list(self.materials),
            "shape_table": table,
            "objects": self.objects,
            "spotlights": self.spotlights,
            "lift": self.lift,
            "ground": ground,
        }
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
            **{key: value for key, value in more.items() if value != _LEFT_OUT[key]},
        }


#: The values at which fields are left out of a preset's plain form.
_LEFT_OUT: Mapping[str, Any] = {
    "shapes": [],
    "materials": [],
    "shape_table": {},
    "objects": 1,
    "spotlights": "one",
    "lift": "half",
    "ground": "object",
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
    data = {**_LEFT_OUT, **data}
    table = _parse_shape_table(data["shape_table"])
    shapes = _distinct(_shape_names(data["shapes"], "shapes", table), "shapes")
    materials = _distinct(
        plain_data.sequence(data["materials"], "materials", _material, least=0, most=_MOST_NAMES),
        "materials",
    )
    ground = data["ground"]
    if isinstance(ground, str):
        ground = plain_data.choice(ground, "ground", ("object",))
    else:
        ground = _shape_names(ground, "ground", table, least=1)
    objects = plain_data.whole(data["objects"], "objects", 1, MOST_OBJECTS)
    # Of the two the names are what counts.
    shape = shapes[0] if shapes else plain_data.text(data.get("shape", "teapot"), "shape")
    material = materials[0] if materials else _material(data.get("material", "rubber"), "material")
    used = (*shapes, shape, *(() if ground == "object" else ground))
    if unused := [name for name in table if name not in used]:
        raise Misfit(
            f"shape_table.{unused[0]} is not used: name it as the shape, in shapes, or leave it out"
        )
    return Preset(
        name=plain_data.text(data.get("name", "unnamed"), "name"),
        description=plain_data.text(data.get("description", ""), "description"),
        ranges=ranges,
        hue=plain_data.choice(data.get("hue", "unwrapped"), "hue", HUES),
        shape=shape,
        material=material,
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
        shapes=shapes,
        materials=materials,
        shape_table=table,
        objects=objects,
        spotlights=plain_data.choice(data["spotlights"], "spotlights", ("one", "each")),
        lift=plain_data.choice(data["lift"], "lift", ("half", "none")),
        ground=ground,
    )


def _material(value: Any, where: str) -> str:
    return plain_data.choice(value, where, MATERIALS)


def _distinct(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise Misfit(f"{where} names one twice: {', '.join(names)}")
    return names


def _shape_names(
    value: Any, where: str, table: Mapping[str, MeshFile], least: int = 0
) -> tuple[str, ...]:
    """A list of shapes that are built in or in the table."""
    names = plain_data.sequence(value, where, plain_data.text, least=least, most=_MOST_NAMES)
    for name in names:
        if name not in BUILT_IN_SHAPES and name not in table:
            raise Misfit(
                f"{where} names {name!r:.60}, which is neither built in "
                f"({', '.join(BUILT_IN_SHAPES)}) nor in shape_table: for a mesh file of your own, "
                "add a table for it to shape_table ([shape_table.NAME] of a preset, "
                '[scene.shape_table.NAME] of a model) with file = "..."'
            )
    return names


def _parse_shape_table(value: Any) -> dict[str, MeshFile]:
    table = {}
    for name, entry in plain_data.table(value, "shape_table", "shapes").items():
        where = f"shape_table.{name!s:.60}"
        if not isinstance(name, str) or not _SHAPE_NAME.fullmatch(name):
            raise Misfit(f"{where}: a shape's name is a letter, then letters, digits, - or _")
        if name in BUILT_IN_SHAPES:
            raise Misfit(f"{where}: {name} is a built-in shape; give yours another name")
        fields = plain_data.table(entry, where)
        known = [field.name for field in dataclasses.fields(MeshFile)]
        plain_data.refuse_unknown(fields, known, where)
        file = plain_data.text(plain_data.needed(fields, "file", where), f"{where}.file", 1000)
        scale = plain_data.number(fields.get("scale", 1.0), f"{where}.scale", _LARGEST)
        if scale <= 0:
            raise Misfit(f"{where}.scale must be > 0, found {scale}")
        smooth = fields.get("smooth")
        if smooth is not None and not isinstance(smooth, bool):
            raise Misfit(f"{where}.smooth must be true or false, found {smooth!r:.80}")
        turns = plain_data.sequence(
            fields.get("rotate", (0.0, 0.0, 0.0)), f"{where}.rotate", _degrees, least=3, most=3
        )
        licence = plain_data.text(fields.get("licence", ""), f"{where}.licence")
        table[name] = MeshFile(file, scale, (turns[0], turns[1], turns[2]), smooth, licence)
    return table


def _degrees(value: Any, where: str) -> float:
    return plain_data.number(value, where, _LARGEST)


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
