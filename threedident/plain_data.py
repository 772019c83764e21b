"""Plain data from strangers' files: bounded reading of TOML, and checks field by field.

Each check returns the value, or raises a `Misfit` that names the field, what was expected and what
was found. `explaining` adds the name of the file.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from threedident.errors import UsageError

T = TypeVar("T")
C = TypeVar("C", bound=int | str)

#: Bytes. What Python's parser needs grows with the square of the size.
LARGEST_TOML = 20_000

_QUOTED = 80  # characters of a value that an error shows


class Misfit(ValueError):
    """A field that does not fit; the text names the field, but not its file."""


@contextlib.contextmanager
def explaining(source: str, advice: str = "") -> Iterator[None]:
    """Turn a `Misfit` into a UsageError.

    Args:
        source: the name of the data in errors.
        advice: a sentence that the error ends with.
    """
    try:
        yield
    except Misfit as error:
        raise UsageError(f"{source}: {error}" + (f". {advice}" if advice else "")) from error


def is_file(path: Path) -> bool:
    """Whether a path, perhaps one that no file can have, is a file's."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_bounded(path: Path, largest: int) -> bytes:
    """Read a small file.

    Args:
        path: the file.
        largest: the largest size, in bytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is larger.
    """
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it is larger than {largest} bytes")
    return content


def read_toml(path: Path, what: str, largest: int = LARGEST_TOML) -> dict[str, Any]:
    """Read a small TOML file.

    Args:
        path: the file.
        what: the name of the file in errors.
        largest: the largest size, in bytes.

    Raises:
        UsageError: the file cannot be read, is not TOML, or is too large.
    """
    import tomllib

    try:
        return tomllib.loads(read_bounded(path, largest).decode("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"cannot read {what}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"cannot read {what}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of numbers of many digits
        raise UsageError(f"{what}: not valid TOML ({error})") from error


def refuse_unknown(data: Mapping[str, Any], names: Collection[str], where: str = "") -> None:
    """Check that data have no fields but these.

    Args:
        data: the data.
        names: the fields that are known.
        where: the field in which the data lie; empty at the top.
    """
    for key in data:
        if key not in names:
            inside = f" in {where}" if where else ""
            wanted = ", ".join(names)
            raise Misfit(f"unknown field {key!r:.60}{inside}: expected some of {wanted}")


def needed(data: Mapping[str, Any], name: str, where: str = "") -> Any:
    """A field that must be there, and not null.

    Args:
        data: the data.
        name: the field.
        where: the field in which the data lie; empty at the top.
    """
    if data.get(name) is None:
        raise Misfit(f"{where + '.' if where else ''}{name} is missing")
    return data[name]


def table(value: Any, where: str, of: str = "fields") -> dict[str, Any]:
    """A table.

    Args:
        value: the value.
        where: the name of its field.
        of: the name of its entries, in the plural.
    """
    if not isinstance(value, Mapping):
        raise Misfit(f"{where} must be a table of {of}, found {_show(value)}")
    return dict(value)


def text(value: Any, where: str, most: int | None = None) -> str:
    """A text; if it is bounded, one line that shows all it holds.

    Args:
        value: the value.
        where: the name of its field.
        most: the largest number of characters; None: any text.
    """
    if most is None:
        if not isinstance(value, str):
            raise Misfit(f"{where} must be a string, found {_show(value)}")
        return value
    if not isinstance(value, str) or not 1 <= len(value) <= most or value != value.strip():
        raise Misfit(f"{where} must be text of 1 to {most} characters, found {_show(value)}")
    if not value.isprintable():
        raise Misfit(f"{where} must be one line without invisible characters, found {_show(value)}")
    return value


def choice(value: Any, where: str, choices: Sequence[C]) -> C:
    """One of several texts or whole numbers.

    Args:
        value: the value.
        where: the name of its field.
        choices: the values that are allowed.
    """
    if isinstance(value, int | str) and not isinstance(value, bool) and value in choices:
        return value  # type: ignore[return-value]
    raise Misfit(f"{where} must be one of {', '.join(map(str, choices))}, found {_show(value)}")


def whole(value: Any, where: str, least: int = 0, most: int | None = None) -> int:
    """A whole number in [least, 2^64), or in [least, most].

    Args:
        value: the value.
        where: the name of its field.
        least: the smallest number that is allowed.
        most: the largest number that is allowed; None: any below 2^64.
    """
    if type(value) is not int or not least <= value < 2**64:
        raise Misfit(f"{where} must be a whole number in [{least}, 2^64), found {_show(value)}")
    if most is not None and value > most:
        raise Misfit(f"{where} must be at most {most}, found {value}")
    return value


def number(value: Any, where: str, largest: float = math.inf) -> float:
    """A finite number, as a float.

    Args:
        value: the value.
        where: the name of its field.
        largest: the largest absolute value that is allowed.
    """
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not abs(value) <= min(largest, sys.float_info.max):
        bound = "" if math.isinf(largest) else f", at most {largest:g}"
        raise Misfit(f"{where} must be a finite number{bound}, found {_show(value)}")
    return float(value)


def sequence(
    value: Any, where: str, check: Callable[[Any, str], T], *, least: int = 1, most: int
) -> tuple[T, ...]:
    """A list, each of its values checked.

    Args:
        value: the value.
        where: the name of its field.
        check: the check of a value, called with it and the name of the field.
        least: the smallest number of values.
        most: the largest number of values.
    """
    if not isinstance(value, list | tuple) or not least <= len(value) <= most:
        raise Misfit(f"{where} must be a list of {least} to {most} values, found {_show(value)}")
    return tuple(check(each, where) for each in value)


def _show(value: Any) -> str:
    return f"{value!r:.{_QUOTED}}"
