"""Expressions of a model file: arithmetic over the values of other variables.

The grammar is small and closed: numbers, `pi`, names of variables, + - * /, parentheses, and the
functions in `FUNCTIONS`. Text is parsed and checked, and never evaluated as Python.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident.plain_data import Misfit

Float64 = npt.NDArray[np.float64]
Values = Mapping[str, Float64]

_LONGEST = 300  # characters
_LARGEST = 1e12  # of a number that is written in an expression
#: What the text may consist of: plain numbers, names and signs. Python's parser reads more.
_TOKENS = re.compile(
    r"(?:\s|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])|[^\W\d]\w*(?!\w)|[-+*/(),])*"
)


def circular_mean(first: Float64, second: Float64) -> Float64:
    """The direction of the sum of two unit vectors, rad, in [0, 2 pi)."""
    angle = np.arctan2(np.sin(first) + np.sin(second), np.cos(first) + np.cos(second))
    return np.asarray(angle % (2 * math.pi))


#: The functions by name, with the number of their arguments.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "sin": (np.sin, 1),
    "cos": (np.cos, 1),
    "atan2": (np.arctan2, 2),
    "circular_mean": (circular_mean, 2),
    "min": (np.minimum, 2),
    "max": (np.maximum, 2),
}
#: The functions of one name that look into another frame.
FRAMES = ("previous", "first")

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
}


@dataclasses.dataclass(frozen=True)
class Expression:
    """An expression, parsed.

    Attributes:
        text: the text as it was written.
    """

    text: str

    def __post_init__(self) -> None:
        _ = self._tree

    @functools.cached_property
    def _tree(self) -> ast.expr:
        return _parse(self.text)

    @property
    def parents(self) -> frozenset[str]:
        """The variables whose values of the same frame it needs."""
        return self._names("")

    def names(self, frame: str) -> frozenset[str]:
        """The variables whose values it needs of a frame: previous or first."""
        return self._names(frame)

    def _names(self, frame: str) -> frozenset[str]:
        names = set()
        inside = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and node.func.id in FRAMES:  # type: ignore[attr-defined]
                inside.add(node.args[0])
                if node.func.id == frame:  # type: ignore[attr-defined]
                    names.add(node.args[0].id)  # type: ignore[attr-defined]
        if not frame:
            functions = {n.func for n in ast.walk(self._tree) if isinstance(n, ast.Call)}
            names = {
                node.id
                for node in ast.walk(self._tree)
                if isinstance(node, ast.Name)
                and node not in inside
                and node not in functions
                and node.id != "pi"
            }
        return frozenset(names)

    def evaluate(self, current: Values, previous: Values, first: Values, count: int) -> Float64:
        """The values (count,) of the expression, float64; they may not be finite.

        Args:
            current: the values (count,) of variables in the same frame.
            previous: those in the frame before.
            first: those in the first view.
            count: the number of values.
        """
        frames = {"": current, "previous": previous, "first": first}
        with np.errstate(all="ignore"):
            value = _evaluate(self._tree, frames)
        return np.broadcast_to(np.asarray(value, np.float64), (count,))


def _parse(text: str) -> ast.expr:
    """Parse an expression; a `Misfit` says what is wrong with it."""
    if len(text) > _LONGEST:
        raise Misfit(f"an expression has at most {_LONGEST} characters, found {len(text)}")
    try:
        if not _TOKENS.fullmatch(text):
            raise ValueError(text)
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, Misfit):
            raise
        raise Misfit(
            f"{text!r} is no expression: expected numbers, pi, names of variables, + - * /, "
            f"parentheses, and {', '.join((*FUNCTIONS, *FRAMES))}"
        ) from error
    return tree


def _check(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        value = node.value
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not abs(value) <= _LARGEST:  # type: ignore[arg-type]
            raise Misfit(f"{ast.unparse(node):.60} is no number that an expression may hold")
    elif isinstance(node, ast.Name):
        pass
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        _check(node.left)
        _check(node.right)
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        _check(node.operand)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        name = node.func.id
        if name in FRAMES:
            if len(node.args) != 1 or not isinstance(node.args[0], ast.Name):
                raise Misfit(f"{name}(...) takes the name of one variable")
            return
        if name not in FUNCTIONS:
            raise Misfit(
                f"unknown function {name!r:.60}: expected one of {', '.join((*FUNCTIONS, *FRAMES))}"
            )
        if len(node.args) != FUNCTIONS[name][1]:
            raise Misfit(f"{name} takes {FUNCTIONS[name][1]} arguments, found {len(node.args)}")
        for argument in node.args:
            _check(argument)
    else:
        raise Misfit(
            f"{ast.unparse(node):.60} is not allowed: expected numbers, pi, names of variables, "
            f"+ - * /, parentheses, and {', '.join((*FUNCTIONS, *FRAMES))}"
        )


def _evaluate(node: Any, frames: Mapping[str, Values]) -> Any:
    if isinstance(node, ast.Constant):
        return np.float64(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return np.float64(math.pi) if node.id == "pi" else frames[""][node.id]
    if isinstance(node, ast.BinOp):
        operator = _OPERATORS[type(node.op)]
        return operator(_evaluate(node.left, frames), _evaluate(node.right, frames))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_evaluate(node.operand, frames))
    name = node.func.id
    if name in FRAMES:
        return frames[name][node.args[0].id]
    return FUNCTIONS[name][0](*(_evaluate(argument, frames) for argument in node.args))
