"""Codes in files: every form is read, and every hostile file refused."""

from __future__ import annotations

import os
import struct
import zipfile

import h5py
import numpy as np
import pytest
from helpers.submissions import COUNT, codes, codes_of, refusal

from threedident.errors import DatasetError, UsageError
from threedident.evaluate.submissions.embeddings import read_embeddings
from threedident.evaluate.submissions.submission import digest, file_digest, identify

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8"])
def test_embeddings_come_back(tmp_path, data, dtype):
    given = codes(dtype=dtype)
    np.save(tmp_path / "a.npy", np.asfortranarray(given))
    np.savez(tmp_path / "a.npz", z_hat=given)
    np.savez_compressed(tmp_path / "b.npz", z_hat=given)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("z_hat", data=given, chunks=(7, 2), compression="gzip")
    for name in ("a.npy", "a.npz", "b.npz", "a.h5"):
        assert np.array_equal(read_embeddings(tmp_path / name, COUNT), given), name
        if dtype != "f2":
            continue
        submission = identify(tmp_path / name)
        assert submission.kind == "embeddings"
        found = codes_of(submission, data)
        assert found.dtype == np.float32
        assert np.array_equal(found, given.astype(np.float32))
        assert digest(submission) == file_digest(tmp_path / name)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def pickled(path, trap):
    array = np.array([[Trap(trap)]], dtype=object)
    if path.suffix == ".npz":
        np.savez(path, z_hat=array)
    else:
        np.save(path, array, allow_pickle=True)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_pickled_objects_stay_pickled(tmp_path, data, name):
    pickled(tmp_path / name, tmp_path / "trapped")
    found = np.load(tmp_path / name, allow_pickle=True)
    if name == "a.npz":
        with found:
            found["z_hat"]
    (tmp_path / "trapped").rmdir()  # so it was made: the trap works
    assert "expected an array of float16, float32 or float64" in refusal(tmp_path / name, data)
    assert not (tmp_path / "trapped").exists()


def npy_head(shape, descr="<f4"):
    text = str({"descr": descr, "fortran_order": False, "shape": shape})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy_head((COUNT, 10**15)), "at most 4096 codes"),
        (npy_head((COUNT, 4000)), "takes 640[0-9]* bytes with its head, found"),
        (npy_head((10**12, 3)), "1000000000000 rows, the test set 40 images"),
        (npy_head((COUNT, 3)) + bytes(COUNT * 12 + 1), "with its head, found"),
        (npy_head((COUNT, 3, 1)) + bytes(COUNT * 12), "expected an array of shape"),
        (npy_head((COUNT, 3), "<i8") + bytes(COUNT * 24), "found int64"),
        (npy_head((COUNT, 3), "<c8") + bytes(COUNT * 24), "found complex64"),
        (npy_head((COUNT, 3), "|O"), "found object"),
        (npy_head((-1, -3)), "expected an array of shape"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "not a .npy array"),
        (b"\x93NUMPY\x09\x00\x01\x00{", "not a .npy array of an unknown version"),
        (npy_head("open('x')"), "not a .npy array|expected"),
        (b"", "not a .npy array"),
    ],
)
def test_npy_heads_that_lie(tmp_path, content, said):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_embeddings(path, COUNT)


def zipped(path, entries, **patches):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    if "declared" in patches:  # the size unpacked, in the directory at the end
        content = bytearray(path.read_bytes())
        place = content.index(b"PK\x01\x02") + 24
        content[place : place + 4] = struct.pack("<I", patches["declared"])
        path.write_bytes(content)


GOOD = npy_head((COUNT, 3)) + codes().tobytes()


@pytest.mark.parametrize(
    ("entries", "patches", "said"),
    [
        # A bomb: 200 MB of zeros in 200 KB, behind a head that fits.
        ({"z_hat.npy": GOOD + bytes(200_000_000)}, {}, "declares 0.2 GB unpacked, at most"),
        ({"z_hat.npy": GOOD}, {"declared": 0xFFFFFFF0}, "declares 4.29 GB unpacked, at most"),
        ({"z_hat.npy": GOOD[:-5]}, {"declared": len(GOOD)}, "is cut short"),
        ({"other.npy": GOOD}, {}, "must hold one array, 'z_hat', found 'other.npy'"),
        ({"z_hat.npy": GOOD, "b.npy": GOOD}, {}, "must hold one array"),
        ({f"{i}.npy": b"" for i in range(2000)}, {}, r"must hold one array.*\.\.\."),
        ({}, {}, "must hold one array"),
    ],
)
def test_archives_that_lie(tmp_path, entries, patches, said):
    path = tmp_path / "a.npz"
    zipped(path, entries, **patches)
    with pytest.raises(UsageError, match=said):
        read_embeddings(path, COUNT)


def test_a_damaged_archive(tmp_path):
    path = tmp_path / "a.npz"
    zipped(path, {"z_hat.npy": GOOD})
    content = bytearray(path.read_bytes())
    for place in range(60, len(content), 7):
        damaged = content.copy()
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found = read_embeddings(path, COUNT)
        except UsageError as error:
            assert "a.npz" in str(error)
        else:  # a date, or the like
            assert np.array_equal(found, codes())


