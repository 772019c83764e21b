"""Causal models on the page: their controls, interventions, images and commands."""

from __future__ import annotations

import base64
import io
import json
import shlex

import h5py
import numpy as np
import pytest
from helpers.causal import CHAIN, WHOLE, model
from helpers.commands import run_command
from helpers.explorer import with_page
from helpers.fake_dataset import as_rendered
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from threedident.causal import Sampling, load_model
from threedident.causal.files import model_names
from threedident.errors import UsageError
from threedident.explore.controls import Control
from threedident.explore.model_scene import Models, ModelScene, Unit, command_of, variable_control
from threedident.explore.scenes import View
from threedident.explore.stored_images import StoredImages
from threedident.plain_data import Misfit
from threedident.render.engine import create_engine
from threedident.storage.shard_plan import list_shards

PRIMITIVES = "causal3dident-recalled-primitives"
TIME = "temporal-causal3dident-primitives"
SMALL = View(16, "draft")


def scene_of(of, source="") -> ModelScene:
    """A scene that renders nothing."""
    of = load_model(of) if isinstance(of, str) else of
    return ModelScene(of, {"model": of.name}, None, "cpu", source=source or of.name)


def unit(number=0, environment="observed", **do) -> Unit:
    return Unit(number, environment, do)


def needs_meshes(name) -> bool:
    return bool(load_model(name).preset.mesh_files)


def decoded(url):
    kind, _, content = url.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


# Controls


def test_every_built_in_model_that_has_its_meshes_opens_and_shows_what_it_draws():
    names = [name for name in model_names() if not needs_meshes(name)]
    assert len(names) > 20
    engines = {}

    async def run(page):
        for name in names:
            generator = {"model": name}
            about = (await page.ask("scene", {"generator": generator})).json()
            assert about["kind"] == "model" and about["title"] == name
            answer = await page.ask("model-draw", {"generator": generator, "unit": 7})
            values = answer.json()["values"]
            loaded = load_model(name)
            draws = Sampling(loaded).draw([0], seed=7, split="train")
            assert values == draws.variables[0].tolist()
            body = {"generator": generator, "values": values, "resolution": 16, "quality": "draft"}
            shown = np.asarray(Image.open(io.BytesIO((await page.ask("image", body)).body)))
            scene = page.explorer.scene(generator)
            rows = loaded.scene_rows(draws.variables)
            # Rows hold scene values, so that ranges and the like are no business of an engine.
            about = loaded.preset.as_dict()
            for field in ("name", "description", "ranges", "fixed", "best_r2"):
                del about[field]
            key = json.dumps(about)
            if key not in engines:
                engines[key] = create_engine(scene.settings(SMALL).engine)
            assert np.array_equal(shown, engines[key].render_batch(rows)[0]), name

    with_page(run)


def test_a_model_whose_mesh_files_are_not_here_is_refused_and_listed_as_such():
    async def run(page):
        answer = await page.ask("scene", {"generator": {"model": "multimodal3dident"}})
        assert answer.status == 400
        assert "'hare' is a mesh file of your own" in answer.error
        listed = {each["name"]: each for each in (await page.ask("model-list")).json()["models"]}
        assert set(listed) == set(model_names())
        assert "shapes/hare.ply" in listed["multimodal3dident"]["missing"]
        assert listed[PRIMITIVES]["missing"] == []
        assert listed[PRIMITIVES]["description"].startswith("A stand-in")

    with_page(run)


def test_what_the_direct_engine_cannot_render_is_refused():
    with pytest.raises(UsageError, match="cannot be shown here: the direct engine cannot render"):
        scene_of(model(CHAIN, scene={"material": "crystal"}))


def test_each_kind_of_variable_has_its_control():
    scene = scene_of(model(**WHOLE))
    controls = {control.name: control for control in scene.controls}
    switch, hue, x = controls["switch"], controls["background_hue"], controls["x"]
    assert (switch.kind, switch.low, switch.high) == ("discrete", 0, 2)
    assert switch.values == ("off", "on", "broken")
    assert switch.note == "No image shows it. It renders nothing."
    assert hue.kind == "circular" and hue.high < 2 * np.pi
    assert np.nextafter(np.float32(hue.high), np.float32(10)) == np.float32(2 * np.pi)
    assert len(hue.colors) > 10 and hue.unit == "rad"
    assert hue.scene == (0.0, pytest.approx(2 * np.pi))
    assert (x.kind, x.low, x.high, x.unit, x.scene) == ("continuous", -2, 2, "m", (-2, 2))
    assert not any(control.held for control in scene.controls)


