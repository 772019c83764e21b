"""What the page hands out is what the command makes of it."""

from __future__ import annotations

import io
import json
import shlex

import numpy as np
import pytest
from helpers.commands import run_command
from helpers.explorer import Answered, with_page
from helpers.fake_dataset import make
from PIL import Image

from threedident.datasets.formats import open_dataset
from threedident.errors import UsageError
from threedident.explore import take_part
from threedident.explore.controls import Control
from threedident.explore.explorer import Explorer
from threedident.explore.stored_images import StoredImages
from threedident.explore.stored_scene import StoredScene
from threedident.explore.take_part import latents_of
from threedident.latents import load_raw_latents
from threedident.plain_data import Misfit
from threedident.presets import load_preset

SMALL = {"resolution": 24, "quality": "draft"}
VALUES = [0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8, 0.9, -1]
POINT = {"generator": {"preset": "3dident"}, "values": VALUES}


def ask(*requests):
    """The answers of a page to requests: each its name, and what is asked."""

    async def answers(page):
        return [await take_part.HANDLERS[name](page.explorer, data) for name, data in requests]

    return with_page(answers)


def pixels(answer):
    content = answer.body if isinstance(answer, Answered) else answer.content
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize(
    "generator",
    [
        {"preset": "3dident"},
        {"preset": "3dident-wrapped", "shape": "cube", "material": "metal"},
    ],
    ids=lambda generator: generator["preset"],
)
def test_the_command_makes_the_image_from_the_latents(tmp_path, generator):
    point = {"generator": generator, "values": VALUES}
    latents, image, said = ask(
        ("take-latents", point), ("take-image", point | SMALL), ("take-command", point | SMALL)
    )
    assert latents.name == said["latents"]
    (tmp_path / latents.name).write_bytes(latents.content)
    read = load_raw_latents(tmp_path / latents.name)
    np.testing.assert_array_equal(read, np.array([VALUES], np.float32))
    words = shlex.split(said["command"])
    assert words[:2] == ["3dident", "render"]
    run_command(*words[1:], "--workers", 1)
    made = open_dataset(words[words.index("--out") + 1])
    np.testing.assert_array_equal(pixels(image), made.images([0])[0])
    assert pixels(image).shape == (24, 24, 3)


def test_an_image_says_what_it_shows(tmp_path):
    (image,) = ask(("take-image", POINT | SMALL))
    assert (image.media_type, image.name) == ("image/png", "3dident-image.png")
    text = Image.open(io.BytesIO(image.content)).text
    assert list(json.loads(text["Latents"]).values()) == VALUES
    assert json.loads(text["Generator"]) == {"preset": "3dident"}
    assert text["Command"].startswith("3dident render --preset 3dident --latents latents-")
    assert text["Software"].startswith("threedident ")


def test_other_points_and_views_go_to_other_datasets():
    other = POINT | {"values": [0.2, *VALUES[1:]]}
    answers = ask(
        *(("take-command", each | SMALL) for each in (POINT, POINT, other)),
        ("take-command", POINT | SMALL | {"resolution": 32}),
    )
    out = [answer["command"].split()[-1] for answer in answers]
    assert out[0] == out[1]
    assert len(set(out)) == 3
    assert answers[0]["latents"] == answers[3]["latents"] != answers[2]["latents"]


def test_a_presets_options_are_quoted_for_a_shell(monkeypatch):
    given = ["--preset", "my own.toml", "--fix", "x=0.1"]
    monkeypatch.setattr(Explorer, "preset_options", lambda self, name: given)
    (said,) = ask(("take-command", POINT))
    assert "--preset 'my own.toml' --fix x=0.1" in said["command"]
    assert shlex.split(said["command"])[2:6] == given


def test_a_preset_of_python_has_no_command(monkeypatch):
    monkeypatch.setattr(Explorer, "preset_options", lambda self, name: ())
    with pytest.raises(UsageError, match="call render_dataset with them"):
        ask(("take-command", POINT))
    (image,) = ask(("take-image", POINT | SMALL))
    assert "Command" not in Image.open(io.BytesIO(image.content)).text


def test_a_strip_has_the_images_of_its_factor():
    request = POINT | SMALL | {"factor": "psi", "steps": 3}
    ends = [POINT | SMALL | {"values": [*VALUES[:5], end, *VALUES[6:]]} for end in (-1, 0, 1)]
    strip, *images = ask(("take-strip", request), *(("take-image", end) for end in ends))
    assert strip.name == "3dident-psi.png"
    sheet = pixels(strip)
    assert sheet.shape[1] == 3 * 28 + 4
    for place, image in enumerate(images):
        left = 4 + 28 * place
        np.testing.assert_array_equal(sheet[30:54, left : left + 24], pixels(image))
    text = Image.open(io.BytesIO(strip.content)).text
    assert (text["Factor"], json.loads(text["Values"])) == ("psi", [-1, 0, 1])


