"""Pickles of numpy arrays in lists and dicts, read without running anything of theirs.

A pickle is a program, and Python's reader runs it. This one knows the few instructions that plain
data and numpy's arrays are made of, and refuses a pickle that has another, by its name. Nothing
is imported or called, and the memory that is taken is about the size of the file.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.errors import DatasetError

#: The names that numpy's arrays ask for, by their meaning here.
_NAMES = {
    "numpy ndarray": "array type",
    "numpy dtype": "dtype",
    "_codecs encode": "bytes",
    "__builtin__ bytes": "empty bytes",
    **{
        f"{package}.{name}": meaning
        for package in ("numpy.core", "numpy._core")
        for name, meaning in (
            ("multiarray _reconstruct", "empty array"),
            ("numeric _frombuffer", "array"),
        )
    },
}
_KINDS = {"b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"}
_VALUES = {
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("BYTEARRAY8", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MOST_DIMENSIONS = 32
_STORES = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclasses.dataclass(frozen=True)
class _Name:
    """A name that the pickle asks for, by its meaning."""

    meaning: str


@dataclasses.dataclass
class _Dtype:
    """A dtype, whose byte order is said after its kind."""

    kind: str
    order: str = "|"


@dataclasses.dataclass
class _Array:
    """An array, which is empty until its content comes."""

    value: npt.NDArray[Any] | None = None


class _Wrong(Exception):
    """What a pickle has that plain arrays have not."""


def read_pickle(path: Path) -> Any:
    """Read a pickle of dicts, lists, tuples, numbers, texts and arrays of numbers.

    Args:
        path: the file.

    Returns:
        The data. Arrays are read-only, and not copied.

    Raises:
        DatasetError: it cannot be read, is damaged, or holds something else.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _unwrapped(_Machine().run(data), {})
    except _Wrong as error:
        raise DatasetError(
            f"{path} is a pickle of something else than plain arrays: {error}. Nothing of it was "
            "run; do not open it by other means, unless you trust who made it"
        ) from None
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from error
    except (
        *(IndexError, KeyError, ValueError, TypeError, AttributeError),
        *(OverflowError, MemoryError, RecursionError),
    ) as error:
        raise DatasetError(
            f"{path} is no pickle, or a damaged one: {type(error).__name__}: {error!s:.200}"
        ) from error


