from __future__ import annotations

import ast
import math
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from threedident.causal.expressions import FRAMES, FUNCTIONS, Expression, circular_mean
from threedident.plain_data import Misfit

NAMES = ("x", "y", "hue_2", "long_name")

#: The same functions, of Python's own numbers.
MATH = {
    "sin": math.sin,
    "cos": math.cos,
    "atan2": math.atan2,
    "min": min,
    "max": max,
    "circular_mean": lambda a, b: (
        math.atan2(math.sin(a) + math.sin(b), math.cos(a) + math.cos(b)) % (2 * math.pi)
    ),
}

numbers = st.floats(-100, 100, allow_subnormal=False)
leaves = st.one_of(
    numbers.map(lambda x: repr(abs(x))),
    st.integers(0, 1000).map(str),
    st.sampled_from((*NAMES, "pi")),
    st.builds("{}({})".format, st.sampled_from(FRAMES), st.sampled_from(NAMES)),
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    calls = [
        st.builds(
            lambda name, args: f"{name}({', '.join(args)})",
            st.just(name),
            st.lists(inner, min_size=count, max_size=count),
        )
        for name, (_, count) in FUNCTIONS.items()
    ]
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner),
        st.builds("{}{}".format, st.sampled_from("+-"), inner),
        st.builds("({})".format, inner),
        *calls,
    )


expressions = st.recursive(leaves, _grown, max_leaves=12).filter(lambda text: len(text) <= 300)


def _evaluate(expression: Expression, values: dict[str, dict[str, float]]) -> float:
    frames = [{k: np.array([v]) for k, v in values[frame].items()} for frame in ("", *FRAMES)]
    return float(expression.evaluate(*frames, 1)[0])


@hypothesis.given(expressions, st.lists(numbers, min_size=3 * len(NAMES), max_size=3 * len(NAMES)))
@hypothesis.example("atan2(0.0, -0)", [0.0] * 3 * len(NAMES))
def test_a_tree_has_the_value_that_python_computes(text, drawn):
    values = {
        frame: dict(zip(NAMES, drawn[n::3], strict=True)) for n, frame in enumerate(("", *FRAMES))
    }
    scope = {**MATH, "pi": math.pi, **values[""]}
    for frame in FRAMES:
        scope[frame] = lambda x: x
    python = _with_floats(text)
    for frame in FRAMES:  # a name in another frame is another number
        for name in NAMES:
            python = python.replace(f"{frame}({name})", f"({values[frame][name]!r})")
    try:
        expected = float(eval(python, {"__builtins__": {}}, scope))
    except (ZeroDivisionError, OverflowError, ValueError):
        assert isinstance(_evaluate(Expression(text), values), float)  # inf or nan, and no error
        return
    hypothesis.assume(math.isfinite(expected))
    result = _evaluate(Expression(text), values)
    # Zeros have a sign in numpy as in Python, but rounding of sin may differ before an atan2.
    if "atan2" in text or "circular_mean" in text or "/" in text:
        near = math.isclose(result, expected, rel_tol=1e-6, abs_tol=1e-6)
        hypothesis.assume(near or abs(_sensitivity(Expression(text), values)) < 1e-3)
        assert near
    else:
        assert math.isclose(result, expected, rel_tol=1e-9, abs_tol=1e-9)