def test_a_zip_bomb_in_full(tmp_path, data):
    zipped(tmp_path / "bomb.npz", {"z_hat.npy": GOOD + bytes(200_000_000)})
    assert (tmp_path / "bomb.npz").stat().st_size < 300_000
    assert "declares 0.2 GB unpacked" in refusal(tmp_path / "bomb.npz", data)


def external_storage(file, folder):
    (folder / "secret.bin").write_bytes(codes().tobytes())
    where = [(str(folder / "secret.bin"), 0, COUNT * 12)]
    file.create_dataset("z_hat", (COUNT, 3), "f4", external=where)


def other_file(folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["z_hat"] = codes()
    return str(folder / "other.h5")


def external_link(file, folder):
    file["z_hat"] = h5py.ExternalLink(other_file(folder), "z_hat")


def virtual(file, folder):
    layout = h5py.VirtualLayout((COUNT, 3), "f4")
    layout[:] = h5py.VirtualSource(other_file(folder), "z_hat", (COUNT, 3))
    file.create_virtual_dataset("z_hat", layout)


def soft_link(file, _):
    file.create_dataset("group/inner", data=codes())
    file["z_hat"] = h5py.SoftLink("/group/inner")
    del file["group"]


def in_a_group(file, _):
    file.create_dataset("z_hat/z_hat", data=codes())


def huge_chunks(file, _):
    file.create_dataset(
        "z_hat", (COUNT, 3), "f4", chunks=(50_000, 300), maxshape=(None, None), compression="gzip"
    )


HDF5 = {
    "external storage": (external_storage, "stored in other files, which are not read"),
    "external link": (external_link, "is a link to elsewhere, which is not followed"),
    "soft link": (soft_link, "is a link to elsewhere, which is not followed"),
    "virtual": (virtual, "stored in other files, which are not read"),
    "group": (in_a_group, "is not an array"),
    "lzf": (
        lambda f, _: f.create_dataset("z_hat", data=codes(), compression="lzf"),
        "only gzip is read",
    ),
    "shuffle": (
        lambda f, _: f.create_dataset("z_hat", data=codes(), compression="gzip", shuffle=True),
        "only gzip is read",
    ),
    "unknown filter": (
        lambda f, _: (
            f["z_hat"].id
            if f.create_dataset("z_hat", (COUNT, 3), "f4", chunks=(4, 3), fletcher32=True)
            else None
        ),
        "only gzip is read",
    ),
    "huge shape": (
        lambda f, _: f.create_dataset("z_hat", (COUNT, 10**12), "f4", chunks=(1, 1000)),
        "at most 4096 codes",
    ),
    "huge chunks": (huge_chunks, "stored in chunks of"),
    "objects": (
        lambda f, _: f.create_dataset("z_hat", (COUNT, 3), h5py.string_dtype()),
        "expected an array of floats",
    ),
    "integers": (lambda f, _: f.create_dataset("z_hat", (COUNT, 3), "i4"), "array of floats"),
    "null": (lambda f, _: f.create_dataset("z_hat", data=h5py.Empty("f4")), "array of floats"),
    "rows": (
        lambda f, _: f.create_dataset("z_hat", (COUNT - 1, 3), "f4"),
        "has 39 rows, the test set 40 images",
    ),
    "other name": (lambda f, _: f.create_dataset("codes", data=codes()), "must hold one array"),
}


@pytest.mark.parametrize("kind", HDF5)
def test_hdf5_that_reaches_out(tmp_path, kind):
    build, said = HDF5[kind]
    inner = tmp_path / "inner"
    inner.mkdir()
    with h5py.File(inner / "a.h5", "w") as file:
        build(file, tmp_path)
    with pytest.raises((UsageError, DatasetError), match=said):
        read_embeddings(inner / "a.h5", COUNT)


def test_hdf5_of_another_file_in_full(tmp_path, data):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        external_storage(file, tmp_path)
    assert "stored in other files" in refusal(tmp_path / "a.h5", data)
    (tmp_path / "b.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    assert "not a readable file" in refusal(tmp_path / "b.h5", data)


def test_an_external_link_is_not_even_opened(tmp_path):
    """A link to a pipe: whoever opens it waits for ever."""
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["z_hat"] = h5py.ExternalLink(str(tmp_path / "pipe.h5"), "z_hat")
    with pytest.raises(DatasetError, match="not followed"):
        read_embeddings(tmp_path / "a.h5", COUNT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c[:-1], "has 39 rows, the test set 40 images"),
        (lambda c: c.astype(np.float32) * np.where(np.arange(COUNT) == 20, np.nan, 1)[:, None], ""),
        (lambda c: np.where(c > 1, 1e300, c), "not finite in float32"),
    ],
)
def test_embeddings_that_do_not_fit(tmp_path, data, change, said):
    np.save(tmp_path / "a.npy", change(codes(dtype=np.float64)))
    found = refusal(tmp_path / "a.npy", data)
    assert said in found
    if not said:
        assert "the codes of image 20 are not finite in float32 (nan; 1 of these 16" in found
