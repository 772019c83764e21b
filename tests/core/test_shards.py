"""Shard files: what is written is read, and nothing else is."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

from threedident.errors import DatasetError, UsageError
from threedident.storage.shard_plan import Interval, list_shards
from threedident.storage.shards import check_compression, read_shard, write_shard
from threedident.storage.statistics import ImageSums


def make(root, **changes):
    interval = Interval(10, 4)
    rng = np.random.default_rng(0)
    k = interval.count
    arrays = {
        "images": rng.integers(0, 256, (k, 6, 6, 3), np.uint8),
        "raw_latents": rng.uniform(-1, 1, (k, 10)).astype(np.float32),
        "latents": rng.uniform(-3, 3, (k, 10)).astype(np.float32),
    }
    sums = ImageSums.of(arrays["images"], np.linspace(0.5, 1, k))
    options = {"fingerprint": "abc", "provenance": {"device": "cpu"}, **changes}
    return write_shard(root, interval, sums=sums, **arrays, **options), arrays


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_shard_holds_what_was_written(tmp_path, compression):
    path, arrays = make(tmp_path, compression=compression)
    assert [p.name for p in tmp_path.iterdir()] == ["shard-00000010-00004.h5"]
    shard = read_shard(path, resolution=6, fingerprint="abc")
    for name, array in arrays.items():
        assert np.array_equal(getattr(shard, name), array)
    assert shard.attributes["device"] == "cpu"
    assert list_shards(tmp_path) == {Interval(10, 4): path}
    with h5py.File(path) as file:
        assert file["index"][()].tolist() == [10, 11, 12, 13]
        assert (file["images"].id.get_offset() is not None) == (compression == "none")


def test_the_same_images_make_the_same_file(tmp_path):
    (tmp_path / "other").mkdir()
    one, two = make(tmp_path)[0], make(tmp_path / "other")[0]
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("keep", [0, 100, 2000, -1])
def test_a_shard_cut_short(tmp_path, keep):
    path, _ = make(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=path.name):
        read_shard(path, resolution=6)


def test_every_flipped_byte_of_the_arrays_is_noticed(tmp_path):
    path, _ = make(tmp_path)
    content = path.read_bytes()
    with h5py.File(path) as file:
        for name in ("images", "raw_latents", "latents", "index"):
            position = file[name].id.get_offset() + file[name].id.get_storage_size() // 2
            changed = bytearray(content)
            changed[position] ^= 0x10
            (tmp_path / "copy").mkdir(exist_ok=True)
            copy = tmp_path / "copy" / path.name
            copy.write_bytes(changed)
            with pytest.raises(DatasetError, match=f"checksum of {name}"):
                read_shard(copy, resolution=6)


def test_a_shard_of_another_dataset_or_size_or_name(tmp_path):
    path, _ = make(tmp_path)
    with pytest.raises(DatasetError, match="other settings"):
        read_shard(path, resolution=6, fingerprint="xyz")
    with pytest.raises(DatasetError, match=r"images is uint8 \(4, 6, 6, 3\), expected uint8"):
        read_shard(path, resolution=8)
    renamed = path.rename(tmp_path / "shard-00000020-00004.h5")
    with pytest.raises(DatasetError, match=r"indices are not 20\.\.23"):
        read_shard(renamed, resolution=6)


def test_nothing_outside_the_file_is_read(tmp_path):
    path, arrays = make(tmp_path)
    secret = tmp_path / "secret.bin"
    secret.write_bytes(arrays["images"].tobytes())
    evil = tmp_path / "evil"
    evil.mkdir()

    def replaced(name, edit):
        copy = evil / path.name
        shutil.copy(path, copy)
        with h5py.File(copy, "a") as file:
            del file[name]
            edit(file)
        with pytest.raises(DatasetError, match=name):
            read_shard(copy, resolution=6)

    shape = arrays["images"].shape
    replaced(
        "images",
        lambda f: f.create_dataset(
            "images", shape, np.uint8, external=[(str(secret), 0, h5py.h5f.UNLIMITED)]
        ),
    )
    layout = h5py.VirtualLayout(shape, np.uint8)
    layout[:] = h5py.VirtualSource(str(path), "images", shape)
    replaced("images", lambda f: f.create_virtual_dataset("images", layout))
    replaced("images", lambda f: f.__setitem__("images", h5py.ExternalLink(str(path), "images")))
    replaced("latents", lambda f: f.__setitem__("latents", h5py.SoftLink("/raw_latents")))
    replaced("latents", lambda f: f.create_group("latents"))
    replaced(
        "images",
        lambda f: f.create_dataset("images", data=arrays["images"], chunks=True, compression="lzf"),
    )
    replaced("latents", lambda f: None)


def test_an_unknown_compression_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UsageError, match="unknown compression 'zip': expected one of none, gzip"):
        check_compression("zip")
    with pytest.raises(UsageError, match="unknown compression 'zip'"):
        make(tmp_path, compression="zip")
    assert list(tmp_path.iterdir()) == []
