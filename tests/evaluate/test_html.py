"""HTML by functions: what is escaped, and which pages run nothing."""

from __future__ import annotations

import pytest
from helpers.fake_scores import Structure

from threedident.evaluate.report.html import (
    element,
    escaped,
    is_web_link,
    page,
    runs_nothing,
    web_link,
)


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://example.org/a?b=c&d=%20#e", True),
        ("http://example.org", True),
        ("HTTPS://example.org", True),
        ("javascript:alert(1)", False),
        ("JaVaScRiPt:alert(1)", False),
        ("java\nscript:alert(1)", False),
        (" javascript:alert(1)", False),
        ("data:text/html,<script>alert(1)</script>", False),
        ("//example.org", False),
        ("https:example.org", False),
        ("https:///", False),
        ("https://[", False),
        ("file:///etc/passwd", False),
        ("https://example.org\\@evil.org", False),
        ("https://exam\u202eple.org", False),
        ("https://example.org/ onclick=alert(1)", False),
    ],
)
def test_links_lead_to_the_web_or_are_text(url, good):
    assert is_web_link(url) == good
    found = Structure(web_link(url))
    assert ("a" in found.names) == good
    if good:
        assert ("a", "rel", "noopener nofollow") in found.attributes


def test_elements_escape_what_is_not_html():
    made = element("p", "<b>", element("i", "&"), None, 3, class_='"', data_x=True, hidden=False)
    assert made == '<p class="&quot;" data-x>&lt;b&gt;<i>&amp;</i>3</p>'
    assert escaped("\u202e\x00") == "\ufffd\ufffd"
    assert escaped("naïve שלום\n\t") == "naïve שלום\n\t"


def test_only_pages_with_the_rules_first_run_nothing():
    good = page("title", "text")
    assert runs_nothing(good)
    assert runs_nothing(good.replace("text", "<script>alert(1)</script>"))  # the rules stop it
    for bad in (
        page("title", "text", script="alert(1)"),
        good.replace("default-src &#x27;none&#x27;", "default-src *"),
        good.replace('<meta charset="utf-8">', '<meta charset="utf-7">'),
        "<script>alert(1)</script>" + good,
        "\ufeff" + good,
        good.replace("text", '<meta http-equiv=refresh content="0;url=https://example.org">'),
        good.replace("text", '<META HTTP-EQUIV="refresh" content="0">'),
        good.replace("style-src", "script-src * ; style-src"),
        "",
    ):
        assert not runs_nothing(bad), bad[:200]
