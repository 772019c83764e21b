"""Fitting truncated normals: known laws come back, and what is no such law is said."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from threedident.causal.fit import FITS, fit_truncated_normals, model_file
from threedident.causal.quantiles import truncated_normal
from threedident.errors import UsageError

pytestmark = pytest.mark.slow  # many draws and fits

ROOTS = ("spotlight_position", "spotlight_hue", "background_hue")
COUNT = 20_000


def rows(count=COUNT, seed=0):
    """Roots, class numbers of two classes, and uniform numbers for what follows."""
    rng = np.random.default_rng(seed)
    roots = dict(zip(ROOTS, rng.uniform(-1, 1, (3, count)), strict=True))
    return roots, rng.integers(0, 2, count), rng


def drawn(rng, mean, std):
    return truncated_normal(rng.uniform(size=len(mean)), mean, std, -1.0, 1.0)


def fitted(values, numbers, **options):
    return fit_truncated_normals(values, numbers, ("a", "b"), **options)


@pytest.mark.parametrize("std", [0.05, 0.3, 1.0, 2.0])
def test_a_known_law_comes_back(std):
    roots, numbers, rng = rows()
    mean = np.where(numbers == 0, 0.5 * roots["spotlight_position"] - 0.2, 0.7)
    law = fitted({"x": drawn(rng, mean, std), **roots}, numbers)
    first, second = law.laws["x"]
    by_term = {term.text: term for term in first.terms}
    for text, value in (("", -0.2), ("spotlight_position", 0.5)):
        if text in by_term:
            assert abs(by_term[text].coefficient - value) < 4 * by_term[text].error
        else:
            assert std == 2.0  # so wide that the rows cannot tell
    if std < 2:
        assert set(by_term) == {"", "spotlight_position"}
        assert abs(first.std - std) < 4 * first.std_error
        assert [term.text for term in second.terms] == [""]
        assert abs(second.terms[0].coefficient - 0.7) < 4 * second.terms[0].error
    assert first.rows + second.rows == COUNT
    assert law.misfits == []
    assert first.fits and second.fits


def test_it_is_the_most_likely_law():
    roots, numbers, rng = rows(3000)
    y = drawn(rng, 0.4 * roots["spotlight_hue"] + 0.3, 0.6)
    law = fit_truncated_normals({"x": y, **roots}, 0 * numbers, ("a",)).laws["x"][0]
    assert [term.text for term in law.terms] == ["", "spotlight_hue"]

    def loss(at):
        mean, std = at[0] + at[1] * roots["spotlight_hue"], np.exp(at[2])
        ends = (-1 - mean) / std, (1 - mean) / std
        return -stats.truncnorm.logpdf(y, *ends, loc=mean, scale=std).sum()

    best = optimize.minimize(loss, [0, 0, 0], method="Nelder-Mead", options={"xatol": 1e-7})
    found = [*(term.coefficient for term in law.terms), np.log(law.std)]
    assert found == pytest.approx(best.x, abs=2e-4)


def test_standard_errors_are_the_spread_of_repeated_fits():
    errors, values = [], []
    for seed in range(60):
        roots, numbers, rng = rows(800, seed)
        y = drawn(rng, 0.5 * roots["spotlight_hue"] + 0.3, 0.4)
        law = fit_truncated_normals({"x": y, **roots}, 0 * numbers, ("a",)).laws["x"][0]
        by_term = {term.text: term for term in law.terms}
        values.append([by_term[""].coefficient, by_term["spotlight_hue"].coefficient, law.std])
        errors.append([by_term[""].error, by_term["spotlight_hue"].error, law.std_error])
    assert np.std(values, axis=0) == pytest.approx(np.mean(errors, axis=0), rel=0.35)


def test_uniform_rows_are_uniform():
    for seed in range(10):
        roots, numbers, rng = rows(2000, seed)
        law = fitted({"x": rng.uniform(-1, 1, 2000), **roots}, numbers)
        assert all(each.std is None for each in law.laws["x"])
        assert law.laws["x"][0].mechanism() == '{ kind = "uniform" }'


def test_terms_of_ones_own():
    roots, numbers, rng = rows()
    text = "sin(pi * spotlight_position)"
    y = drawn(rng, 0.6 * np.sin(np.pi * roots["spotlight_position"]), 0.3)
    wrong = fitted({"x": y, **roots}, numbers)
    assert any(
        "x is no such truncated normal in a, b, or its mean" in line for line in wrong.misfits
    )
    assert not wrong.laws["x"][0].fits
    right = fitted({"x": y, **roots}, numbers, terms=[text, "background_hue"])
    assert right.misfits == []
    assert [term.text for term in right.laws["x"][0].terms] == [text]
    assert right.laws["x"][0].mean().endswith(f" * ({text})")


def test_what_the_rows_contradict_is_said():
    roots, numbers, rng = rows()
    y = rng.choice([-0.5, 0.5], COUNT) + rng.normal(0, 0.05, COUNT)
    other = drawn(rng, 0 * y, 0.3)
    roots["spotlight_hue"] = roots["spotlight_hue"] ** 3
    law = fitted({"x": y, "y": other, "z": 0.8 * other, **roots}, numbers)
    said = " ".join(law.misfits)
    assert "spotlight_hue is not uniform" in said
    assert "x is no such truncated normal" in said
    assert "depend on each other beyond this graph" in said
    assert law.dependence > 0.9
    assert "The rows contradict it: " in model_file(law, "base", "here")


def test_the_limit_of_a_distance_is_as_rare_as_said():
    rng = np.random.default_rng(0)
    far = [stats.kstest(rng.uniform(size=1000), "uniform").statistic for _ in range(2000)]
    assert np.mean(np.array(far) * np.sqrt(1000) > FITS) < 0.001
    assert 0.3e-4 < (1 + 3 * 8) * stats.kstwobign.sf(FITS) < 1e-4  # all rows, and three roots' bins


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.full(COUNT, 1.5)}, r"x: raw values lie in \[-1, 1\], found 1.5"),
        ({"x": np.append(np.zeros(COUNT - 1), np.nan)}, "x: raw values lie"),
        ({"x": np.zeros(COUNT - 1)}, "x has shape"),
        ({"x": None}, "every variable is a root"),
        ({"spotlight_hue": None}, "unknown root 'spotlight_hue'"),
        ({"spotlight_hue": np.zeros(COUNT)}, "terms depend on each other, or one is constant"),
    ],
)
def test_rows_that_do_not_fit(change, message):
    roots, numbers, rng = rows()
    values = {"x": drawn(rng, np.zeros(COUNT), 0.5), **roots} | change
    with pytest.raises(UsageError, match=message):
        fitted({name: each for name, each in values.items() if each is not None}, numbers)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (["x"], "expected an expression of spotlight_position, spotlight_hue, background_hue"),
        (["previous(spotlight_hue)"], "expected an expression"),
        (["sin("], "is no expression"),
        (["1 / (spotlight_hue - spotlight_hue)"], "not finite everywhere"),
        (["spotlight_hue", "2 * spotlight_hue"], "terms depend on each other"),
    ],
)
def test_terms_that_do_not_fit(terms, message):
    roots, numbers, rng = rows(1000)
    with pytest.raises(UsageError, match=message):
        fitted({"x": drawn(rng, np.zeros(1000), 0.5), **roots}, numbers, terms=terms)


def test_a_function_of_the_roots_is_no_truncated_normal():
    roots, numbers, _ = rows(1000)
    with pytest.raises(UsageError, match="x in the class a is a function of the terms"):
        fitted({"x": 0.5 * roots["spotlight_hue"], **roots}, numbers)


def test_a_class_with_few_rows_is_refused():
    roots, numbers, rng = rows(1000)
    numbers[:] = 0
    numbers[:49] = 1
    with pytest.raises(UsageError, match="the class b has 49 rows: expected at least 50"):
        fitted({"x": rng.uniform(-1, 1, 1000), **roots}, numbers)
    numbers[0] = 2
    with pytest.raises(UsageError, match="the class numbers are not 0 to 1"):
        fitted({"x": rng.uniform(-1, 1, 1000), **roots}, numbers)
