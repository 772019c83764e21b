"""A leaderboard's page, and its commands."""

from __future__ import annotations

import json

import pytest
from helpers.boards import LINK, by_name, said
from helpers.fake_scores import (
    HOSTILE,
    Structure,
    hostile_run,
    make_scores,
    written,
)

from threedident.evaluate.leaderboard.entries import find_runs, read_board
from threedident.evaluate.leaderboard.page import index, write_site
from threedident.evaluate.leaderboard.ranking import make_rows


def test_the_page(filled, tmp_path):
    runs = read_board(filled)
    path = write_site(runs, tmp_path / "site")
    text = path.read_text("utf-8")
    found = Structure(text)
    for words in (
        "published, not re-run",
        "not ranked: needs 3 seeds, has 2",
        "embeddings: not verifiable on fresh data",
        "hyper-parameters chosen on the test set, as declared",
        "0.9530 ± 0.0020",
        "0.9831 ± 0.0004",
        "Entries were scored on 2 different test sets",
        "R2 0.9530 [0.9490, 0.9570]",
        "the generator is not injective; see best R2",
    ):
        assert words in found.text, words
    links = [value for _, name, value in found.attributes if name == "href"]
    reports = [link for link in links if link.startswith("entries/")]
    assert len(reports) == len(runs) == 9
    for link in reports:
        source = filled / link
        assert (path.parent / link).read_bytes() == source.read_bytes()
    assert {link.split(":")[0] for link in links if link not in reports} == {"https"}
    assert found.names.count("script") == 1
    policy = next(v for t, n, v in found.attributes if (t, n) == ("meta", "content"))
    assert "script-src 'sha256-" in policy and "unsafe" not in policy
    assert "hidden" in [n for t, n, v in found.attributes if t == "div"]  # controls, until a script


def test_the_page_is_the_same_each_time(filled, tmp_path):
    first = write_site(read_board(filled), tmp_path / "a").read_bytes()
    assert write_site(read_board(filled)[::-1], tmp_path / "b").read_bytes() == first
    assert write_site(read_board(filled), tmp_path / "a").read_bytes() == first


def test_the_page_can_lie_in_the_board_itself(board):
    write_site(read_board(board), board)
    assert len(read_board(board)) == 9


def test_whatever_an_entry_says_is_text(filled, tmp_path):
    plain = Structure(index(make_rows(read_board(filled))))
    text = index(make_rows([*read_board(filled), hostile_run(tmp_path / "hostile")]))
    found = Structure(text)
    assert set(found.names) == set(plain.names)
    assert {n for _, n, _ in found.attributes} == {n for _, n, _ in plain.attributes}
    assert found.names.count("script") == 1
    assert not [v for _, n, v in found.attributes if n == "href" and "javascript" in v]
    assert "\u202e" not in text
    assert HOSTILE["authors"][0] in found.text
    assert HOSTILE["link"] in found.text


def test_a_board_without_entries_shows_the_papers_rows(tmp_path):
    text = index(make_rows([]))
    assert Structure(text).text.count("published, not re-run") == 7 + 1


def test_add_list_and_html(cli, tmp_path):
    for seed in range(3):
        path = written(make_scores(seed=seed, r2=0.95 + seed / 100), tmp_path / f"out{seed}")
        assert said("add", path, "--link", LINK) == f"added leaderboard/entries/an-entry/{seed}\n"
    assert said("add", "out0/scores.json", "--link", LINK).startswith("there already: ")
    lines = cli("leaderboard", "list").stdout.splitlines()
    assert lines[0].split()[:4] == ["rank", "track", "entry", "seeds"]
    mine = next(line for line in lines if "An entry" in line)
    assert mine.split()[:5] == ["1", "exact", "pairs", "An", "entry"]
    assert "0.9600 +- 0.0100" in mine
    assert sum("(published)" in line for line in lines) == 7
    assert "(published)" not in said("list", "--no-published")
    assert said("html", "--out", "site") == "wrote site/index.html\n"
    assert "An entry" in (tmp_path / "site" / "index.html").read_text("utf-8")


def test_the_table_as_data_and_before_any_entry(filled):
    found = json.loads(said("list", "--json", "--board", filled))
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["Exact normal pairs"]["scores"]["mcc"]["rank"] == 1
    assert rows["Exact normal pairs"]["entry"] == "normal"
    assert rows["Exact normal pairs"]["seeds"] == 3
    assert rows["Supervised"]["published"]
    assert len(found["remarks"]) == 2
    lines = said("list").splitlines()
    assert sum("(published)" in line for line in lines) == 7
    assert lines[-1].startswith(
        "there are no entries yet: `3dident leaderboard add` makes the folder "
    )
    assert len(json.loads(said("list", "--json"))["rows"]) == 7


def test_data_are_named_as_in_the_report(filled):
    """By the first digits of the fingerprint, which stands in both."""
    run = find_runs("normal", filled)[0]
    fingerprint = run.scores.data.fingerprint
    row = by_name(make_rows(read_board(filled)))["Exact normal pairs"]
    assert row.data_key.split("-")[0] == fingerprint[:8]
    assert fingerprint in Structure((run.folder / "report.html").read_text("utf-8")).text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "missing.json", "--link", LINK), "cannot read missing.json"),
        (("list", "--board", "nothing"), "nothing is no leaderboard"),
        (("check", "normal"), "what shall it be scored on?"),
        (("check", "no-entry", "--fresh", "5"), "there is no entry 'no-entry'"),
        (("check", "../x", "--fresh", "5"), "there is no entry '../x'"),
        (("check", "normal", "--fresh", "0"), "was trained or scored on images of that seed"),
        (("check", "normal", "--fresh", "7"), "was trained or scored on images of that seed"),
        (("check", "normal", "--fresh", "-1"), "the seed must lie in"),
        (("check", "trained", "--fresh", "5"), "hold no encoder that could be run on another"),
        (("check", "normal", "--fresh", "5"), "does not keep its submission: get it from https://"),
        (("check", "normal", "--fresh", "5", "--submission", "x:y"), "Add --trust if you know"),
        (
            ("check", "normal", "--fresh", "5", "--submission", "x:y", "--trust"),
            "what rendered its test set is not known",
        ),
        (
            ("check", "normal", "--data", "nothing", "--submission", "reference:random"),
            "cannot open nothing as a dataset",
        ),
    ],
)
def test_commands_that_do_not_fit(filled, words, message):
    words = words if words[0] == "add" or "--board" in words else (*words, "--board", filled)
    assert message in said(*words, code=2)