def test_constants_are_held_unless_something_acts_on_them():
    variables = {**CHAIN, "theta": {"mechanism": {"kind": "constant", "value": 0.5}}}
    assert scene_of(model(variables)).controls[-1].held
    assert scene_of(model(variables)).controls[-1].start == 0.5
    acted = scene_of(model(variables, environments={"other": {"theta": 0.25}}))
    assert not acted.controls[-1].held
    with pytest.raises(Misfit, match=r"do\.theta: the model holds theta at 0\.5"):
        scene_of(model(variables)).check_unit({"do": {"theta": 0.1}})


def test_a_hue_says_where_it_is_flat_in_its_own_units():
    halved = {"object_hue": {"range": [0.0, 10.0], "mechanism": {"kind": "uniform"}}}
    flat = scene_of(model(halved)).controls[0].flat
    raw = model(halved).preset.flat_ranges("object_hue")
    assert flat and flat == tuple((5 + 5 * low, 5 + 5 * high) for low, high in raw)


def test_a_circle_that_does_not_close_in_the_image_is_said():
    open_circle = {
        "theta": {"kind": "circular", "scene": [0.0, 1.0], "mechanism": {"kind": "uniform"}}
    }
    assert "images jump where the circle closes" in scene_of(model(open_circle)).notes()[-1]
    assert not any("jump" in note for note in scene_of(TIME).notes())


def test_the_best_r2_is_that_of_variables_that_nothing_says_something_of():
    controls = {control.name: control for control in scene_of(model(CHAIN)).controls}
    assert controls["x"].best_r2 is None  # y follows from it
    alone = scene_of("multimodal3dident-primitives")
    preset = alone.preset
    assert [c.best_r2 for c in alone.controls if c.name == "spotlight_hue"] == [
        preset.best_r2["spotlight_hue"]
    ]


def test_several_objects_have_each_their_controls():
    variables = {name: {"mechanism": {"kind": "uniform"}} for name in ("x", "x_2", "object_hue_2")}
    scene = scene_of(model(variables, scene={"objects": 2}))
    assert [control.group for control in scene.controls] == ["position", "position 2", "hue 2"]
    assert scene.controls[2].colors
    assert scene.rows(np.zeros((3, 3), np.float32)).shape == (3, len(scene.preset.columns))


# Ranges


@given(
    st.floats(-1e4, 1e4),
    st.floats(1e-3, 1e4),
    st.sampled_from(["continuous", "circular"]),
    st.floats(0, 1),
)
def test_what_is_drawn_or_held_is_within_its_control(low, width, kind, share):
    about = {"kind": kind, "range": [low, min(low + width, 1e4 + 1)], "renders": ""}
    if about["range"][1] > 1e4 or about["range"][0] >= about["range"][1]:
        return
    scene = scene_of(model({"v": {**about, "mechanism": {"kind": "uniform"}}}))
    control = scene.controls[0]
    if np.float32(control.low) >= np.float32(control.high):
        return  # a range that float32 cannot tell from a point
    wanted = [control.low, control.high, control.low + share * (control.high - control.low)]
    for value in (float(np.clip(each, control.low, control.high)) for each in wanted):
        chosen = scene.check_unit({"do": {"v": value}})
        drawn = scene.draw(chosen).variables[0].tolist()
        scene.check(drawn)
        assert drawn == [np.float32(value)]
    scene.check(scene.draw(unit(3)).variables[0].tolist())


@given(st.data())
def test_any_values_within_range_can_be_drawn_and_become_scene_rows(data):
    scene = _WHOLE
    values, do = [], {}
    for control in scene.controls:
        whole = control.kind == "discrete"
        numbers = (
            st.integers(0, int(control.high)) if whole else st.floats(control.low, control.high)
        )
        values.append(data.draw(numbers))
        if data.draw(st.booleans()):
            do[control.name] = values[-1]
    rows = scene.rows(scene.check(values)[None])
    assert rows.shape == (1, 10) and np.isfinite(rows).all()
    known = ["observed", "independent", *scene.model.environments]
    chosen = scene.check_unit(
        {
            "unit": data.draw(st.integers(0, 2**53 - 1)),
            "environment": data.draw(st.sampled_from(known)),
            "do": do,
        }
    )
    for kind, view in (("image", None), ("sequence", None), ("views", "style")):
        for row in scene.draw(chosen, kind, view).variables.tolist():
            scene.check(row)


