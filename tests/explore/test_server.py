"""The server: who is let in, what is answered, and what attacks get."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest
from helpers.explorer import ONCE, PORT, TOKEN, opened, with_page
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from threedident.explore.explorer import Answer, Explorer
from threedident.explore.renderers import Renderers
from threedident.explore.server import HANDLERS, LARGEST_REQUEST, make_app

POINT = {"generator": {"preset": "3dident"}, "values": [0.0] * 10}
REFUSED = {
    "no token": ({"authorization": None}, 401),
    "a wrong token": ({"authorization": "token no"}, 401),
    "a token cut short": ({"authorization": f"token {TOKEN[:-1]}"}, 401),
    "a cookie": ({"authorization": None, "cookie": f"token={TOKEN}; threedident={TOKEN}"}, 401),
    "another name": ({"host": "evil.example"}, 421),
    "another name, our port": ({"host": f"evil.example:{PORT}"}, 421),
    "our name, and more": ({"host": f"127.0.0.1.evil.example:{PORT}"}, 421),
    "our name as a user's": ({"host": f"127.0.0.1@evil.example:{PORT}"}, 421),
    "another address": ({"host": f"10.0.0.1:{PORT}"}, 421),
    "no name": ({"host": ""}, 421),
    "another origin": ({"origin": "http://evil.example"}, 403),
    "no origin that is ours": ({"origin": "null"}, 403),
    "our name at another port": ({"origin": "http://127.0.0.1:1"}, 403),
    "another scheme": ({"origin": f"https://127.0.0.1:{PORT}"}, 403),
    "another site": ({"sec_fetch_site": "cross-site"}, 403),
    "a sibling site": ({"sec_fetch_site": "same-site"}, 403),
    "a form": ({"content_type": "application/x-www-form-urlencoded"}, 400),
    "plain text": ({"content_type": "text/plain"}, 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_is_not_let_in(name):
    headers, status = REFUSED[name]

    async def test(page):
        return await page.ask("state", **headers)

    answer = with_page(test)
    assert answer.status == status, answer.body
    assert answer.error and "Traceback" not in answer.error
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert TOKEN not in answer.body.decode()


def test_who_is_let_in():
    async def test(page):
        answers = [
            await page.ask("state"),
            await page.ask("state", host=f"localhost:{PORT}", origin=f"http://localhost:{PORT}"),
            await page.ask("state", host="127.0.0.1:9000"),  # the end of a tunnel
            await page.ask("state", host="LOCALHOST"),  # port 80, which browsers leave out
            await page.ask("state", sec_fetch_site="same-origin"),
            await page.get("/", sec_fetch_site="cross-site"),  # a link that was followed
        ]
        return [answer.status for answer in answers]

    assert with_page(test) == [200] * 6


def test_the_page_itself_holds_no_secret_and_sets_no_cookie():
    async def test(page):
        files = ["/", f"/?token={TOKEN}", "/page/main.js", "/page/core.js", "/page/style.css"]
        return [await page.get(path, authorization=None) for path in files]

    for answer in with_page(test):
        assert answer.status == 200 and "set-cookie" not in answer.headers
        assert TOKEN not in answer.body.decode() and ONCE not in answer.body.decode()


def test_a_secret_is_good_for_the_token_once():
    async def test(page):
        wrong = await page.ask("token", {"once": "no"}, authorization=None)
        foreign = await page.ask("token", {"once": ONCE}, authorization=None, origin="http://a.b")
        first = await page.ask("token", {"once": ONCE}, authorization=None)
        second = await page.ask("token", {"once": ONCE}, authorization=None)
        empty = await page.ask("token", {"once": ""}, authorization=None)
        return [wrong.status, foreign.status, second.status, empty.status], first.json()

    statuses, answer = with_page(test)
    assert statuses == [401, 403, 401, 401] and answer == {"token": TOKEN}


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/page//etc/passwd",
        "/page/.",
        "/page/",
        "/page/nothing.js",
        "/page/index.html/../../app.py",
        "/app.py",
        "/static/../../secrets",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_other_file_is_read(path):
    async def test(page):
        return await page.get(path)

    answer = with_page(test)
    assert answer.status == 404
    assert b"import" not in answer.body and b"root:" not in answer.body


def test_requests_are_made_by_their_method_alone():
    async def test(page):
        return [
            (await page.get("/api/state")).status,
            (await page.request("DELETE", "/", None)).status,
            (await page.request("OPTIONS", "/api/state", None)).status,
            (await page.ask("nothing")).status,
            (await page.ask("__class__")).status,
        ]

    assert with_page(test) == [405, 405, 405, 404, 404]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[1]", "a JSON object"),
        (b'"text"', "a JSON object"),
        (b'{"values": NaN}', "NaN"),
        (b'{"values": Infinity}', "Infinity"),
        (b"[" * 50_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b" " * (LARGEST_REQUEST + 1), "larger than"),
        (b'{"generator": {"preset": "3dident"}, "values": [' + b"1e999," * 9 + b"1]}", "finite"),
    ],
)
def test_what_is_no_request_is_refused_with_a_sentence(body, found):
    async def test(page):
        return await page.ask("image", body)

    answer = with_page(test)
    assert answer.status == 400 and found in answer.error


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"generator": None}, "generator is missing"),
        ({"generator": "3dident"}, "must be a table"),
        ({"generator": {"preset": "../../etc/passwd"}}, "must be one of"),
        ({"generator": {"preset": "/etc/passwd.toml"}}, "must be one of"),
        ({"generator": {"preset": "3dident", "shape": "/etc/passwd"}}, "must be one of"),
        ({"generator": {"preset": "3dident", "shape": "mesh.obj"}}, "must be one of"),
        ({"generator": {"preset": "3dident", "material": "crystal"}}, "must be one of"),
        ({"generator": {"preset": "3dident", "objects": 8}}, "unknown field"),
        ({"values": [0.0] * 9}, "a list of 10 to 10"),
        ({"values": [0.0] * 9 + [1.0001]}, "must lie in"),
        ({"values": [0.0] * 9 + ["0"]}, "finite number"),
        ({"values": [0.0] * 9 + [True]}, "finite number"),
        ({"values": [0.0] * 9 + [None]}, "finite number"),
        ({"resolution": 100_000}, "at most"),
        ({"resolution": 0}, "whole number"),
        ({"resolution": 32.5}, "whole number"),
        ({"quality": "reference"}, "must be one of"),
        ({"slot": "a", "tab": "<script>"}, "letters"),
        ({"slot": "a" * 41, "tab": "b"}, "slot must be text"),
        ({"slot": "a"}, "tab must be text"),
    ],
)
def test_each_field_is_checked(change, found):
    async def test(page):
        return await page.ask("image", {**POINT, "resolution": 16, **change})

    answer = with_page(test)
    assert answer.status == 400 and found in answer.error


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        name: plain | st.just(POINT.get(name, 1))
        for name in ("generator", "values", "resolution", "quality", "slot", "tab", "factor", "do")
    },
)


def test_no_request_of_any_kind_breaks_the_server():
    async def whole():
        async with opened() as page:
            loop = asyncio.get_running_loop()

            @settings(max_examples=150)
            @given(st.sampled_from(sorted(HANDLERS)), fields)
            def check(name, body):
                task = asyncio.run_coroutine_threadsafe(page.ask(name, body), loop)
                answer = task.result()
                assert answer.status in (200, 400, 404, 409, 503), (name, body, answer.body)

            await asyncio.to_thread(check)

    asyncio.run(whole())


def test_an_image_is_that_of_its_values_and_tabs_do_not_disturb_each_other():
    async def test(page):
        body = {**POINT, "resolution": 16, "slot": "image"}
        values = [0.5, *([0.0] * 9)]
        tasks = [
            page.ask("image", {**body, "tab": "one"}),
            page.ask("image", {**body, "tab": "two", "values": values}),
            page.ask("image", {**body, "tab": "one"}),
        ]
        answers = await asyncio.gather(*map(asyncio.create_task, tasks))
        scene = page.explorer.scene(POINT["generator"])
        rows = np.array([POINT["values"], values], np.float32)
        from threedident.explore.scenes import View

        return answers, await scene.images(rows, View(16, "standard"))

    (first, second, third), expected = with_page(test)
    assert second.status == third.status == 200 and first.status in (200, 409)
    for answer, image in ((second, expected[1]), (third, expected[0])):
        np.testing.assert_array_equal(pixels(answer.body), image)


def pixels(png):
    import io

    return np.asarray(Image.open(io.BytesIO(png)))


def test_what_goes_wrong_inside_is_one_line(monkeypatch):
    async def broken(explorer, data):
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(HANDLERS, "state", broken)

    async def test(page):
        return await page.ask("state")

    answer = with_page(test)
    assert (answer.status, answer.error) == (500, "ZeroDivisionError: by zero")


@pytest.mark.parametrize("name", ['x"; y="z', "a\r\nset-cookie: b=c", "\u03c8", "../\ud800"])
def test_a_file_is_named_in_plain_letters_whatever_a_factor_is_called(monkeypatch, name):
    async def file(explorer, data):
        return Answer(b"content", "image/png", f"3dident-{name}.png")

    monkeypatch.setitem(HANDLERS, "state", file)

    async def test(page):
        return await page.ask("state")

    answer = with_page(test)
    assert answer.status == 200 and "set-cookie" not in answer.headers
    assert re.fullmatch(
        r'attachment; filename="3dident-[\w.-]*\.png"',
        answer.headers["content-disposition"],
        re.ASCII,
    )


def test_an_answer_that_is_no_json_is_an_error_in_one_line(monkeypatch):
    async def nowhere(explorer, data):
        return {"distance": float("nan")}

    monkeypatch.setitem(HANDLERS, "state", nowhere)

    async def test(page):
        return await page.ask("state")

    answer = with_page(test)
    assert answer.status == 500 and answer.error.startswith("ValueError: ")


def test_listening_on_all_addresses_takes_addresses_and_no_names():
    async def whole():
        async with opened() as page, Renderers(1) as pool:
            page.app = make_app(Explorer(pool), token=TOKEN, host="0.0.0.0")
            hosts = [f"192.168.1.7:{PORT}", f"[fe80::1]:{PORT}", f"evil.example:{PORT}"]
            return [(await page.ask("state", host=host)).status for host in hosts]

    assert asyncio.run(whole()) == [200, 200, 421]


def test_a_name_is_the_same_in_capitals():
    async def whole():
        async with opened() as page:
            page.app = make_app(page.explorer, token=TOKEN, host="MyMachine")
            hosts = [f"mymachine:{PORT}", f"MYMACHINE:{PORT}", f"other:{PORT}"]
            return [(await page.ask("state", host=host)).status for host in hosts]

    assert asyncio.run(whole()) == [200, 200, 421]


def test_the_state_is_what_the_page_opens_with():
    async def test(page):
        return (await page.ask("state")).json()

    state = with_page(test)
    assert [c["name"] for c in state["scene"]["controls"]][:3] == ["x", "y", "z"]
    assert "3dident" in [each["name"] for each in state["presets"]]
    assert "teapot" in state["shapes"] and state["materials"] == ["rubber", "metal"]