class _Machine:
    """The stack and the memory that a pickle's instructions work on."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memory: dict[int, Any] = {}
        self._left = 0  # the bytes that its texts can still become

    def run(self, data: Any) -> Any:
        """Follow the instructions up to the last, and return what is left."""
        self._left = len(data)
        for code, value, _ in pickletools.genops(data):
            if code.name == "STOP":
                if len(self._stack) != 1 or self._marked:
                    raise ValueError("it ends in the middle")
                return self._stack.pop()
            self._step(code.name, value)
        raise ValueError("it has no end")

    def _step(self, name: str, value: Any) -> None:
        stack = self._stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            stack.append(value)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _STORES:
            self._memory[int(value)] = stack[-1]
        elif name == "MEMOIZE":
            self._memory[len(self._memory)] = stack[-1]
        elif name in _GETS:
            stack.append(self._memory[int(value)])
        elif name in _TUPLES:
            self._join(_TUPLES[name])
        elif name == "MARK":
            self._marked.append(stack)
            self._stack = []
        elif name == "TUPLE":
            self._stack = self._marked.pop()
            self._stack.append(tuple(stack))
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        else:
            self._fill_or_build(name, value)

    def _fill_or_build(self, name: str, value: Any) -> None:
        if name in ("APPEND", "SETITEM"):
            items = self._taken(1 if name == "APPEND" else 2)
            _add(self._stack[-1], items)
        elif name in ("APPENDS", "SETITEMS"):
            items, self._stack = self._stack, self._marked.pop()
            _add(self._stack[-1], items)
        elif name == "GLOBAL":
            self._stack.append(_find(value))
        elif name == "STACK_GLOBAL":
            module, attribute = self._taken(2)
            self._stack.append(_find(f"{module} {attribute}"))
        elif name == "REDUCE":
            called, arguments = self._taken(2)
            result = _call(called, arguments)
            if isinstance(result, bytes):  # a text can stand in a pickle once, and be named often
                self._left -= len(result)
                if self._left < 0:
                    raise ValueError("its arrays are larger than the file")
            self._stack.append(result)
        elif name == "BUILD":
            (state,) = self._taken(1)
            _set_state(self._stack[-1], state)
        else:
            raise _Wrong(f"it has the instruction {name}")

    def _taken(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise ValueError("an instruction lacks its operands")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _join(self, count: int) -> None:
        self._stack.append(tuple(self._taken(count)) if count else ())


def _add(container: Any, items: Sequence[Any]) -> None:
    """Add items to a list, or keys and values in turn to a dict."""
    if isinstance(container, list):
        container.extend(items)
        return
    if not isinstance(container, dict) or len(items) % 2:
        raise ValueError("items for what holds none")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int):
            raise _Wrong(f"a key of it is a {type(key).__name__}")
        container[key] = value


def _find(name: str) -> _Name:
    meaning = _NAMES.get(name)
    if meaning is None:
        raise _Wrong(f"it asks for {'.'.join(name.split(' ', 1))!r:.100}")
    return _Name(meaning)


def _call(called: Any, arguments: Any) -> Any:
    """What numpy's own functions would make of these arguments."""
    meaning = called.meaning if isinstance(called, _Name) else "nothing"
    if meaning == "empty array" and arguments[0] == _Name("array type"):
        return _Array()
    if meaning == "dtype" and isinstance(arguments[0], str):
        if arguments[0] not in _KINDS:
            raise _Wrong(f"an array of it is of dtype {arguments[0]!r:.50}")
        return _Dtype(arguments[0])
    if meaning == "bytes" and arguments[1:] == ("latin1",):
        return arguments[0].encode("latin1")
    if meaning == "empty bytes" and arguments == ():
        return b""
    if meaning == "array":
        content, dtype, shape, order = arguments
        return _Array(_array(content, dtype, shape, order))
    raise _Wrong(f"it calls {meaning}")


def _set_state(target: Any, state: Any) -> None:
    if isinstance(target, _Dtype):
        order = state[1]
        if order not in ("<", ">", "|", "=") or any(state[2:5]):
            raise _Wrong("it has a dtype of fields, or of an unknown byte order")
        target.order = order
    elif isinstance(target, _Array):
        _, shape, dtype, is_fortran, content = state
        target.value = _array(content, dtype, shape, "F" if is_fortran else "C")
    else:
        raise _Wrong(f"it sets the state of a {type(target).__name__}")


def _array(content: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes | bytearray):
        raise _Wrong("an array of it holds no plain numbers")
    kind = np.dtype(f"{dtype.order}{dtype.kind}")
    counts = tuple(shape)
    # What it holds is not shown: a short pickle can hold what takes forever to write.
    if len(counts) > _MOST_DIMENSIONS or not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError("an array has a shape of other things than whole numbers")
    if math.prod(counts) * kind.itemsize != len(content):
        raise ValueError(f"an array of shape {counts!r:.100} has {len(content)} bytes")
    array = np.frombuffer(content, kind).reshape(counts, order="F" if order == "F" else "C")
    array.flags.writeable = False
    return array


def _unwrapped(value: Any, done: dict[int, Any]) -> Any:
    """The data, with arrays in place of what stood for them.

    What is in several places stays one object, or a short pickle could become a large tree.

    Args:
        value: the data.
        done: what is done already, by the identity of what it was.
    """
    if isinstance(value, _Name | _Dtype):
        raise _Wrong("it holds types beside arrays")
    if not isinstance(value, _Array | list | tuple | dict):
        return value
    if id(value) not in done:
        if isinstance(value, _Array):
            if value.value is None:
                raise ValueError("an array has no content")
            done[id(value)] = value.value
        elif isinstance(value, dict):
            done[id(value)] = {key: _unwrapped(each, done) for key, each in value.items()}
        else:
            done[id(value)] = type(value)(_unwrapped(each, done) for each in value)
    return done[id(value)]
