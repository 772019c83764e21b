"""InfoM, InfoE and InfoC."""

import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noise, rotation, seeds, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import digamma
from sklearn.feature_selection import mutual_info_classif
from sklearn.metrics import mutual_info_score

from threedident.errors import UsageError
from threedident.evaluate.metrics import infomec
from threedident.evaluate.metrics._infomec import _terms


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpoolctl.threadpool_limits(1):
        yield


def three(found):
    return found.value, found.parts["infoe"], found.parts["infoc"]


def classes(samples=1500, factors=3, count=5, seed=0):
    return np.random.default_rng(seed).integers(0, count, (samples, factors))


DISCRETE = ["discrete"] * 3


@pytest.mark.parametrize("bend", [lambda z: z, lambda z: -3 * z[:, ::-1] + 1])
def test_perfect_codes(bend):
    z = uniform(1500, 3)
    assert three(infomec(z, bend(z))) == pytest.approx((1, 1, 1), abs=0.02)


def test_perfect_codes_of_classes():
    z = classes()
    for codes in (z, z + 0.05 * noise(1500, 3)):
        assert three(infomec(z, codes, kinds=DISCRETE)) == pytest.approx((1, 1, 1), abs=0.04)


def test_rotated_codes_are_explicit_alone():
    """Turned by 45 degrees, each code tells as much of either factor."""
    z = uniform(3000, 2)
    found = infomec(z, np.stack([z[:, 0] + z[:, 1], z[:, 0] - z[:, 1]], 1))
    assert three(found) == pytest.approx((0, 1, 0), abs=0.1)
    assert found.parts["infoe"] == pytest.approx(1)


def test_codes_that_are_there_twice_are_not_compact():
    """The larger of two equal informations is half of their sum: (1/2 - 1/6) / (1 - 1/6)."""
    z = uniform(1500, 3)
    found = infomec(z, np.concatenate([z, -z], 1))
    assert three(found) == pytest.approx((1, 1, 0.4), abs=0.02)
    found = infomec(classes(), np.concatenate([classes(), 4 - classes()], 1), kinds=DISCRETE)
    assert found.choices["codes"] == "discrete"
    assert three(found) == pytest.approx((1, 1, 0.4), abs=0.03)


def test_codes_of_two_factors_are_not_modular():
    """A code of a pair of classes tells as much of each: (1/2 - 1/2) / (1 - 1/2) = 0."""
    z = classes(4000, 2, 4)
    pairs = (4 * z[:, 0] + z[:, 1])[:, None]
    found = infomec(z, np.concatenate([pairs, 15 - pairs], 1), kinds=DISCRETE[:2])
    assert three(found) == pytest.approx((0, 1, 0), abs=0.01)


def test_constant_codes_hold_nothing():
    for z, kinds in ((uniform(200, 3), None), (classes(200), DISCRETE)):
        found = infomec(z, np.ones((200, 4)), kinds=kinds)
        assert three(found) == pytest.approx((0, 0, 0), abs=1e-4)
        assert found.parts["active"] == [False] * 4


def test_codes_of_small_range_do_not_count():
    z = uniform(1500, 3)
    still = np.concatenate([z, 0.01 * noise(1500, 4)], 1)
    assert three(infomec(z, still)) == pytest.approx((1, 1, 1), abs=0.02)
    assert infomec(z, still).parts["active"] == [True] * 3 + [False] * 4
    alone = infomec(z, z[:, :1])
    assert np.isnan(alone.parts["infoc"])  # one code is all there is
    assert alone.value == pytest.approx(1, abs=0.03)


def test_codes_that_hold_angles():
    z = np.random.default_rng(0).uniform(0, 2 * np.pi, (1500, 2))
    codes = np.concatenate([np.cos(z), np.sin(z)], 1)
    modular, explicit, compact = three(infomec(z, codes, kinds=["circular"] * 2))
    assert (modular, explicit) == pytest.approx((1, 1), abs=0.02)
    assert compact < 0.5


@given(seeds, st.integers(2, 6), st.integers(1, 12), st.floats(0.1, 2))
@settings(max_examples=25)
def test_the_information_of_neighbours_is_that_of_its_definition(seed, count, neighbours, noisy):
    generator = np.random.default_rng(seed)
    labels = np.unique(generator.integers(0, count, 90), return_inverse=True)[1]
    column = labels + noisy * generator.standard_normal(90)
    sizes = np.bincount(labels)
    total = int(sizes[sizes > 1].sum())
    for i, term in enumerate(_terms(labels, column, neighbours)):
        if sizes[labels[i]] < 2:
            assert term == 0
            continue
        away = np.abs(column - column[i])
        k = min(neighbours, sizes[labels[i]] - 1)
        nearer = (away < np.sort(away[labels == labels[i]])[k]).sum()
        expected = digamma(total) + digamma(k) - digamma(sizes[labels[i]]) - digamma(nearer)
        assert term == pytest.approx(expected)


