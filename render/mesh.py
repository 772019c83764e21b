"""The shapes, as arrays: vertices, faces and corner normals, for whichever engine draws them.

Every built-in shape is made from numbers in this file; there is no binary asset. A shape
is given before the preset's scale is applied, centred as the published generator has it.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import MissingExtraError, UsageError
from threedident.plain_data import is_file
from threedident.presets import MeshFile

Array = npt.NDArray[Any]

MESH_SUFFIXES = (".obj", ".ply", ".stl", ".glb")


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A polygon mesh.

    Attributes:
        vertices: the vertices, (V, 3) float64.
        corners: the vertex of every face corner, (C,) int32, face after face,
            counter-clockwise seen from outside.
        sizes: the number of corners of each face, (F,) int32 (3 or 4 for the built-in shapes).
        normals: the unit shading normal at every corner, (C, 3) float64.
        smooth: whether normals are interpolated over a face (False: flat shading).
        native_normals: whether `normals` are what any renderer derives by itself from the
            faces (angle-weighted when smooth, face normals when flat).
        dropped: the number of faces without area that the file had.
    """

    vertices: Array
    corners: Array
    sizes: Array
    normals: Array
    smooth: bool
    native_normals: bool = True
    dropped: int = 0

    def warnings(self) -> list[str]:
        """List what may go wrong in images of this mesh, a line each."""
        lines = []
        if self.dropped:
            lines.append(f"the mesh has {self.dropped} faces without area: they are left out")
        if count := self.open_edges():
            lines.append(
                f"the mesh has {count} open edges: where one looks into it, its inner side is "
                "shaded as if it were an outer one, and light may fall through"
            )
        return lines

    def open_edges(self) -> int:
        """Count the edges that belong to one face alone, vertices at one place taken as one."""
        corners = _places(self.vertices)[1][self.corners]
        ends = np.sort(np.stack([corners, corners[_following(self.sizes)]], axis=1), axis=1)
        _, count = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0, return_counts=True)
        return int((count == 1).sum())

    @property
    def starts(self) -> Array:
        """The index at which each face's corners begin, (F,) int64."""
        return face_starts(self.sizes)

    @property
    def extent(self) -> float:
        """The largest side of the axis-aligned bounding box."""
        return float(np.ptp(self.vertices, axis=0).max())

    def sphere(self) -> tuple[npt.NDArray[np.float64], float]:
        """A sphere around the vertices: the centre of their box, (3,), and the radius."""
        centre = (self.vertices.min(0) + self.vertices.max(0)) / 2
        return centre, float(np.linalg.norm(self.vertices - centre, axis=1).max())

    def triangles(self) -> Array:
        """Cut every face into a fan of triangles: (T, 3) int64 indices into the corners."""
        starts, sizes = self.starts, self.sizes
        fans = []
        for k in range(1, int(sizes.max()) - 1):
            first = starts[sizes > k + 1]
            fans.append(np.stack([first, first + k, first + k + 1], axis=1))
        return np.concatenate(fans)


def _from_faces(vertices: Array, faces: list[Array], *, smooth: bool, native: bool = True) -> Mesh:
    sizes = np.array([len(f) for f in faces], np.int32)
    corners = np.concatenate(faces).astype(np.int32)
    normals = corner_normals(vertices, corners, sizes, smooth=smooth)
    return Mesh(vertices, corners, sizes, normals, smooth, native)


def face_starts(sizes: Array) -> Array:
    """The index at which each face's corners begin, (F,) int64, from how many each has."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


def _following(sizes: Array) -> Array:
    """The corner that comes after each one, around its face, (C,) int64."""
    starts = face_starts(sizes)
    following = np.arange(int(sizes.sum())) + 1
    following[starts + sizes - 1] = starts
    return following


def face_normals(vertices: Array, corners: Array, sizes: Array) -> Array:
    """Compute unit normals (F, 3) by Newell's method; zero for a face without area."""
    starts = face_starts(sizes)
    face = np.repeat(np.arange(len(sizes)), sizes)
    a, b = vertices[corners], vertices[corners[_following(sizes)]]
    # Relative to the face's first corner: the cross products of far-off faces cancel badly.
    origin = vertices[corners[starts]][face]
    cross = np.cross(a - origin, b - origin)
    normals = np.zeros((len(sizes), 3))
    np.add.at(normals, face, cross)
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    return np.divide(normals, length, out=np.zeros_like(normals), where=length > 0)


