"""Spaces and distributions from and to plain data."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from helpers.distributions import conditionals, marginal_of, spaces
from hypothesis import given
from hypothesis import strategies as st

from threedident.distributions import (
    Change,
    GeneralizedNormal,
    Normal,
    PairProcess,
    PerFactor,
    Uniform,
    VonMisesFisher,
    parse_distribution,
)
from threedident.distributions.serialisation import parse_space, space_as_dict
from threedident.distributions.spaces import Box, Product, Sphere, Unbounded
from threedident.errors import UsageError

DEEP: dict = {"name": "uniform"}
for _ in range(5000):
    DEEP = {"name": "change", "conditional": DEEP, "k": 1}
DEEP_SPACE: dict = {"name": "box", "n": 1, "low": 0, "high": 1}
for _ in range(5000):
    DEEP_SPACE = {"name": "product", "parts": [DEEP_SPACE]}


@given(st.data(), spaces)
def test_descriptions_come_back_from_json(data, space):
    made = data.draw(conditionals(space))
    assert parse_space(json.loads(json.dumps(space_as_dict(space)))) == space
    again = parse_distribution(json.loads(json.dumps(made.as_dict())))
    assert again == made
    assert hash(again) == hash(made)
    assert repr(again) == repr(made)
    process = PairProcess(space, made, marginal_of(space))
    assert process == PairProcess(parse_space(space_as_dict(space)), again, marginal_of(space))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GeneralizedNormal(0.1, 0.01), "beta must be at least 0.05, found 0.01"),
        (lambda: Normal(np.ones((2, 2))), r"every sigma must be .* found \[1.0, 1.0\]"),
        (lambda: VonMisesFisher(-1), "kappa must be a finite number >= 0.* found -1"),
        (lambda: VonMisesFisher(math.nan), "kappa .* found nan"),
        (lambda: VonMisesFisher(1e31), "kappa .* found 1e"),
        (lambda: VonMisesFisher(False), "kappa .* found False"),
        (lambda: VonMisesFisher((1.0, 2.0)), r"kappa .* found \(1.0, 2.0\)"),
        (lambda: Box(0), "Box needs a whole number of dimensions >= 1, found 0"),
        (lambda: Box(2.0), "found 2.0"),
        (lambda: Box(True), "found True"),
        (lambda: Box(2, 1, 1), r"low < high, .* found \[1, 1\]"),
        (lambda: Box(2, math.nan), r"found \[nan, 1.0\]"),
        (lambda: Box(2, -math.inf), r"found \[-inf, 1.0\]"),
        (lambda: Box(2, 0, 1e300), r"found \[0, 1e\+300\]"),
        (lambda: Box(2, "a"), r"found \['a', 1.0\]"),
        (lambda: Sphere(1), "Sphere needs a whole number of dimensions >= 2, found 1"),
        (lambda: Sphere(3, 0), "radius > 0, .* found 0"),
        (lambda: Sphere(3, -1.0), "radius > 0, .* found -1.0"),
        (lambda: Sphere(3, math.inf), "found inf"),
        (lambda: Sphere(3, None), "found None"),
        (lambda: Unbounded(-1), "Unbounded needs .* found -1"),
        (Product, r"at least one, found \(\)"),
        (lambda: Product(Box(1), 3), "a product needs spaces"),
        (lambda: Change(Uniform(), -1), "0 <= least <= most, found -1"),
        (lambda: Change(Uniform(), (3, 1)), r"found \(3, 1\)"),
        (lambda: Change(Uniform(), (1, 2, 3)), r"found \(1, 2, 3\)"),
        (lambda: Change(Uniform(), True), "found True"),
        (lambda: Change(Uniform(), 1.5), "found 1.5"),
        (lambda: Change(Uniform(), None), "found None"),
        (lambda: Change(Uniform(), "12"), "found '12'"),
        (lambda: PerFactor(()), r"every column once.* found \[\]"),
        (lambda: PerFactor((((0, 0), Uniform()),)), r"every column once.* found \[\(0, 0\)\]"),
        (lambda: PerFactor((((0, 2), Uniform()),)), r"found \[\(0, 2\)\]"),
        (lambda: PerFactor((((), Uniform()), ((0,), Uniform()))), r"found \[\(\), \(0,\)\]"),
        (lambda: PerFactor((((0.0,), Uniform()),)), r"found \[\(0.0,\)\]"),
        (lambda: PerFactor.by_name({"colour": Uniform()}), "unknown factor or group 'colour'"),
        (lambda: PerFactor.by_name({"hue": Uniform()}), "x has 0 distributions"),
        (
            lambda: PerFactor.by_name({"hue": Uniform(), "object_hue": Uniform()}),
            "has 0 distributions",
        ),
        (
            lambda: PerFactor.by_name({"x": Uniform(), "position": Uniform()}, ("x", "y", "z")),
            "x has 2 distributions, expected one",
        ),
        (lambda: PerFactor.by_part(Product(Box(1)), Uniform(), Uniform()), "has 1 parts, found 2"),
    ],
)
def test_descriptions_that_do_not_fit(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    "data",
    [
        *(None, 3, "normal", [], {}, {"name": "cauchy"}, {"name": ["normal"]}, {"sigma": 0.1}),
        *({"name": "normal"}, {"name": "normal", "sigma": "0.1"}, {"name": "normal", "sigma": -1}),
        *({"name": "normal", "sigma": 0.1, "lam": 0.1}, {"name": "normal", "sigma": 10**400}),
        *({"name": "uniform", "k": 1}, {"name": "normal", "sigma": {"a": 1}}),
        *({"name": "change"}, {"name": "change", "conditional": None, "k": 1}),
        {"name": "change", "conditional": {"name": "uniform"}, "k": None},
        {"name": "change", "conditional": {"name": "uniform"}, "k": 1, "more": 1},
        *({"name": "per-factor"}, {"name": "per-factor", "parts": [3]}),
        {"name": "per-factor", "parts": [{"columns": "01", "distribution": {"name": "uniform"}}]},
        {"name": "per-factor", "parts": [{"columns": [0.5], "distribution": {"name": "uniform"}}]},
        {
            "name": "per-factor",
            "parts": [{"columns": [math.inf], "distribution": {"name": "uniform"}}],
        },
        DEEP,
    ],
    ids=lambda d: str(d)[:40] if d is not DEEP else "deep",
)
def test_data_that_describe_no_distribution(data):
    with pytest.raises(UsageError):
        parse_distribution(data)


@pytest.mark.parametrize(
    "data",
    [
        *(None, 3, "box", [], {}, {"name": "cube", "n": 3}, {"name": "box", "n": 3}),
        *({"name": "box", "n": 3.0, "low": 0, "high": 1}, {"name": "unbounded", "n": True}),
        *({"name": "unbounded", "n": "3"}, {"name": "unbounded", "n": 3, "r": 1}),
        *({"name": "sphere", "n": 3, "r": -1}, {"name": ["box"], "n": 3}),
        *({"name": "product"}, {"name": "product", "parts": []}, {"name": "product", "parts": 3}),
        {"name": "product", "parts": [{"name": "unbounded", "n": 1}], "n": 1},
        DEEP_SPACE,
    ],
    ids=lambda d: str(d)[:40] if d is not DEEP_SPACE else "deep",
)
def test_data_that_describe_no_space(data):
    with pytest.raises(UsageError):
        parse_space(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("laplace", 'laplace lacks lambda: expected, for example, { name = "laplace", lambda ='),
        ({"name": "laplace"}, '{ name = "laplace", lambda = 0.1 }'),
        ({"name": "normal"}, 'normal lacks sigma: expected, for example, { name = "normal", sig'),
        ({"name": "gennorm", "beta": 3}, '{ name = "gennorm", lambda = 0.1 }'),
        ({"name": "vmf"}, '{ name = "vmf", kappa = 10.0 }'),
        ({"name": "projected-normal"}, '{ name = "projected-normal", Lambda = 10.0 }'),
        ("uniform", "expected { name = \"uniform\" }, found 'uniform'"),
    ],
)
def test_a_missing_field_is_named_beside_an_example(data, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_distribution(data)