_WHOLE = scene_of(model(**WHOLE))


def descendants(of, names):
    graph = of.adjacency
    reached = {of.names.index(name) for name in names}
    while True:
        more = reached | {int(c) for r in reached for c in np.flatnonzero(graph[r])}
        if more == reached:
            return {of.names[place] for place in reached}
        reached = more


@pytest.mark.parametrize("name", [PRIMITIVES, "multimodal3dident-primitives", TIME])
def test_an_intervention_changes_what_depends_on_it_and_nothing_else(name):
    scene = scene_of(name)
    changed = set()
    for control in scene.controls:
        if control.held:
            continue
        below = descendants(scene.model, [control.name])
        for number in range(4):
            value = control.high if number % 2 else (control.low + control.high) / 2
            value = float(round(value)) if control.kind == "discrete" else value
            before = scene.draw(unit(number)).variables[0]
            after = scene.draw(scene.check_unit({"unit": number, "do": {control.name: value}}))
            differ = {scene.names[k] for k in np.flatnonzero(before != after.variables[0])}
            assert differ <= below, control.name
            assert after.variables[0][scene.names.index(control.name)] == np.float32(value)
            changed |= differ - {control.name}
    assert changed or not scene.model.adjacency.any()


# Requests


def test_only_numbers_and_classes_can_be_held():
    scene = scene_of(PRIMITIVES)
    assert scene.check_unit({"do": {"shape": "knot", "x": 1}}).do == {"shape": 1.0, "x": 1.0}
    assert scene.check_unit({"do": {"shape": 3}}).do == {"shape": 3.0}
    assert scene.check_unit({"do": {"shape": 3.0}}).do == {"shape": 3.0}
    wrong = [
        {"x": "0.5"},
        {"x": "y"},
        {"x": {"shift": 0.1}},
        {"x": {"kind": "uniform"}},
        {"x": 1.01},
        {"x": True},
        {"x": None},
        {"shape": "cow"},
        {"shape": 7},
        {"shape": 0.5},
        {"shape": -1},
        {"shape": True},
        {"shape": ["knot"]},
        {"nothing": 0},
        {"x": float("1e400")},
    ]
    for do in wrong:
        with pytest.raises(Misfit):
            scene.check_unit({"do": do})
    for more in ({"unit": -1}, {"unit": 0.5}, {"unit": 2**53}, {"environment": "none"}, {"do": 1}):
        with pytest.raises(Misfit):
            scene.check_unit(more)


def test_the_same_unit_with_and_without_its_interventions():
    async def run(page):
        body = {"generator": {"model": PRIMITIVES}, "unit": 5, "do": {"spotlight_hue": 0.5}}
        answer = (await page.ask("model-draw", body)).json()
        plain = (await page.ask("model-draw", {**body, "do": {}})).json()
        assert answer["without"] == plain["values"] == plain["without"]
        assert answer["intervened"] == ["spotlight_hue"] and plain["intervened"] == []
        assert answer["values"] != plain["values"]
        pair = await page.ask("model-images", {**body, "kind": "counterfactual", "resolution": 16})
        assert pair.json()["values"] == [plain["values"], answer["values"]]
        assert pair.json()["intervened"] == [[], ["spotlight_hue"]]
        image = {"generator": body["generator"], "values": answer["values"], "resolution": 16}
        shown = np.asarray(Image.open(io.BytesIO((await page.ask("image", image)).body)))
        assert np.array_equal(decoded(pair.json()["images"][1]), shown)
        assert not np.array_equal(decoded(pair.json()["images"][0]), shown)

    with_page(run)