def test_the_information_of_neighbours_agrees_with_scikit_learn():
    labels = classes(2000, 1)[:, 0]
    column = labels + noise(2000, 1)[:, 0]
    expected = mutual_info_classif(
        column[:, None], labels, discrete_features=False, n_neighbors=10, random_state=0
    )[0]
    assert _terms(labels, column, 10).mean() == pytest.approx(expected, abs=1e-3)


def test_the_information_of_neighbours_is_that_of_theory():
    """Two Gaussians far apart tell of log 2; far together, of nothing."""
    labels = np.random.default_rng(0).integers(0, 2, 4000)
    blur = noise(4000, 1)[:, 0]
    assert _terms(labels, 20 * labels + blur, 10).mean() == pytest.approx(np.log(2), abs=1e-3)
    assert _terms(labels, blur, 10).mean() == pytest.approx(0, abs=0.02)


def test_the_information_of_frequencies_agrees_with_scikit_learn():
    z, codes = classes(300), classes(300, 4, seed=1)
    codes[:, 0] = z[:, 0] // 2
    found = infomec(z, codes, kinds=DISCRETE)
    for i in range(3):
        whole = mutual_info_score(z[:, i], z[:, i])
        for j in range(4):
            expected = mutual_info_score(z[:, i], codes[:, j]) / whole
            assert found.parts["information"][i, j] == pytest.approx(expected, abs=1e-6)


@given(seeds, st.permutations(range(4)))
@settings(max_examples=10)
def test_the_order_of_codes_does_not_matter(seed, order):
    z = classes(80, 2, 3, seed)
    codes = classes(80, 4, 3, seed + 1)
    codes[:, 0] = z[:, 1]
    before, after = (infomec(z, c, kinds=DISCRETE[:2]) for c in (codes, codes[:, list(order)]))
    assert three(after) == pytest.approx(three(before), abs=1e-3)


def test_explicitness_is_the_share_of_the_entropy():
    """A code that halves four classes leaves log 2 of log 4."""
    z = classes(4000, 2, 4)
    found = infomec(z, z // 2, kinds=DISCRETE[:2])
    assert three(found) == pytest.approx((1, 0.5, 1), abs=0.02)
    assert found.parts["infoe_per_factor"] == pytest.approx([0.5, 0.5], abs=0.02)


def test_replicates_and_constant_factors():
    z = np.concatenate([uniform(300, 2), np.ones((300, 1)), classes(300, 1)], 1)
    kinds = ["continuous", "circular", "continuous", "discrete"]
    codes = np.concatenate([z[:, :2] + 0.2 * noise(300, 2), classes(300, 1)], 1)
    found = infomec(z, codes, kinds=kinds)
    drawn = found.resample.replicate(np.ones((2, 300)))
    assert np.allclose(drawn.value, found.value)
    for name, values in drawn.parts.items():
        assert np.allclose(values, found.parts[name]), name
    assert np.isnan(found.parts["infoe_per_factor"]).tolist() == [False, False, True, False]
    assert found.choices["constant_factors_left_out"] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codes": "binary"}, "codes must be one of auto, continuous, discrete"),
        ({"codes": "discrete"}, "at most 20 values, found 60: use codes='continuous'"),
        ({"classes": 1}, "classes must lie in 2..20"),
        ({"neighbours": 0}, "neighbours must be at least 1"),
        ({"folds": "in-sample"}, "InfoE scores held-out rows"),
    ],
)
def test_arguments_that_do_not_fit(options, message):
    with pytest.raises(UsageError, match=message):
        infomec(uniform(60, 2), uniform(60, 2), **options)


def test_infoe_of_classes_does_not_depend_on_how_collinear_codes_are():
    z = classes(count=2)
    codes = z + 0.2 * noise(*z.shape)
    kinds = ["discrete"] * 3
    plain = infomec(z, codes, kinds=kinds).parts["infoe"]
    mixed = codes * [1, 1e-2, 1e-3] @ rotation(3)
    assert infomec(z, mixed, kinds=kinds).parts["infoe"] == pytest.approx(plain, abs=0.01)
