"""The table of a leaderboard."""

from __future__ import annotations

import statistics

import pytest
from helpers.boards import by_name
from helpers.fake_scores import (
    changed,
    make_scores,
    put,
)

from threedident.evaluate.leaderboard.entries import read_board
from threedident.evaluate.leaderboard.published_scores import TABLE_4
from threedident.evaluate.leaderboard.ranking import average, make_rows, remarks, table


def test_mean_and_standard_deviation_over_seeds():
    values = [0.953, 0.951, 0.955]
    found = average(values)
    assert found.mean == pytest.approx(statistics.mean(values))
    assert found.std == pytest.approx(statistics.stdev(values))
    assert average([0.5]).std is None
    assert average([0.1] * 3).mean == pytest.approx(0.1)


def test_ranks_are_within_a_track_for_each_metric(filled):
    rows = by_name(make_rows(read_board(filled)))
    normal, laplace = rows["Exact normal pairs"], rows["Exact Laplace pairs"]
    assert normal.averages["linear_r2"].mean == pytest.approx(0.953)
    assert normal.averages["linear_r2"].std == pytest.approx(0.002)
    assert (normal.averages["linear_r2"].rank, laplace.averages["linear_r2"].rank) == (2, 1)
    assert (normal.averages["mcc"].rank, laplace.averages["mcc"].rank) == (1, 2)
    trained = rows["A supervised one"]
    assert trained.preliminary and trained.seeds == 2
    assert trained.averages["mcc"].rank is None
    assert not trained.verifiable and normal.verifiable
    assert not normal.preliminary


def test_others_of_equal_score_share_a_rank(tmp_path):
    for entry, r2 in (("a", 0.9), ("b", 0.9), ("c", 0.8), ("d", 0.95)):
        for seed in range(3):
            put(tmp_path / "board", make_scores(entry, seed, r2, name=entry))
    for seed in range(2):
        put(tmp_path / "board", make_scores("e", seed, 0.99, name="e"))
    rows = make_rows(read_board(tmp_path / "board"), published=False)
    ranks = [(row.name, row.averages["linear_r2"].rank) for row in rows]
    assert ranks == [("d", 1), ("a", 2), ("b", 2), ("c", 4), ("e", None)]


def test_data_and_settings_part_ranks(tmp_path):
    board = tmp_path / "board"
    other = ("data.fingerprint", "cd" * 32), ("settings.folds", "single"), ("data.images", 100)
    for number, change in enumerate([None, *other]):
        for seed in range(3):
            scores = make_scores(f"entry-{number}", seed, 0.9 + number / 100, name=f"{number}")
            put(board, changed(scores, *change) if change else scores)
    harmless = changed(make_scores("entry-4", 0), "settings.bootstrap", 0)
    put(board, changed(harmless, "settings.codes", 7))
    rows = make_rows(read_board(board), published=False)
    assert [row.averages["linear_r2"].rank for row in rows if not row.preliminary] == [1] * 4
    assert len({row.data_key for row in rows}) == 4
    first, *rest = remarks(rows)
    assert first.startswith("Entries were scored on 4 different test sets or with different")
    assert len(rest) == 3
    assert {line.rsplit(": ", 1)[1] for line in rest} <= {
        *("fingerprint", "settings.folds", "images"),
        *("fingerprint, settings.folds", "fingerprint, images", "images, settings.folds"),
    }
    assert not remarks(rows[:1])


def test_seeds_scored_on_different_data_are_no_row(tmp_path):
    board = tmp_path / "board"
    for seed in range(3):
        put(board, changed(make_scores(seed=seed), "data.fingerprint", f"{seed // 2:064x}"))
    rows = make_rows(read_board(board), published=False)
    assert sorted(row.seeds for row in rows) == [1, 2]
    assert all(row.preliminary for row in rows)


def test_a_metric_that_a_seed_lacks_is_not_averaged(tmp_path):
    board = tmp_path / "board"
    for seed in range(3):
        scores = make_scores(seed=seed)
        if seed == 1:
            scores["scores"]["mcc"]["value"] = None
        put(board, scores)
    (row,) = make_rows(read_board(board), published=False)
    assert list(row.averages) == ["linear_r2"]


def test_the_papers_rows_are_there_and_not_ranked(filled):
    rows = [row for row in make_rows(read_board(filled)) if row.published]
    assert len(rows) == len(TABLE_4) == 7
    found = by_name(rows)
    assert found["Supervised"].averages["linear_r2"].mean == 0.9867
    assert found["Normal pairs, box, Normal loss"].averages["mcc"].mean == 0.9831
    assert found["Normal pairs, box, Normal loss"].averages["mcc"].std == 0.0004
    assert found["Normal pairs, sphere, vMF loss"].averages["mcc"].std == 0.0327
    assert "mcc" not in found["Identity (the pixels)"].averages
    assert all(a.rank is None for row in rows for a in row.averages.values())
    assert not any(row.preliminary or row.verifiable for row in rows)


def test_what_is_not_ranked_is_listed_last_and_why(tmp_path):
    board = tmp_path / "board"
    trained = {"track": "supervised", "conditional": None, "width": None}
    put(board, make_scores("one", name="one", **trained))
    for seed in range(3):
        put(board, make_scores("three", seed, name="three"))
    rows = make_rows(read_board(board))
    assert [row.name for row in rows if row.published is None] == ["three", "one"]
    assert rows[-1].name == "one"
    lines = table(rows)
    assert "one is not ranked: it needs 3 seeds, has 1" in lines
    assert not any(line.startswith("three is not ranked") for line in lines)