def test_frames_and_views_begin_with_the_unit_itself():
    async def run(page):
        body = {"generator": {"model": TIME}, "unit": 2, "do": {"shape": "coil"}, "resolution": 16}
        now = (await page.ask("model-draw", body)).json()["values"]
        frames = (await page.ask("model-images", {**body, "kind": "sequence"})).json()
        assert len(frames["images"]) == 8 and frames["values"][0] == now
        shape = now.index(3.0) if now.count(3.0) == 1 else -1
        assert all(row[shape] == 3.0 for row in frames["values"])
        assert all("shape" in names for names in frames["intervened"])
        body = {**body, "generator": {"model": PRIMITIVES}}
        now = (await page.ask("model-draw", body)).json()["values"]
        views = (await page.ask("model-images", {**body, "kind": "views", "view": "hues"})).json()
        assert len(views["images"]) == 2 and views["values"][0] == now
        assert views["values"][1] != now

    with_page(run)


def test_requests_that_do_not_fit_are_refused_with_a_sentence():
    async def run(page):
        ours = {"generator": {"model": PRIMITIVES}}
        for name, body, words in (
            ("model-draw", {"generator": {"preset": "3dident"}}, "is no causal model"),
            ("model-draw", {}, "generator is missing"),
            ("model-draw", {"generator": {"model": "no"}}, "generator.model must be one of"),
            ("model-draw", {"generator": {"model": "../x.toml"}}, "generator.model must be one of"),
            ("model-draw", {"generator": {"model": PRIMITIVES, "shape": "cube"}}, "unknown field"),
            ("model-images", {**ours, "kind": "counterfactual"}, "needs an intervention"),
            ("model-images", {**ours, "kind": "sequence"}, "has no transitions"),
            ("model-images", {**ours, "kind": "views", "view": "no"}, "has no views 'no'"),
            ("model-images", {**ours, "kind": "all"}, "kind must be one of"),
            (
                "model-images",
                {**ours, "kind": "views", "view": "hues", "resolution": 224},
                "at most",
            ),
            ("stored-number", {**ours, "values": page.start}, "is rendered"),
            ("scene", {"generator": {"dataset": True}}, "no dataset was given"),
        ):
            answer = await page.ask(name, body)
            assert (answer.status, words in answer.error) == (400, True), (name, body, answer.body)

    async def begun(page):
        scene = page.explorer.scene({"model": PRIMITIVES})
        page.start = [control.start for control in scene.controls]
        await run(page)

    with_page(begun)


def test_the_graph_has_no_edges_into_what_is_intervened_on():
    scene = scene_of(model(CHAIN, environments={"moved": {"x": 0.5}}))
    assert scene.graph(unit()).count('class="edge"') == 4  # three, and one of the legend
    held = scene.graph(unit(z=0.0))
    assert held.count('class="edge"') == 2
    assert "do(z)" in held and held.count("node hit") == 2
    assert "environment moved, do(z)" in scene.graph(unit(environment="moved", z=0.0))


# Commands


def rendered(command, out):
    """The images of a command, which is run here."""
    words = shlex.split(command)
    assert words[:2] == ["3dident", "render"]
    words[words.index("--out") + 1] = str(out)
    run_command(*words[1:], "--device", "cpu", "--workers", 1)
    (shard,) = list_shards(out).values()
    with h5py.File(shard) as file:
        return file["images"][()]


def test_the_command_renders_the_same_image_to_the_bit(tmp_path):
    """A unit with interventions and an environment, and a sequence."""

    async def run(page):
        for generator, wanted, count in (
            (
                {"model": PRIMITIVES},
                {
                    "unit": 11,
                    "environment": "independent",
                    "do": {"shape": "star", "x": -0.3000000119, "object_hue": 1e-7},
                },
                1,
            ),
            ({"model": TIME}, {"unit": 4, "do": {"theta": 6.2831850}, "kind": "sequence"}, 8),
        ):
            body = {"generator": generator, "resolution": 24, "quality": "draft", **wanted}
            command = (await page.ask("model-command", body)).json()["command"]
            images = rendered(command, tmp_path / generator["model"])
            assert len(images) == count
            if count == 1:
                values = (await page.ask("model-draw", body)).json()["values"]
                answer = await page.ask("image", {**body, "values": values})
                shown = [np.asarray(Image.open(io.BytesIO(answer.body)))]
            else:
                answer = await page.ask("model-images", body)
                shown = [decoded(each) for each in answer.json()["images"]]
            assert np.array_equal(images, np.stack(shown))

    with_page(run)


