"""An encoder beside the sliders: its codes, what is read out of them, and what it cannot do."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest
import torch
from helpers.commands import made_once
from helpers.explorer import Page
from helpers.fake_dataset import as_rendered
from helpers.submissions import (
    AXES,
    dividing,
    externally,
    filling_memory,
    looping,
    mean_nodes,
    save_onnx,
    scaled,
)
from onnx import TensorProto, helper

from threedident.encoders import ImageEncoder, ResNetEncoder, UnboundedOutput, save_encoder
from threedident.errors import UsageError
from threedident.evaluate.runner.process import Limits
from threedident.explore import encoder_part
from threedident.explore.controls import Control
from threedident.explore.encoder import SIDE, LiveEncoder
from threedident.explore.encoder_part import points_along
from threedident.explore.explorer import Explorer
from threedident.explore.renderers import Renderers
from threedident.explore.scenes import View
from threedident.explore.stored_images import StoredImages
from threedident.plain_data import Misfit
from threedident.render import render_dataset
from threedident.system import is_running

COUNT, SMALL = 90, 16
LIMITS = Limits(time=60, memory=6)
MIDDLE = {"generator": {"preset": "3dident"}, "values": [0.0] * 10}


def pooling(path, side="H"):
    """An encoder of 48 codes for images of 16 x 16: the means of squares of 4 x 4 pixels."""
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node(
            "AveragePool", ["floats"], ["pooled"], kernel_shape=[4, 4], strides=[4, 4]
        ),
        helper.make_node("Flatten", ["pooled"], ["z_hat"]),
    ]
    source = helper.make_tensor_value_info("images", TensorProto.UINT8, ["B", 3, side, side])
    return save_onnx(path, nodes, source=source)


def pooled(images):
    """What `pooling` does."""
    blocks = images.transpose(0, 3, 1, 2).astype(np.float64)
    count, channels, side, _ = blocks.shape
    return (
        blocks.reshape(count, channels, side // 4, 4, side // 4, 4).mean((3, 5)).reshape(count, -1)
    )


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Ninety images of the direct engine. Read it."""

    def make(folder):
        render_dataset(
            folder, COUNT, engine="direct", quality="draft", resolution=SMALL, workers=1, quiet=True
        )

    return made_once(tmp_path_factory, "explore_encoder", make)


def with_encoder(test, encoder, *, data=None, trust=False, limits=LIMITS):
    """Run an asynchronous test on a page with an encoder."""

    async def run():
        async with contextlib.AsyncExitStack() as stack:
            renderers = await stack.enter_async_context(Renderers(1))
            stored = None if data is None else StoredImages(data)
            live = LiveEncoder(encoder, stored=stored, trust=trust, limits=limits)
            await stack.enter_async_context(live)
            return await test(Page(Explorer(renderers, None, stored=stored, encoder=live)))

    return asyncio.run(run())


async def settled(page):
    """The facts, once the read-out is ready or has failed."""
    while True:
        facts = (await page.ask("encoder")).json()
        if facts["readout"]["state"] in ("ready", "failed", "none") and facts["state"] != "loading":
            return facts
        await asyncio.sleep(0.02)


def test_without_an_encoder_the_page_says_how_to_get_one():
    async def run():
        async with Renderers(1) as renderers:
            page = Page(Explorer(renderers, None))
            assert page.explorer.describe()["encoder"] is None
            return [
                await page.ask("encoder"),
                await page.ask("encoder-codes", MIDDLE),
                await page.ask("encoder-traversal", {**MIDDLE, "factor": "x"}),
            ]

    for answer in asyncio.run(run()):
        assert answer.status == 400
        assert "--encoder FILE.onnx" in answer.error


def test_what_is_no_encoder_is_refused_before_anything_starts(tmp_path):
    np.save(tmp_path / "codes.npy", np.zeros((3, 2), np.float32))
    (tmp_path / "a.pt2").write_bytes(b"code")
    for given, said in (
        (tmp_path / "codes.npy", "codes.npy holds codes of fixed images"),
        ("reference:pca", "reference:pca cannot follow sliders"),
        (tmp_path / "none.onnx", "there is no file"),
        (tmp_path / "a.pt2", "Add --trust"),
    ):
        with pytest.raises(UsageError, match=said):
            LiveEncoder(given)


