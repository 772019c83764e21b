"""What a render is asked for: latents, presets, meshes, settings that must fit the dataset."""

from __future__ import annotations

import json
import re
import shutil
from unittest import mock

import h5py
import numpy as np
import pytest
from helpers import fake_dataset as made
from helpers.commands import SMALL
from helpers.renders import QUICK, RENDER, content, same

from threedident.errors import UsageError
from threedident.latents import sample_raw_latents
from threedident.presets import Preset, load_preset
from threedident.render.dataset import bind_request, render_dataset
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import list_shards


def test_given_latents_and_fixed_factors(cli, tmp_path):
    raw = sample_raw_latents(range(3), seed=9, split="test").astype(np.float64)
    raw[:, 2], raw[:, 3] = 0, -0.5
    np.save(tmp_path / "raw.npy", raw)
    cli("render", *SMALL, "--latents", "raw.npy", "--fix", "z=0", "--fix", "phi=-0.5", "--out", "d")
    found = content(tmp_path / "d")["raw_latents"]
    assert (found[:, 2] == 0).all()
    assert (found[:, 3] == -0.5).all()
    assert np.array_equal(np.delete(found, [2, 3], 1), np.delete(raw, [2, 3], 1).astype(np.float32))
    cli("verify", "d")
    again = ("render", *SMALL, "--fix", "z=0", "--fix", "phi=-0.5", "--out", "d", "--latents")
    cli(*again, "raw.npy", "--n", 2)
    raw[0, 0] *= -1
    np.save(tmp_path / "raw.npy", raw)
    assert "latents.sha256" in cli(*again, "raw.npy", code=2).stderr
    assert "more than the 3 rows" in cli(*again, "raw.npy", "--n", 4, code=2).stderr


@pytest.mark.parametrize(
    ("options", "held"),
    [
        (("--fix", "x=0.2"), "x is held at raw 0.2 (by --fix, or by preset '3dident'), but row 1 "),
        (("--preset", "mine.toml"), "x is held at raw 0.2 (by --fix, or by preset 'mine'), but "),
    ],
)
def test_given_latents_are_never_altered(cli, tmp_path, options, held):
    (tmp_path / "mine.toml").write_text('base = "3dident"\n[fixed]\nx = 0.2\n')
    raw = np.full((4, 10), 0.2, np.float32)
    raw[1:, 0] = 0.25
    np.save(tmp_path / "raw.npy", raw)
    words = ("render", *QUICK, "--latents", "raw.npy", *options, "--out", "d")
    said = cli(*words, code=2).stderr
    assert f"raw.npy: {held}" in said
    assert "row 1 has 0.25 (3 rows of 4 differ)" in said
    assert not (tmp_path / "d").exists()
    # The way out that it names.
    column, value = re.search(r"set column (\d) to (\S+) in all rows", said).groups()
    raw[:, int(column)] = float(value)
    np.save(tmp_path / "raw.npy", raw)
    cli(*words)
    assert np.array_equal(content(tmp_path / "d")["raw_latents"], raw)


def test_functions_do_not_alter_given_latents_either(tmp_path):
    pytest.importorskip("warp")
    from threedident.render.content import dataset_settings
    from threedident.render.direct import engine as direct
    from threedident.render.images import render_images
    from threedident.render.settings import EngineSettings

    preset = load_preset("3dident-fixed-spotlight")
    raw = np.full((2, 10), 0.5, np.float32)
    message = "spotlight_position is held at raw 0 .* but row 0 has 0.5"
    with pytest.raises(UsageError, match=message):
        render_images(raw, preset)
    for function in (direct.render, direct.jacobian):
        with pytest.raises(UsageError, match=message):
            function(raw, preset, resolution=16, device="cpu")
    settings = dataset_settings(EngineSettings(preset), seed=0, split="train", given=raw)
    with pytest.raises(UsageError, match=message):
        DatasetDir.create_or_open(
            tmp_path / "d", settings, shard_size=None, compression=None, given=raw
        )
    assert not list((tmp_path / "d").iterdir())
    assert direct.render(preset.hold_fixed(raw), preset, resolution=16, device="cpu").shape


def test_a_dataset_whose_given_latents_an_older_version_altered_goes_on(cli, tmp_path):
    raw = np.full((4, 10), 0.5, np.float32)
    np.save(tmp_path / "raw.npy", raw)
    words = ("render", *QUICK, "--latents", "raw.npy", "--fix", "x=0", "--out", "d")
    with mock.patch.object(Preset, "require_fixed"):  # which older versions lacked
        cli(*words, "--n", 2)
    cli("verify", "d")
    for again in (("render", "--extend", "d", "--n", 3), words):
        said = cli(*again).stderr
        assert "warning: " in said and "x is held at raw 0" in said
    assert (content(tmp_path / "d")["raw_latents"][:, 0] == 0).all()
    cli("verify", "d", "--n", 4)


