import numpy as np
import pytest
import trimesh

from threedident.errors import UsageError
from threedident.presets import BUILT_IN_SHAPES, MeshFile
from threedident.render.mesh import SHAPES, Mesh, face_normals, get_mesh, teapot


def edges(mesh: Mesh) -> dict[tuple[int, int], int]:
    count: dict[tuple[int, int], int] = {}
    for start, size in zip(mesh.starts, mesh.sizes, strict=True):
        face = mesh.corners[start : start + size]
        for a, b in zip(face, np.roll(face, -1), strict=True):
            count[int(a), int(b)] = count.get((int(a), int(b)), 0) + 1
    return count


def test_the_teapot_is_newells():
    mesh = teapot()
    assert mesh.vertices.shape == (3242, 3)
    assert np.bincount(mesh.sizes).tolist() == [0, 0, 0, 80, 3120]
    directed = edges(mesh)
    assert sum((b, a) not in directed for a, b in directed) == 160
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    assert low == pytest.approx([-1.4021, -1.5593, -0.9067], abs=5e-5)
    assert high == pytest.approx([1.5593, 1.4021, 1.0926], abs=5e-5)
    assert 1.5 * mesh.extent == pytest.approx(4.442116737365723, abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_consistently_wound(shape):
    mesh = get_mesh(shape)
    assert max(edges(mesh).values()) == 1
    assert np.linalg.norm(mesh.normals, axis=1) == pytest.approx(1.0)
    per_corner = np.repeat(face_normals(mesh.vertices, mesh.corners, mesh.sizes), mesh.sizes, 0)
    assert ((mesh.normals * per_corner).sum(1) > 0.5).all()
    triangles = mesh.corners[mesh.triangles()]
    assert len(triangles) == (mesh.sizes - 2).sum()
    a, b, c = np.moveaxis(mesh.vertices[triangles], 1, 0)
    assert np.einsum("ij,ij->", a, np.cross(b, c)) > 0


@pytest.mark.parametrize("shape", ["cube", "sphere", "cylinder"])
def test_the_solids_are_closed_and_two_across(shape):
    mesh = get_mesh(shape)
    directed = edges(mesh)
    assert all((b, a) in directed for a, b in directed)
    assert mesh.vertices.min(0) == pytest.approx([-1] * 3, abs=1e-3)
    assert mesh.vertices.max(0) == pytest.approx([1] * 3, abs=1e-3)
    assert (np.einsum("ij,ij->i", mesh.normals, mesh.vertices[mesh.corners]) > 0).all()


STAND_INS = [name for name in SHAPES if name not in ("teapot", "cube", "sphere", "cylinder")]


@pytest.mark.parametrize("shape", STAND_INS)
def test_the_stand_ins_are_closed_smooth_and_as_large_as_the_teapot(shape):
    mesh = get_mesh(shape)
    directed = edges(mesh)
    assert all((b, a) in directed for a, b in directed)
    assert mesh.open_edges() == 0
    assert mesh.warnings() == []
    assert mesh.smooth
    assert 2.3 < mesh.extent < 3
    assert mesh.vertices.max(0) == pytest.approx(-mesh.vertices.min(0))
    # Normals are those of a smooth surface: nearly the same along an edge.
    per_corner = np.repeat(face_normals(mesh.vertices, mesh.corners, mesh.sizes), mesh.sizes, 0)
    assert ((mesh.normals * per_corner).sum(1) > 0.9).all()


def volume_moments(mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Variances of the solid along its principal axes, and its third moments in them."""
    a, b, c = np.moveaxis(mesh.vertices[mesh.corners[mesh.triangles()]], 1, 0)
    volume = np.einsum("ij,ij->i", a, np.cross(b, c)) / 6
    volume /= volume.sum()
    # A rule that is exact to the third degree on tetrahedra (0, a, b, c).
    points = [(a + b + c) / 4]
    points += [(a + b + c) / 6 + p / 3 for p in (0 * a, a, b, c)]
    weights = np.concatenate([-0.8 * volume, *[0.45 * volume] * 4])
    places = np.concatenate(points)
    places -= weights @ places
    variances, axes = np.linalg.eigh((weights[:, None] * places).T @ places)
    along = places @ axes / np.sqrt(variances)
    return variances, np.einsum("n,ni,nj,nk->ijk", weights, along, along, along, optimize=True)


def hidden_turns(mesh: Mesh) -> bool:
    """Whether a rotation may leave the solid as it is, by its moments."""
    variances, third = volume_moments(mesh)
    if (np.diff(variances) / variances[1:] < 1e-2).any():
        return True  # about an axis, perhaps by any angle
    # Only half turns about the principal axes are left; each turns the signs of two of them.
    for axis in range(3):
        sign = np.where(np.arange(3) == axis, 1.0, -1.0)
        turned = third * sign[:, None, None] * sign[:, None] * sign
        if np.abs(turned - third).max() < 0.02:
            return True
    return False


@pytest.mark.parametrize("shape", SHAPES)
def test_which_shapes_show_every_rotation(shape):
    assert hidden_turns(get_mesh(shape)) == bool(BUILT_IN_SHAPES[shape])


def test_meshes_of_a_shape_table(tmp_path):
    ball = trimesh.creation.icosphere(subdivisions=2)
    ball.apply_scale((1, 2, 3))
    ball.export(tmp_path / "egg.stl")
    plain = get_mesh("egg", {"egg": MeshFile(str(tmp_path / "egg.stl"))})
    assert not plain.smooth
    assert np.ptp(plain.vertices, axis=0) == pytest.approx([2, 4, 6], abs=0.1)
    entry = MeshFile(str(tmp_path / "egg.stl"), 0.5, (90, 0, 0), smooth=True)
    turned = get_mesh("egg", {"egg": entry})
    # Rx(90 deg) takes z to -y.
    assert np.ptp(turned.vertices, axis=0) == pytest.approx([1, 3, 2], abs=0.05)
    assert turned.smooth
    assert not turned.native_normals
    points = turned.vertices[turned.corners]
    outward = points / np.array([0.5, 1.5, 1.0]) ** 2
    outward /= np.linalg.norm(outward, axis=1, keepdims=True)
    assert ((turned.normals * outward).sum(1) > 0.97).all()
    # Turned about x, y and z, in that order.
    several = get_mesh("egg", {"egg": MeshFile(str(tmp_path / "egg.stl"), 1, (90, 90, 0))})
    assert np.ptp(several.vertices, axis=0) == pytest.approx([4, 6, 2], abs=0.1)
    ball.export(tmp_path / "egg.ply", vertex_normal=True)
    flat = get_mesh("egg", {"egg": MeshFile(str(tmp_path / "egg.ply"), smooth=False)})
    faces = np.repeat(face_normals(flat.vertices, flat.corners, flat.sizes), flat.sizes, 0)
    assert flat.normals == pytest.approx(faces)
    assert not flat.smooth


def first_hits(mesh: Mesh, origins: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """The unit normals of the triangles that rays hit first (Moeller and Trumbore)."""
    a, b, c = np.moveaxis(mesh.vertices[mesh.corners[mesh.triangles()]], 1, 0)
    e1, e2 = b - a, c - a
    p = np.cross(direction, e2)
    with np.errstate(divide="ignore", invalid="ignore"):
        det = 1 / (e1 * p).sum(1)
        offset = origins[:, None] - a
        u = (offset * p).sum(2) * det
        q = np.cross(offset, e1)
        v = (q @ direction) * det
        t = (q * e2).sum(2) * det
    t = np.where((u >= 0) & (v >= 0) & (u + v <= 1) & (t > 0), t, np.inf)
    first = t.argmin(1)[np.isfinite(t.min(1))]
    normal = np.cross(e1, e2)[first]
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def test_teapot_normals_face_outward():
    # Seen from six sides, what is in front faces the viewer. Not all of it: rays from above
    # pass the gap between lid and rim and meet the bottom from the inside.
    mesh = teapot()
    spread = np.linspace(-0.8, 0.8, 12) + 0.013
    u, v = (grid.ravel() for grid in np.meshgrid(spread, spread))
    for axis in range(3):
        for side in (-1.0, 1.0):
            origins = np.insert(np.stack([u, v], 1), axis, 5 * side, axis=1)
            direction = np.zeros(3)
            direction[axis] = -side
            normals = first_hits(mesh, origins, direction)
            assert len(normals) > 50
            assert (normals @ direction < 0).mean() > (0.9 if axis == 2 else 0.999)


def test_normals_of_a_teapot_are_smooth_and_of_a_sphere_flat():
    assert teapot().smooth
    sphere = get_mesh("sphere")
    assert not sphere.smooth
    flat = np.repeat(face_normals(sphere.vertices, sphere.corners, sphere.sizes), sphere.sizes, 0)
    assert np.array_equal(sphere.normals, flat)


@pytest.mark.parametrize("suffix", ["obj", "ply", "stl", "glb"])
def test_a_users_mesh(tmp_path, suffix):
    box = trimesh.creation.box((1, 2, 4))
    box.apply_translation((5, 6, 7))
    path = tmp_path / f"box.{suffix}"
    box.export(path)
    mesh = get_mesh(str(path))
    assert mesh.extent == pytest.approx(4)
    assert np.sort(np.ptp(mesh.vertices, axis=0)) == pytest.approx([1, 2, 4])
    assert (mesh.vertices.max(0) + mesh.vertices.min(0)) == pytest.approx([0, 0, 0], abs=1e-6)
    assert len(mesh.sizes) == 12


def test_a_mesh_without_normals_is_flat_and_one_with_normals_keeps_them(tmp_path):
    ball = trimesh.creation.icosphere(subdivisions=2)
    ball.export(tmp_path / "flat.stl")
    assert not get_mesh(str(tmp_path / "flat.stl")).smooth
    for suffix in ("ply", "obj", "glb"):
        path = tmp_path / f"smooth.{suffix}"
        options = {"vertex_normal": True} if suffix == "ply" else {"include_normals": True}
        ball.export(path, **options)
        mesh = get_mesh(str(path))
        assert mesh.smooth, suffix
        points = mesh.vertices[mesh.corners]
        assert (mesh.normals * points).sum(1) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("stray", ["100 0 0", "nan nan nan"])
def test_vertices_of_no_face_say_nothing(tmp_path, stray):
    path = tmp_path / "stray.ply"
    path.write_text(
        "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\n"
        "property float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"
        f"{stray}\n0 0 0\n1 0 0\n0 2 0\n3 1 2 3\n"
    )
    mesh = get_mesh(str(path))
    assert mesh.extent == pytest.approx(2)
    assert np.isfinite(mesh.vertices).all()


def test_open_edges_are_counted():
    assert teapot().open_edges() > 0
    assert get_mesh("cube").open_edges() == 0
    assert get_mesh("cube").warnings() == []


def test_faces_without_area_are_left_out(tmp_path):
    path = tmp_path / "degenerate.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 2 0 0\nf 1 2 3\nf 1 2 4\nf 1 1 2\n")
    mesh = get_mesh(str(path))
    assert len(mesh.sizes) == 1
    assert np.isfinite(mesh.normals).all()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.obj", None),
        ("empty.obj", b""),
        ("noise.stl", b"\x00\x01garbage" * 20),
        ("noise.glb", b"glTF garbage"),
        ("noise.ply", b"ply\nformat ascii 1.0\nelement vertex 5\n"),
        ("points.obj", b"v 0 0 0\nv 1 0 0\n"),
        ("point.obj", b"v 1 1 1\nv 1 1 1\nv 1 1 1\nf 1 2 3\n"),
        ("nan.obj", b"v nan 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n"),
        ("mesh.fbx", b"whatever"),
    ],
)
def test_meshes_that_cannot_be_read(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=name if name != "mesh.fbx" else "unknown shape"):
        get_mesh(str(path))