def corner_normals(vertices: Array, corners: Array, sizes: Array, *, smooth: bool) -> Array:
    """The corner normals, (C, 3): the face's own, or the angle-weighted mean at its vertex."""
    per_face = face_normals(vertices, corners, sizes)
    face = np.repeat(np.arange(len(sizes)), sizes)
    if not smooth:
        return per_face[face]
    following = _following(sizes)
    previous = np.empty_like(following)
    previous[following] = np.arange(len(corners))
    here = vertices[corners]
    to_next = vertices[corners[following]] - here
    to_previous = vertices[corners[previous]] - here
    cosine = (to_next * to_previous).sum(1) / (
        np.linalg.norm(to_next, axis=1) * np.linalg.norm(to_previous, axis=1)
    )
    angle = np.arccos(np.clip(cosine, -1.0, 1.0))
    summed = np.zeros_like(vertices)
    np.add.at(summed, corners, per_face[face] * angle[:, None])
    length = np.linalg.norm(summed, axis=1, keepdims=True)
    summed = np.divide(summed, length, out=np.zeros_like(summed), where=length > 0)
    return summed[corners]


# --- The Newell teapot ------------------------------------------------------------------

_PATCH_QUADS = 10  # quads along each side of a bicubic patch
_TEAPOT_SCALE = 0.6346859439970953
_TEAPOT_SINK = 0.906694233417511
_TEAPOT_TURN = -np.pi / 4
_ARC = 0.56  # control points of a quarter turn of radius r: (r, 0) (r, -k r) (k r, -r) (0, -r)
_ARC_KNOB = 0.5625  # the knob's second row uses another k than every other row

# Profiles of control points (r, z), each swept over four quarter turns.
_RIM = [(1.4, 2.4), (1.3375, 2.53125), (1.4375, 2.53125), (1.5, 2.4)]
_BODY_UPPER = [(1.5, 2.4), (1.75, 1.875), (2, 1.35), (2, 0.9)]
_BODY_LOWER = [(2, 0.9), (2, 0.45), (1.5, 0.225), (1.5, 0.15)]
_BOTTOM = [(0, 0), (1.425, 0), (1.5, 0.075), (1.5, 0.15)]
_LID_KNOB = [(0, 3.15), (0.8, 3.15), (0, 2.85), (0.2, 2.7)]
_LID = [(0.2, 2.7), (0.4, 2.55), (1.3, 2.55), (1.3, 2.4)]

# Patches as four rows of four points; each has a mirror image in y.
_HANDLE_UPPER = [
    [(-1.6, 0, 2.025), (-1.6, -0.3, 2.025), (-1.5, -0.3, 2.25), (-1.5, 0, 2.25)],
    [(-2.3, 0, 2.025), (-2.3, -0.3, 2.025), (-2.5, -0.3, 2.25), (-2.5, 0, 2.25)],
    [(-2.7, 0, 2.025), (-2.7, -0.3, 2.025), (-3, -0.3, 2.25), (-3, 0, 2.25)],
    [(-2.7, 0, 1.8), (-2.7, -0.3, 1.8), (-3, -0.3, 1.8), (-3, 0, 1.8)],
]
_HANDLE_LOWER = [
    _HANDLE_UPPER[3],
    [(-2.7, 0, 1.575), (-2.7, -0.3, 1.575), (-3, -0.3, 1.35), (-3, 0, 1.35)],
    [(-2.5, 0, 1.125), (-2.5, -0.3, 1.125), (-2.65, -0.3, 0.9375), (-2.65, 0, 0.9375)],
    [(-2, 0, 0.9), (-2, -0.3, 0.9), (-1.9, -0.3, 0.6), (-1.9, 0, 0.6)],
]
_SPOUT_LOWER = [
    [(1.7, 0, 1.425), (1.7, -0.66, 1.425), (1.7, -0.66, 0.6), (1.7, 0, 0.6)],
    [(2.6, 0, 1.425), (2.6, -0.66, 1.425), (3.1, -0.66, 0.825), (3.1, 0, 0.825)],
    [(2.3, 0, 2.1), (2.3, -0.25, 2.1), (2.4, -0.25, 2.025), (2.4, 0, 2.025)],
    [(2.7, 0, 2.4), (2.7, -0.25, 2.4), (3.3, -0.25, 2.4), (3.3, 0, 2.4)],
]
_SPOUT_UPPER = [
    _SPOUT_LOWER[3],
    [(2.8, 0, 2.475), (2.8, -0.25, 2.475), (3.525, -0.25, 2.49375), (3.525, 0, 2.49375)],
    [(2.9, 0, 2.475), (2.9, -0.15, 2.475), (3.45, -0.15, 2.5125), (3.45, 0, 2.5125)],
    [(2.8, 0, 2.4), (2.8, -0.15, 2.4), (3.2, -0.15, 2.4), (3.2, 0, 2.4)],
]


