"""dSprites' files: what our writer writes, HDF5, other orders, and damaged or hostile files."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import zipfile

import h5py
import numpy as np
import pytest

from threedident.datasets.formats import open_dataset
from threedident.datasets.papers.dsprites import DSpritesSource, find, write_dsprites
from threedident.datasets.papers.sprites import SpriteSource
from threedident.errors import DatasetError, ThreeDIdentError, UsageError

SIZES = (3, 2, 4, 3, 2)
COUNT = 144


@pytest.fixture(scope="module")
def drawn():
    return SpriteSource(SIZES)


@pytest.fixture(scope="module")
def written(drawn, tmp_path_factory):
    path = tmp_path_factory.mktemp("dsprites") / "sprites.npz"
    assert write_dsprites(drawn, path) == COUNT
    return path


@pytest.fixture
def arrays(written):
    """The three arrays, to be changed."""
    with np.load(written) as archive:
        return {name: archive[name] for name in ("imgs", "latents_classes", "latents_values")}


def save(path, arrays, compressed=True):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def test_what_is_written_is_read_again(drawn, written):
    source = open_dataset(written)
    assert isinstance(source, DSpritesSource)
    assert source.form == "dsprites"
    assert source.shape == (64, 64, 1)
    assert source.grid == drawn.grid
    assert source.factor_columns == drawn.factor_columns
    assert (source.factors == drawn.factors).all()
    assert (source.images(range(COUNT)) == drawn.images(range(COUNT))).all()
    assert (source.images([5, 5, 0, 143]) == drawn.images([5, 5, 0, 143])).all()
    assert source.fingerprint == drawn.fingerprint
    assert "not the dataset" in source.facts()["drawn"]
    assert source.files() == [written]


def test_the_file_has_the_published_keys_types_and_names(drawn, written):
    with np.load(written, allow_pickle=True) as archive:
        assert archive["imgs"].dtype == np.uint8 and set(np.unique(archive["imgs"])) == {0, 1}
        assert archive["imgs"].shape == (COUNT, 64, 64)
        assert archive["latents_classes"].dtype == np.int64
        assert archive["latents_values"].dtype == np.float64
        metadata = archive["metadata"][()]
        classes, values = archive["latents_classes"], archive["latents_values"]
    names = ("color", "shape", "scale", "orientation", "posX", "posY")
    assert metadata["latents_names"] == names
    assert metadata["latents_sizes"].tolist() == [1, *SIZES]
    assert (classes[:, 0] == 0).all() and (values[:, 0] == 1).all()
    assert (classes[:, 1:] == drawn.factors).all()
    for k, name in enumerate(names):
        assert (metadata["latents_possible_values"][name][classes[:, k]] == values[:, k]).all()
    assert "not the dataset" in metadata["description"]


def test_nothing_is_overwritten_and_nothing_is_left_of_a_failure(drawn, tmp_path, monkeypatch):
    path = tmp_path / "sprites.npz"
    path.write_bytes(b"mine")
    with pytest.raises(DatasetError, match="exists already"):
        write_dsprites(drawn, path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(UsageError, match=r"ends in \.npz"):
        write_dsprites(drawn, tmp_path / "sprites.h5")
    other = tmp_path / "other.npz"
    with monkeypatch.context() as patch:
        patch.setattr(SpriteSource, "read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_dsprites(drawn, other)
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "gzip", "chunks": (10, 64, 64)},
        {"compression": "gzip", "chunks": (100, 4, 64), "shuffle": True, "fletcher32": True},
    ],
)
@pytest.mark.parametrize("labels", ["both", "classes"])
def test_hdf5_files_are_read(drawn, arrays, tmp_path, options, labels):
    path = tmp_path / "sprites.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("imgs", data=arrays["imgs"], **options)
        file["latents/classes"] = arrays["latents_classes"]
        if labels == "both":
            file["latents/values"] = arrays["latents_values"]
    source = open_dataset(path)
    assert source.grid == drawn.grid
    assert (source.images(range(COUNT)) == drawn.images(range(COUNT))).all()
    assert source.fingerprint == drawn.fingerprint
    assert source.facts() == {}


def test_sizes_in_hdf5_are_not_believed(arrays, tmp_path):
    """HDF5 stores nothing of what was never written: a small file can declare terabytes."""
    for shape, chunks in (((COUNT, 4096, 4096), (1, 4096, 4096)), ((COUNT, 2**16, 2**16), None)):
        path = tmp_path / "large.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("imgs", shape, np.uint8, chunks=chunks or (1, 256, 256))
            file["latents/classes"] = arrays["latents_classes"]
        if chunks is None:
            with pytest.raises(DatasetError, match="4096 pixels along a side"):
                open_dataset(path)
            continue
        source = open_dataset(path)
        pieces = source._file.pieces()
        assert next(pieces).nbytes == 2**24
        pieces.close()
    with h5py.File(path, "w") as file:
        file.create_dataset("imgs", (COUNT, 4096, 4096), np.uint8, chunks=(17, 4096, 4096))
        file["latents/classes"] = arrays["latents_classes"]
    with pytest.raises(DatasetError, match="too large"):
        open_dataset(path).image(0)


def test_links_in_hdf5_are_not_followed(arrays, tmp_path):
    other, path = tmp_path / "other.h5", tmp_path / "sprites.h5"
    with h5py.File(other, "w") as file:
        file["imgs"] = arrays["imgs"]
        file["latents/classes"] = arrays["latents_classes"]
    with h5py.File(path, "w") as file:
        file["imgs"] = h5py.ExternalLink(str(other), "imgs")
        file["latents/classes"] = arrays["latents_classes"]
    with pytest.raises(DatasetError, match="link to elsewhere"):
        open_dataset(path)
    with h5py.File(path, "w") as file:
        file["imgs"] = arrays["imgs"]
        file["latents"] = h5py.ExternalLink(str(other), "latents")
    with pytest.raises(DatasetError, match="lacks the array"):
        open_dataset(path)


def test_images_come_in_the_order_of_the_grid_whatever_the_rows_order(drawn, arrays, tmp_path):
    order = np.random.default_rng(0).permutation(COUNT)
    path = save(tmp_path / "mixed.npz", {name: each[order] for name, each in arrays.items()})
    source = open_dataset(path)
    assert (source.factors == drawn.factors).all()
    assert (source.images(range(COUNT)) == drawn.images(range(COUNT))).all()


def test_an_orientation_whose_ends_differ_has_a_turn_of_all_its_steps(arrays, tmp_path):
    arrays["latents_values"][:, 3] = arrays["latents_classes"][:, 3] * (2 * np.pi / 4)
    source = open_dataset(save(tmp_path / "a.npz", arrays))
    assert dict(source.grid.periods) == {"orientation": 4}
    arrays["latents_values"][:, 3] = arrays["latents_classes"][:, 3]
    source = open_dataset(save(tmp_path / "b.npz", arrays))
    assert source.grid.periods == ()


def test_images_of_any_size_are_packed_into_bits(arrays, tmp_path):
    small = np.random.default_rng(0).integers(0, 2, (COUNT, 5, 7)).astype(np.uint8)
    for compressed in (True, False):
        path = save(tmp_path / f"{compressed}.npz", {**arrays, "imgs": small}, compressed)
        source = open_dataset(path)
        assert source.shape == (5, 7, 1)
        assert (source.images(range(COUNT))[..., 0] == 255 * small).all()


def _first_image(source, queue):
    queue.put(source.image(7))


def test_processes_that_are_forked_or_sent_a_copy_read_alike(drawn, written):
    source = open_dataset(written)
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.image(7) == drawn.image(7)).all()
    context = multiprocessing.get_context("fork")
    for before in (True, False):  # it has read before it is forked, or not
        source = open_dataset(written)
        if before:
            source.image(0)
        queue = context.Queue()
        process = context.Process(target=_first_image, args=(source, queue))
        process.start()
        assert (queue.get(timeout=60) == drawn.image(7)).all()
        process.join(60)
        assert process.exitcode == 0


# What is no file of dSprites


def test_only_files_with_such_arrays_are_files_of_dsprites(arrays, written, tmp_path):
    assert find(written)
    assert not find(save(tmp_path / "a.npz", {"imgs": arrays["imgs"]}))
    assert not find(save(tmp_path / "b.npz", {"images": arrays["imgs"]}))
    (tmp_path / "c.npz").write_bytes(b"PK")
    assert not find(tmp_path / "c.npz")
    assert not find(tmp_path / "missing.npz")
    assert not find(tmp_path)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["images"] = arrays["imgs"]
    assert not find(tmp_path / "d.h5")


def change(arrays, name, change):
    arrays[name] = change(arrays[name])
    return arrays


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("imgs", lambda a: a[:-1], "expected"),
        ("imgs", lambda a: a[:, :, 0], "expected"),
        ("imgs", lambda a: a.astype(np.int16), "uint8"),
        ("imgs", lambda a: a[:0], "no image"),
        ("latents_classes", lambda a: a[:, 1:], "expected"),
        ("latents_classes", lambda a: a + 0.5, "whole numbers"),
        ("latents_classes", lambda a: a - 1, "whole numbers"),
        ("latents_classes", lambda a: a + 2**40, "whole numbers"),
        ("latents_classes", lambda a: a // 2, "one image of each combination"),
        ("latents_classes", lambda a: np.vstack([a[1:2], a[1:]]), "two images"),
        ("latents_classes", lambda a: a[:, ::-1], "one colour"),
        ("latents_values", lambda a: a * np.nan, "finite"),
        ("latents_values", lambda a: a[::-1].copy() + np.arange(144)[:, None], "differ"),
        ("latents_values", lambda a: a.astype("U20"), "finite"),
        ("latents_values", lambda a: a[:5], "expected"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, tmp_path, name, damage, words):
    path = save(tmp_path / "bad.npz", change(arrays, name, damage))
    with pytest.raises(DatasetError, match=words):
        open_dataset(path)


def test_images_of_other_values_are_refused_when_they_are_read(arrays, tmp_path):
    arrays["imgs"][100, 3, 3] = 2
    source = open_dataset(save(tmp_path / "grey.npz", arrays))
    for _ in range(2):
        with pytest.raises(DatasetError, match="other values than 0 and 1"):
            source.image(0)


class _Trap:
    """What leaves a folder behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_is_unpickled(arrays, tmp_path):
    trap, path = tmp_path / "trap", tmp_path / "sprites.npz"
    objects = np.empty((), object)
    objects[()] = _Trap(trap)
    np.savez_compressed(path, **arrays, metadata=objects)
    open_dataset(path).image(0)
    rows = np.full((COUNT, 6), None)
    rows[0, 0] = _Trap(trap)
    np.savez_compressed(path, **{**arrays, "latents_classes": rows})
    with pytest.raises(DatasetError, match="not unpickled"):
        open_dataset(path)
    assert not trap.exists()
    with np.load(path, allow_pickle=True) as archive:  # the trap works
        assert len(archive["latents_classes"]) == COUNT
    assert trap.exists()


