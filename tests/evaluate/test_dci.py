import numpy as np
import pytest
import threadpoolctl
from helpers.synthetic_codes import noisy_codes, rotation, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mutual_info_score, roc_auc_score

from threedident.errors import UsageError
from threedident.evaluate.metrics import (
    completeness,
    dci,
    disentangled,
    explicitness,
    mig,
    modularity,
    sap,
)
from threedident.evaluate.metrics._mutual_information import binned

FACTORS = 4


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def codes():
    """Codes of known structure, and the factors they are of."""
    z = uniform(1200, FACTORS)
    order = np.random.default_rng(0).permutation(FACTORS)
    noise = np.random.default_rng(1).standard_normal(z.shape)
    turned = rotation(FACTORS, 3)
    assert np.abs(turned).max() < 0.9  # far from a permutation
    return z, {
        "perfect": z,
        "permuted": -2 * z[:, order] + 1,
        "rotated": z @ turned,
        "noisy": z + 0.5 * noise,
        "noise": noise,
        "over-complete": np.concatenate([z, noise], 1),
        "twice": np.concatenate([z, z], 1),
    }


def test_dci(codes):
    z, made = codes
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
def test_other_choices_of_dci(codes, options):
    z, made = codes
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


def test_mig(codes):
    z, made = codes
    # Finite samples give codes of other factors (bins - 1)^2 / (2 N) nats.
    bias = 19**2 / (2 * len(z)) / np.log(20)
    for name in ("perfect", "permuted", "over-complete"):
        assert mig(z, made[name]).value == pytest.approx(1 - bias, abs=0.02)
    assert mig(z, made["twice"]).value == pytest.approx(0, abs=1e-9)
    assert mig(z, made["rotated"]).value < 0.25
    assert mig(z, made["noise"]).value < 0.02
    assert 0.1 < mig(z, made["noisy"]).value < 0.4
    assert mig(z, made["perfect"][:, :1]).per_factor[0] == pytest.approx(1, abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.sampled_from(["width", "quantile"]))
@settings(max_examples=15)
def test_mig_and_modularity_agree_with_their_formulas(seed, bins, binning):
    z = uniform(100, 3, seed)
    codes = noisy_codes(z, 5, seed)
    cut_z, cut_c = binned(z, bins, binning), binned(codes, bins, binning)
    assert cut_z.min() == 0
    assert cut_z.max() == bins - 1
    table = np.array([[mutual_info_score(a, b) for b in cut_c.T] for a in cut_z.T])
    entropy = np.array([mutual_info_score(a, a) for a in cut_z.T])
    found = mig(z, codes, bins=bins, binning=binning)
    assert np.allclose(found.parts["information"], table, atol=1e-6)
    top = np.sort(table, 1)
    assert np.allclose(found.per_factor, (top[:, -1] - top[:, -2]) / entropy, atol=1e-6)
    squares = np.sort(table**2, 0)
    expected = 1 - squares[:-1].sum(0) / squares[-1] / 2
    whole = modularity(z, codes, bins=bins, binning=binning)
    assert np.allclose(whole.parts["per_code"], expected, atol=1e-5)
    assert whole.value == pytest.approx(expected.mean(), abs=1e-5)


def test_bins():
    values = np.array([[0.0], [0.1], [0.2], [1.0]])
    assert binned(values, 2, "width").ravel().tolist() == [0, 0, 0, 1]
    assert binned(values, 2, "quantile").ravel().tolist() == [0, 0, 1, 1]
    assert (binned(np.ones((4, 1)), 5, "width") == 0).all()


