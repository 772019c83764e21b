"""The leaderboard and its reports in a real browser, where there is one."""

from __future__ import annotations

import pytest
from helpers.browser import needs_browser, running_browser
from helpers.fake_scores import fill, hostile_run

from threedident.evaluate.leaderboard.entries import read_board
from threedident.evaluate.leaderboard.page import write_site

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser():
    with running_browser() as made:
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("site")
    fill(root / "board")
    runs = [*read_board(root / "board"), hostile_run(root / "hostile")]
    return write_site(runs, root / "site")


@pytest.fixture
def board(browser, site):
    """The page, opened; afterwards nothing has gone wrong on it."""
    browser.width(1280)
    browser.open(site)
    yield browser
    assert browser.complaints() == []
    assert browser.run("return window.hacked") is None


NAMES = """
return [...document.querySelectorAll('.board tbody tr')].filter(row => !row.hidden)
  .map(row => row.querySelector('.name').textContent)
"""
RANKS = """
return Object.fromEntries([...document.querySelectorAll('.board tbody tr')]
  .map(row => [row.querySelector('.name').textContent, row.querySelector('.rank').textContent]))
"""
CHOOSE = """
const control = document.getElementById(arguments[0]);
control.value = arguments[1];
control.dispatchEvent(new Event(control.id === 'search' ? 'input' : 'change'));
"""


def column(name):
    return f".board thead th[data-metric={name}] button"


def test_it_sorts(board):
    first = board.run(NAMES)
    board.click(column("mcc"))
    down = board.run(NAMES)
    values = board.run(
        "return [...document.querySelectorAll('td[data-metric=mcc]')].map(c => c.dataset.value)"
    )
    numbers = [float(v) for v in values if v]
    assert numbers == sorted(numbers, reverse=True)
    assert values[-1] == ""  # the identity has no MCC
    assert down[0] == "Supervised"
    board.click(column("mcc"))
    up = board.run(NAMES)
    assert up[0].startswith("<script>")
    assert up[-1] == "Identity (the pixels)"
    assert board.run("return document.querySelector('[aria-sort]').ariaSort") == "ascending"
    board.click(".board thead th:nth-child(2) button")
    by_name = board.run(NAMES)
    assert by_name == sorted(by_name, key=str.lower)
    assert sorted(first) == sorted(down) == sorted(up) == sorted(by_name)


def test_it_filters_by_track_data_metric_and_words(board):
    board.run(CHOOSE, "track", "pairs-exact")
    assert board.run(NAMES) == ["Exact Laplace pairs", "Exact normal pairs"]
    assert board.run("return document.getElementById('count').textContent").startswith("2 of 12")
    board.run(CHOOSE, "search", "SOMEONE l1")
    assert board.run(NAMES) == ["Exact Laplace pairs"]
    board.run(CHOOSE, "search", "no such thing")
    assert board.run(NAMES) == []
    board.run(CHOOSE, "search", "")
    board.run(CHOOSE, "track", "")
    board.run(CHOOSE, "data", "published")
    assert len(board.run(NAMES)) == 7
    keys = board.run("return [...document.getElementById('data').options].map(o => o.value)")
    labels = board.run("return [...document.getElementById('data').options].map(o => o.text)")
    other = next(key for key, label in zip(keys, labels, strict=True) if "seed 8" in label)
    board.run(CHOOSE, "data", other)
    assert board.run(NAMES) == ["On other data"]


def test_ranks_follow_the_metric(board):
    by_r2 = board.run(RANKS)
    assert by_r2["Exact Laplace pairs"] == "1"
    assert by_r2["Exact normal pairs"] == "2"
    assert by_r2["A supervised one"] == by_r2["Supervised"] == "\N{EN DASH}"
    board.run(CHOOSE, "metric", "mcc")
    by_mcc = board.run(RANKS)
    assert by_mcc["Exact Laplace pairs"] == "2"
    assert by_mcc["Exact normal pairs"] == "1"
    hidden = "return [...document.querySelectorAll('[data-metric=linear_r2]')].every(c => c.hidden)"
    assert board.run(hidden)
    assert "ranked by MCC" in board.run("return document.getElementById('count').textContent")


def test_it_opens_a_report(board):
    board.run("window.scrollTo(0, 0)")
    board.click(".reports a[href*='/trained/']")
    assert board.run("return location.pathname").endswith("/entries/trained/0/report.html")
    assert board.run("return document.querySelector('h1').textContent") == "A supervised one"
    assert board.run("return document.querySelectorAll('svg').length") == 11
    # Its own rules let its style through.
    assert board.run("return getComputedStyle(document.body).marginTop") == "0px"


def test_what_a_manifest_says_stays_text(board):
    names = board.run(NAMES)
    assert sum(name.startswith("<script>window.hacked = 1</script>") for name in names) == 1
    assert board.run("return document.querySelectorAll('script').length") == 1
    assert board.run("return document.querySelectorAll('main img, main svg').length") == 0
    links = board.run("return [...document.links].map(link => link.protocol)")
    assert set(links) <= {"file:", "https:"}


def test_a_hostile_manifest_in_its_own_report(browser, site):
    browser.open(site.parent / "entries" / "hostile" / "0" / "report.html")
    assert browser.run("return document.querySelector('h1').textContent").startswith("<script>")
    assert browser.run("return [window.hacked, document.scripts.length]") == [None, 0]
    assert browser.complaints() == []


def test_the_rules_stop_a_script_that_is_there_all_the_same(browser, site, tmp_path):
    """The second wall: even if something were not escaped."""
    for page in (site, site.parent / "entries" / "hostile" / "0" / "report.html"):
        text = page.read_text("utf-8")
        added = "<script>window.hacked = 5</script><img src=x onerror='window.hacked = 6'>"
        (tmp_path / page.name).write_text(text.replace("<main>", "<main>" + added), "utf-8")
        browser.open(tmp_path / page.name)
        assert browser.run("return document.scripts.length") >= 1
        assert browser.run("return window.hacked") is None
        assert any("Content Security Policy" in line for line in browser.complaints())


@pytest.mark.parametrize("which", ["board", "report"])
@pytest.mark.parametrize("width", [390, 320])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, site, which, width):
    report = site.parent / "entries" / "hostile" / "0" / "report.html"
    browser.width(width)
    browser.open(site if which == "board" else report)
    browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.run("return document.documentElement.scrollWidth") == width
    if which == "board":
        # Cards, not a table that has to be pushed to and fro.
        box = "const box = document.querySelector('.scroll'); "
        assert browser.run(box + "return box.scrollWidth <= box.clientWidth")
        browser.run(CHOOSE, "metric", "mcc")
        assert browser.run(NAMES)[0] == "Supervised"
    assert browser.complaints() == []


def test_it_is_readable_without_scripts(browser, site):
    browser.width(1280)
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(site)
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("return document.querySelector('.controls').hidden")
    assert len(browser.run(NAMES)) == 12
    assert browser.run(RANKS)["Exact Laplace pairs"] == "1"
