"""A render job: what it makes, and what stays when it is killed, stopped, or the disk is full."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.commands import SMALL, command
from helpers.renders import QUICK, RENDER, content, same, start

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.storage.shard_plan import list_shards


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
    assert manifest["settings"]["engine"]["version"].startswith(("4.5.", "5.0."))
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
    from threedident.storage.shard_record import checksum

    path = next(iter(list_shards(tmp_path / "d").values()))
    with h5py.File(path, "a") as file:
        file["raw_latents"][3, 0] += np.float32(1e-6)
        file.attrs["sha256_raw_latents"] = checksum(file["raw_latents"][()])
    assert "raw_latents of image 3" in cli("verify", "d", code=1).stderr


def test_altered_latents_are_rendered_again(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    from threedident.storage.shard_record import checksum

    path = next(iter(list_shards(tmp_path / "d").values()))
    with h5py.File(path, "a") as file:
        file["latents"][3, 0] += np.float32(1e-3)
        file.attrs["sha256_latents"] = checksum(file["latents"][()])
    cli("verify", "d", code=1)
    cli(*RENDER, "--n", 12, "--out", "d")
    cli("verify", "d", "--n", 12)
    assert same(tmp_path / "d", small_dataset)


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
    (temporary := tmp_path / "temporary").mkdir()
    process = start(
        *("render", "--quality", "reference", "--resolution", 128, "--workers", 1, "--n", 50),
        cwd=tmp_path,
        TMPDIR=str(temporary),
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
    assert list(temporary.iterdir()) == []


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
