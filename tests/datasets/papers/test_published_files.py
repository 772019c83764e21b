"""Published files of Shapes3D, MPI3D, Cars3D, SmallNORB and MNIST: small ones of the same form."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import paper_files
from helpers.paper_files import FORMS, SIDE, noise
from PIL import Image

from threedident.datasets.formats import find_form, open_dataset, open_rendered
from threedident.datasets.papers import cars3d, digits, image_arrays, matlab, mpi3d, shapes3d
from threedident.datasets.papers import smallnorb as norb
from threedident.errors import DatasetError, UsageError


def points(sizes):
    return np.stack(np.meshgrid(*map(range, sizes), indexing="ij"), -1).reshape(-1, len(sizes))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_opens_by_its_content_and_reads_in_any_order(tmp_path, name):
    path = FORMS[name].write(tmp_path)
    with open_dataset(path) as source:
        assert source.form == FORMS[name].name == find_form(path)
        images = source.images(range(len(source)))
        order = np.random.default_rng(0).permutation(len(source)).tolist()
        assert np.array_equal(source.images(order), images[order])
        # In dSprites the first and the last orientation are one.
        assert len({image.tobytes() for image in images}) >= len(images) * 3 / 4
        assert source.factors.shape == (len(source), len(source.factor_names))
        assert source.factors.dtype == np.float32
        with pytest.raises(IndexError, match="there is no image"):
            source.image(len(source))
        with ThreadPoolExecutor(4) as threads:
            read = list(threads.map(source.image, order[:50]))
        assert np.array_equal(np.stack(read), images[order[:50]])
        copy = pickle.loads(pickle.dumps(source))
        assert np.array_equal(copy.image(3), images[3])
        if source.grid is not None:
            assert len(source.grid) == len(source)
            shown = source.grid.points(np.arange(len(source)))[:, list(source.grid.shown)]
            assert np.array_equal(source.factors, shown)
        assert all(file.is_file() for file in source.files())
    with pytest.raises(UsageError, match="needs the ten latents"):
        open_rendered(path)


@pytest.mark.parametrize("name", ["MPI3D", "gzipped IDX files", "compressed Shapes3D"])
def test_a_forked_process_reads_from_its_own_place(tmp_path, name):
    path = FORMS[name].write(tmp_path)
    with open_dataset(path) as source:
        whole = source.images(range(len(source)))
    with open_dataset(path) as source:
        source.images(range(5))
        child = os.fork()
        if not child:
            same = np.array_equal(source.images(range(5, 20)), whole[5:20])
            os._exit(0 if same else 3)
        assert np.array_equal(source.images(range(5, 20)), whole[5:20])
        assert os.waitpid(child, 0)[1] == 0


# Shapes3D


def test_the_labels_of_shapes3d_say_which_grid_it_is(tmp_path):
    path = paper_files.write_shapes3d(tmp_path)
    images = noise(int(np.prod(paper_files.SHAPES3D)), SIDE, SIDE, 3)
    with open_dataset(path) as source:
        assert source.grid.sizes == paper_files.SHAPES3D
        assert source.grid.names == shapes3d.NAMES
        assert source.grid.categorical == ("shape",)
        assert dict(source.grid.periods) == {"floor_hue": 3, "wall_hue": 2, "object_hue": 2}
        assert np.array_equal(source.factors, points(paper_files.SHAPES3D))
        assert np.array_equal(source.images(range(len(source))), images)


def test_hues_with_both_ends_have_a_step_less_to_a_turn(tmp_path):
    with open_dataset(paper_files.write_shapes3d(tmp_path, both_ends=True)) as source:
        assert dict(source.grid.periods) == {"floor_hue": 2, "wall_hue": 1, "object_hue": 1}


@pytest.mark.parametrize("change", ["order", "twice", "missing", "nan"])
def test_labels_of_shapes3d_that_are_no_grid(tmp_path, change):
    path = paper_files.write_shapes3d(tmp_path)
    with h5py.File(path, "r+") as file:
        labels = file["labels"][()]
        if change == "order":
            labels[[0, 1]] = labels[[1, 0]]
        elif change == "twice":
            labels[1] = labels[0]
        elif change == "missing":
            labels[7, 0] = 0.123
        else:
            labels[7, 0] = np.nan
        file["labels"][:] = labels
    said = {"order": "not in the order", "twice": "there is none of", "nan": "not finite"}
    with pytest.raises(DatasetError, match=said.get(change, "expected one image of each")):
        open_dataset(path)


# MPI3D


@pytest.mark.parametrize("compressed", [True, False])
def test_the_images_of_mpi3d(tmp_path, compressed):
    images = noise(int(np.prod(paper_files.MPI3D)), SIDE, SIDE, 3)
    path = paper_files.write_mpi3d(tmp_path, compressed=compressed)
    with open_dataset(path) as source:
        assert np.array_equal(source.images(range(len(source))), images)
        # The camera height has one value in this file, and is dropped.
        kept = [name for name in mpi3d.NAMES if name != "camera_height"]
        assert source.factor_names == tuple(kept)
        assert source.grid.categorical == ("object_color", "object_shape", "background_color")


def test_the_number_of_images_says_which_grid_of_mpi3d_it_is(tmp_path):
    for count, sizes in mpi3d.GRIDS.items():
        assert np.prod(sizes) == count
    np.savez(tmp_path / "x.npz", images=noise(24, 8, 8, 3))
    with pytest.raises(DatasetError, match=r"24 images: expected 1,036,800 .* or 460,800"):
        open_dataset(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=noise(24, 8, 8, 3), sizes=np.array([2, 2, 1, 1, 1, 2, 2]))
    with pytest.raises(DatasetError, match="which are not its 24 images"):
        open_dataset(tmp_path / "x.npz")


def test_images_that_do_not_fit_into_memory_are_streamed_in_order_only(tmp_path, monkeypatch, cli):
    path = paper_files.write_mpi3d(tmp_path)
    whole = noise(int(np.prod(paper_files.MPI3D)), SIDE, SIDE, 3)
    monkeypatch.setattr(image_arrays, "free_memory", lambda: 1000)
    monkeypatch.setattr(mpi3d, "PIECE", 8 * SIDE * SIDE * 3)
    monkeypatch.setattr(image_arrays, "WINDOW", 40 * SIDE * SIDE * 3)
    with open_dataset(path) as source:
        for first in range(0, len(whole), 10):  # as packing and verifying do
            part = range(first, min(first + 10, len(whole)))
            assert np.array_equal(source.images(part), whole[part.start : part.stop])
        spread = list(range(0, len(whole), 7))
        assert np.array_equal(source.images(spread), whole[spread])  # from the first on again
        with pytest.raises(
            DatasetError, match=r"out of order .* `3dident pack .* --out packed.h5`"
        ):
            source.images([100, 3, 50])
        assert source.fingerprint == _fingerprint(path, monkeypatch)


def _fingerprint(path, monkeypatch):
    monkeypatch.setattr(image_arrays, "free_memory", lambda: None)
    with open_dataset(path) as source:
        return source.fingerprint


# Cars3D


@pytest.mark.parametrize("write", [paper_files.write_cars3d, paper_files.write_cars3d_folder])
def test_cars_come_in_the_order_of_the_list(tmp_path, write):
    images = noise(*paper_files.CARS3D, SIDE, SIDE, 3)
    with open_dataset(write(tmp_path)) as source:
        assert source.grid.sizes == paper_files.CARS3D
        assert source.factor_names == ("elevation", "azimuth", "type")
        assert dict(source.grid.periods) == {"azimuth": 3}
        assert source.grid.categorical == ("type",)
        assert np.array_equal(source.images(range(24)), images.reshape(-1, SIDE, SIDE, 3))


def test_the_list_of_cars_and_not_the_folder_gives_their_order(tmp_path):
    images = noise(*paper_files.CARS3D, SIDE, SIDE, 3)
    names = ["car_009_mesh", "car_001_mesh", "car_123_mesh", "car_044_mesh"]
    cars3d.write(tmp_path / "cars", images, types=names, archive=False)
    with open_dataset(tmp_path) as source:
        assert np.array_equal(source.images(range(24)), images.reshape(-1, SIDE, SIDE, 3))
    (tmp_path / "cars/list.txt").unlink()
    with pytest.raises(DatasetError, match=r"lacks cars/list\.txt, which gives the order"):
        open_dataset(tmp_path)


def test_large_cars_are_made_smaller_with_the_filter_of_lanczos(tmp_path):
    with open_dataset(paper_files.write_cars3d(tmp_path, side=128)) as source:
        assert source.shape == (64, 64, 3)
        large = noise(*paper_files.CARS3D, 128, 128, 3).reshape(-1, 128, 128, 3)
        small = Image.fromarray(large[5]).resize((64, 64), Image.Resampling.LANCZOS)
        assert np.array_equal(source.image(5), np.asarray(small))


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("shape", [(128, 128, 3, 2, 2), (1, 2), (2, 2, 2), (3, 5)])
def test_arrays_of_matlab_are_those_that_scipy_writes(compressed, shape):
    scipy_io = pytest.importorskip("scipy.io")
    arrays = {"mask": np.ones((4, 4)), "im": noise(*shape), "a_long_name_of_an_array": noise(2, 2)}
    content = io.BytesIO()
    scipy_io.savemat(content, arrays, do_compression=compressed)
    for name in ("im", "a_long_name_of_an_array"):
        content.seek(0)
        assert np.array_equal(matlab.read_array(content, name, "x.mat"), arrays[name])
    content.seek(0)
    with pytest.raises(DatasetError, match="mask is no array of unsigned bytes"):
        matlab.read_array(content, "mask", "x.mat")
    content.seek(0)
    with pytest.raises(DatasetError, match=r"no array 'x': it holds mask, im, a_long"):
        matlab.read_array(content, "x", "x.mat")


def test_scipy_reads_the_arrays_that_are_written_for_cars():
    scipy_io = pytest.importorskip("scipy.io")
    array = noise(5, 4, 3, 2, 2)
    content = scipy_io.loadmat(io.BytesIO(matlab.to_bytes({"im": array})))
    assert np.array_equal(content["im"], array)


@pytest.mark.parametrize("version", ["4", "5 of objects"])
def test_matlab_files_of_other_kinds(version):
    scipy_io = pytest.importorskip("scipy.io")
    content = io.BytesIO()
    if version == "4":
        scipy_io.savemat(content, {"im": np.ones((2, 2))}, format="4")
    else:
        scipy_io.savemat(content, {"im": {"a": noise(2, 2)}})
    content.seek(0)
    with pytest.raises(DatasetError, match=r"versions 5 to 7|no array of unsigned bytes"):
        matlab.read_array(content, "im", "x.mat")


# SmallNORB


@pytest.mark.parametrize("compressed", [True, False])
def test_rows_of_smallnorb_are_sorted_into_the_grid(tmp_path, compressed):
    root = paper_files.write_smallnorb(tmp_path, compressed=compressed)
    rows = np.concatenate([paper_files.norb_rows(split) for split in norb.SPLITS])
    images = np.concatenate([noise(len(rows) // 2, 2, SIDE, SIDE, seed=k)[:, 0] for k in range(2)])
    assert images.max() > 127  # bytes without a sign
    order = np.lexsort(rows.T[::-1])
    with open_dataset(root) as source:
        assert source.grid.hidden == ("instance",)
        assert source.factor_names == ("category", "elevation", "azimuth", "lighting")
        assert dict(source.grid.periods) == {"azimuth": 18}
        assert np.array_equal(source.images(range(len(source)))[..., 0], images[order])
        numbers = source.grid.points(np.arange(len(source)))
        assert np.array_equal(numbers[:, 3] * 2, rows[order, 3])
    for k, split in enumerate(norb.SPLITS):
        half = paper_files.norb_rows(split)
        with open_dataset(root, split) as source:
            assert source.grid.sizes[1] == paper_files.NORB[1]
            expected = noise(len(half), 2, SIDE, SIDE, seed=k)[np.lexsort(half.T[::-1]), 0]
            assert np.array_equal(source.images(range(len(source)))[..., 0], expected)
    with open_dataset(root, "both") as source:
        assert len(source) == len(rows)


def test_halves_of_smallnorb_that_are_not_there(tmp_path):
    root = paper_files.write_smallnorb(tmp_path)
    with pytest.raises(UsageError, match="no split val: expected train, test or both"):
        open_dataset(root, "val")
    next(root.glob("*testing-info*")).unlink()
    with pytest.raises(DatasetError, match="lacks the info of the test split"):
        open_dataset(root)
    for path in root.glob("*testing*"):
        path.unlink()
    with open_dataset(root) as source:
        assert source.facts() == {"split": "train"}
    with pytest.raises(DatasetError, match="lacks the cat, dat, info of the test split"):
        open_dataset(root, "both")


def test_all_categories_of_smallnorb_have_names(tmp_path):
    values = (range(5), norb.INSTANCES["train"], range(2), [0, 2], range(1))
    rows = np.stack(np.meshgrid(*values, indexing="ij"), -1).reshape(-1, 5)
    norb.write(tmp_path / "n", {"train": noise(len(rows), 2, 8, 8)}, {"train": rows})
    with open_dataset(tmp_path / "n") as source:
        assert source.factor_columns[0].values == ("animal", "human", "plane", "truck", "car")
        assert source.factor_names == ("category", "elevation", "azimuth")  # one lighting


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (struct.pack("<iiiii", 5, 1, 3, 1, 1), "begins with 5, expected the magic number"),
        (struct.pack("<iiiii", 507333716, 9, 3, 1, 1), "declares 9 dimensions"),
        (struct.pack("<iiiii", 507333716, 1, -3, 1, 1), "declares the sizes"),
        (struct.pack("<iiiii", 507333716, 1, 2**31 - 1, 1, 1), "which is 8,589,934,608 bytes"),
        (b"", "begins with 0"),
    ],
)
def test_matrices_of_smallnorb_that_do_not_fit(tmp_path, content, said):
    root = paper_files.write_smallnorb(tmp_path, compressed=False)
    next(root.glob("*training-cat.mat")).write_bytes(content)
    with pytest.raises(DatasetError, match=said):
        open_dataset(root)


# MNIST


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("place", [".", "MNIST", "MNIST/raw"])
def test_the_folder_of_torchvision_and_its_files(tmp_path, compressed, place):
    paper_files.write_digits(tmp_path, compressed=compressed, splits=2)
    root = tmp_path / place
    with pytest.raises(UsageError, match="the splits train and test: choose one with --split"):
        open_dataset(root)
    with open_dataset(root, "test") as source:
        assert source.shape == (28, 28, 1)
        assert np.array_equal(source.images(range(30))[..., 0], noise(30, 28, 28, seed=1))
        assert np.array_equal(source.factors[:, 0], np.arange(30) % 10)
        assert source.factor_columns[0].kind == "discrete"
    with pytest.raises(UsageError, match="no split val: it holds train, test"):
        open_dataset(root, "val")


def test_torchvision_reads_the_same_digits(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    paper_files.write_digits(tmp_path)
    theirs = torchvision.datasets.mnist.read_image_file(
        str(tmp_path / "MNIST/raw/train-images-idx3-ubyte")
    )
    with open_dataset(tmp_path) as source:
        assert np.array_equal(source.images(range(30))[..., 0], theirs.numpy())


def test_idx_files_that_do_not_fit(tmp_path):
    root = paper_files.write_digits(tmp_path)
    labels = root / "MNIST/raw/train-labels-idx1-ubyte"
    whole = labels.read_bytes()
    for content, said in (
        (b"\0\0\x0d\1" + whole[4:], r"begins with 00000d01, expected 00000801"),
        (whole[:-1], "declares the sizes"),
        (whole[:4] + struct.pack(">I", 29) + whole[8:-1], "expected one for each of the 30"),
        (whole[:-1] + b"\x0b", "expected the classes 0 to 9, found 11"),
    ):
        labels.write_bytes(content)
        with pytest.raises(DatasetError, match=said):
            open_dataset(root)
    labels.unlink()
    with pytest.raises(DatasetError, match="lacks train-labels-idx1-ubyte"):
        open_dataset(root)


def test_the_digits_of_scikit_learn_need_no_file():
    with open_dataset("sklearn:digits") as source:
        assert (len(source), source.shape, source.files()) == (1797, (8, 8, 1), [])
        images = source.images(range(1797))
        assert (images.min(), images.max()) == (0, 255)
        assert np.array_equal(np.unique(source.factors), np.arange(10))
    with pytest.raises(UsageError, match="no splits"):
        open_dataset("sklearn:digits", "train")


# What is declared and not held


def test_a_gzipped_file_that_unpacks_to_more_than_it_declares(tmp_path):
    root = paper_files.write_digits(tmp_path, compressed=True)
    labels = root / "MNIST/raw/train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes()) + bytes(1 << 24)))
    with pytest.raises(DatasetError, match="holds other than 30 labels"):
        open_dataset(root)


def test_an_archive_of_cars_with_names_that_lead_elsewhere(tmp_path):
    path = paper_files.write_cars3d(tmp_path)
    content = io.BytesIO(gzip.decompress(path.read_bytes()))
    with tarfile.open(fileobj=content) as old, tarfile.open(path, "w:gz") as new:
        for member in old:
            data = old.extractfile(member).read()
            for name in (f"../../../cars/{Path(member.name).name}", "/etc/cars/../x.mat"):
                member.name = name
                new.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("data/cars/car_009_mesh.mat")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        new.addfile(link)
    before = set(tmp_path.rglob("*"))
    with open_dataset(path) as source:
        source.images(range(24))
    assert set(tmp_path.rglob("*")) == before


def test_a_list_of_cars_that_names_other_files(tmp_path):
    paper_files.write_cars3d_folder(tmp_path)
    (tmp_path / "cars/list.txt").write_text("../../etc/passwd\n")
    with pytest.raises(DatasetError, match=r"list\.txt is damaged"):
        open_dataset(tmp_path)


def test_an_archive_whose_parts_declare_huge_heads(tmp_path):
    path = tmp_path / "cars.tar.gz"
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    path.write_bytes(gzip.compress(head.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))
    with pytest.raises(DatasetError):
        open_dataset(path)


def test_an_archive_of_images_that_says_that_it_holds_more(tmp_path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "|u1", "fortran_order": False, "shape": (1_036_800, 64, 64, 3)}
    )
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content.getvalue() + bytes(1000))
    with pytest.raises(DatasetError, match="declares"):
        open_dataset(tmp_path / "x.npz")


def test_python_objects_are_not_unpickled(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    array = np.empty(1, object)
    array[0] = Hostile()
    np.savez(tmp_path / "x.npz", images=array)
    with pytest.raises(DatasetError, match="Python objects, which are not unpickled"):
        open_dataset(tmp_path / "x.npz")
    assert not (tmp_path / "ran").exists()


def test_writers_take_as_many_images_as_there_are_points(tmp_path):
    with pytest.raises(UsageError, match="7 images, but the grid"):
        shapes3d.write(tmp_path / "x.h5", noise(7, 8, 8, 3), (2,) * 6)
    with pytest.raises(UsageError, match="7 images, but the grid"):
        mpi3d.write(tmp_path / "x.npz", noise(7, 8, 8, 3), (2,) * 7)
    with pytest.raises(UsageError, match="no split 'val'"):
        digits.write(tmp_path, {"val": noise(7, 8, 8)}, {"val": noise(7)})


def test_several_threads_read_a_stream_into_memory(tmp_path, monkeypatch):
    from threedident.datasets import dataset

    monkeypatch.setattr(image_arrays, "free_memory", lambda: 1000)
    monkeypatch.setattr(mpi3d, "PIECE", 8 * SIDE * SIDE * 3)
    monkeypatch.setattr(dataset, "_READ_AT_ONCE", 5)
    images = dataset.ImageDataset(paper_files.write_mpi3d(tmp_path), cache="ram")
    whole = noise(int(np.prod(paper_files.MPI3D)), SIDE, SIDE, 3)
    assert np.array_equal(images.images(range(len(whole))).permute(0, 2, 3, 1).numpy(), whole)


def test_several_datasets_of_digits_in_one_folder_are_not_guessed_among(tmp_path):
    images, classes = np.zeros((3, 28, 28), np.uint8), np.arange(3, dtype=np.uint8)
    for name in ("MNIST", "FashionMNIST"):
        digits.write(tmp_path / name / "raw", {"test": images}, {"test": classes})
    with pytest.raises(DatasetError, match="several datasets of digits"):
        find_form(tmp_path)
    assert find_form(tmp_path / "MNIST") == "mnist"
