"""`3dident render` as a user meets it: whole datasets, interruptions, errors."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import SMALL, command

from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.shards import list_shards
from threedident.store import DatasetDir

RENDER = ("render", *SMALL, "--shard-size", 5)


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
    cli(*RENDER, "--n", 4, "--out", "d")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "d").glob("shard-*")}
    manifest = (tmp_path / "d/dataset.json").read_text()
    cli(*RENDER, "--n", 12, "--out", "d")
    assert same(tmp_path / "d", small_dataset)
    for name, when in before.items():
        assert (tmp_path / "d" / name).stat().st_mtime_ns == when
    assert (tmp_path / "d/dataset.json").read_text() == manifest
    done = cli(*RENDER, "--n", 3, "--out", "d")
    assert "12 images, 0 of them new" in done.stdout


def _ask_for(root: Path, counts: list[int]) -> None:
    dataset = DatasetDir.open(root)
    for count in counts:
        dataset.record_wanted(count)


def test_the_largest_number_of_images_ever_asked_for_is_recorded(cli, tmp_path, small_dataset):
    root = tmp_path / "d"
    shutil.copytree(small_dataset, root)
    dataset = DatasetDir.open(root)
    assert dataset.wanted() == 12
    (root / "wanted.json").unlink()
    assert dataset.wanted() is None  # as in datasets of older versions
    manifest = (root / "dataset.json").read_text()
    for asked, wanted in ((14, 14), (3, 14)):
        cli(*RENDER, "--n", asked, "--out", "d")
        assert dataset.wanted() == wanted
    assert (root / "dataset.json").read_text() == manifest
    # An estimate asks for nothing.
    cli(*RENDER, "--n", 15, "--out", "d", "--estimate")
    assert dataset.wanted() == 14
    cli("verify", "d", "--n", 14)


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


@pytest.mark.parametrize("text", ["{", "[1]", '{"images": 0}', '{"images": true}', "{}"])
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
    np.save(tmp_path / "raw.npy", raw)
    cli("render", *SMALL, "--latents", "raw.npy", "--fix", "z=0", "--fix", "phi=-0.5", "--out", "d")
    found = content(tmp_path / "d")["raw_latents"]
    assert (found[:, 2] == 0).all()
    assert (found[:, 3] == -0.5).all()
    assert np.array_equal(np.delete(found, [2, 3], 1), np.delete(raw, [2, 3], 1).astype(np.float32))
    cli("verify", "d")
    again = ("render", *SMALL, "--fix", "z=0", "--fix", "phi=-0.5", "--out", "d", "--latents")
    cli(*again, "raw.npy", "--n", 2)
    np.save(tmp_path / "raw.npy", -raw)
    assert "latents.sha256" in cli(*again, "raw.npy", code=2).stderr
    assert "more than the 3 rows" in cli(*again, "raw.npy", "--n", 4, code=2).stderr


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
        (("--quality", "standard"), ["engine.quality", "engine.ground_samples"]),
        (("--resolution", 40), ["resolution: the dataset has 32, this command 40"]),
        (("--shard-size", 6), ["shard_size: the dataset has 5, this command 6"]),
    ):
        stderr = cli("render", *SMALL, "--n", 14, "--out", "d", *options, code=2).stderr
        assert all(name in stderr for name in names), stderr
        assert "It was made by: 3dident render --n 12" in stderr
    assert same(tmp_path / "d", small_dataset)


def test_another_device_is_refused_unless_asked_for(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    path = tmp_path / "d" / "dataset.json"
    # A dataset begun on a GPU, its fingerprint as it would have been there.
    from threedident.store import Manifest, read_manifest

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
    from threedident.shards import checksum

    path = next(iter(list_shards(tmp_path / "d").values()))
    with h5py.File(path, "a") as file:
        file["raw_latents"][3, 0] += np.float32(1e-6)
        file.attrs["sha256_raw_latents"] = checksum(file["raw_latents"][()])
    assert "raw_latents of image 3" in cli("verify", "d", code=1).stderr


def test_missing_images_are_named(cli, small_dataset, tmp_path):
    shutil.copytree(small_dataset, tmp_path / "d")
    list(list_shards(tmp_path / "d").values())[1].unlink()
    assert "images 5 to 9" in cli("verify", "d", code=1).stderr
    assert "images 12 to 19" in cli("verify", "d", "--n", 20, code=1).stderr
    assert "lacks images 5 to 9" in cli("pack", "d", "--out", "p.h5", code=2).stderr


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
        *("render", "--quality", "reference", "--resolution", 128, "--workers", 1),
        *("--n", 50, "--out", "d"),
        cwd=tmp_path,
    )
    while not (tmp_path / "d" / "dataset.json").exists():
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
    from threedident.shards import checksum

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
    assert "cannot write" in cli(*RENDER, "--out", "file", code=2).stderr
    for name, text in (("garbage", "{"), ("other", '{"format": "x"}'), ("list", "[1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text(text)
        for words in ((*RENDER, "--out", name), ("info", name), ("verify", name), ("stats", name)):
            assert "dataset.json" in cli(*words, code=2).stderr
    assert "is not a directory" in cli("verify", "missing", code=2).stderr


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