def test_latents_that_are_not_sampled_take_neither_seed_nor_split(cli, tmp_path):
    np.save(tmp_path / "raw.npy", np.zeros((2, 10)))
    words = ("render", *QUICK, "--latents", "raw.npy", "--out", "d")
    said = cli(*words, "--split", "test", "--seed", 3, code=2).stderr
    assert "so that --seed and --split would do nothing" in said
    # As it is asked for, not as it differs from the default.
    assert "so that --seed would do nothing" in cli(*words, "--seed", 0, code=2).stderr
    assert not (tmp_path / "d").exists()


def test_latents_in_another_form_are_told_how_to_be_saved(cli, tmp_path):
    (tmp_path / "raw.csv").write_text("0,0,0,0,0,0,0,0,0,0\n")
    said = cli("render", *QUICK, "--latents", "raw.csv", "--out", "d", code=2).stderr
    assert "raw.csv: not a .npy array" in said
    assert "Save them with numpy.save, as an array of shape (N, 10)" in said


def test_a_preset_and_a_mesh_of_ones_own(cli, tmp_path):
    import trimesh

    trimesh.creation.box((1, 2, 1)).export(tmp_path / "box.stl")
    (tmp_path / "mine.toml").write_text('base = "3dident-wrapped"\nshape = "box.stl"\n')
    cli("render", *SMALL, "--preset", "mine.toml", "--n", 2, "--out", "d")
    assert "symmetries of a user's mesh" in cli("info", "d").stdout
    absolute = (tmp_path / "mine.toml").absolute()
    cli("render", *SMALL, "--preset", absolute, "--n", 3, "--out", "d")
    trimesh.creation.box((2, 2, 1)).export(tmp_path / "box.stl")
    refused = cli("render", *SMALL, "--preset", "mine.toml", "--n", 4, "--out", "d", code=2)
    assert "mesh_sha256" in refused.stderr


def test_a_dataset_is_extended_with_its_own_settings(cli, tmp_path):
    words = (*QUICK, "--preset", "3dident-wrapped", "--split", "val", "--seed", 3, "--fix", "x=0.5")
    words = (*words, "--pairs", "--conditional", "laplace", "--lambda", 0.3, "--unchanged", "hue")
    words = (*words, "--shape", "cube", "--shard-size", 4, "--compression", "gzip")
    cli("render", *words, "--n", 2, "--out", "d")
    cli("render", *words, "--n", 4, "--out", "e")
    assert "8 images, 4 of them new" in cli("render", "--extend", "d", "--n", 4).stdout
    assert same(tmp_path / "d", tmp_path / "e")
    cli("verify", "d", "--n", 8)
    # Without --n, up to what it was asked for before.
    list(list_shards(tmp_path / "d").values())[1].unlink()
    assert "8 images, 4 of them new" in cli("render", "--extend", "d").stdout
    (tmp_path / "d/wanted.json").unlink()
    said = cli("render", "--extend", "d", code=2).stderr
    assert "d does not record how many images it shall have: add --n" in said


def test_beside_extend_settings_are_refused_by_name(cli, tmp_path):
    said = cli("render", "--extend", "d", "--seed", 0, "--fix", "x=0", "--out", "e", code=2).stderr
    assert "takes all settings from the dataset: leave out --out, --fix, --seed" in said
    assert "is not a directory" in cli("render", "--extend", "d", code=2).stderr
    made.make(tmp_path / "imported", 2)
    cli("pack", "imported", "--out", "p.h5")
    said = cli("render", "--extend", "p.h5", code=2).stderr
    assert "is in the form packed" in said
    assert "3dident convert p.h5 --to shards" in said
    said = cli("render", "--extend", "imported", "--n", 3, code=2).stderr
    assert "imported was imported: what rendered it is not known" in said


def test_given_latents_and_a_mesh_are_extended(cli, tmp_path):
    import trimesh

    trimesh.creation.box((1, 2, 1)).export(tmp_path / "box.stl")
    np.save(tmp_path / "raw.npy", np.linspace(-1, 1, 40).reshape(4, 10))
    words = ("render", *QUICK, "--latents", "raw.npy", "--shape", "box.stl", "--out", "d")
    cli(*words, "--n", 2)
    (tmp_path / "raw.npy").unlink()
    said = cli("render", "--extend", "d", code=2).stderr
    assert "is the mesh file box.stl, which the dataset does not hold: add --shape FILE" in said
    mesh = ("--shape", tmp_path / "box.stl")
    assert "4 images, 2 of them new" in cli("render", "--extend", "d", *mesh).stdout
    said = cli("render", "--extend", "d", *mesh, "--n", 5, code=2).stderr
    assert "--n 5 is more than the 4 rows of its given latents" in said
    trimesh.creation.box((2, 2, 1)).export(tmp_path / "box.stl")
    assert "mesh_sha256" in cli("render", "--extend", "d", *mesh, code=2).stderr
    next(iter(list_shards(tmp_path / "d").values())).unlink()
    advice = "to complete it: 3dident render --extend d --shape FILE\n"
    assert advice in cli("info", "d").stdout


