"""MIG, DCI, SAP and modularity of classes, against disentanglement_lib and against formulas."""

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from helpers.grid_codes import codes_of_rows, grid_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from sklearn import ensemble, svm

from threedident.errors import UsageError
from threedident.evaluate.metrics import (
    dci_discrete,
    mig,
    mig_discrete,
    modularity_discrete,
    sap_discrete,
)
from threedident.evaluate.metrics._bootstrap import bootstrap
from threedident.evaluate.metrics._values import classes_of, recurring
from threedident.evaluate.metrics.registry import METRICS, Options

#: What disentanglement_lib gives for these codes; see `record.py` beside the file.
RECORDED = json.loads(
    (Path(__file__).parents[1] / "data/disentanglement_lib/scores.json").read_text()
)["scores"]
Z = grid_rows()
CODES = codes_of_rows(Z)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.mark.parametrize("name", CODES)
def test_information_and_classifiers_agree_with_disentanglement_lib(name):
    recorded, codes = RECORDED[name], CODES[name]
    assert mig_discrete(Z, codes).value == pytest.approx(recorded["mig_discrete"], abs=1e-6)
    modularity = modularity_discrete(Z, codes).value
    assert modularity == pytest.approx(recorded["modularity_discrete"], abs=1e-5)
    # The seed decides which rows its classifiers are fitted in which order, not the result.
    assert sap_discrete(Z, codes).value == pytest.approx(recorded["sap_discrete"], abs=1e-3)


@pytest.mark.parametrize("name", ["mixed", "exchanged"])
def test_dci_agrees_with_disentanglement_lib(name):
    recorded, score = RECORDED[name], dci_discrete(Z, CODES[name])
    # Its trees draw from the global seed, which decides ties alone.
    assert score.value == pytest.approx(recorded["dci_discrete"], abs=0.005)
    assert score.parts["completeness"] == pytest.approx(recorded["completeness"], abs=0.005)
    assert score.parts["informativeness"] == pytest.approx(recorded["informativeness"], abs=0.01)


def _information(a, b):
    """Mutual information in nats, from the table of frequencies."""
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1 / len(a))
    outer = np.outer(table.sum(1), table.sum(0))
    return sum(p * np.log(p / q) for p, q in zip(table.flat, outer.flat, strict=True) if p > 0)


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
@settings(max_examples=10)
def test_mig_and_modularity_agree_with_their_formulas(seed, bins):
    z = grid_rows(seed, 120)
    codes = codes_of_rows(z, seed)["mixed"]
    classes = classes_of(z)
    width = np.ptp(codes, axis=0)
    cells = np.minimum((codes - codes.min(0)) / width * bins, bins - 1).astype(int)
    table = np.array([[_information(a, b) for b in cells.T] for a in classes.T])
    entropy = [stats.entropy(np.unique(each, return_counts=True)[1]) for each in classes.T]
    ordered = np.sort(table, 1)
    gap = mig_discrete(z, codes, bins=bins)
    assert np.allclose(gap.per_factor, (ordered[:, -1] - ordered[:, -2]) / entropy, atol=1e-6)
    squares = np.sort(table**2, 0)
    expected = 1 - squares[:-1].sum(0) / squares[-1] / (z.shape[1] - 1)
    score = modularity_discrete(z, codes, bins=bins)
    assert np.allclose(score.parts["per_code"], expected, atol=1e-5)


def test_sap_and_dci_agree_with_their_definitions():
    z, codes = Z[:450, :3], CODES["some"][:450, 1:5]
    z = z + 7  # values are names
    accuracies = np.array(
        [
            [
                np.mean(
                    svm.LinearSVC(C=0.01, class_weight="balanced", random_state=0)
                    .fit(code[:300, None], factor[:300])
                    .predict(code[300:, None])
                    == factor[300:]
                )
                for code in codes.T
            ]
            for factor in z.T
        ]
    )
    sap = sap_discrete(z, codes)
    assert np.allclose(sap.parts["accuracy"], accuracies)
    ordered = np.sort(accuracies, 1)
    assert sap.value == pytest.approx((ordered[:, -1] - ordered[:, -2]).mean())
    table = np.array(
        [
            ensemble.GradientBoostingClassifier(random_state=0)
            .fit(codes[:300], factor[:300])
            .feature_importances_
            for factor in z.T
        ]
    ).T
    dci = dci_discrete(z, codes)
    assert np.allclose(dci.parts["importance"], table)
    uneven = [1 - stats.entropy(row, base=3) for row in table]
    weights = table.sum(1) / table.sum()
    assert dci.value == pytest.approx(weights @ uneven)
    assert dci.parts["completeness"] == pytest.approx(
        np.mean([1 - stats.entropy(column, base=4) for column in table.T])
    )


