import shutil

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threedident.errors import DatasetError
from threedident.storage.directory import statistics
from threedident.storage.shards import (
    ImageSums,
    Interval,
    list_shards,
    missing_intervals,
    parse_name,
    read_shard,
    write_shard,
)

intervals = st.lists(
    st.builds(Interval, st.integers(0, 200), st.integers(1, 40)), max_size=8, unique=True
)


def covered(pieces):
    return [i for piece in pieces for i in piece.indices]


@given(st.integers(1, 250), st.integers(1, 60), st.integers(1, 5), intervals)
def test_what_is_missing_is_planned_once(total, size, parts, finished):
    planned = [
        piece
        for part in range(parts)
        for piece in missing_intervals(total, size, finished, part=part, parts=parts)
    ]
    have = set(covered(finished))
    assert sorted(covered(planned)) == [i for i in range(total) if i not in have]
    assert all(0 < piece.count <= size for piece in planned)
    # A member's shards stay in its own cells, whatever the others have finished meanwhile.
    for part in range(parts):
        for piece in missing_intervals(total, size, finished, part=part, parts=parts):
            assert {i // size % parts for i in piece.indices} == {part}


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 60))
def test_extending_adds_shards_and_keeps_those_there(total, more, size):
    first = missing_intervals(total, size, [])
    second = missing_intervals(total + more, size, first)
    assert covered(first) == list(range(total))
    assert covered(second) == list(range(total, total + more))


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_names_say_which_images(first, count):
    interval = Interval(first, count)
    assert parse_name(interval.file_name) == interval


def test_other_names_are_not_shards():
    for name in ("shard-1-2.h5", "shard-00000000-00005.h5.corrupt", ".tmp-a-1-x.h5", "stats.json"):
        assert parse_name(name) is None


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


def test_overlapping_shards_are_taken_once(tmp_path):
    for first, count in ((0, 5), (5, 2), (5, 5), (10, 4), (12, 2), (13, 5)):
        (tmp_path / Interval(first, count).file_name).touch()
    taken = list(list_shards(tmp_path))
    indices = covered(taken)
    assert len(indices) == len(set(indices))
    assert set(range(10)) <= set(indices)


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


def test_statistics_are_those_of_all_images_together():
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (12, 5, 5, 3), np.uint8)
    shares = rng.uniform(0, 1, 12)
    shares[:3] = 1
    parts = ImageSums.of(images[:5], shares[:5]) + ImageSums.of(images[5:], shares[5:])
    found = statistics(parts)
    unit = images / 255
    assert found["images"] == 12
    assert found["mean"] == pytest.approx(unit.mean((0, 1, 2)), abs=1e-6)
    assert found["std_all_pixels"] == pytest.approx(unit.std((0, 1, 2)), abs=1e-6)
    assert found["std_within_image"] == pytest.approx(unit.std((1, 2)).mean(0), abs=1e-6)
    assert found["object_in_frame"] == pytest.approx(shares.mean(), abs=1e-6)
    assert found["images_fully_in_frame"] == 0.25