def _header(shape, dtype="|u1"):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return content.getvalue()


@pytest.mark.parametrize("shape", [(2**40, 64, 64), (COUNT, 2**31, 2**31), (-COUNT, 64, 64)])
def test_sizes_are_not_believed(arrays, tmp_path, shape):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("imgs.npy", _header(shape) + b"\0" * 4096)
        content = io.BytesIO()
        np.save(content, arrays["latents_classes"])
        archive.writestr("latents_classes.npy", content.getvalue())
    with pytest.raises(DatasetError):
        open_dataset(path)


def test_damaged_files_are_read_or_refused_with_an_error_of_ours(written, tmp_path):
    content, path = written.read_bytes(), tmp_path / "damaged.npz"
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(120):
        damaged = bytearray(content)
        if trial % 3 == 0:
            del damaged[rng.integers(len(content)) :]
        else:
            # Half of the time in the zip's own records, at the end.
            low = len(content) - 700 if trial % 2 else 0
            for place in rng.integers(low, len(content), rng.integers(1, 4)):
                damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            source = open_dataset(path)
            source.images(range(len(source)))
        except ThreeDIdentError:
            refused += 1
    assert refused > 60


def test_damaged_hdf5_is_refused_with_an_error_of_ours(arrays, tmp_path):
    path = tmp_path / "sprites.h5"
    with h5py.File(path, "w", libver="v110") as file:
        file.create_dataset("imgs", data=arrays["imgs"], chunks=(20, 64, 64), compression="gzip")
        file["latents/classes"] = arrays["latents_classes"]
    content = path.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ThreeDIdentError):
            source = open_dataset(path)
            source.images(range(len(source)))