def test_a_strangers_codes_are_those_of_the_image_that_is_shown(tmp_path):
    async def look(page):
        live = page.explorer.encoder
        facts = await settled(page)
        values = np.random.default_rng(0).uniform(-1, 1, 10).tolist()
        body = {**MIDDLE, "values": values}
        first = (await page.ask("encoder-codes", body)).json()
        pid = live._network.pid
        again = (await page.ask("encoder-codes", body)).json()
        assert live._network.pid == pid  # one process for all requests
        images = await page.explorer.start.images(
            np.array([values], np.float32), View(SIDE, "standard")
        )
        return facts, first, again, images, pid

    path = save_onnx(tmp_path / "means.onnx", mean_nodes(), initializers=[AXES])
    facts, first, again, images, pid = with_encoder(look, path)
    assert facts["name"] == "means.onnx"
    assert facts["size"] == [SIDE, SIDE]
    assert "as neither it nor a dataset names a size" in facts["notes"][0]
    assert any("sandbox of scoring" in note or "could not take" in note for note in facts["notes"])
    assert facts["readout"]["state"] == "none"
    assert "Without a dataset there are codes alone" in facts["readout"]["why"]
    np.testing.assert_allclose(first["codes"], images[0].mean((0, 1)), rtol=1e-5)
    assert first == again
    assert first["scaled"] is None
    assert all(factor["predicted"] is None for factor in first["factors"])
    assert not is_running(pid)  # closing has ended it


def test_factors_are_read_out_as_they_are_of_the_datasets_images(tmp_path, rendered):
    source = StoredImages(rendered).source

    async def look(page):
        facts = await settled(page)
        body = {**MIDDLE, "values": source.factors[7].tolist()}
        seen = (await page.ask("encoder-codes", body)).json()
        other = {**body, "generator": {"preset": "3dident", "shape": "cube"}}
        return facts, seen, (await page.ask("encoder-codes", other)).json()

    facts, seen, other = with_encoder(look, pooling(tmp_path / "a.onnx"), data=rendered)
    assert facts["size"] == [SMALL, SMALL]
    assert facts["quality"] == "draft"  # as the dataset
    readout = facts["readout"]
    assert (readout["state"], readout["done"], readout["total"]) == ("ready", COUNT, COUNT)
    assert (readout["fitted"], readout["measured"]) == (60, 30)
    assert "of the split `train`" in readout["warnings"][0]
    # By hand: every third image is not fitted on.
    codes, true = pooled(source.images(range(COUNT))), source.factors.astype(np.float64)
    late = np.arange(COUNT) % 3 == 2
    design = np.column_stack([codes, np.ones(COUNT)])
    weights = np.linalg.lstsq(design[~late], true[~late], rcond=None)[0]
    told = design @ weights
    residual = ((true - told)[late] ** 2).sum(0)
    r2 = 1 - residual / ((true[late] - true[late].mean(0)) ** 2).sum(0)
    assert [factor["r2"] for factor in readout["factors"]] == pytest.approx(r2, abs=1e-3)
    assert r2.max() > 0.5
    # The image at an image's latents is that image, so its codes and predictions are the same.
    assert seen["differs"] == ""
    np.testing.assert_allclose(seen["codes"], codes[7], rtol=1e-5)
    np.testing.assert_allclose(seen["scaled"], (codes[7] - codes.mean(0)) / codes.std(0), atol=1e-3)
    for place, factor in enumerate(seen["factors"]):
        assert factor["true"] == pytest.approx(true[7, place])
        assert factor["predicted"] == pytest.approx(told[7, place], abs=2e-3)
        assert factor["error"] == pytest.approx(factor["predicted"] - factor["true"])
    assert "fitted on other images than those here" in other["differs"]
    assert "differs in shape" in other["differs"]


def test_a_traversal_is_the_codes_along_a_factor(tmp_path, rendered):
    async def look(page):
        await settled(page)
        values = [0.25] * 10
        body = {"generator": {"preset": "3dident"}, "values": values, "factor": "spotlight_hue"}
        place = {"tab": "a", "slot": "encoder-traversal"}
        answer = (await page.ask("encoder-traversal", {**body, "steps": 6, **place})).json()
        progress = (await page.ask("encoder", place)).json()["traversal"]
        each = []
        for value in answer["along"]:
            values[page.explorer.start.names.index("spotlight_hue")] = value
            each.append((await page.ask("encoder-codes", {**MIDDLE, "values": values})).json())
        return answer, progress, each

    answer, progress, each = with_encoder(look, pooling(tmp_path / "a.onnx"), data=rendered)
    assert progress == {"done": 6, "total": 6}
    np.testing.assert_allclose(answer["along"], np.linspace(-1, 1, 6), atol=1e-6)
    assert answer["scaled_by"] == "dataset"
    assert (answer["count"], len(answer["curves"])) == (48, 48)
    order = answer["codes"]
    assert sorted(order) == list(range(48))
    scaled_codes = np.array([one["scaled"] for one in each])[:, order]
    np.testing.assert_allclose(np.array(answer["curves"]).T, scaled_codes, atol=1e-5)
    moves = np.ptp(scaled_codes, axis=0)
    assert (np.diff(moves) < 1e-5).all()  # those that move most come first
    for place, factor in enumerate(answer["factors"]):
        np.testing.assert_allclose(
            factor["predicted"], [one["factors"][place]["predicted"] for one in each], atol=1e-5
        )
    raw = np.array([one["codes"] for one in each])[:, order]
    np.testing.assert_allclose(answer["ranges"], np.ptp(raw, axis=0), rtol=1e-4)


