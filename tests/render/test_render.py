"""`3dident render` as a user meets it: whole datasets, interruptions, errors."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from helpers import fake_dataset as made
from helpers.commands import SMALL, command

from threedident import progress
from threedident.errors import DatasetError, UsageError
from threedident.latents import sample_raw_latents
from threedident.presets import Preset, load_preset, preset_names
from threedident.render.content import Content
from threedident.storage import directory as store
from threedident.storage.directory import DatasetDir, default_out
from threedident.storage.shards import list_shards

RENDER = ("render", *SMALL, "--shard-size", 5)
#: Renders that take a second.
QUICK = (*SMALL, "--engine", "direct")


def content(root: Path) -> dict[str, np.ndarray]:
    """All arrays of a dataset, in order, whatever its shards."""
    parts: dict[str, list[np.ndarray]] = {}
    for path in list_shards(root).values():
        with h5py.File(path) as file:
            for name in ("index", "images", "raw_latents", "latents"):
                parts.setdefault(name, []).append(file[name][()])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def same(a: Path, b: Path) -> bool:
    left, right = content(a), content(b)
    return all(np.array_equal(left[name], right[name]) for name in left)


def start(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command(), *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_dataset(small_dataset):
    arrays = content(small_dataset)
    assert arrays["index"].tolist() == list(range(12))
    assert arrays["images"].shape == (12, 32, 32, 3)
    expected = sample_raw_latents(range(12), seed=0, split="train")
    assert np.array_equal(arrays["raw_latents"], expected)
    assert np.array_equal(arrays["latents"], load_preset("3dident").to_scene(expected))
    assert len({image.tobytes() for image in arrays["images"]}) == 12
    manifest = json.loads((small_dataset / "dataset.json").read_text())
    assert manifest["settings"]["preset"]["name"] == "3dident"
    assert manifest["settings"]["engine"]["version"].startswith("4.5.")
    assert manifest["settings"]["engine"]["device"] == "cpu"
    assert [f["name"] for f in manifest["factors"]][:2] == ["x", "y"]
    assert manifest["command"].startswith("3dident render --n 12")
    stats = json.loads((small_dataset / "stats.json").read_text())
    assert stats["images"] == 12
    assert stats["mean"] == pytest.approx(arrays["images"].mean((0, 1, 2)) / 255, abs=1e-6)
    assert not list(small_dataset.glob(".tmp-*"))
    assert [len(h5py.File(p)["index"]) for p in list_shards(small_dataset).values()] == [5, 5, 2]


@pytest.mark.parametrize(
    "options",
    [
        ("--threads", 2),
        ("--shard-size", 7, "--images-per-worker", 3, "--compression", "gzip"),
    ],
)
def test_pixels_depend_on_nothing_but_the_settings(cli, tmp_path, small_dataset, options):
    cli("render", *SMALL, "--n", 12, "--out", "other", *options)
    assert same(tmp_path / "other", small_dataset)


def test_a_dataset_grows(cli, tmp_path, small_dataset):
    said = cli(*RENDER, "--n", 4, "--out", "d").stderr
    assert "--engine direct is quicker" in said
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "d").glob("shard-*")}
    manifest = (tmp_path / "d/dataset.json").read_text()
    cli(*RENDER, "--n", 12, "--out", "d")
    assert same(tmp_path / "d", small_dataset)
    for name, when in before.items():
        assert (tmp_path / "d" / name).stat().st_mtime_ns == when
    assert (tmp_path / "d/dataset.json").read_text() == manifest
    done = cli(*RENDER, "--n", 3, "--out", "d")
    assert "12 images, 0 of them new" in done.stdout
    assert "d already has 12 images, more than the 3 asked for" in done.stderr


def _ask_for(root: Path, counts: list[int]) -> None:
    dataset = DatasetDir.open(root)
    for count in counts:
        dataset.record_wanted(count)


def test_the_largest_number_of_images_ever_asked_for_is_recorded(cli, tmp_path):
    root = tmp_path / "d"
    words = ("render", *QUICK, "--out", "d", "--n")
    cli(*words, 2)
    dataset = DatasetDir.open(root)
    assert dataset.wanted() == 2
    (root / "wanted.json").unlink()
    assert dataset.wanted() is None  # as in datasets of older versions
    manifest = (root / "dataset.json").read_text()
    for asked, wanted in ((4, 4), (3, 4)):
        cli(*words, asked)
        assert dataset.wanted() == wanted
    assert (root / "dataset.json").read_text() == manifest
    # An estimate asks for nothing.
    cli(*words, 5, "--estimate")
    assert dataset.wanted() == 4
    cli("verify", "d", "--n", 4)


def test_members_of_a_job_array_lose_no_number_of_images(tmp_path, small_dataset):
    root = tmp_path / "d"
    shutil.copytree(small_dataset, root)
    # Each asks for more and more; the largest of all comes from one of them alone.
    processes = [
        multiprocessing.get_context("fork").Process(
            target=_ask_for, args=(root, list(range(100 + k, 400, 7)))
        )
        for k in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert DatasetDir.open(root).wanted() == 397


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"images": 0}', '{"images": true}', "{}", '{"images": 1%s}' % ("0" * 30)]
)
def test_a_damaged_record_of_the_number_of_images_is_named(cli, tmp_path, small_dataset, text):
    shutil.copytree(small_dataset, tmp_path / "d")
    (tmp_path / "d/wanted.json").write_text(text)
    said = cli(*RENDER, "--n", 12, "--out", "d", code=2).stderr
    assert "wanted.json" in said
    assert "remove it" in said
    (tmp_path / "d/wanted.json").unlink()
    cli(*RENDER, "--n", 12, "--out", "d")
    assert DatasetDir.open(tmp_path / "d").wanted() == 12


def test_members_of_a_job_array(cli, tmp_path, small_dataset):
    members = [
        start(*RENDER, "--n", 12, "--out", "d", "--shard", f"{i}/3", cwd=tmp_path) for i in range(3)
    ]
    for member in members:
        out, err = member.communicate(timeout=200)
        assert member.returncode == 0, out + err
    assert same(tmp_path / "d", small_dataset)
    assert json.loads((tmp_path / "d/stats.json").read_text())["images"] == 12
    cli("verify", "d", "--n", 12)


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
    text = Path(load_preset.__code__.co_filename).with_name("3dident.toml").read_text()
    own = text.replace('"3dident"', '"mine"') + "\n[fixed]\nx = 0.2\n"
    own = re.sub(r"\[best_r2\][^\[]*", "", own)
    (tmp_path / "mine.toml").write_text(own)
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
    from threedident.render.direct import engine as direct
    from threedident.render.images import render_images
    from threedident.render.settings import EngineSettings, dataset_settings

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


# --- Where it goes, and what is said first ---


def test_the_default_directory_says_what_is_in_it(cli, tmp_path):
    assert default_out() == Path("data/3dident")
    assert default_out(split="test") == Path("data/3dident-test")
    assert default_out("3dident-wrapped", "val") == Path("data/3dident-wrapped-val")
    assert default_out("my/own.toml", pairs=True) == Path("data/own-pairs")
    named = default_out(engine="direct", quality="draft", resolution=64, split="test")
    assert named == Path("data/3dident-direct-draft-64-test")
    cli("render", *QUICK, "--n", 2)
    assert "2 images, 0 of them new" in cli("render", *QUICK, "--n", 2).stdout
    assert len(content(tmp_path / "data/3dident-direct-draft-32")["index"]) == 2


@pytest.mark.parametrize(
    "options",
    [("--shape", "cube"), ("--material", "metal"), ("--fix", "x=0"), ("--seed", 1)],
)
def test_a_default_directory_that_would_not_say_what_is_in_it_is_not_taken(cli, tmp_path, options):
    said = cli("render", *QUICK, "--n", 1, *options, code=2).stderr
    assert f"with {options[0]}, say where it shall lie, for example --out data/3dident-" in said
    assert not list(tmp_path.iterdir())


def test_other_pairs_than_those_that_are_there_are_refused_in_a_default_directory(cli):
    words = ("render", *QUICK, "--n", 1, "--pairs", "--conditional", "normal", "--sigma")
    said = cli(*words, 0.1).stderr
    assert "rendering 1 pairs, 2 images, into data/3dident-direct-draft-32-pairs" in said
    assert "latents.conditional.sigma" in cli(*words, 0.2, code=2).stderr


def test_it_says_first_what_it_does_where_and_how_to_stop(cli):
    said = cli("render", *QUICK, "--n", 5, "--out", "d").stderr.splitlines()
    assert said[0].startswith("rendering 5 images into d: preset 3dident, split train, seed 0, 32")
    assert said[1] == "engine direct, quality draft, cpu, on 1 process"
    assert re.fullmatch(
        r"0 of 5 images are there; the rest takes 15.9 kB of disk \([\d.,]+ .B are free\)", said[2]
    )
    assert "--estimate measures it" in said[3] and "--engine direct" not in said[3]
    assert said[4] == "Ctrl-C stops it and keeps what is finished; the same command continues"
    said = cli("render", *QUICK, "--n", 9, "--out", "d", "--shard-size", 5, code=2).stderr
    assert "rendering" not in said
    said = cli("render", *QUICK, "--n", 205, "--out", "d", "--shard", "2/3").stderr
    assert "5 of 205 images are there; part 2/3, 5 of the rest, takes" in said


def test_a_log_shows_that_a_render_is_alive(cli, monkeypatch):
    monkeypatch.setattr(progress, "SHORT", 0.01)
    monkeypatch.setattr(progress, "FORECAST_AFTER", 0.01)
    monkeypatch.setattr(progress, "FORECAST_AFTER_FIRST", 0.0)
    said = cli("render", *QUICK, "--n", 40, "--out", "d").stderr
    assert re.search("^rendering: 0 of 40 images$", said, re.M)
    assert re.search(r"^about .* to go, by the first \d+ images in \d+ s$", said, re.M)
    assert re.search(r"^rendering: finished 40 of 40 images in \d+ s$", said, re.M)


def test_an_object_that_is_out_of_sight_is_warned_of(cli, tmp_path):
    text = Path(load_preset.__code__.co_filename).with_name("3dident.toml").read_text()
    (tmp_path / "far.toml").write_text(
        re.sub(r"(?m)^([xyz]) = \[.*$", r"\1 = [-100.0, 100.0]", text)
    )
    said = cli("render", *QUICK, "--preset", "far.toml", "--n", 1).stderr
    share = int(re.search("wholly outside the frame in about (\\d+)%", said)[1])
    assert 80 < share <= 100
    far = load_preset(tmp_path / "far.toml")
    # Given latents are looked at themselves: here the object is in the middle, or far off.
    middle = np.zeros((300, 10), np.float32)
    assert Content(far, given=middle).frame_warning() is None
    middle[:100, 1] = 1
    assert "in about 33% of the images" in str(Content(far, given=middle).frame_warning())
    # An object that fills the frame has all of its corners outside, and is in sight.
    box = dataclasses.replace(load_preset("3dident"), shape="cube", scale=30.0)
    assert Content(box, given=middle[100:]).frame_warning() is None


@pytest.mark.parametrize("name", preset_names())
def test_the_object_of_a_built_in_preset_is_in_sight(name):
    assert Content(load_preset(name)).frame_warning() is None


# --- Going on with all settings ---


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


# --- Several at once ---


def test_a_second_render_of_the_same_images_stops_and_says_so(cli, tmp_path):
    words = ("render", *QUICK, "--shard-size", 5, "--out", "d")
    first = start(*words, "--n", 100_000, "--shard", "0/2", cwd=tmp_path)
    while not list((tmp_path / "d").glob("shard-*")):
        assert first.poll() is None
        time.sleep(0.05)
    for options in ((), ("--shard", "1/3")):
        said = cli(*words, "--n", 10, *options, code=2).stderr
        assert f"another process writes to d (--shard 0/2): pid {first.pid} on " in said
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said)
        assert "To share the work, start all of them with --shard I/K" in said
    # Others share the work.
    assert "of them new" in cli(*words, "--n", 10, "--shard", "1/2").stdout
    assert (tmp_path / "d/shard-00000005-00005.h5").exists()
    assert first.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert "0 of them new" in cli(*words, "--n", 10).stdout
    assert not list((tmp_path / "d").glob(".render-*"))


def test_parts_share_a_dataset_just_where_they_share_no_shard(tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    dataset = DatasetDir.open(tmp_path / "d")
    parts = [(i, k) for k in (1, 2, 3, 4, 6) for i in range(k)]
    for part, count in parts:
        with dataset.only_render(part, count):
            for other, its in parts:
                shared = any(n % count == part and n % its == other for n in range(count * its))
                with contextlib.ExitStack() as stack:
                    if shared:
                        stack.enter_context(pytest.raises(UsageError, match="another process"))
                    stack.enter_context(dataset.only_render(other, its))
    assert not list((tmp_path / "d").glob(".render-*"))


def _try_to_hold(root: Path, parts: int, ready: Any, done: Any, won: Any) -> None:
    dataset = DatasetDir.open(root)
    ready.wait(60)
    try:
        with dataset.only_render(0, parts):
            won.put(os.getpid())
            done.wait(60)
    except UsageError:
        done.wait(60)


def test_of_renders_that_start_together_exactly_one_wins(tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    context = multiprocessing.get_context("fork")
    for _ in range(10):
        ready, done, won = context.Barrier(6), context.Barrier(6), context.Queue()
        processes = [
            # All want the first shard, each with others.
            context.Process(target=_try_to_hold, args=(tmp_path / "d", 1 + k, ready, done, won))
            for k in range(6)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert won.get(timeout=10) in {process.pid for process in processes}
        assert won.empty()


def test_a_disk_without_locks_can_be_rendered_to(cli, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    cli("render", *QUICK, "--n", 2, "--out", "d")
    dataset = DatasetDir.open(tmp_path / "d")
    with dataset.only_render(), dataset.only_render():
        cli("render", *QUICK, "--n", 3, "--out", "d")
    assert dataset.wanted() == 3


def test_a_network_disk_that_locks_only_what_is_open_for_writing(
    tmp_path, small_dataset, monkeypatch
):
    """As Linux does over NFS, see flock(2)."""
    locks = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        locks(file, operation)

    monkeypatch.setattr("fcntl.flock", flock)
    shutil.copytree(small_dataset, tmp_path / "d")
    dataset = DatasetDir.open(tmp_path / "d")
    with (
        dataset.only_render(),
        pytest.raises(UsageError, match="another process writes"),
        dataset.only_render(),
    ):
        pass
    with dataset.only_render(1, 2):
        pass


def test_more_than_can_be_had_is_not_recorded_as_wanted(cli, tmp_path, small_dataset, monkeypatch):
    shutil.copytree(small_dataset, tmp_path / "d")
    full = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    said = cli(*RENDER, "--n", 1000, "--out", "d", code=2).stderr
    assert "the disk is too full" in said
    assert DatasetDir.open(tmp_path / "d").wanted() == 12
    assert "all is well" in cli("verify", "d").stdout


def test_a_number_that_was_too_large_can_be_taken_back(cli, tmp_path, small_dataset):
    shutil.copytree(small_dataset, tmp_path / "d")
    DatasetDir.open(tmp_path / "d").record_wanted(5000)
    advice = "if fewer than 5,000 images are wanted: remove d/wanted.json"
    assert advice in cli("info", "d").stdout
    (tmp_path / "d/wanted.json").unlink()
    assert "all is well" in cli("verify", "d").stdout


def test_a_render_goes_on_where_nobody_reads_what_it_says(tmp_path):
    read, write = os.pipe()
    os.close(read)
    words = ["render", *QUICK, "--n", 3, "--out", "d"]
    done = subprocess.run(
        [*command(), *map(str, words)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=write,
        cwd=tmp_path,
        text=True,
    )
    os.close(write)
    assert done.returncode == 0
    assert "3 images, 3 of them new" in done.stdout
    assert len(list_shards(tmp_path / "d")) == 1


def test_a_lock_that_nobody_lets_go_of_is_named(tmp_path, small_dataset, monkeypatch):
    shutil.copytree(small_dataset, tmp_path / "d")
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    dataset = DatasetDir.open(tmp_path / "d")
    with (tmp_path / "d/.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match=r"\.lock stays locked by another process"):
            dataset.record_wanted(100)


def test_a_preset_and_a_mesh_of_ones_own(cli, tmp_path):
    import trimesh

    trimesh.creation.box((1, 2, 1)).export(tmp_path / "box.stl")
    text = Path(load_preset.__code__.co_filename).with_name("3dident-wrapped.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace('"teapot"', '"box.stl"'))
    cli("render", *SMALL, "--preset", "mine.toml", "--n", 2, "--out", "d")
    assert "symmetries of a user's mesh" in cli("info", "d").stdout
    absolute = (tmp_path / "mine.toml").absolute()
    cli("render", *SMALL, "--preset", absolute, "--n", 3, "--out", "d")
    trimesh.creation.box((2, 2, 1)).export(tmp_path / "box.stl")
    refused = cli("render", *SMALL, "--preset", "mine.toml", "--n", 4, "--out", "d", code=2)
    assert "mesh_sha256" in refused.stderr


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


def test_another_device_is_refused_unless_asked_for(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    path = tmp_path / "d" / "dataset.json"
    # A dataset begun on a GPU, its fingerprint as it would have been there.
    from threedident.storage.directory import Manifest, read_manifest

    manifest = read_manifest(tmp_path / "d")
    settings = json.loads(json.dumps(manifest.settings))
    settings["engine"]["device"] = "optix"
    other = Manifest(settings, 5, "none", manifest.toolkit, manifest.command, manifest.created)
    path.write_text(json.dumps(other.as_dict()))
    for shard in (tmp_path / "d").glob("shard-*"):
        with h5py.File(shard, "a") as file:
            file.attrs["fingerprint"] = other.fingerprint
            file.attrs["device"] = "optix"
    refused = cli(*RENDER, "--n", 14, "--out", "d", code=2)
    assert "engine.device: the dataset has 'optix', this command 'cpu'" in refused.stderr
    assert "--any-device" in refused.stderr
    cli(*RENDER, "--n", 14, "--out", "d", "--any-device")
    assert "cpu, optix" in cli("verify", "d", "--n", 14).stdout


def test_corrupt_shards_are_named_and_rendered_again(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    first, second, third = list_shards(tmp_path / "d").values()
    first.write_bytes(first.read_bytes()[:3000])
    with h5py.File(second, "a") as file:
        file["images"][2, 3, 4, 1] ^= 1
    with h5py.File(third, "a") as file:
        file.attrs["fingerprint"] = "of another dataset"
    verdict = cli("verify", "d", code=1).stderr
    assert all(path.name in verdict for path in (first, second, third))
    done = cli(*RENDER, "--n", 12, "--out", "d")
    assert "3" in done.stdout.split("corrupt shards rendered again")[1]
    assert second.name in done.stderr
    assert same(tmp_path / "d", small_dataset)
    assert len(list((tmp_path / "d").glob("*.corrupt"))) == 3
    cli("verify", "d")


def test_latents_that_are_not_the_settings_are_noticed(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    from threedident.storage.shards import checksum

    path = next(iter(list_shards(tmp_path / "d").values()))
    with h5py.File(path, "a") as file:
        file["raw_latents"][3, 0] += np.float32(1e-6)
        file.attrs["sha256_raw_latents"] = checksum(file["raw_latents"][()])
    assert "raw_latents of image 3" in cli("verify", "d", code=1).stderr


def test_missing_images_are_named(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    list(list_shards(tmp_path / "d").values())[1].unlink()
    assert "images 5 to 9" in cli("verify", "d", code=1).stderr
    advice = cli("info", "d").stdout.splitlines()[3].removeprefix("to complete it: 3dident ")
    assert advice == "render --extend d"
    assert "images 5 to 9 and 12 to 19" in cli("verify", "d", "--n", 20, code=1).stderr
    assert "lacks images 5 to 9" in cli("pack", "d", "--out", "p.h5", code=2).stderr
    cli(*advice.split(), "--workers", 1)
    assert "all is well" in cli("verify", "d").stdout


def test_what_completes_a_dataset_is_what_the_error_says(cli, small_dataset, tmp_path):
    def lacking(name):
        next(iter(list_shards(tmp_path / name).values())).unlink()
        said = cli("info", "--json", name).stdout  # of it one can still be told
        assert json.loads(said)["missing"] == [[0, 4]]
        return cli("pack", name, "--out", "p.h5", code=2).stderr

    shutil.copytree(small_dataset, tmp_path / "my data")
    said = lacking("my data")
    assert "lacks images 0 to 4: `3dident verify` says what else is wrong; to complete it" in said
    command = said.split("run `3dident ")[1].split("`")[0]
    assert command == "render --extend 'my data'"
    cli(*shlex.split(command), "--workers", 1)
    cli("pack", "my data", "--out", "p.h5")

    cli("convert", small_dataset, "--to", "published", "--out", "p")
    (tmp_path / "p/3dident.json").unlink()  # what rendered it is not known
    cli("convert", "p", "--to", "shards", "--out", "imported", "--shard-size", 5)
    said = lacking("imported")
    assert "render --extend" not in said
    assert "import it again from what it was imported from (`3dident convert --to shards`)" in said
    cli("convert", "p", "--to", "shards", "--out", "imported", "--shard-size", 5)
    cli("pack", "imported", "--out", "q.h5")


def test_killed_at_random_moments_it_goes_on(cli, tmp_path):
    arguments = ("render", *SMALL, "--workers", 2, "--n", 40, "--shard-size", 5, "--out")
    moments = random.Random(4)
    for _ in range(3):
        process = start(*arguments, "killed", cwd=tmp_path)
        time.sleep(moments.uniform(0.8, 2.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    cli(*arguments, "killed")
    cli("verify", "killed", "--n", 40)
    cli(*arguments, "whole")
    assert same(tmp_path / "killed", tmp_path / "whole")
    assert not list((tmp_path / "killed").glob(".tmp-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_hand_it_says_how_to_go_on(tmp_path, number):
    process = start(
        *("render", "--quality", "reference", "--resolution", 128, "--workers", 1, "--n", 50),
        cwd=tmp_path,
    )
    while not (tmp_path / "data/3dident-reference-128/dataset.json").exists():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(2)  # within the first image
    asked = time.monotonic()
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < 10
    assert process.returncode == 130
    assert "to continue: 3dident render --quality reference" in err
    assert "Traceback" not in err
    assert "images" in out


@pytest.mark.parametrize(
    ("number", "after"),
    [(signal.SIGINT, 0.1), (signal.SIGINT, 0.8), (signal.SIGINT, 2.0), (signal.SIGTERM, 0.8)],
)
def test_stopped_with_all_its_processes_as_a_terminal_does(tmp_path, number, after):
    process = start("render", *SMALL, "--n", 3000, "--out", "d", "--workers", 4, cwd=tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        time.sleep(0.01)
    time.sleep(after)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    if number == signal.SIGINT or process.returncode != -signal.SIGTERM:
        assert process.returncode == 130, err
        if (tmp_path / "d" / "dataset.json").exists():  # a busy machine may not be there yet
            assert "to continue: 3dident render" in err


def test_two_runs_at_once_with_different_numbers(cli, tmp_path, small_dataset):
    cli(*RENDER, "--n", 12, "--out", "d")
    # The shorter run's last shard, beside the longer run's: 10-11 within 10-14.
    cli(*RENDER, "--n", 15, "--out", "f")
    short = "shard-00000010-00002.h5"
    shutil.copy(tmp_path / "d" / short, tmp_path / "f" / short)
    assert (tmp_path / "f" / "shard-00000010-00005.h5").exists()
    cli("verify", "f", "--n", 15)
    assert "15 images, 0 of them new" in cli(*RENDER, "--n", 15, "--out", "f").stdout
    cli("pack", "f", "--out", "f.h5")
    assert json.loads(cli("stats", "f").stdout)["images"] == 15


def test_altered_latents_are_rendered_again(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    from threedident.storage.shards import checksum

    path = next(iter(list_shards(tmp_path / "d").values()))
    with h5py.File(path, "a") as file:
        file["latents"][3, 0] += np.float32(1e-3)
        file.attrs["sha256_latents"] = checksum(file["latents"][()])
    cli("verify", "d", code=1)
    cli(*RENDER, "--n", 12, "--out", "d")
    cli("verify", "d", "--n", 12)
    assert same(tmp_path / "d", small_dataset)


def test_what_is_finished_when_it_is_stopped_is_kept(tmp_path):
    process = start("render", *SMALL, "--workers", 2, "--n", 2000, "--out", "d", cwd=tmp_path)
    while not list((tmp_path / "d").glob("shard-*")):
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    shards = list_shards(tmp_path / "d")
    have = sum(interval.count for interval in shards)
    assert f"{have} images, {have} of them new" in out
    assert 0 < have < 2000
    # Less than a whole shard, too: at most what two workers have in hand is lost.
    assert any(interval.count != 100 for interval in shards)


@pytest.fixture
def tiny_disk(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk(cli, tiny_disk, tmp_path):
    arguments = ("render", *SMALL, "--shard-size", 5, "--out", tiny_disk / "d", "--n")
    refused = cli(*arguments, 400, code=2).stderr
    assert "the disk is too full: this needs 0.00127 GB" in refused
    ballast = tiny_disk / "ballast"
    # Room for the manifest, the logs and a shard or two of the nine.
    free = shutil.disk_usage(tiny_disk).free
    cli(*arguments, 5)
    used = free - shutil.disk_usage(tiny_disk).free
    spare = shutil.disk_usage(tiny_disk).free - 9 * 15_500
    assert used > 15_000
    ballast.write_bytes(bytes(spare))
    full = cli(*arguments, 45, code=2).stderr
    assert "the disk is full" in full
    assert "finished shards are kept; to continue: 3dident render" in full
    finished = list_shards(tiny_disk / "d")
    assert len(finished) >= 1
    ballast.unlink()
    cli(*arguments, 45)
    cli("verify", tiny_disk / "d", "--n", 45)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--n", 0), "--n must be at least 1 and at most 100000000, found 0"),
        (("--n", 10**12), "found 1000000000000"),
        (("--timeout", "nan"), "--timeout"),
        (("--preset", "4dident"), "unknown preset '4dident': expected one of 3dident"),
        (("--preset", "missing.toml"), "no such file"),
        (("--fix", "hue=1"), "unknown factor 'hue'"),
        (("--fix", "x"), "FACTOR=VALUE"),
        (("--fix", "x=far"), "expected a number"),
        (("--fix", "x=1.5"), "raw value in [-1, 1]"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--device", "metal"), "no metal device found; here are: cpu"),
        (("--quality", "best"), "unknown quality 'best'"),
        (("--split", "dev"), "unknown split 'dev'"),
        (("--seed", -1), "seed"),
        (("--resolution", 1), "resolution"),
        (("--shape", "rabbit"), "unknown shape 'rabbit'"),
        (("--shape", "rabbit.obj"), "no such file"),
        (("--material", "gold"), "material must be one of rubber, metal, crystal"),
        (("--latents", "missing.npy"), "no such file"),
        (("--shard", "3/3"), "0 <= I < K"),
        (("--shard", "x"), "0 <= I < K"),
        (("--compression", "zip"), "unknown compression 'zip'"),
    ],
)
def test_bad_options(cli, tmp_path, options, message):
    assert message in cli("render", "--out", "d", *options, code=2).stderr
    assert not (tmp_path / "d").exists()


def test_directories_that_are_no_dataset(cli, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").write_text("mine")
    assert "is not empty and is no dataset" in cli(*RENDER, "--out", "foreign", code=2).stderr
    assert [p.name for p in (tmp_path / "foreign").iterdir()] == ["notes.txt"]
    (tmp_path / "file").write_text("")
    said = cli(*RENDER, "--out", "file", code=2).stderr
    assert "file is a file, not a directory: choose another --out" in said
    for name, text in (("garbage", "{"), ("other", '{"format": "x"}'), ("list", "[1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text(text)
        for words in ((*RENDER, "--out", name), ("info", name), ("verify", name), ("stats", name)):
            assert "dataset.json" in cli(*words, code=2).stderr
    assert "there is no such file or directory" in cli("verify", "missing", code=2).stderr


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder nobody can write to")
def test_an_unwritable_place(cli):
    assert "cannot write" in cli(*RENDER, "--n", 1, "--out", "/proc/dataset", code=2).stderr


def test_a_damaged_manifest_is_not_trusted(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    path = tmp_path / "d" / "dataset.json"
    text = path.read_text()
    path.write_text(text.replace('"seed": 0', '"seed": 1'))
    assert "fingerprint" in cli(*RENDER, "--out", "d", "--seed", 1, code=2).stderr
    data = json.loads(text)
    data["format_version"] = 99
    path.write_text(json.dumps(data))
    assert "format version 99" in cli("info", "d", code=2).stderr
    del data["settings"]["engine"]
    data["format_version"] = 1
    path.write_text(json.dumps(data))
    assert "damaged" in cli("info", "d", code=2).stderr
