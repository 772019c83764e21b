"""BetaVAE and FactorVAE scores, against disentanglement_lib and plain implementations."""

import json
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from helpers.grid_codes import GRID, codes_of_rows, grid_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from threedident.errors import UsageError
from threedident.evaluate.metrics import beta_vae_score, factor_vae_score
from threedident.evaluate.metrics._bootstrap import bootstrap
from threedident.evaluate.metrics._interventions import RowsByValue

RECORDED = json.loads(
    (Path(__file__).parents[1] / "data/disentanglement_lib/scores.json").read_text()
)["scores"]
EVERY = GRID.points(np.arange(len(GRID))).astype(float)
CODES = codes_of_rows(EVERY)
SIZES = {"points": 2000, "test_points": 1000}
#: Standard errors of a share of 1,000, and of the classifier that 2,000 give.
NEAR = 0.06


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many threads on small matrices are slow where processors are busy."""
    with threadpoolctl.threadpool_limits(1):
        yield


def _plain_scores(codes, batch, points, test_points, seed):
    """Both scores by their definitions, from a table of the codes of every image of the grid."""
    generator = np.random.default_rng(seed)
    spread = codes.var(0, ddof=1)
    active = codes.std(0) > 0.05 * codes.std(0).max()

    def factors(count):
        return np.stack([generator.integers(0, size, count) for size in GRID.sizes], 1)

    features, labels, votes = [], [], []
    for _ in range(points + test_points):
        k = int(generator.integers(GRID.n))
        first, second, alike = factors(batch), factors(batch), factors(batch)
        second[:, k] = first[:, k]
        alike[:, k] = alike[0, k]
        c, c_tilde, c_alike = (codes[GRID.index(each)] for each in (first, second, alike))
        features.append(np.abs(c - c_tilde).mean(0))
        share = np.where(active, c_alike.var(0, ddof=1) / np.where(active, spread, 1), np.inf)
        votes.append(int(share.argmin()))
        labels.append(k)
    x, y, v = np.array(features), np.array(labels), np.array(votes)
    model = LogisticRegression(max_iter=1000).fit(x[:points], y[:points])
    beta = (model.predict(x[points:]) == y[points:]).mean()
    table = np.zeros((codes.shape[1], GRID.n))
    np.add.at(table, (v[:points], y[:points]), 1)
    factor = (table.argmax(1)[v[points:]] == y[points:]).mean()
    return beta, factor


@pytest.mark.parametrize("name", CODES)
def test_of_a_whole_grid_they_agree_with_disentanglement_lib(name):
    recorded, codes = RECORDED[name], CODES[name]
    beta, factor = beta_vae_score(EVERY, codes, **SIZES), factor_vae_score(EVERY, codes, **SIZES)
    assert beta.value == pytest.approx(recorded["beta_vae"], abs=NEAR)
    assert factor.value == pytest.approx(recorded["factor_vae"], abs=NEAR)


@pytest.mark.parametrize("name", ["mixed", "some"])
def test_of_a_sample_they_are_those_of_the_grid(name):
    """Images chosen by the value of a factor stand for images drawn with that value."""
    rows = np.random.default_rng(3).integers(0, len(GRID), 3000)
    beta, factor = _plain_scores(CODES[name], 64, 1200, 600, 5)
    z, codes = EVERY[rows], CODES[name][rows]
    assert beta_vae_score(z, codes, **SIZES).value == pytest.approx(beta, abs=0.08)
    assert factor_vae_score(z, codes, **SIZES).value == pytest.approx(factor, abs=0.08)


def test_codes_of_noise_score_as_chance():
    z = grid_rows(0, 2000)
    noise = np.random.default_rng(1).standard_normal((2000, 4))
    for score in (beta_vae_score, factor_vae_score):
        assert score(z, noise, **SIZES).value == pytest.approx(1 / 5, abs=0.05)


def test_a_constant_code_has_no_vote_and_no_name_but_its_own():
    z = grid_rows(0, 1500)
    codes = np.stack([np.ones(1500), z[:, 3], 1e-3 * z[:, 0], z[:, 1], np.zeros(1500)], 1)
    score = factor_vae_score(z, codes, **SIZES)
    assert score.parts["voting"].tolist() == [0, 1, 0, 1, 0]
    assert score.choices["codes_without_a_vote"] == [0, 2, 4]
    assert score.parts["factor_of_code"].tolist()[1::2] == [3, 1]
    assert score.parts["votes"][[0, 2, 4]].sum() == 0
    # However little a code varies, it votes where there is no threshold; a constant one never.
    every = factor_vae_score(z, codes, threshold=0, **SIZES)
    assert every.choices["codes_without_a_vote"] == [0, 4]
    assert every.value > score.value
    assert factor_vae_score(z, 0 * codes, **SIZES).value == 0


def test_the_published_threshold_is_of_standard_deviations():
    z = grid_rows(0, 1500)
    codes = z * [0.01, 1, 1, 1, 1]
    absolute = factor_vae_score(z, codes, thresholds="absolute", **SIZES)
    assert absolute.choices["codes_without_a_vote"] == [0]
    small = factor_vae_score(z, 1e-3 * z, thresholds="absolute", **SIZES)
    assert small.value == 0  # all of them are too small for it
    assert factor_vae_score(z, 1e-3 * z, **SIZES).value == pytest.approx(1)


def test_the_scale_of_codes_matters_to_one_of_them():
    z = grid_rows(0, 1500)
    small = beta_vae_score(z, 1e-3 * z, **SIZES)
    assert small.value < 0.9
    assert small.parts["standardised"] == pytest.approx(1)
    assert small.parts["as_they_are"] == small.value
    scaled = beta_vae_score(z, 1e-3 * z, standardised=True, **SIZES)
    assert scaled.value == small.parts["standardised"]
    assert factor_vae_score(z, 1e-3 * z, **SIZES).value == factor_vae_score(z, z, **SIZES).value


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
@settings(max_examples=20)
def test_rows_are_drawn_by_their_value(seed, values):
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, values, 60)
    rows = RowsByValue.of(classes)
    anchors = rows.draw_anchors((200,), generator)
    partners = rows.draw_partners(anchors, generator)
    assert (classes[anchors] == classes[partners]).all()
    assert (anchors != partners).all()
    alike = rows.draw_alike(anchors, 7, generator)
    assert (classes[alike] == classes[anchors][:, None]).all()


def test_partners_and_rows_alike_are_equally_likely():
    classes = np.array([0, 1, 0, 0, 1, 2])
    rows = RowsByValue.of(classes)
    generator = np.random.default_rng(0)
    anchors = rows.draw_anchors((9000,), generator)
    assert 5 not in anchors  # no other row has its value
    assert np.bincount(anchors) == pytest.approx([1800] * 5, rel=0.1)
    partners = rows.draw_partners(np.zeros(6000, int), generator)
    assert np.bincount(partners)[[2, 3]] == pytest.approx([3000] * 2, rel=0.1)
    assert len(np.unique(partners)) == 2
    alike = rows.draw_alike(np.zeros(1000, int), 6, generator)
    assert np.bincount(alike.ravel())[[0, 2, 3]] == pytest.approx([2000] * 3, rel=0.1)


def test_scores_have_parts_and_intervals():
    z, codes = grid_rows(0, 1500), codes_of_rows(grid_rows(0, 1500))["some"]
    factor, beta = factor_vae_score(z, codes, **SIZES), beta_vae_score(z, codes, **SIZES)
    assert factor.parts["votes"].sum() == SIZES["points"]
    assert factor.parts["votes"].shape == (5, 5)
    confusion = beta.parts["confusion"]
    assert np.trace(confusion) / confusion.sum() == pytest.approx(beta.value)
    shares = np.diag(confusion) / confusion.sum(1)
    assert beta.parts["accuracy_per_factor"] == pytest.approx(shares)
    for score in (factor, beta):
        low, high = np.quantile(bootstrap(score, 200, 0).value, [0.001, 0.999])
        assert low < score.value < high
        assert high - low < 0.2


def test_the_same_seed_gives_the_same_score():
    z, codes = grid_rows(0, 600), codes_of_rows(grid_rows(0, 600))["some"]
    sizes = {"points": 100, "test_points": 100}
    for score in (beta_vae_score, factor_vae_score):
        assert score(z, codes, **sizes).value == score(z, codes, **sizes).value
        others = {score(z, codes, seed=seed, **sizes).value for seed in range(5)}
        assert len(others) > 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"points": 5}, "at least 20 points"),
        ({"batch": 1}, "a batch of 2"),
        ({"threshold": -1}, "threshold of at least 0"),
        ({"thresholds": "relativ"}, "relative or absolute"),
    ],
)
def test_settings_that_do_not_fit(options, said):
    z = grid_rows(0, 600)
    with pytest.raises(UsageError, match=said):
        factor_vae_score(z, z, **options)


def test_factors_that_do_not_come_again_are_refused():
    z = np.random.default_rng(0).uniform(size=(500, 3))
    for score in (beta_vae_score, factor_vae_score):
        with pytest.raises(UsageError, match="as images of a grid have"):
            score(z, z)
        with pytest.raises(UsageError, match="at least 2 varying factors"):
            score(np.round(z[:, :1]), z)