def test_factors_of_many_values_are_not_binned():
    z = np.random.default_rng(0).integers(0, 40, (4000, 2)).astype(float)
    # The code tells pairs of neighbours apart: mig, which bins them together, sees no gap.
    codes = np.stack([z[:, 0] // 2, z[:, 1]], 1)
    assert mig(z, codes).per_factor[0] > 0.95
    assert mig_discrete(z, codes).per_factor[0] == pytest.approx(np.log(20) / np.log(40), abs=0.04)


@pytest.mark.parametrize("metric", [mig_discrete, modularity_discrete, sap_discrete, dci_discrete])
def test_the_order_and_the_names_of_values_do_not_matter(metric):
    z, codes = Z[:300], CODES["mixed"][:300, :3]
    renamed = np.stack([(z[:, 0] + 1) % 3, 5 - z[:, 1], z[:, 2] * 0.25, z[:, 3] + 100, z[:, 4]], 1)
    if metric is dci_discrete:
        z, renamed = z[:, :2], renamed[:, :2]
        codes = np.round(codes, 1)
    assert metric(z, codes).value == pytest.approx(metric(renamed, codes).value, abs=0.02)


def test_metrics_of_classes_refuse_numbers_that_do_not_come_again():
    z = np.random.default_rng(0).uniform(size=(500, 2))
    for metric in (mig_discrete, modularity_discrete, sap_discrete, dci_discrete):
        with pytest.raises(UsageError, match="factor 0 has 500 values in 500 samples"):
            metric(z, z)
    assert recurring(np.round(z, 1)).all()
    assert not recurring(np.round(z[:40], 1)).any()


def test_intervals_hold_the_score_where_the_fit_is_held():
    sap = sap_discrete(Z, CODES["exchanged"])
    drawn = bootstrap(sap, 200, 0)
    low, high = np.quantile(drawn.value, [0.001, 0.999])
    assert low < sap.value < high
    dci = dci_discrete(Z[:200, :2], CODES["exchanged"][:200])
    drawn = bootstrap(dci, 100, 0)
    assert np.isnan(drawn.value).all()  # of importances there is no interval
    assert 0 <= drawn.parts["informativeness"].min() <= dci.parts["informativeness"]
    gap = mig_discrete(Z, CODES["mixed"])
    drawn = bootstrap(gap, 100, 0)
    assert drawn.per_factor.shape == (100, 5)
    assert drawn.value == pytest.approx(drawn.per_factor.mean(1))


@pytest.mark.parametrize("name", ["mixed", "some", "exchanged"])
def test_the_mcc_of_kitti_masks_is_that_of_its_protocol(name):
    codes = CODES[name]
    padding = np.random.default_rng(9).standard_normal((len(Z), codes.shape[1] - Z.shape[1]))
    padded = np.concatenate([Z, padding], 1)
    table = np.abs(stats.spearmanr(padded, codes).statistic)[: codes.shape[1], codes.shape[1] :]
    rows, columns = optimize.linear_sum_assignment(-table)
    expected = table[rows, columns][: Z.shape[1]].mean()
    options = Options(2, 0, {}, {})
    found = METRICS["mcc_spearman_noise_padded"].score(Z, codes, options)
    assert found.value == pytest.approx(expected, abs=0.01)  # another noise
    assert found.choices["correlation"] == "spearman"


def test_constant_factors_and_codes_are_left_out():
    z, codes = Z[:300].copy(), CODES["some"][:300].copy()
    z[:, 1], codes[:, 2] = 3, 1
    for metric in (mig_discrete, sap_discrete):
        score = metric(z, codes)
        assert np.isnan(score.per_factor).tolist() == [False, True, False, False, False]
        assert score.choices["constant_factors_left_out"] == [1]
        assert np.isfinite(score.value)
    assert dci_discrete(z[:, :3], codes).parts["importance"][2].tolist() == [0, 0, 0]
    assert modularity_discrete(z, codes).parts["per_code"][2] == 0


def test_every_pair_of_factor_and_code_has_its_information():
    z = Z[:, :3]
    table = mig_discrete(z, CODES["mixed"]).parts["information"]
    for i, j in itertools.product(range(3), range(7)):
        alone = mig_discrete(z[:, i : i + 1], CODES["mixed"][:, j : j + 1])
        assert table[i, j] == pytest.approx(alone.parts["information"][0, 0], abs=1e-9)


@pytest.mark.parametrize(("scale", "shift"), [(1e-12, 0), (1e30, 0), (1.0, 1e8)])
def test_trees_see_codes_of_any_scale(scale, shift):
    """scikit-learn's take what differs by less than 1e-7 for equal."""
    z = grid_rows()[:900]
    found = dci_discrete(z, z * scale + shift)
    assert found.value == pytest.approx(_of_the_factors_themselves(), abs=1e-6)
    assert found.parts["informativeness"] > 0.99


@functools.cache
def _of_the_factors_themselves():
    z = grid_rows()[:900]
    return dci_discrete(z, z).value