def test_sap(codes):
    z, made = codes
    for name in ("perfect", "permuted", "over-complete"):
        assert sap(z, made[name]).value == pytest.approx(1, abs=0.01)
    assert sap(z, made["twice"]).value == pytest.approx(0, abs=1e-9)
    assert sap(z, made["noise"]).value < 0.01
    # The squared correlation of factor i and code j is the squared entry of the rotation.
    expected = np.mean(np.sort(rotation(FACTORS, 3) ** 2, 1) @ [0, 0, -1, 1])
    assert sap(z, made["rotated"]).value == pytest.approx(expected, abs=0.05)
    assert sap(z, made["noisy"]).value == pytest.approx((1 / 3) / (1 / 3 + 0.25), abs=0.05)
    both = np.corrcoef(z.T, made["noisy"].T)[:FACTORS, FACTORS:] ** 2
    top = np.sort(both, 1)
    assert np.allclose(sap(z, made["noisy"]).per_factor, top[:, -1] - top[:, -2])


def test_modularity(codes):
    z, made = codes
    for name in ("perfect", "permuted", "twice"):
        assert modularity(z, made[name]).value > 0.99
    assert modularity(z, made["rotated"]).value < 0.95
    assert modularity(z, made["noise"]).value < 0.4
    # Codes of noise tell of all factors alike, and count as much as the others.
    assert modularity(z, made["over-complete"]).value < 0.7
    still = np.concatenate([z, np.ones((len(z), 1))], 1)
    assert modularity(z, still).parts["per_code"][-1] == 0


def test_explicitness(codes):
    z, made = codes
    for name in ("perfect", "permuted", "rotated", "over-complete"):
        assert explicitness(z, made[name]).value > 0.9
    assert 0.3 < explicitness(z, made["noisy"]).value < 0.8
    assert abs(explicitness(z, made["noise"]).value) < 0.05


def test_explicitness_agrees_with_scikit_learn():
    z = uniform(300, 2)
    codes = noisy_codes(z, 2)
    found = explicitness(z, codes, classes=3, folds="single", penalty=1e-2)
    scaled = (codes - codes.mean(0)) / codes.std(0)
    for factor in range(2):
        labels = np.searchsorted(np.quantile(z[:, factor], [1 / 3, 2 / 3]), z[:, factor], "right")
        model = LogisticRegression(C=1 / (1e-2 * 150), max_iter=500)
        chances = model.fit(scaled[:150], labels[:150]).predict_proba(scaled[150:])
        areas = [roc_auc_score(labels[150:] == k, chances[:, k]) for k in range(3)]
        assert np.allclose(found.parts["auc"][factor], areas, atol=1e-9)
        assert found.per_factor[factor] == pytest.approx(2 * np.mean(areas) - 1, abs=1e-9)


@pytest.mark.parametrize("metric", [dci, mig, sap, modularity, explicitness])
def test_constant_factors_are_left_out(metric):
    z = uniform(1000, 3)
    z[:, 1] = 0.5
    found = metric(z, z[:, [0, 2]])
    assert found.value > 0.85
    assert found.choices["constant_factors_left_out"] == [1]
    if found.per_factor is not None:
        assert np.isnan(found.per_factor).tolist() == [False, True, False]
    with pytest.raises(UsageError, match="codes, found 513"):
        metric(z, np.random.default_rng(0).standard_normal((1000, 513)))
    with pytest.raises(UsageError, match="at least 20 samples"):
        metric(z[:10], z[:10])


def test_arguments_that_do_not_fit():
    z = uniform(60, 2)
    for call, message in (
        (lambda: dci(z, z, regressor="forest"), "regressor must be one of trees, lasso"),
        (lambda: dci(z, z, importance="luck"), "importance must be one of permutation, fit"),
        (lambda: dci(z, z, folds="in-sample"), "use folds=2"),
        (lambda: dci(z[:, :1], z), "at least 2 varying factors, found 1"),
        (lambda: dci(z, z[:, :1]), "needs 2 to 512 codes, found 1"),
        (lambda: mig(z, z, bins=1), "bins must lie in 2..200, found 1"),
        (lambda: mig(z, z, binning="tree"), "binning must be one of width, quantile"),
        (lambda: explicitness(z, z, classes=1), "classes must lie in 2..100"),
        (lambda: explicitness(z, z, folds="in-sample"), "use folds=2"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
