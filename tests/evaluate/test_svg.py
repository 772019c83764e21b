"""Heat maps and scatter plots."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.fake_scores import Structure, make_codes, scores_file

from threedident.evaluate.report.report import report
from threedident.evaluate.report.svg import heat_map, scatter, shown_codes


@pytest.fixture(scope="module")
def codes():
    return make_codes()


def test_a_cell_for_every_factor_and_code(codes):
    z, _ = codes
    _, many = make_codes(codes=100)
    text = report(scores_file(), z, many)
    found = Structure(text)
    assert found.names.count("svg") == 5 + 10
    assert sum(t == "rect" and n == "fill-opacity" for t, n, _ in found.attributes) == 1000
    correlation = np.corrcoef(z.T, many.T)[:10, 10:]
    assert f"theta, code 73: {correlation[4, 73]:.4f}" in found.text


def test_of_very_many_codes_the_matched_and_the_strongest_are_shown():
    correlation = np.zeros((10, 3000))
    correlation[3, [7, 2999]] = 0.9, -0.8
    correlation[4, 8] = np.nan
    shown = shown_codes(correlation, [(0, 1500), (1, 2999)])
    assert len(shown) == 200
    assert {7, 1500, 2999} <= set(shown)
    assert shown == sorted(shown)
    assert heat_map(correlation, [f"f{i}" for i in range(10)]).count("<svg") == 10
    text = Structure(report(scores_file(), *make_codes(codes=300))).text
    assert "Shown are 200 of the 300 codes, those that correlate most." in text


def test_points_beyond_the_frame_lie_on_its_edge():
    true = np.linspace(-1, 1, 5)
    made = scatter(true, np.array([1e9, -1e9, 0, 0.5, -0.5]), "x", "")
    path = re.search('d="(M[^"]*h0)"', made)[1]
    ups = [float(point.split(" ")[1]) for point in path.removesuffix("h0")[1:].split("h0M")]
    assert min(ups) == 22.0
    assert max(ups) == 22.0 + 188
    assert scatter(np.full(5, 3.0), np.full(5, 3.0), "x", "").count("NaN") == 0