def test_commands_say_all_that_decides_the_image():
    scene = scene_of(PRIMITIVES)
    held = unit(3, shape=1.0, x=-0.25)
    assert command_of(scene, held) == (
        f"3dident render --model {PRIMITIVES} --seed 3 --n 1 --do shape=knot --do x=-0.25 "
        f"--engine direct --resolution 224 --out data/{PRIMITIVES}-unit-3"
    )
    words = command_of(scene, held, "counterfactual", resolution=32, quality="draft")
    assert "--counterfactual shape=knot --counterfactual x=-0.25" in words
    assert "--resolution 32 --quality draft" in words and "--do" not in words
    assert "--views hues" in command_of(scene, held, "views", view="hues")
    assert "--steps 8" in command_of(scene_of(TIME), unit(), "sequence")
    assert "--environment independent" in command_of(scene, unit(0, "independent"))
    quoted = command_of(scene_of(model(CHAIN), "my models/a'b.toml"), unit())
    assert shlex.split(quoted)[3] == "my models/a'b.toml"


def test_classes_that_a_command_would_misread_are_given_by_number():
    values = ["uniform", "inf", "a b", "plain", "nan"]
    odd = model(
        {"kind_of": {"kind": "discrete", "values": values, "mechanism": {"kind": "choice"}}}
    )
    scene = scene_of(odd)
    for number, typed in enumerate(["0.0", "1.0", "2.0", "plain", "4.0"]):
        words = shlex.split(command_of(scene, unit(kind_of=float(number))))
        assert f"kind_of={typed}" in words


def test_a_model_that_no_file_has_gets_no_command():
    scene = ModelScene(model(CHAIN), {"model": "model"}, None, "cpu")
    with pytest.raises(UsageError, match="recorded in the dataset alone"):
        command_of(scene, unit())


# What is offered


def test_a_given_model_and_that_of_a_dataset_have_names_of_their_own():
    built_in = load_model("3dident-views")
    assert Models(built_in, "3dident-views").given == "3dident-views"
    changed = model(CHAIN, name="3dident-views")
    models = Models(changed, "own.toml", of_dataset=model(CHAIN, name="drawn"))
    assert models.given == "3dident-views (as given)" and models.of_dataset == "drawn"
    assert models.names[:2] == (models.given, "drawn")
    assert models[models.given] is changed


def test_the_page_opens_with_a_given_model():
    async def run(page):
        facts = (await page.ask("state")).json()
        assert facts["scene"]["title"] == "chain"
        assert facts["models"][0] == "chain" and facts["generator_of_dataset"] is None
        command = await page.ask("model-command", {"generator": {"model": "chain"}})
        assert "--model chain.toml" in command.json()["command"]

    with_page(run, model=model(CHAIN, name="chain"), model_source="chain.toml")


def test_the_dataset_of_a_model_opens_with_it(tmp_path):
    sampling = Sampling(model(CHAIN, name="chain"), do={"x": 0.25})
    stored = StoredImages(as_rendered(tmp_path / "data", 6, sampling=sampling))

    async def run(page):
        scene = page.explorer.start
        assert scene.generator == {"model": "chain"} == page.explorer.generator_of_dataset()
        assert scene.names == ("x", "y", "z", "object_hue")
        for row in stored.values.tolist():
            scene.check(row)
        answer = await page.ask("model-command", {"generator": {"model": "chain"}})
        assert "recorded in the dataset alone" in answer.error

    with_page(run, stored=stored)


def test_the_dataset_of_a_built_in_model_has_its_name_and_its_command(tmp_path):
    stored = StoredImages(as_rendered(tmp_path / "data", 2, sampling=Sampling(load_model(TIME))))

    async def run(page):
        assert page.explorer.generator_of_dataset() == {"model": TIME}
        answer = await page.ask("model-command", {"generator": {"model": TIME}, "unit": 1})
        assert f"--model {TIME} --seed 1" in answer.json()["command"]

    with_page(run, stored=stored)


def test_controls_are_plain_data():
    variable = load_model(PRIMITIVES).variables[0]
    control = variable_control(load_model(PRIMITIVES), variable, 2.0)
    assert isinstance(control, Control)
    assert json.loads(json.dumps(control.as_dict()))["start"] == 2.0