def _with_floats(text: str) -> str:
    """The text with 1.0 for 1: of whole numbers Python's -0 is 0, and of floats it is not."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = float(node.value)
    return ast.unparse(tree)


def _sensitivity(expression: Expression, values: dict[str, dict[str, float]]) -> float:
    """How far the value moves when all variables move by rounding."""
    moved = {f: {k: v * (1 + 1e-13) + 1e-13 for k, v in row.items()} for f, row in values.items()}
    return _evaluate(expression, moved) - _evaluate(expression, values)


@hypothesis.given(expressions)
def test_parents_are_the_names_of_each_frame(text):
    import re

    expression = Expression(text)
    rest = text
    for frame in FRAMES:
        inside = re.findall(rf"\b{frame}\((\w+)\)", text)
        assert expression.names(frame) == set(inside)
        rest = re.sub(rf"\b{frame}\(\w+\)", "", rest)
    words = set(re.findall(r"\b[a-z_]\w*", re.sub(r"\d+(\.\d*)?(e[+-]?\d+)?", " ", rest)))
    words |= {name for name in NAMES if re.search(rf"\b{name}\b", rest)}
    assert expression.parents == words & {*NAMES}


@pytest.mark.parametrize(
    "text",
    [
        "x.real",
        "x[0]",
        "x[:]",
        "'x'",
        '"x" + "y"',
        "f'{x}'",
        "b'x'",
        "[x for x in y]",
        "{x for x in y}",
        "(x for x in y)",
        "[x]",
        "(x, y)",
        "{}",
        "{x: y}",
        "lambda: x",
        "lambda x: x",
        "x if y else 1",
        "x and y",
        "not x",
        "~x",
        "x ** y",
        "x % y",
        "x // y",
        "x @ y",
        "x << 1",
        "x | y",
        "x < y",
        "x == y",
        "x is y",
        "x in y",
        "(x := 1)",
        "x = 1",
        "x; y",
        "import os",
        "__import__('os')",
        "__import__(x)",
        "eval(x)",
        "exec(x)",
        "open(x)",
        "getattr(x, y)",
        "x.__class__",
        "().__class__",
        "sin.__self__",
        "sin(x=1)",
        "sin(x, **y)",
        "sin(*x)",
        "min(x, *y)",
        "sin(x)(y)",
        "(sin)(x)(x)",
        "x(y)",
        "pi(x)",
        "abs(x)",
        "sin()",
        "sin(x, y)",
        "atan2(x)",
        "min(x)",
        "min(x, y, z)",
        "previous()",
        "previous(x, y)",
        "previous(1)",
        "previous(x + 1)",
        "previous(previous(x))",
        "first('x')",
        "first(name=x)",
        "previous(*x)",
        "True",
        "False",
        "None",
        "...",
        "1j",
        "1 + 2j",
        "nan(",
        "1e999",
        "-1e999",
        "1e13",
        "9" * 200,
        "await x",
        "yield x",
        "*x",
        "",
        " ",
        "\n",
        "#",
        "x #",
        "# x\nx",
        "0x10",
        "1_000",
        "0b1",
        "1e",
        "1.2.3",
        "1.x",
        "x +",
        "x y",
        "x\ny",
        "x\0",
        "\ud800",
        "x → y",
        "²",
        "0777",
        "1_",
        "1or x",
        "0x",
        "\\",
        "`x`",
        "x" * 301,
        "(" * 150 + "x" + ")" * 149,
        "-" * 290 + "x.y",
        "(" * 140 + "x.y" + ")" * 140,
    ],
)
def test_what_is_outside_of_the_grammar_is_refused(text):
    with pytest.raises(Misfit, match=r"expected|takes|may hold|at most 300 characters") as caught:
        Expression(text)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text", ["-" * 299 + "x", "(" * 140 + "x" + ")" * 140, "+".join("x" * 150)]
)
def test_what_is_long_or_nested_and_within_the_grammar_has_a_value(text):
    expression = Expression(text)
    values = {"x": np.array([2.0])}
    assert float(expression.evaluate(values, {}, {}, 1)[0]) in (2.0, -2.0, 300.0)
    assert expression.parents == {"x"}


@hypothesis.given(st.text(max_size=310))
def test_any_text_is_an_expression_or_a_misfit(text):
    try:
        Expression(text)
    except Misfit as error:
        assert len(str(error)) < 2600


def test_a_warning_of_pythons_parser_reaches_nobody():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("1or x", "0x1for x in y", "'\\d'", "1if 2else 3", "1 is 1", "x()()"):
            with pytest.raises(Misfit):
                Expression(text)
    assert not caught


def test_values_are_broadcast_and_in_float64():
    values = Expression("1 / 3").evaluate({}, {}, {}, 4)
    assert values.shape == (4,)
    assert values.dtype == np.float64
    assert (values == 1 / 3).all()


def test_each_frame_has_values_of_its_own():
    one, two, three = ({"x": np.array([value])} for value in (1.0, 20.0, 300.0))
    expression = Expression("x + previous(x) + first(x)")
    assert expression.evaluate(one, two, three, 1)[0] == 321.0


def test_a_division_by_zero_gives_no_warning():
    x = {"x": np.zeros(3)}
    assert not np.isfinite(Expression("1 / x").evaluate(x, {}, {}, 3)).any()
    assert np.isnan(Expression("min(0 / x, 1)").evaluate(x, {}, {}, 3)).all()


def test_the_circular_mean_is_the_direction_between():
    a, b = np.array([0.1, 6.2, 1.0]), np.array([6.2, 0.1, 2.0])
    mean = circular_mean(a, b)
    assert (mean >= 0).all()
    assert (mean < 2 * math.pi).all()
    between = (0.1 + 6.2 - 2 * math.pi) / 2
    np.testing.assert_allclose(np.cos(mean), np.cos([between, between, 1.5]), atol=1e-12)
    np.testing.assert_allclose(np.sin(mean), np.sin([between, between, 1.5]), atol=1e-12)
