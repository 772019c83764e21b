"""Checks of plain data, field by field, and the bounded reader."""

from __future__ import annotations

import math

import pytest

from threedident.errors import UsageError
from threedident.plain_data import (
    LARGEST_TOML,
    Misfit,
    choice,
    explaining,
    needed,
    number,
    read_bounded,
    read_toml,
    refuse_unknown,
    sequence,
    table,
    text,
    whole,
)


def test_what_fits_comes_back():
    assert text("a b", "name") == text("a b", "name", 3) == "a b"
    assert choice("b", "kind", ("a", "b")) == "b"
    assert choice(2, "folds", (1, 2)) == 2
    assert whole(2**64 - 1, "seed") == 2**64 - 1
    assert isinstance(number(3, "scale"), float)
    assert number(-1e308, "scale") == -1e308
    assert sequence(["a"], "names", text, most=2) == ("a",)
    assert sequence([], "names", text, least=0, most=2) == ()
    assert table({"a": 1}, "ranges") == {"a": 1}
    assert needed({"a": 0}, "a") == 0
    refuse_unknown({"a": 1}, ("a", "b"))


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: text(3, "name"), "name must be a string, found 3"),
        (lambda: text("", "name", 5), "name must be text of 1 to 5 characters, found ''"),
        (lambda: text("abcdef", "name", 5), "1 to 5 characters"),
        (lambda: text(" a", "name", 5), "1 to 5 characters"),
        (lambda: text("a\u202eb", "name", 5), "one line without invisible characters"),
        (lambda: choice("c", "kind", ("a", "b")), "kind must be one of a, b, found 'c'"),
        (lambda: choice(True, "folds", (1, 2)), "folds must be one of 1, 2, found True"),
        (lambda: choice(["a"], "kind", ("a", "b")), "kind must be one of a, b"),
        (lambda: whole(1.0, "seed"), r"seed must be a whole number in \[0, 2\^64\), found 1.0"),
        (lambda: whole(True, "seed"), "whole number"),
        (lambda: whole(2**64, "seed"), "whole number"),
        (lambda: whole(0, "count", 1), r"\[1, 2\^64\)"),
        (lambda: number(True, "scale"), "scale must be a finite number, found True"),
        (lambda: number(math.nan, "scale"), "finite"),
        (lambda: number(math.inf, "scale"), "finite"),
        (lambda: number(10**400, "scale"), "finite"),
        (lambda: number(11, "scale", 10), "scale must be a finite number, at most 10, found 11"),
        (lambda: sequence("ab", "names", text, most=2), "names must be a list of 1 to 2 values"),
        (lambda: sequence(["a", 3], "names", text, most=2), "names must be a string, found 3"),
        (lambda: sequence(["a"] * 3, "names", text, most=2), "1 to 2 values"),
        (lambda: table([], "ranges", "factors"), "ranges must be a table of factors"),
        (lambda: needed({"a": None}, "a", "data"), "data.a is missing"),
        (lambda: refuse_unknown({"c": 1}, ("a", "b")), "unknown field 'c': expected some of a, b"),
        (lambda: refuse_unknown({"c": 1}, ("a",), "data"), "unknown field 'c' in data"),
    ],
)
def test_what_does_not_fit_is_named(check, message):
    with pytest.raises(Misfit, match=message) as caught:
        check()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("advice", "message"),
    [
        ("Write one", "mine.toml: name must be a string, found 3. Write one"),
        ("", "mine.toml: name must be a string, found 3"),
    ],
)
def test_an_error_names_the_file_and_the_cure(advice, message):
    with pytest.raises(UsageError) as caught, explaining("mine.toml", advice):
        text(3, "name")
    assert str(caught.value) == message


def test_a_file_of_any_size_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("a = 1\n")
    assert read_bounded(path, 6) == b"a = 1\n"
    with pytest.raises(ValueError, match="larger than 5 bytes"):
        read_bounded(path, 5)
    assert read_toml(path, "the file") == {"a": 1}
    path.write_text("#" * (LARGEST_TOML + 1))
    with pytest.raises(UsageError, match=r"the file: not valid TOML \(it is larger than 20000"):
        read_toml(path, "the file")
    with pytest.raises(UsageError, match="cannot read the file: there is no such file"):
        read_toml(tmp_path / "none", "the file")
    with pytest.raises(UsageError, match="cannot read the file: "):
        read_toml(tmp_path, "the file")