def test_an_encoder_of_another_size_than_the_dataset_shows_codes_alone(tmp_path, rendered):
    async def look(page):
        facts = await settled(page)
        seen = (await page.ask("encoder-codes", MIDDLE)).json()
        along = (await page.ask("encoder-traversal", {**MIDDLE, "factor": "z", "steps": 3})).json()
        return facts, seen, along

    facts, seen, along = with_encoder(look, pooling(tmp_path / "a.onnx", 24), data=rendered)
    assert facts["size"] == [24, 24]
    assert facts["readout"]["state"] == "none"
    assert (
        "a.onnx takes images of 24 x 24 x 3, and the dataset's have 16 x 16 x 3"
        in (facts["readout"]["why"])
    )
    assert (seen["count"], len(seen["codes"])) == (108, 64)
    assert along["scaled_by"] == "range"
    assert len(along["codes"]) == len(along["curves"]) == 64
    assert set(along["codes"]) - set(range(64))  # the 64 of all 108 that move most
    assert min(along["ranges"]) > 0
    curves = np.array(along["curves"])
    assert curves.min() == 0
    assert curves.max() == 1


def test_one_of_this_toolkit_is_read_and_runs_here(tmp_path, rendered):
    torch.manual_seed(0)
    own = ImageEncoder([0.5] * 3, [0.25] * 3, ResNetEncoder(codes=5, width=8), UnboundedOutput())
    record = {"data": {"latents": StoredImages(rendered).source.fingerprint, "resolution": 32}}
    save_encoder(tmp_path / "encoder.pt", own.eval(), record)

    async def look(page):
        facts = await settled(page)
        images = await page.explorer.start.images(
            np.zeros((1, 10), np.float32), View(SMALL, "draft")
        )
        return facts, (await page.ask("encoder-codes", MIDDLE)).json(), images

    facts, seen, images = with_encoder(look, tmp_path / "encoder.pt", data=rendered)
    assert facts["name"] == str(tmp_path / "encoder.pt")
    assert facts["readout"]["state"] == "ready"
    assert "was trained on images of the same latents" in facts["readout"]["warnings"][0]
    assert any("trained on images of 32 pixels" in note for note in facts["notes"])
    assert any("this toolkit's own" in note for note in facts["notes"])
    with torch.inference_mode():
        codes = own(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))[0]
    np.testing.assert_allclose(seen["codes"], codes, rtol=1e-4, atol=1e-5)
    # Without a dataset it looks at the size that it was trained on.
    alone, _, _ = with_encoder(look, tmp_path / "encoder.pt")
    assert alone["size"] == [32, 32]
    assert "the size that it was trained on" in alone["notes"][0]


def test_images_of_blender_are_told_from_those_of_the_page(tmp_path):
    data = as_rendered(tmp_path / "data", 120, split="test")

    async def look(page):
        live = page.explorer.encoder
        facts = await settled(page)
        engine = {"name": "cycles", "quality": "standard"}
        live._engine = lambda: engine
        return facts, live.describe()

    facts, cycles = with_encoder(look, pooling(tmp_path / "a.onnx"), data=data)
    assert facts["readout"]["warnings"] == []  # of a test split, and nothing recorded
    assert not any("Blender" in note for note in facts["notes"])
    assert any("rendered by Blender" in note for note in cycles["notes"])


def test_a_newer_request_takes_the_place_of_an_older_one(tmp_path):
    async def look(page):
        await settled(page)
        place = {"tab": "a", "slot": "along"}
        ask = lambda name: page.ask(  # noqa: E731
            "encoder-traversal", {**MIDDLE, "factor": name, "steps": 12, **place}
        )
        first = asyncio.create_task(ask("x"))
        await asyncio.sleep(0.1)
        second = await ask("y")
        return await first, second

    path = save_onnx(tmp_path / "means.onnx", mean_nodes(), initializers=[AXES])
    first, second = with_encoder(look, path)
    assert first.status == 409
    assert second.json()["factor"] == "y"


