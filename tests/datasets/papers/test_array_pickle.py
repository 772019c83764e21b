"""Pickles of arrays: read as numpy wrote them, and nothing of theirs is run."""

from __future__ import annotations

import contextlib
import os
import pickle

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threedident.datasets.papers.array_pickle import read_pickle
from threedident.errors import DatasetError

DATA = {
    "pedestrians": [np.arange(24).reshape(2, 3, 4) % 2 == 0, np.ones((1, 3, 4), bool)],
    "numbers": [np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=">i4")],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "empty": np.empty((0, 3)),
    "plain": [1, -5, 2**40, 1.5, "text", None, True, False, (), (1,), (1, 2, 3, 4), {"a": []}],
}


def same(one, other) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        alike = type(one) is type(other) and len(one) == len(other)
        return alike and all(map(same, one, other))
    return one == other and type(one) is type(other)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("package", [b"numpy.core", b"numpy._core"])
def test_what_numpy_writes_comes_back(tmp_path, protocol, package):
    """Numpy 2 calls its inner package otherwise than numpy 1, by which the file was written."""
    text = pickle.dumps(DATA, protocol)
    for old in (b"numpy.core", b"numpy._core"):
        for module in (b".multiarray", b".numeric"):
            before, after = old + module, package + module
            if protocol >= 4:  # the length of a name stands before it
                before, after = bytes([len(before)]) + before, bytes([len(after)]) + after
            text = text.replace(before, after)
    assert package in text
    path = tmp_path / "data.pickle"
    path.write_bytes(text)
    assert same(read_pickle(path), DATA)


class Calls:
    """Pickles that, opened by pickle.load, call a function with arguments."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda trap: Calls(os.mkdir, trap), "asks for 'posix.mkdir'"),
        (lambda trap: [np.zeros(2), Calls(os.system, f"touch {trap}")], "asks for 'posix.system'"),
        (lambda trap: Calls(eval, f"open({trap!r}, 'w')"), r"asks for '\w+.eval'"),
        (lambda trap: Calls(np.save, trap, 1), "asks for 'numpy.save'"),
        (lambda trap: Calls(np.dtype, "O"), "dtype 'O'"),
        (lambda trap: Calls(bytes, 10**9), "asks for|calls empty bytes"),
        (lambda trap: np.array([{"a": 1}], object), "dtype 'O8'"),
        (lambda trap: np.float64(1.5), "asks for 'numpy.*scalar'"),
        (lambda trap: np.zeros(2, [("a", "f4")]), "dtype 'V4'"),
        (lambda trap: np.ma.zeros(2), "asks for 'numpy.ma"),
        (lambda trap: {1.5: 2}, "a key of it is a float"),
        (lambda trap: {1, 2}, "asks for .*set|instruction EMPTY_SET"),
        (lambda trap: np.ndarray, "types beside arrays"),
    ],
)
def test_anything_else_is_refused_and_not_run(tmp_path, made, message, protocol):
    trap, path = tmp_path / "trap", tmp_path / "data.pickle"
    path.write_bytes(pickle.dumps(made(str(trap)), protocol))
    with pytest.raises(DatasetError, match=message):
        read_pickle(path)
    assert not trap.exists()


def test_old_protocols_are_refused_by_name(tmp_path):
    path = tmp_path / "data.pickle"
    path.write_bytes(pickle.dumps([1, 2], 0))
    with pytest.raises(DatasetError, match="instruction"):
        read_pickle(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no pickle",
        b"\x80\x04.",
        b"\x80\x04]",
        b"\x80\x04]\x94h\x07.",
        b"\x80\x04N(.",
        b"\x80\x04NN.",
        b"\x80\x04Na.",
        b"\x80\x04)R.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fab.",  # says it has 2^63 bytes
        b"\x80\x04cnumpy\ndtype\n.",
        b"\x80\x04cnumpy\ndtype\n}b.",
        b"\x80\x04]\x94h\x00a.",  # a list that holds itself
        b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    ],
)
def test_damaged_files_are_refused(tmp_path, text):
    path = tmp_path / "data.pickle"
    path.write_bytes(text)
    with pytest.raises(DatasetError, match=r"data\.pickle"):
        read_pickle(path)


def test_a_short_pickle_does_not_become_a_large_tree(tmp_path):
    """Each list holds the one before twice: 2^200 leaves, if it were not one object each."""
    value = [0]
    for _ in range(200):
        value = [value, value]
    path = tmp_path / "data.pickle"
    path.write_bytes(pickle.dumps(value))
    once, again = read_pickle(path)
    assert once is again


_NESTED = b"K\x00\x94" + b"".join(b"h%ch%c\x86\x94" % (k, k) for k in range(60))  # 2^60 leaves
_DTYPE = b"cnumpy\ndtype\n\x8c\x02u1\x85R"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # A dtype whose byte order is such a tree.
        (_NESTED + _DTYPE + b"(K\x03h<NNNtb.", "byte order"),
        # An array of such a shape.
        (
            _NESTED + b"cnumpy.core.numeric\n_frombuffer\n(C\x01a" + _DTYPE + b"h<\x8c\x01CtR.",
            "whole numbers",
        ),
        # One text, encoded again and again.
        (
            b"X\x00\x00\x10\x00" + b"a" * 2**20 + b"\x94\x8c\x06latin1\x94]"
            b"" + b"c_codecs\nencode\nh\x00h\x01\x86Ra" * 1000 + b".",
            "larger than the file",
        ),
    ],
)
def test_a_short_pickle_takes_neither_the_time_nor_the_memory(tmp_path, text, message):
    path = tmp_path / "data.pickle"
    path.write_bytes(b"\x80\x04" + text)
    with pytest.raises(DatasetError, match=message):
        read_pickle(path)


@given(st.data())
@hypothesis.settings(max_examples=200, deadline=None)
def test_a_mangled_pickle_is_read_or_refused_with_an_error_of_ours(tmp_path_factory, data):
    text = bytearray(pickle.dumps(DATA, data.draw(st.sampled_from([2, 3, 4, 5]))))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "mangled.pickle"
    path.write_bytes(text)
    with contextlib.suppress(DatasetError):
        read_pickle(path)