def _swept(profile: list[tuple[float, float]], *, arcs: tuple[float, ...]) -> Array:
    """Make (4, 4, 4, 3) control points: a profile swept over four quarter turns."""
    quarter = np.array(
        [
            [(r, 0, z), (r, -k * r, z), (k * r, -r, z), (0, -r, z)]
            for (r, z), k in zip(profile, arcs, strict=True)
        ],
        float,
    )
    turns = []
    for step in range(4):
        c, s = [(1, 0), (0, -1), (-1, 0), (0, 1)][step]
        x, y = quarter[..., 0], quarter[..., 1]
        turns.append(np.stack([c * x - s * y, s * x + c * y, quarter[..., 2]], axis=-1))
    return np.stack(turns)


def _mirrored(rows: list[list[tuple[float, float, float]]]) -> Array:
    """Make (2, 4, 4, 3) control points: a patch, and its mirror image in y walked backwards.

    Backwards, so that both halves run around the tube in the same direction.
    """
    patch = np.array(rows, float)
    mirror = patch[:, ::-1] * np.array([1.0, -1.0, 1.0])
    return np.stack([patch, mirror])


def _tessellate(patches: Array) -> Array:
    """Compute (P, q + 1, q + 1, 3) points of bicubic Bezier patches (P, 4, 4, 3)."""
    t = np.linspace(0.0, 1.0, _PATCH_QUADS + 1)[:, None]
    basis = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    return np.einsum("ai,bj,pijc->pabc", basis, basis, patches)


def _places(points: Array) -> tuple[Array, Array]:
    """Find the first of the points (N, 3) at each place, and the place of every point."""
    _, first, inverse = np.unique(
        np.round(points, 9) + 0.0, axis=0, return_index=True, return_inverse=True
    )
    return first, inverse.reshape(-1)


def _weld(patches: Array) -> tuple[Array, list[Array]]:
    """Weld patches into the vertices and faces of one component; poles become triangles."""
    points = _tessellate(patches).reshape(-1, 3)
    first, inverse = _places(points)
    vertices = points[first]
    side = _PATCH_QUADS + 1
    grid = inverse.reshape(len(patches), side, side)
    quads = np.stack(
        [grid[:, :-1, :-1], grid[:, :-1, 1:], grid[:, 1:, 1:], grid[:, 1:, :-1]], axis=-1
    ).reshape(-1, 4)
    kept = quads != np.roll(quads, 1, axis=1)
    return vertices, [quad[mask] for quad, mask in zip(quads, kept, strict=True)]


def _facing_outward(vertices: Array, faces: list[Array]) -> list[Array]:
    """Wind the faces of a consistently wound component so that they enclose a volume > 0."""
    centred = vertices - vertices.mean(0)
    fans = [(face[0], *face[k : k + 2]) for face in faces for k in range(1, len(face) - 1)]
    a, b, c = centred[np.array(fans).T]
    volume = (a * np.cross(b, c)).sum()
    return faces if volume > 0 else [face[::-1] for face in faces]


def teapot() -> Mesh:
    """The Newell teapot: 32 patches of 10 x 10 quads, 3242 vertices, smooth.

    Body, lid, handle and spout are components of their own: vertices are welded inside a
    component, not across, so 160 edges stay open.
    """
    plain = (_ARC,) * 4
    knob = (_ARC, _ARC_KNOB, _ARC, _ARC)
    components = [
        np.concatenate(
            [
                _swept(_RIM, arcs=plain),
                _swept(_BODY_UPPER, arcs=plain),
                _swept(_BODY_LOWER, arcs=plain),
                # Reversed, so that the whole outline runs one way and the winding agrees.
                _swept(_BOTTOM[::-1], arcs=plain),
            ]
        ),
        np.concatenate([_swept(_LID_KNOB, arcs=knob), _swept(_LID, arcs=plain)]),
        np.concatenate([_mirrored(_HANDLE_UPPER), _mirrored(_HANDLE_LOWER)]),
        np.concatenate([_mirrored(_SPOUT_LOWER), _mirrored(_SPOUT_UPPER)]),
    ]
    all_vertices: list[Array] = []
    all_faces: list[Array] = []
    offset = 0
    for patches in components:
        vertices, faces = _weld(patches)
        all_faces += [face + offset for face in _facing_outward(vertices, faces)]
        all_vertices.append(vertices)
        offset += len(vertices)
    points = np.concatenate(all_vertices) * _TEAPOT_SCALE
    points[:, 2] -= _TEAPOT_SINK
    c, s = np.cos(_TEAPOT_TURN), np.sin(_TEAPOT_TURN)
    turned = np.stack(
        [c * points[:, 0] - s * points[:, 1], s * points[:, 0] + c * points[:, 1], points[:, 2]],
        axis=1,
    )
    return _from_faces(turned, all_faces, smooth=True)


