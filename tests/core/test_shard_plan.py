"""Which images lie in which shard, and which are still missing."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from threedident.storage.shard_plan import Interval, list_shards, missing_intervals, parse_name

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


def test_overlapping_shards_are_taken_once(tmp_path):
    for first, count in ((0, 5), (5, 2), (5, 5), (10, 4), (12, 2), (13, 5)):
        (tmp_path / Interval(first, count).file_name).touch()
    taken = list(list_shards(tmp_path))
    indices = covered(taken)
    assert len(indices) == len(set(indices))
    assert set(range(10)) <= set(indices)


def test_a_plan_is_made_without_hdf5():
    code = "import sys, threedident.storage.shard_plan; sys.exit('h5py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
