"""Disentanglement, completeness and informativeness."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import FACTORS, rotation

from threedident.evaluate.metrics import (
    completeness,
    dci,
    disentangled,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


def test_dci(known_codes):
    z, made = known_codes
    found = {name: dci(z, each) for name, each in made.items()}
    for name in ("perfect", "permuted", "over-complete"):
        assert found[name].value > 0.97
        assert found[name].parts["completeness"] > 0.97
        assert found[name].parts["informativeness"] > 0.98
    assert found["permuted"].value == pytest.approx(found["perfect"].value, abs=1e-3)
    # Importances follow the squared entries of the rotation.
    share = rotation(FACTORS, 3).T ** 2
    expected = 1 + (share * np.log(share)).sum() / FACTORS / np.log(FACTORS)
    assert found["rotated"].value == pytest.approx(expected, abs=0.1)
    assert found["rotated"].parts["completeness"] == pytest.approx(expected, abs=0.1)
    # R2 of a uniform factor from itself with noise: var / (var + noise).
    linear = (1 / 3) / (1 / 3 + 0.25)
    assert found["noisy"].value > 0.9
    assert linear - 0.1 < found["noisy"].parts["informativeness"] < linear + 0.05
    assert found["noise"].parts["informativeness"] < 0
    # A second copy says the same of one factor, but completeness asks for one code alone.
    assert found["twice"].value > 0.97
    assert found["twice"].parts["completeness"] < 0.95
    assert found["over-complete"].parts["importance"].shape == (8, 4)
    assert found["perfect"].choices["regressor"] == "trees"


@pytest.mark.parametrize("options", [{"regressor": "lasso"}, {"importance": "fit"}])
def test_other_choices_of_dci(known_codes, options):
    z, made = known_codes
    perfect, rotated = (dci(z, made[name], **options) for name in ("perfect", "rotated"))
    assert perfect.value > 0.95
    assert perfect.parts["informativeness"] > 0.98
    assert rotated.value < 0.6
    for name, value in options.items():
        assert perfect.choices[name] == value


def test_the_formulas_of_dci():
    ones = np.eye(3)[None]
    assert disentangled(ones)[1] == pytest.approx([1])
    assert completeness(ones)[0] == pytest.approx([1, 1, 1])
    even = np.ones((1, 2, 3))
    assert disentangled(even)[1] == pytest.approx([0])
    assert completeness(even)[0] == pytest.approx([0, 0, 0])
    # Code 0 for factors 0 and 1 alike, code 1 for factor 2 alone with half the weight, code 2
    # for nothing.
    table = np.array([[[1, 1, 0], [0, 0, 1], [0, 0, 0]]], float)
    each, mean = disentangled(table)
    mixed = 1 - np.log(2) / np.log(3)
    assert each[0] == pytest.approx([mixed, 1, 0])
    assert mean[0] == pytest.approx((2 * mixed + 1) / 3)
    assert completeness(table)[0] == pytest.approx([1, 1, 1])
    nothing = np.zeros((1, 2, 2))
    assert disentangled(nothing)[1] == 0
    assert (completeness(nothing) == 0).all()