# --- The other shapes -------------------------------------------------------------------

_BEVEL = 0.1  # radius of the cube's rounded edges
_BEVEL_STEPS = 8
_AROUND, _ALONG = 256, 128  # facets of the sphere and the cylinder: dense, as they are flat


def cube() -> Mesh:
    """A cube of side 2 with edges rounded to radius 0.1, smooth."""
    inner = 1.0 - _BEVEL
    # One side's coordinate: from the middle of one bevel, over the flat, to the next one's.
    half = inner + _BEVEL * np.tan(np.linspace(0, np.pi / 4, _BEVEL_STEPS + 1))
    line = np.concatenate([-half[::-1], half])
    u, v = np.meshgrid(line, line, indexing="ij")
    w = np.ones_like(u)
    vertices: list[Array] = []
    normals: list[Array] = []
    for axis in range(3):
        for sign in (1.0, -1.0):
            # (u, v, w) cyclic keeps the winding; the opposite side swaps u and v.
            parts = (u, v, w) if sign > 0 else (v, u, -w)
            point = np.moveaxis(np.roll(parts, axis + 1, axis=0), 0, -1).reshape(-1, 3)
            core = np.clip(point, -inner, inner)
            outward = point - core
            outward /= np.linalg.norm(outward, axis=1, keepdims=True)
            vertices.append(core + _BEVEL * outward)
            normals.append(outward)
    points = np.concatenate(vertices)
    first, inverse = _places(points)
    side = len(line)
    grid = inverse.reshape(6, side, side)
    quads = np.stack(
        [grid[:, :-1, :-1], grid[:, 1:, :-1], grid[:, 1:, 1:], grid[:, :-1, 1:]], axis=-1
    ).reshape(-1, 4)
    corners = quads.reshape(-1).astype(np.int32)
    return Mesh(
        points[first],
        corners,
        np.full(len(quads), 4, np.int32),
        np.concatenate(normals)[first][corners],
        smooth=True,
        native_normals=False,
    )


def _revolved(rings: list[Array]) -> tuple[Array, list[Array]]:
    """Make vertices and faces of rings from top to bottom; a ring of one point is a pole."""
    starts = np.cumsum([0, *(len(r) for r in rings)])
    faces: list[Array] = []
    i = np.arange(max(len(r) for r in rings))
    j = (i + 1) % len(i)
    for k in range(len(rings) - 1):
        top, bottom = starts[k], starts[k + 1]
        if len(rings[k]) == 1:
            faces += list(np.stack([np.full_like(i, top), bottom + i, bottom + j], 1))
        elif len(rings[k + 1]) == 1:
            faces += list(np.stack([top + i, np.full_like(i, bottom), top + j], 1))
        else:
            faces += list(np.stack([top + i, bottom + i, bottom + j, top + j], 1))
    return np.concatenate(rings), faces


def _circle(radius: float, z: float) -> Array:
    angle = 2 * np.pi * np.arange(_AROUND) / _AROUND
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full_like(angle, z)], 1)


def sphere() -> Mesh:
    """A sphere of diameter 2, flat-shaded in dense facets."""
    polar = np.pi * np.arange(1, _ALONG) / _ALONG
    rings = [np.array([[0.0, 0.0, 1.0]])]
    rings += [_circle(float(np.sin(p)), float(np.cos(p))) for p in polar]
    rings += [np.array([[0.0, 0.0, -1.0]])]
    return _from_faces(*_revolved(rings), smooth=False)


def cylinder() -> Mesh:
    """A cylinder of diameter 2 and height 2, flat-shaded in dense facets."""
    rings = [np.array([[0.0, 0.0, 1.0]]), _circle(1.0, 1.0), _circle(1.0, -1.0)]
    rings += [np.array([[0.0, 0.0, -1.0]])]
    return _from_faces(*_revolved(rings), smooth=False)


# --- Stand-ins for shapes that other datasets have: solids of our own, of about the teapot's size