def test_other_settings_are_refused_by_name(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    for options, names in (
        (("--seed", 1), ["seed: the dataset has 0, this command 1"]),
        (("--split", "val"), ["split"]),
        (("--preset", "3dident-regular"), ["preset.name", "preset.ranges.theta", "preset.hue"]),
        (("--shape", "cube"), ["preset.shape"]),
        (("--fix", "x=0"), ["preset.fixed.x"]),
        (("--quality", "standard"), ["engine.quality: the dataset has 'draft'"]),
        (("--resolution", 40), ["resolution: the dataset has 32, this command 40"]),
        (("--shard-size", 6), ["shard_size: the dataset has 5, this command 6"]),
    ):
        stderr = cli("render", *SMALL, "--n", 14, "--out", "d", *options, code=2).stderr
        assert all(name in stderr for name in names), stderr
        assert "It was made by: 3dident render --n 12" in stderr
        # What merely follows from another difference is not in the list.
        assert "samples" not in stderr
        assert "near_light" not in stderr
    options = ("--engine", "direct", "--quality", "standard")
    stderr = cli("render", *SMALL, "--n", 14, "--out", "d", *options, code=2).stderr
    found = [line.split(":")[0].strip() for line in stderr.splitlines() if "this command" in line]
    assert found == ["engine.name", "engine.quality"]
    np.save("raw.npy", np.zeros((3, 10)))
    stderr = cli("render", *SMALL, "--out", "d", "--latents", "raw.npy", code=2).stderr
    found = [line.split(":")[0].strip() for line in stderr.splitlines() if "this command" in line]
    assert found == ["latents.source"]
    assert same(tmp_path / "d", small_dataset)


def begun_with(root, key, value):
    """Rewrite a dataset as if it had been begun with another setting of its engine."""
    from threedident.storage.manifest import Manifest, read_manifest

    manifest = read_manifest(root)
    settings = json.loads(json.dumps(manifest.settings))
    settings["engine"][key] = value
    other = Manifest(settings, 5, "none", manifest.toolkit, manifest.command, manifest.created)
    (root / "dataset.json").write_text(json.dumps(other.as_dict()))
    for shard in root.glob("shard-*"):
        with h5py.File(shard, "a") as file:
            file.attrs["fingerprint"] = other.fingerprint
            if key == "device":
                file.attrs["device"] = value


@pytest.mark.parametrize("extend", [False, True])
def test_another_version_of_the_engine_is_refused(cli, small_dataset, tmp_path, extend):
    shutil.copytree(small_dataset, tmp_path / "d")
    begun_with(tmp_path / "d", "version", "4.2.0")
    words = ("render", "--extend", "d", "--n", 14) if extend else (*RENDER, "--n", 14, "--out", "d")
    refused = cli(*words, code=2).stderr
    assert "engine.version: the dataset has '4.2.0', this command" in refused
    assert "pip install 'bpy==4.2.0'" in refused
    assert "--extend" not in refused  # it would be refused as well
    assert len(list((tmp_path / "d").glob("shard-*"))) == 3


def test_another_device_is_refused_unless_asked_for(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    begun_with(tmp_path / "d", "device", "optix")  # as on a GPU
    refused = cli(*RENDER, "--n", 14, "--out", "d", code=2)
    assert "engine.device: the dataset has 'optix', this command 'cpu'" in refused.stderr
    assert "--any-device" in refused.stderr
    cli(*RENDER, "--n", 14, "--out", "d", "--any-device")
    assert "cpu, optix" in cli("verify", "d", "--n", 14).stdout


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("d", 1e3), {}, r"--n must be a whole number, found 1000\.0: write 1000"),
        (("d", "300"), {}, "--n must be a whole number, found '300'"),
        (("d", True), {}, "--n must be a whole number, found True"),
        ((300, "d"), {}, r"out must be the path .* found 300: expected render_dataset\(out, n\)"),
        (("d", 3), {"resolution": "32"}, "resolution must be a whole number, found '32'"),
        (("d", 3), {"resolution": (32, 32)}, r"found \(32, 32\): images are square, .* as 32"),
        (("d", 3), {"resolution": None}, "resolution must be a whole number, found None"),
        (("d", 3), {"seed": "0"}, "seed must be a whole number"),
        (("d", 3), {"workers": 1.5}, "workers must be a whole number"),
        (("d", 3), {"timeout": "60"}, "--timeout must be a number of seconds"),
        (("d", 3), {"part": "0/2"}, r"part must be \(I, K\), two whole numbers, found '0/2'"),
        (("d", 3), {"pairs": "normal"}, r"pairs must be a distribution, such as Normal\(0\.1\)"),
    ],
)
def test_wrong_types_are_refused_before_anything_is_written(
    tmp_path, monkeypatch, arguments, options, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        render_dataset(*arguments, **options)
    assert not list(tmp_path.iterdir())


def test_whole_numbers_of_numpy_are_whole_numbers():
    request = bind_request("d", np.int64(3), resolution=np.uint8(32), seed=np.int32(1))
    request.check()
    found = [request.n, request.resolution, request.seed]
    assert found == [3, 32, 1] and {type(each) for each in found} == {int}
