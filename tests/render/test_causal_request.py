"""Tests of rendering a causal model: requests, the command, and real images."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from threedident.causal import Sampling, load_model
from threedident.cli import main
from threedident.cli.options import parse_interventions
from threedident.errors import RenderWarning, UsageError
from threedident.render.dataset import bind_request, render_dataset
from threedident.storage.directory import DatasetDir
from threedident.storage.shards import read_shard

MODEL = Path(__file__).parents[1] / "data" / "model.toml"
SMALL = {"engine": "direct", "quality": "draft", "resolution": 16, "workers": 1, "quiet": True}


def content(**arguments):
    return bind_request("nowhere", 10, model=MODEL, **arguments).content()


def test_a_counterfactual_shares_all_but_the_descendants(tmp_path):
    render_dataset(tmp_path / "d", 4, model=MODEL, counterfactual={"y": 0.5}, **SMALL)
    dataset = DatasetDir.open(tmp_path / "d")
    (path,) = dataset.shards().values()
    shard = dataset.read_shard(path)
    assert shard.draws is not None and len(shard.images) == 8
    names = load_model(MODEL).names
    before, after = shard.draws.variables[::2], shard.draws.variables[1::2]
    changed = {names[i] for i in np.flatnonzero((before != after).any(0))}
    assert changed <= {"y", "object_hue"} and "y" in changed
    # The object moves, and so only where it was and is may the image change by much.
    assert (shard.images[::2] != shard.images[1::2]).any()
    drawn = Sampling(load_model(MODEL)).draw(range(4), seed=0, split="train")
    assert np.array_equal(drawn.variables, before)


def test_a_model_of_ten_uniform_factors_makes_the_images_of_its_preset(tmp_path):
    file = tmp_path / "plain.toml"
    names = [
        "x",
        "y",
        "z",
        "phi",
        "theta",
        "psi",
        "spotlight_position",
        "object_hue",
        "spotlight_hue",
        "background_hue",
    ]
    file.write_text(
        "".join(f'[variables.{n}]\nmechanism = {{ kind = "uniform" }}\n' for n in names)
    )
    render_dataset(tmp_path / "a", 3, model=file, **SMALL)
    render_dataset(tmp_path / "b", 3, **SMALL)
    a, b = (read_shard(next(iter((tmp_path / d).glob("*.h5"))), resolution=16) for d in ("a", "b"))
    assert np.array_equal(a.images, b.images) and np.array_equal(a.raw_latents, b.raw_latents)
    assert np.array_equal(a.latents, b.latents)


def test_n_counts_items(tmp_path):
    counts = {}
    for name, options in {
        "single": {},
        "pairs": {"views": True},
        "sequences": {"steps": 7},
    }.items():
        request = bind_request("nowhere", 10, model=MODEL, **options)
        counts[name] = request.total(request.content())
    assert counts == {"single": 10, "pairs": 20, "sequences": 70}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "3dident-wrapped"}, "leave out preset"),
        ({"fixed": {"x": 0.0}}, "leave out --fix"),
        ({"environments": ("blue",)}, "observed, independent, red"),
        ({"do": {"hue": 1}}, "'hue' is no variable"),
        ({"do": {"x": 5}}, r"a value in \[-2, 2\] for x, found 5"),
        ({"do": {"kind": "dull"}}, "plain, bright, odd"),
        ({"do": {"x": {"shift": 9}}}, "leaves no value in its range"),
        ({"do": {"x": "y / 2"}}, "in a circle"),
        ({"do": {"x": "previous(x)"}}, "looks at its own alone"),
        ({"views": "other"}, "expected one of hues"),
        ({"steps": 5, "views": True}, "choose one"),
        ({"steps": 0}, "steps must be 1 to"),
        ({"steps": 2.5}, "whole number"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        request = bind_request("nowhere", 10, model=MODEL, **arguments)
        request.check()
        request.content()


def test_options_of_a_model_need_one():
    with pytest.raises(UsageError, match="--do can only be had of a causal model: add one"):
        bind_request("nowhere", 10, do={"x": 0.3}).content()


def test_a_shift_that_ends_at_the_range_warns_with_its_share():
    hint = r"in about 4\.\d% of the images .* low = -2, high = 1\.8"
    with pytest.warns(RenderWarning, match=hint):
        bind_request("nowhere", 10, model=MODEL, do={"x": {"shift": 0.2}}).prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bind_request("nowhere", 10, model=MODEL, do={"x": {"shift": 0.0}}).prepare()


def test_a_circle_that_does_not_close_in_the_image_warns(tmp_path):
    text = '[variables.object_hue]\nkind = "circular"\nmechanism = { kind = "uniform" }\n'
    (tmp_path / "round.toml").write_text(text)
    (tmp_path / "open.toml").write_text(text + "scene = [0.0, 3.0]\n")
    with pytest.warns(RenderWarning, match=r"object_hue \(0 to 3\): the variable is circular"):
        bind_request("nowhere", 10, model=tmp_path / "open.toml").prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bind_request("nowhere", 10, model=tmp_path / "round.toml").prepare()


def test_interventions_of_the_command_line():
    parsed = parse_interventions("--do", ("x=0.3", "y+=0.2", "z -= 1", "kind=odd", "w=uniform"))
    assert parsed == {
        "x": 0.3,
        "y": {"shift": 0.2},
        "z": {"shift": -1.0},
        "kind": "odd",
        "w": {"kind": "uniform"},
    }
    for wrong in ("x", "x+=a", "=3", "x=", "x*=2"):
        with pytest.raises(UsageError, match="--do"):
            parse_interventions("--do", (wrong,))
    with pytest.raises(UsageError, match="twice"):
        parse_interventions("--do", ("x=1", "x=2"))


def test_the_command_renders_extends_and_refuses(tmp_path):
    out, run = tmp_path / "d", CliRunner()
    small = ["--engine", "direct", "--quality", "draft", "--resolution", "16", "--workers", "1"]
    command = ["render", "--model", str(MODEL), "--n", "3", "--steps", "4", *small]
    made = run.invoke(main, [*command, "--do", "y=0.1", "--out", str(out)])
    assert made.exit_code == 0, made.output
    settings = DatasetDir.open(out).manifest.settings["latents"]
    assert settings["steps"] == 4 and settings["do"] == {"y": 0.1}
    more = run.invoke(main, ["render", "--extend", str(out), "--n", "5", "--workers", "1"])
    assert more.exit_code == 0, more.output
    assert DatasetDir.open(out).wanted() == 20
    nowhere = run.invoke(main, [*command, "--do", "y=0.1"])
    assert nowhere.exit_code == 2 and "--steps" in nowhere.output and "--out" in nowhere.output
    views = run.invoke(
        main, ["render", "--model", str(MODEL), "--n", "2", *small, "--views", "--out", f"{out}-v"]
    )
    assert views.exit_code == 0, views.output
    both = run.invoke(main, [*command, "--preset", "3dident", "--out", f"{out}-b"])
    assert both.exit_code == 2 and "--preset would do nothing" in both.output
    unknown = run.invoke(main, ["render", "--model", "nothing", "--n", "2", "--out", f"{out}-u"])
    assert unknown.exit_code == 2 and "unknown model" in unknown.output
    assert not Path(f"{out}-u").exists()