_STEPS, _TURN = 64, 96  # facets of a smooth solid from pole to pole, and around
_ROUND = 0.12  # radius of the cone's rounded edges


def _fitted(vertices: Array, extent: float) -> Array:
    """Centre a bounding box on the origin, and give its largest side a length."""
    low, high = vertices.min(0), vertices.max(0)
    fitted: Array = (vertices - (low + high) / 2) * (extent / (high - low).max())
    return fitted


def _turned(profile: Array, normals: Array, extent: float) -> Mesh:
    """A profile (P, 2) of radii and heights, from top to bottom, turned about the z axis.

    Its first and last points are poles. `normals` (P, 2) are those of the profile.
    """
    angle = 2 * np.pi * np.arange(_TURN) / _TURN

    def rings(values: Array) -> list[Array]:
        around = [
            np.stack([r * np.cos(angle), r * np.sin(angle), np.full_like(angle, z)], 1)
            for r, z in values[1:-1]
        ]
        top, bottom = (np.array([[0.0, 0.0, values[k, 1]]]) for k in (0, -1))
        return [top, *around, bottom]

    vertices, faces = _revolved(rings(profile))
    corners = np.concatenate(faces).astype(np.int32)
    sizes = np.array([len(face) for face in faces], np.int32)
    shading = np.concatenate(rings(normals))[corners]
    return Mesh(_fitted(vertices, extent), corners, sizes, shading, True, native_normals=False)


def _arc(centre: tuple[float, float], radius: float, first: float, last: float) -> Array:
    """Points and normals (P, 4) of an arc in a profile, by angles from the axis in degrees."""
    angle = np.radians(np.linspace(first, last, 17))
    outward = np.stack([np.sin(angle), np.cos(angle)], 1)
    return np.concatenate([np.array(centre) + radius * outward, outward], axis=1)


def capsule() -> Mesh:
    """A cylinder with half spheres as its ends, about the z axis."""
    half = 0.75
    outline = np.concatenate([_arc((0, half), 1, 0, 90), _arc((0, -half), 1, 90, 180)])
    return _turned(outline[:, :2], outline[:, 2:], 2.8)


def cone() -> Mesh:
    """A cone about the z axis, its tip and edge rounded."""
    lean = float(np.degrees(np.arctan2(2, 1)))  # from the axis to its side's normal
    tip, edge = (0.0, 2.0), (1.0, 0.0)
    middle = np.array([[0.0, -_ROUND, 0.0, -1.0]])
    outline = np.concatenate([_arc(tip, _ROUND, 0, lean), _arc(edge, _ROUND, lean, 180), middle])
    return _turned(outline[:, :2], outline[:, 2:], 2.6)


def _radial(radius: Callable[[Array], Array], extent: float, bend: Any = None) -> Mesh:
    """A smooth solid around the origin, by its radius in each of the directions (N, 3)."""
    polar = np.pi * np.arange(_STEPS + 1) / _STEPS
    angle = 2 * np.pi * np.arange(_TURN) / _TURN
    rings = []
    for p in polar:
        around = angle[:1] if p in (polar[0], polar[-1]) else angle
        ring = np.stack(
            [np.sin(p) * np.cos(around), np.sin(p) * np.sin(around), np.cos(p) + 0 * around], 1
        )
        rings.append(ring * radius(ring)[:, None])
    vertices, faces = _revolved(rings)
    return _from_faces(_fitted(bend(vertices) if bend else vertices, extent), faces, smooth=True)


def _rounded_box(sides: Sequence[float], powers: tuple[float, float]) -> Callable[[Array], Array]:
    """The radius of a superquadric, in directions (N, 3)."""
    across, upright = powers

    def radius(directions: Array) -> Array:
        x, y, z = (np.abs(directions) / np.array(sides)).T
        flat = (x**across + y**across) ** (upright / across)
        found: Array = (flat + z**upright) ** (-1 / upright)
        return found

    return radius


def superquadric() -> Mesh:
    """A box of three different sides, rounded all over."""
    return _radial(_rounded_box((1.0, 0.75, 0.55), (4.0, 3.0)), 2.5)


def wedge() -> Mesh:
    """A rounded box that tapers to one edge and leans to one side."""

    def bend(points: Array) -> Array:
        x, y, z = points.T
        return np.stack([x * (1 - 0.65 * z), y + 0.3 * z + 0.25 * x**2, z], 1)

    return _radial(_rounded_box((0.9, 0.65, 0.9), (4.0, 4.0)), 2.4, bend)