@pytest.mark.parametrize(
    ("attack", "limits", "said"),
    [
        (looping, Limits(time=1, memory=6), "bad.onnx was stopped after 1 s"),
        (filling_memory, Limits(60, 3), "bad.onnx needs more than the 3 GB of memory it may use"),
        (dividing, LIMITS, "the codes of image 0 are not finite"),
        (lambda path: scaled(path, externally("../../secret")), LIMITS, "outside of its folder"),
        (lambda path: path.write_bytes(b"no graph"), LIMITS, "bad.onnx is no ONNX file"),
    ],
    ids=["loops", "memory", "not finite", "external", "no onnx"],
)
def test_the_page_says_what_went_wrong_and_goes_on(tmp_path, attack, limits, said):
    attack(tmp_path / "bad.onnx")
    data = as_rendered(tmp_path / "data", 40)

    async def look(page):
        if attack is dividing:
            black = np.zeros((40, 16, 16, 3), np.uint8)
            page.explorer.stored.source.images = lambda numbers: black[numbers]
        facts = await settled(page)
        assert facts["readout"]["state"] == "failed"
        assert said in facts["readout"]["why"]
        answer = await page.ask("encoder-codes", MIDDLE)
        image = await page.ask("image", {**MIDDLE, "resolution": 16})
        assert image.status == 200
        return answer

    answer = with_encoder(look, tmp_path / "bad.onnx", data=data, limits=limits)
    if attack is dividing:  # an image of the scene is not black
        assert answer.status == 200
    else:
        assert answer.status == 400
        assert said in answer.error


def test_closing_ends_the_fit_in_the_middle(tmp_path):
    data = as_rendered(tmp_path / "data", 400)

    async def look(page):
        live = page.explorer.encoder
        while live.describe()["readout"]["done"] == 0:
            await asyncio.sleep(0.001)
        return live

    live = with_encoder(look, pooling(tmp_path / "a.onnx"), data=data)
    assert live._task.done()
    assert live._network.pid is None


def test_a_dataset_that_disappears_ends_the_fit_with_a_sentence(tmp_path):
    data = as_rendered(tmp_path / "data", 40)

    stored = StoredImages(data)
    assert len(stored.source) == 40
    for each in data.glob("*.h5"):
        each.write_bytes(b"gone")

    async def run():
        live = LiveEncoder(pooling(tmp_path / "a.onnx"), stored=stored, limits=LIMITS)
        async with Renderers(1) as renderers, live:
            return await settled(Page(Explorer(renderers, None, stored=stored, encoder=live)))

    readout = asyncio.run(run())["readout"]
    assert readout["state"] == "failed"
    assert str(data) in readout["why"]


def test_points_along_a_control():
    slider = Control("x", "X")
    np.testing.assert_allclose(points_along(slider), np.linspace(-1, 1, 21), atol=1e-7)
    classes = Control("c", "C", "discrete", 0.0, 3.0, values=("a", "b", "c", "d"))
    assert points_along(classes, 2).tolist() == [0, 1, 2, 3]
    step = Control("s", "S", "step", 0.0, 39.0)
    assert points_along(step)[[0, -1]].tolist() == [0, 39]
    assert (points_along(step) % 1 == 0).all()
    few = Control("s", "S", "step", 0.0, 5.0)
    assert points_along(few).tolist() == [0, 1, 2, 3, 4, 5]
    for steps in (1, 65, "9", None):
        with pytest.raises(Misfit, match="steps must be"):
            points_along(slider, steps)
    with pytest.raises(UsageError, match=r"x is held at 0\.5: there is nothing along it"):
        points_along(Control("x", "X", held=True, start=0.5))
    with pytest.raises(UsageError, match="c has 100 classes: at most 64 are shown"):
        points_along(Control("c", "C", "discrete", 0.0, 99.0))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("encoder-codes", {"values": [0.0] * 9}, "values must be a list of 10"),
        ("encoder-codes", {"file": "/etc/passwd"}, "unknown field 'file'"),
        ("encoder-traversal", {"factor": "w"}, "factor must be one of x, y"),
        ("encoder-traversal", {"factor": "x", "steps": 10**6}, "steps must be at most 64"),
        ("encoder", {"slot": "../a", "tab": "b"}, "letters, digits and hyphens"),
    ],
)
def test_requests_are_checked(tmp_path, name, change, said):
    async def ask():
        async with LiveEncoder(pooling(tmp_path / "a.onnx")) as live:
            explorer = Explorer(Renderers(1), None, encoder=live)
            base = {} if name == "encoder" else MIDDLE
            return await Page(explorer).ask(name, {**base, **change})

    answer = asyncio.run(ask())
    assert answer.status == 400
    assert said in answer.error


def test_all_requests_of_the_part_are_served():
    assert set(encoder_part.HANDLERS) == {"encoder", "encoder-codes", "encoder-traversal"}
