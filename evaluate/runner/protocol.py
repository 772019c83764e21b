"""The messages between an evaluation and an encoder's process: numbers, bytes and plain text.

To the process: a task (length, JSON), then for each batch its number of rows and its pixels.
From it: a head of a kind and two numbers, then so many bytes. Nothing is ever unpickled.
"""

from __future__ import annotations

import enum
import json
import os
import struct
from collections.abc import Mapping
from typing import Any

HEAD = struct.Struct("<BII")
COUNT = struct.Struct("<I")
#: The first byte of an error's text, by how the process failed.
FAILURES = {"known": "k", "memory": "m", "failed": "f"}
MOST_TEXT = 65_536


class Kind(enum.IntEnum):
    """The kinds of messages from the process of an encoder."""

    READY = 1
    CODES = 2
    ERROR = 3


def read_exactly(descriptor: int, count: int) -> bytearray:
    """Read so many bytes.

    Raises:
        EOFError: the other side has closed its end.
    """
    content = bytearray(count)
    view, done = memoryview(content), 0
    while done < count:
        got = os.readv(descriptor, [view[done:]])
        if not got:
            raise EOFError("the evaluation is gone")
        done += got
    return content


def read_task(descriptor: int) -> str:
    """Read the task, as JSON."""
    return read_exactly(descriptor, read_rows(descriptor)).decode()


def read_rows(descriptor: int) -> int:
    """Read the number of rows of the next batch, 0 at the end."""
    return int(COUNT.unpack(read_exactly(descriptor, COUNT.size))[0])


def task(content: Mapping[str, Any]) -> bytes:
    """Return a task as it is sent."""
    text = json.dumps(content).encode()
    return COUNT.pack(len(text)) + text


def write_ready(descriptor: int, about: Mapping[str, Any]) -> None:
    """Say that the encoder is loaded, and what there is to say of it."""
    text = json.dumps(about).encode()
    _write(descriptor, HEAD.pack(Kind.READY, len(text), 0) + text)


def write_codes(descriptor: int, rows: int, columns: int, content: bytes) -> None:
    """Send codes, float32."""
    _write(descriptor, HEAD.pack(Kind.CODES, rows, columns) + content)


def write_error(descriptor: int, failure: str, text: str) -> None:
    """Say what went wrong."""
    content = (FAILURES[failure] + text).encode("utf-8", "replace")[:MOST_TEXT]
    _write(descriptor, HEAD.pack(Kind.ERROR, len(content), 0) + content)


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