def _bumps(arms: Array, sharpness: float, base: float) -> Callable[[Array], Array]:
    """The radius of a ball with arms, each (x, y, z, length), in directions (N, 3)."""
    ways = arms[:, :3] / np.linalg.norm(arms[:, :3], axis=1, keepdims=True)

    def radius(directions: Array) -> Array:
        cosines = np.einsum("ij,kj->ik", directions, ways)
        found: Array = base + np.einsum("ik,k->i", np.exp(sharpness * (cosines - 1)), arms[:, 3])
        return found

    return radius


def star() -> Mesh:
    """A ball with seven arms of different lengths."""
    arms = np.array(
        [
            *((1, 0.1, 0.2, 1.0), (-0.8, 0.6, 0, 0.75), (-0.7, -0.8, 0.1, 0.55)),
            *((0.3, 0.9, 0.3, 0.45), (0.3, -1, -0.2, 0.8)),
            *((0.1, 0.1, 1, 0.9), (-0.2, 0.1, -1, 0.6)),
        ]
    )
    return _radial(_bumps(arms, 14.0, 0.5), 2.9)


def pebble() -> Mesh:
    """A ball with a few wide swellings, no two alike."""
    arms = np.array(
        [(1, 0.2, 0.3, 0.9), (-0.5, 0.9, 0.1, 0.55), (-0.4, -0.7, 0.6, 0.3), (0.2, -0.3, -1, 0.45)]
    )
    return _radial(_bumps(arms, 3.0, 0.7), 2.5)


def _tube(centres: Array, radii: Array, extent: float, *, closed: bool) -> Mesh:
    """A smooth tube around a line of points (U, 3); an open one ends in its first and last."""
    following = np.roll(centres, -1, axis=0) if closed else np.gradient(centres, axis=0) + centres
    before = np.roll(centres, 1, axis=0) if closed else centres
    ways = following - before
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    # Carried along without turning about the line.
    side = np.cross(ways[0], [0.3, 0.5, 0.8])
    sides = []
    for way in ways:
        side = side - way * (side @ way)
        side = side / np.linalg.norm(side)
        sides.append(side)
    across = np.array(sides)
    twist = np.zeros(len(centres))
    if closed:  # what is missing, when it comes round, is spread over the whole line
        last = across[-1] - ways[0] * (across[-1] @ ways[0])
        missing = np.arctan2(np.cross(last, across[0]) @ ways[0], last @ across[0])
        twist = missing * np.arange(len(centres)) / len(centres)
    upright = np.cross(ways, across)
    angle = 2 * np.pi * np.arange(_TUBE_TURN) / _TUBE_TURN + twist[:, None]
    offsets = (
        np.cos(angle)[..., None] * across[:, None] + np.sin(angle)[..., None] * upright[:, None]
    )
    rings = centres[:, None] + radii[:, None, None] * offsets
    if not closed:
        vertices, faces = _revolved([centres[:1], *rings[1:-1], centres[-1:]])
    else:
        vertices = rings.reshape(-1, 3)
        grid = np.arange(len(vertices)).reshape(len(rings), -1)
        along, around = np.roll(grid, -1, axis=0), np.roll(grid, -1, axis=1)
        both = np.roll(along, -1, axis=1)
        faces = list(np.stack([grid, along, both, around], axis=-1).reshape(-1, 4))
    return _from_faces(_fitted(vertices, extent), _facing_outward(vertices, faces), smooth=True)


_TUBE_TURN = 40  # facets around a tube
_ALONG_TUBE = 192  # and along it


def _round_ends(s: Array) -> Array:
    """A tube's radius over its length s in [0, 1], of 1 but for the ends, which are round."""
    ends: Array = np.sqrt(np.maximum(1 - (2 * s - 1) ** 8, 0.0))
    return ends


def _spread() -> Array:
    """Places along an open tube, in [0, 1], closer at its ends."""
    places: Array = (1 - np.cos(np.pi * np.linspace(0, 1, _ALONG_TUBE))) / 2
    return places


def torus() -> Mesh:
    """A ring about the z axis."""
    t = 2 * np.pi * np.arange(_ALONG_TUBE) / _ALONG_TUBE
    circle = np.stack([np.cos(t), np.sin(t), 0 * t], 1)
    return _tube(circle, np.full_like(t, 0.42), 2.8, closed=True)


def knot() -> Mesh:
    """A trefoil knot of a rope that is thicker on one side."""
    t = 2 * np.pi * np.arange(2 * _ALONG_TUBE) / (2 * _ALONG_TUBE)
    line = np.stack(
        [np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t), -1.2 * np.sin(3 * t)], 1
    )
    return _tube(line, 0.5 + 0.22 * np.sin(t), 2.9, closed=True)