def test_a_strip_stops_at_each_class_once():
    shapes = Control("shape", "shape", kind="discrete", low=0, high=2, values=("a", "b", "c"))
    assert shapes.along(9).tolist() == [0, 1, 2]
    many = Control("n", "n", kind="step", low=1, high=100)
    assert many.along(3).tolist() == [1, 50, 100]
    assert Control("x", "x").along(3).tolist() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"factor": "nose"}, "factor must be one of x, y"),
        ({"factor": None}, "factor is missing"),
        ({"steps": 2}, "steps must be a whole number"),
        ({"steps": 14}, "steps must be at most 13"),
        ({"steps": True}, "steps must be a whole number"),
        ({"resolution": 513}, "resolution must be at most 512"),
        ({"quality": "reference"}, "quality must be one of draft, standard"),
        ({"values": VALUES[1:]}, "values must be a list of 10 to 10"),
        ({"out": "/etc/passwd"}, "unknown field 'out'"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    request = POINT | SMALL | {"factor": "psi", "steps": 3} | change
    with pytest.raises(Misfit, match=words):
        ask(("take-strip", request))


def test_a_factor_that_is_held_has_no_strip():
    point = {"generator": {"preset": "3dident-positions"}, "values": [0.1, 0.2, 0.3, *[0] * 7]}
    held = load_preset("3dident-positions").fixed
    names = [*load_preset("3dident").ranges]
    point["values"] = [held.get(name, 0.1) for name in names]
    with pytest.raises(Misfit, match="psi is held"):
        ask(("take-strip", point | SMALL | {"factor": "psi", "steps": 3}))


@pytest.mark.parametrize("name", ["causal3dident-recalled-primitives", "3dident-views"])
def test_the_command_of_a_model_holds_its_variables_at_the_sliders(name):
    async def run(page):
        scene = page.explorer.scene({"model": name})
        values = [
            control.start if control.held else _moved(control, place)
            for place, control in enumerate(scene.controls)
        ]
        request = {"generator": {"model": name}, "values": values, **SMALL}
        return [await page.ask(each, request) for each in ("take-image", "take-command")]

    image, said = with_page(run)
    words = shlex.split(said.json()["command"])
    assert said.json()["latents"] is None
    assert words[:4] == ["3dident", "render", "--model", name]
    run_command(*words[1:], "--workers", 1)
    made = open_dataset(words[words.index("--out") + 1])
    assert len(made) == 1
    np.testing.assert_array_equal(pixels(image), made.images([0])[0])


def _moved(control, place):
    """A value that a slider can have, other for each control."""
    if control.kind == "discrete":
        return len(control.values) - 1
    return round(control.low + (control.high - control.low) * (0.2 + 0.03 * place), 3)


def test_latents_of_a_model_whose_scene_has_ten_columns():
    async def run(page):
        scene = page.explorer.scene({"model": "3dident-views"})
        values = [_moved(control, place) for place, control in enumerate(scene.controls)]
        request = {"generator": {"model": "3dident-views"}, "values": values}
        answer = await page.ask("take-latents", request)
        more = page.explorer.scene({"model": "causal3dident-recalled-primitives"})
        start = [control.start for control in more.controls]
        refused = await page.ask("take-latents", {"generator": more.generator, "values": start})
        return scene, scene.rows(np.array([values], np.float32)), answer, refused

    scene, rows, answer, refused = with_page(run)
    raw = np.load(io.BytesIO(answer.body))
    assert (raw.shape, raw.dtype) == ((1, 10), np.float32)
    np.testing.assert_allclose(scene.preset.to_scene(raw), rows, atol=1e-6)
    assert refused.status == 400
    assert "take the command instead" in refused.error


def test_of_stored_images_one_takes_the_image_and_its_factors():
    stored = StoredImages("drawn:sprites:3x2x4x3x2")
    point = {"generator": {"dataset": True}, "values": [1, 1, 2, 0, 1]}

    async def run(page):
        names = ("take-latents", "take-image", "take-command")
        strip = point | {"factor": page.explorer.start.names[2], "steps": 3}
        return [await page.ask(name, point) for name in names] + [
            await page.ask("take-strip", strip)
        ]

    latents, image, command, strip = with_page(run, stored=stored)
    number = int(stored.source.grid.index(np.array([point["values"]]))[0])
    assert np.load(io.BytesIO(latents.body)).tolist() == [point["values"]]
    np.testing.assert_array_equal(pixels(image), stored.source.images([number])[0][..., 0])
    text = Image.open(io.BytesIO(image.body)).text
    assert list(json.loads(text["Latents"]).values()) == point["values"]
    assert command.status == 400
    assert "take the image and its factors" in command.error
    assert strip.status == 200


def test_the_factors_that_are_taken_are_those_of_the_nearest_image(tmp_path):
    make(tmp_path / "noise", 30)
    stored = StoredImages(tmp_path / "noise")
    scene = StoredScene(stored)
    near = stored.values[7] + 1e-3
    assert latents_of(scene, near.astype(np.float32)).tolist() == [
        stored.values[7].astype(np.float32).tolist()
    ]
