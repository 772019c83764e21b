"""Balanced accuracy of discrete factors."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noise, rotation, seeds, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from threedident.errors import UsageError
from threedident.evaluate.metrics import _accuracy as module
from threedident.evaluate.metrics import accuracy

BOTH = pytest.mark.parametrize("classifier", ["linear", "kernel"])


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpoolctl.threadpool_limits(1):
        yield


def shapes(samples=600, classes=4, seed=0):
    return np.random.default_rng(seed).integers(0, classes, (samples, 1))


def indicators(z):
    return (z == np.arange(z.max() + 1)).astype(float)


@BOTH
def test_codes_that_hold_the_class_are_read(classifier):
    z = shapes()
    found = accuracy(z, indicators(z) @ rotation(4), classifier=classifier)
    assert found.value > 0.99
    assert found.parts["normalised"] > 0.99
    assert found.parts["chance_per_factor"] == pytest.approx([0.25])


@BOTH
def test_codes_without_the_class_are_at_chance(classifier):
    z = shapes(2000)
    found = accuracy(z, noise(2000, 5), classifier=classifier)
    assert found.value == pytest.approx(0.25, abs=0.04)
    assert found.parts["normalised"] == pytest.approx(0, abs=0.06)


@BOTH
def test_a_frequent_class_does_not_count_more(classifier):
    """Nine of ten rows are of one class: plain accuracy would be 0.9 for nothing."""
    z = (np.random.default_rng(0).uniform(size=(3000, 1)) < 0.1).astype(float)
    assert accuracy(z, noise(3000, 3), classifier=classifier).value == pytest.approx(0.5, abs=0.06)
    blurred = z + 0.5 * noise(3000, 1)
    # Two Gaussians, one standard deviation from the middle: Phi(1) each.
    assert accuracy(z, blurred, classifier=classifier).value == pytest.approx(0.841, abs=0.03)


def test_a_kernel_reads_what_a_line_cannot():
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (1000, 2))
    z = (signs.prod(1, keepdims=True) > 0).astype(float)
    assert accuracy(z, signs).value == pytest.approx(0.5, abs=0.05)
    assert accuracy(z, signs, classifier="kernel").value > 0.99


@given(seeds, st.permutations(range(3)))
@settings(max_examples=10)
def test_the_numbers_of_classes_do_not_matter(seed, order):
    z = shapes(120, 3, seed)
    codes = indicators(z) + noise(120, 3, seed)
    named = 10 * np.array(order)[z] - 4
    before, after = accuracy(z, codes), accuracy(named, codes)
    assert after.value == pytest.approx(before.value, abs=0.03)  # ties of a fit
    assert sorted(after.parts["recall"][0]) == pytest.approx(
        sorted(before.parts["recall"][0]), abs=0.1
    )


def test_it_agrees_with_scikit_learn(monkeypatch):
    z = shapes(400, 3)
    codes = indicators(z) + noise(400, 3)
    predicted = []
    kept = module._predict
    monkeypatch.setattr(module, "_predict", lambda *a: predicted.append(kept(*a)) or predicted[-1])
    found = accuracy(z, codes, folds="single")
    assert found.value == pytest.approx(balanced_accuracy_score(z[200:, 0], predicted[0]))
    counts = np.random.default_rng(5).integers(0, 3, (1, 400)).astype(float)
    rows = np.repeat(np.arange(200), counts[0, 200:].astype(int))
    expected = balanced_accuracy_score(z[200:, 0][rows], predicted[0][rows])
    assert found.resample.replicate(counts).value[0] == pytest.approx(expected)


def test_other_factors_are_left_out():
    z = np.concatenate([uniform(200, 1), shapes(200)], 1)
    found = accuracy(z, indicators(shapes(200)), kinds=["continuous", "discrete"])
    assert np.isnan(found.per_factor).tolist() == [True, False]
    assert found.value == found.per_factor[1] > 0.99
    assert found.parts["recall"][0] == []


def test_replicates():
    z = shapes(200)
    found = accuracy(z, indicators(z) + noise(200, 4))
    drawn = found.resample.replicate(np.ones((2, 200)))
    assert np.allclose(drawn.value, found.value)
    assert np.allclose(drawn.parts["normalised"], found.parts["normalised"])
    assert 0.3 < found.value < 0.95


@BOTH
def test_a_class_that_one_half_lacks(classifier):
    z = shapes(200, 3)
    z[:100][z[:100] == 2] = 1
    found = accuracy(z, indicators(shapes(200, 3)), classifier=classifier)
    assert np.isfinite(found.value)
    z[0] = 3  # and one of a single row
    assert np.isfinite(accuracy(z, noise(200, 3), classifier=classifier).value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classifier": "forest"}, "classifier must be one of linear, kernel, found 'forest'"),
        ({"folds": "in-sample"}, "accuracy scores held-out rows"),
        ({"kinds": ["continuous"]}, "no factor is discrete"),
    ],
)
def test_arguments_that_do_not_fit(options, message):
    with pytest.raises(UsageError, match=message):
        accuracy(shapes(40), noise(40, 2), **options)


def test_numbers_are_no_classes():
    with pytest.raises(UsageError, match="factor 0 is discrete: expected class numbers, found"):
        accuracy(uniform(40, 1), noise(40, 2))


def test_classes_are_found_in_a_direction_of_little_variance():
    shape = shapes(1200)
    codes = np.hstack([1e3 * uniform(1200, 1), shape + 0.01 * noise(1200, 1)])
    assert accuracy(shape, codes @ rotation(2)).value == pytest.approx(1, abs=0.01)