def horn() -> Mesh:
    """A bent horn, thick at one end and thin at the other, out of one plane."""
    s = _spread()
    angle = 1.35 * np.pi * s
    line = np.stack([np.cos(angle), np.sin(angle), 0.9 * s**2], 1)
    return _tube(line, (0.55 - 0.4 * s) * _round_ends(s), 2.8, closed=False)


def coil() -> Mesh:
    """A rope wound two and a half times about the z axis, wider and thicker at its foot."""
    s = _spread()
    angle = 5 * np.pi * s
    radius = 1.15 - 0.6 * s
    line = np.stack([radius * np.cos(angle), radius * np.sin(angle), 2.3 * s], 1)
    return _tube(line, (0.36 - 0.12 * s) * _round_ends(s), 2.8, closed=False)


SHAPES: dict[str, Callable[[], Mesh]] = {
    "teapot": teapot,
    "cube": cube,
    "sphere": sphere,
    "cylinder": cylinder,
    "torus": torus,
    "cone": cone,
    "capsule": capsule,
    "superquadric": superquadric,
    "knot": knot,
    "horn": horn,
    "coil": coil,
    "star": star,
    "pebble": pebble,
    "wedge": wedge,
}


def load_mesh(path: str | Path) -> Mesh:
    """A user's mesh (.obj, .ply, .stl, .glb), its bounding box centred on the origin.

    It keeps its size. Vertex normals of the file are used where it has them; without
    them the faces are flat.

    Raises:
        UsageError: the file is missing, of another kind, unreadable, or holds no face.
        MissingExtraError: trimesh, which reads the file, is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in MESH_SUFFIXES:
        raise UsageError(f"cannot read the mesh {path}: expected one of {', '.join(MESH_SUFFIXES)}")
    if not path.is_file():
        raise UsageError(f"cannot read the mesh {path}: there is no such file")
    try:
        import trimesh
    except ImportError as error:
        raise MissingExtraError("trimesh", "render", "reading a mesh file") from error
    try:
        # By its content alone: textures and other files that it names are not opened.
        with path.open("rb") as file:
            content = io.BytesIO(file.read())
        kind = path.suffix.lower()[1:]
        scene = trimesh.load_scene(content, file_type=kind, process=False)
        # A file can hold several parts, each placed by a transform.
        placed = [scene.graph[node] for node in scene.graph.nodes_geometry]
        parts = [_read_part(scene.geometry[name], matrix) for matrix, name in placed]
    except Exception as error:  # trimesh raises whatever its parsers raise
        raise UsageError(f"cannot read the mesh {path}: {error or type(error).__name__}") from error
    parts = [part for part in parts if len(part[1])]
    if not parts:
        raise UsageError(f"cannot read the mesh {path}: it holds no faces")
    for vertices, faces, _ in parts:
        if faces.min() < 0 or faces.max() >= len(vertices):
            raise UsageError(f"cannot read the mesh {path}: a face refers to a missing vertex")
    # Vertices that no face uses say nothing of the shape, least of all of its size.
    parts = [_used_vertices(*part) for part in parts]
    offsets = np.cumsum([0, *(len(vertices) for vertices, _, _ in parts)])
    vertices = np.concatenate([vertices for vertices, _, _ in parts])
    faces = np.concatenate([faces + k for (_, faces, _), k in zip(parts, offsets, strict=False)])
    if not np.isfinite(vertices).all() or np.abs(vertices).max() > 1e9:
        raise UsageError(f"cannot read the mesh {path}: a vertex is not a finite number below 1e9")
    low, high = vertices.min(0), vertices.max(0)
    vertices = vertices - (low + high) / 2
    # A face without area has no normal, and shows nothing.
    a, b, c = np.moveaxis(vertices[faces], 1, 0)
    twice_area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    solid = twice_area > 1e-12 * (high - low).max() ** 2
    faces, dropped = faces[solid], int((~solid).sum())
    if not len(faces):
        raise UsageError(f"cannot read the mesh {path}: none of its faces has an area")
    corners = faces.reshape(-1).astype(np.int32)
    sizes = np.full(len(faces), 3, np.int32)
    flat = corner_normals(vertices, corners, sizes, smooth=False)
    if not any(normals is not None for _, _, normals in parts):
        return Mesh(vertices, corners, sizes, flat, smooth=False, dropped=dropped)
    given = np.concatenate(
        [np.zeros_like(vertices) if n is None else n for vertices, _, n in parts]
    )[corners]
    length = np.linalg.norm(given, axis=1, keepdims=True)
    usable = np.isfinite(length) & (length > 1e-6)
    normals = np.where(usable, given / np.where(usable, length, 1.0), flat)
    return Mesh(
        vertices, corners, sizes, normals, smooth=True, native_normals=False, dropped=dropped
    )


def _used_vertices(
    vertices: Array, faces: Array, normals: Array | None
) -> tuple[Array, Array, Array | None]:
    kept, renamed = np.unique(faces, return_inverse=True)
    return vertices[kept], renamed.reshape(faces.shape), None if normals is None else normals[kept]


def _read_part(part: Any, matrix: Array) -> tuple[Array, Array, Array | None]:
    """Read vertices (V, 3), triangles (F, 3) and the file's own vertex normals (V, 3), if any."""
    linear = np.asarray(matrix, np.float64)[:3, :3]
    vertices = np.asarray(part.vertices, np.float64).reshape(-1, 3) @ linear.T + matrix[:3, 3]
    faces = np.asarray(getattr(part, "faces", ()), np.int64).reshape(-1, 3)
    if np.linalg.det(linear) < 0:  # a mirror image: turn the faces round again
        faces = faces[:, ::-1]
    # What is in the cache right after loading comes from the file; trimesh would compute
    # normals for any mesh that is asked for them.
    if "vertex_normals" not in getattr(part, "_cache", {}):
        return vertices, faces, None
    return vertices, faces, np.asarray(part.vertex_normals) @ np.linalg.inv(linear)


