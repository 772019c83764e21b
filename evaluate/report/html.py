"""HTML by functions, which escape whatever is not HTML already; and the checks of pages."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
import urllib.parse
from importlib import resources

_VOID = ("br", "img", "input", "meta")
#: Control characters, and those that turn the direction of the text after them.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_START = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | None


def escaped(text: str | int) -> Html:
    """Return text as HTML; characters that hide or reorder others become a visible one."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_INVISIBLE.sub("\ufffd", str(text)), quote=True))


def joined(*children: Child) -> Html:
    """Join children, each escaped unless it is HTML; None is left out."""
    return Html("".join(escaped(child) for child in children if child is not None))


def element(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """Make an element.

    Args:
        name: the name of the tag.
        children: text, which is escaped, or HTML.
        attributes: the values by name. None and False leave one out, True writes its name alone;
            `class_` is class, `data_value` is data-value.
    """
    parts = [name]
    for key, value in attributes.items():
        label = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(label)
        elif value is not None and value is not False:
            parts.append(f'{label}="{escaped(value)}"')
    start = f"<{' '.join(parts)}>"
    return Html(start if name in _VOID else f"{start}{joined(*children)}</{name}>")


def isolated(text: str) -> Html:
    """Wrap a stranger's text, so that its direction of writing stays its own."""
    return element("bdi", text)


def is_web_link(url: str) -> bool:
    """Whether an address leads to the web and nowhere else."""
    if re.search(r"[\s\\]", url) or _INVISIBLE.search(url):
        return False
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def web_link(url: str, label: str | None = None) -> Html:
    """Make a stranger's link, if it leads to the web; mere text otherwise."""
    shown = isolated(url if label is None else label)
    if not is_web_link(url):
        return isolated(url)
    return element("a", shown, href=url, rel="noopener nofollow")


def titled_table(head: list[Child], rows: list[list[Child]], class_: str | None = None) -> Html:
    """Make a table in a box that scrolls where it is wider than the page.

    Args:
        head: the heads of the columns.
        rows: the cells of each row, its title first.
        class_: the class of the table.
    """
    cells = (element("th", cell, scope="col") for cell in head)
    body = (
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell) for cell in row[1:]),
        )
        for row in rows
    )
    table = element(
        "table", element("thead", element("tr", *cells)), element("tbody", *body), class_=class_
    )
    return element("div", table, class_="scroll")


@functools.cache
def asset(package: str, name: str) -> str:
    """Read a file that lies in a package, as text."""
    return (resources.files(package) / name).read_text("utf-8").strip()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _policy(style: str, script: str | None) -> Html:
    """Make the page's rules: it loads nothing, and runs no script but the one it came with."""
    rules = ["default-src 'none'", "img-src data:", f"style-src 'sha256-{style}'"]
    if script is not None:
        rules.append(f"script-src 'sha256-{script}'")
    rules += ["base-uri 'none'", "form-action 'none'"]
    return element("meta", http_equiv="Content-Security-Policy", content="; ".join(rules))


def page(title: str, *body: Child, script: str | None = None) -> str:
    """Make a whole page that needs nothing beside it.

    Args:
        title: the title of the window.
        body: the content.
        script: JavaScript, run at the end; None for a page without any.
    """
    style = asset(__package__, "page.css")
    end = None if script is None else element("script", Html(script))
    return (
        _START
        + _policy(_digest(style), None if script is None else _digest(script))
        + "\n"
        + element("meta", name="viewport", content="width=device-width, initial-scale=1")
        + element("meta", name="referrer", content="no-referrer")
        + element("title", title)
        + element("style", Html(style))
        + "\n</head>\n"
        + element("body", element("main", *body), end)
        + "\n</html>\n"
    )


def runs_nothing(text: str) -> bool:
    """Whether a page that `page` may have made, without a script, keeps to its rules.

    The rules come first, so that a browser holds to them whatever follows: no script, no
    other file. What they do not stop, a second such element (one that leads elsewhere),
    must not be there.
    """
    stand_in = "A" * 44
    pattern = re.escape(_START + _policy(stand_in, None)).replace(stand_in, "[A-Za-z0-9+/=]{44}")
    return bool(re.match(pattern, text)) and len(re.findall("http-equiv", text, re.I)) == 1
