"""Families of distributions: their fields, and the spaces on which they are defined."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from helpers.distributions import MIXED

from threedident.distributions import (
    Change,
    GeneralizedNormal,
    Laplace,
    Normal,
    PairProcess,
    PerFactor,
    ProjectedNormal,
    Unchanged,
    Uniform,
    VonMisesFisher,
    parse_distribution,
)
from threedident.distributions.serialisation import parse_space, space_as_dict
from threedident.distributions.spaces import Box, Product, Sphere, Unbounded
from threedident.errors import UsageError


def test_numbers_of_other_libraries_become_plain_ones():
    made = [
        Box(np.int64(2), np.float32(-1), torch.tensor(1.0)),
        Sphere(np.int32(3), np.float32(0.5)),
        Unbounded(torch.tensor(4)),
    ]
    assert made == [Box(2, -1.0, 1.0), Sphere(3, 0.5), Unbounded(4)]
    assert [parse_space(json.loads(json.dumps(space_as_dict(s)))) for s in made] == made
    plain = [
        (Normal(np.float32(0.5)), Normal(0.5)),
        (Normal([1, np.float32(0.5), torch.tensor(0.25)]), Normal((1.0, 0.5, 0.25))),
        (Laplace(torch.tensor([0.5, 1.0])), Laplace((0.5, 1.0))),
        (GeneralizedNormal(np.array(0.5), np.float32(1.5)), GeneralizedNormal(0.5, 1.5)),
        (VonMisesFisher(torch.tensor(3)), VonMisesFisher(3.0)),
        (ProjectedNormal(np.arange(1, 3), np.float32(0.5)), ProjectedNormal((1.0, 2.0), 0.5)),
        (Change(Uniform(), np.int64(2)), Change(Uniform(), 2)),
        (Change(Uniform(), np.array([1, 2])), Change(Uniform(), (1, 2))),
        (Change(Uniform(), [1, np.int64(2)]), Change(Uniform(), (1, 2))),
        (PerFactor((([np.int64(0)], Uniform()),)), PerFactor((((0,), Uniform()),))),
    ]
    for found, expected in plain:
        assert found == expected
        assert repr(found) == repr(expected)
        assert parse_distribution(json.loads(json.dumps(found.as_dict()))) == expected


@pytest.mark.parametrize(
    "value", [0, -0.5, math.nan, math.inf, 1e31, 1e-31, 10**400, True, "1", None]
)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Normal, "normal: sigma"),
        (Laplace, "laplace: lambda"),
        (GeneralizedNormal, "gennorm: lambda"),
        (ProjectedNormal, "projected-normal: Lambda"),
        (lambda v: Normal((1.0, v)), "normal: every sigma"),
        (lambda v: GeneralizedNormal(0.1, v), "gennorm: beta"),
        (lambda v: ProjectedNormal(1.0, v), "projected-normal: shell"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_widths_that_do_not_fit(make, name, value):
    with pytest.raises(UsageError) as caught:
        make(value)
    assert str(caught.value).startswith(f"{name} must ")
    assert f"found {value!r:.50}" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "made", "message"),
    [
        (Unbounded(3), Uniform(), r"no uniform distribution on .* Unbounded\(n=3\)"),
        (Product(Box(1), Unbounded(2)), Uniform(), "no uniform distribution"),
        (
            Box(3),
            VonMisesFisher(1),
            r"VonMisesFisher\(kappa=1.0\) is defined on a sphere, found Box",
        ),
        (Unbounded(3), ProjectedNormal(1.0), "defined on a sphere, found Unbounded"),
        (Sphere(3), ProjectedNormal((1.0, 2.0)), "has 2 widths for 3 dimensions: expected 3"),
        (Box(3), Normal((1.0, 2.0)), r"Normal\(sigma=\(1.0, 2.0\)\) has 2 widths for 3"),
        (Box(3), Laplace(()), "has 0 widths for 3 dimensions"),
        (Sphere(2), GeneralizedNormal((1.0,)), "has 1 widths for 2 dimensions"),
        (MIXED, Normal(0.1), "on a product of spaces: give each part its own"),
        (Box(3), Change(Uniform(), 4), "k = 4 of 3 factors"),
        (Box(3), Change(Uniform(), (1, 4)), r"k = \(1, 4\) of 3 factors"),
        (Sphere(3), Change(Uniform(), 1), "coordinates of a sphere depend on each other"),
        (MIXED, Change(Uniform(), 1), "coordinates of a sphere depend on each other"),
        (MIXED, Change(PerFactor.by_part(MIXED, Uniform(), Uniform()), 1), "of a sphere depend"),
        (Box(3), Change(VonMisesFisher(1), 1), "defined on a sphere"),
        (Box(3), PerFactor((((0, 1), Uniform()),)), "2 columns for Box"),
        (Sphere(2), PerFactor((((0,), Uniform()), ((1,), Uniform()))), "of a sphere depend"),
        (MIXED, PerFactor((((1, 2), Uniform()), ((0, 3, 4), Uniform()))), "several parts"),
        (MIXED, PerFactor.by_part(MIXED, VonMisesFisher(1), Uniform()), "found Box"),
    ],
)
def test_distributions_on_spaces_that_they_are_not_defined_on(space, made, message):
    with pytest.raises(UsageError, match=message):
        PairProcess(space, made, Unchanged())
    with pytest.raises(UsageError, match=message):
        PairProcess(space, Unchanged(), made)
    with pytest.raises(UsageError, match=message):
        made.sample(space, torch.zeros(2, space.n))