def get_mesh(shape: str, table: Mapping[str, MeshFile] | None = None) -> Mesh:
    """The mesh of a shape name, or of a user's file.

    Args:
        shape: a built-in shape, a name of the table, or the path of a mesh file.
        table: the user's mesh files by name.

    Raises:
        UsageError: neither a known shape nor a readable mesh file.
    """
    if shape in SHAPES:
        return SHAPES[shape]()
    if table and shape in table:
        return _from_table(shape, table[shape])
    if Path(shape).suffix.lower() in MESH_SUFFIXES:
        return load_mesh(shape)
    raise UsageError(
        f"unknown shape {shape!r}: expected one of {', '.join(SHAPES)}, "
        f"or a mesh file ({', '.join(MESH_SUFFIXES)})"
    )


def _from_table(name: str, entry: MeshFile) -> Mesh:
    """The mesh of an entry of a shape table, turned, scaled and smoothed as it says."""
    if not is_file(Path(entry.file)):
        raise UsageError(
            f"the shape {name!r} is a mesh file of your own, {entry.file}, and there is no such "
            "file: put it beside the file that names it, or into this folder, or write its path "
            "into its table in shape_table ([shape_table.NAME] of a preset, "
            "[scene.shape_table.NAME] of a model). The toolkit brings no mesh of this name"
        )
    try:
        mesh = load_mesh(entry.file)
    except UsageError as error:
        raise UsageError(f"the shape {name!r}: {error}") from error
    if entry.smooth is not None and entry.smooth != mesh.smooth:
        mesh = _smoothed(mesh) if entry.smooth else _flattened(mesh)
    turn = np.eye(3)
    for axis, degrees in enumerate(entry.rotate):
        c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        about = np.eye(3)
        first, second = (axis + 1) % 3, (axis + 2) % 3
        about[[first, first, second, second], [first, second, first, second]] = c, -s, s, c
        turn = about @ turn
    vertices = entry.scale * mesh.vertices @ turn.T
    centre = (vertices.min(0) + vertices.max(0)) / 2
    return dataclasses.replace(mesh, vertices=vertices - centre, normals=mesh.normals @ turn.T)


def _flattened(mesh: Mesh) -> Mesh:
    normals = corner_normals(mesh.vertices, mesh.corners, mesh.sizes, smooth=False)
    return dataclasses.replace(mesh, normals=normals, smooth=False, native_normals=True)


def _smoothed(mesh: Mesh) -> Mesh:
    """Interpolate normals over faces that meet at a place, whether they share vertices or not."""
    first, place = _places(mesh.vertices)
    normals = corner_normals(mesh.vertices[first], place[mesh.corners], mesh.sizes, smooth=True)
    lost = np.linalg.norm(normals, axis=1) < 0.5  # of opposite faces
    normals[lost] = mesh.normals[lost]
    return dataclasses.replace(mesh, normals=normals, smooth=True, native_normals=False)
