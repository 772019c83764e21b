"""Rendering on a Ray cluster of several node processes on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers.commands import command, without

from threedident.errors import MissingExtraError
from threedident.storage.shard_plan import list_shards
from threedident.storage.shard_record import ARRAYS

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    # A cluster takes long to start, and longer where `make check` keeps the machine busy.
    pytest.mark.slow,
]

IMAGES, SHARD = 600, 15
RENDER = ("render", "--engine", "direct", "--quality", "draft", "--resolution", 24)
JOB = (*RENDER, "--n", IMAGES, "--shard-size", SHARD, "--out")
# Not nice: beside other work its tasks would hardly run.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
#: A dead node is noticed within a second, not within 15.
ALERT = {"health_check_period_ms": 200, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and another node, with a processor each."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"ray\.")
        for name, value in QUIET.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        for attempt in range(3):  # a node that takes more than 30 s to start is an error to Ray
            made = Cluster()
            try:
                made.add_node(num_cpus=1, include_dashboard=False, _system_config=ALERT)
                made.other = made.add_node(num_cpus=1)
                break
            except Exception:
                made.shutdown()
                if attempt == 2:
                    raise
        try:
            yield made
        finally:
            made.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("local") / "dataset"
    subprocess.run([*command(), *map(str, JOB), str(root)], check=True, capture_output=True)
    return root


class Driver:
    """`3dident render --executor ray`, started."""

    def __init__(self, cluster: Any, out: Path, *options: object) -> None:
        words = (*JOB, out, "--executor", "ray", "--address", cluster.address, *options)
        self.out = out
        self.process = subprocess.Popen(
            [*command(), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET},
        )

    def wait_for_shards(self, count: int) -> int:
        """Until so many are there; returns how many there are, less than all of them."""
        until = time.monotonic() + 400
        while (have := len(list(self.out.glob("shard-*.h5")))) < count:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        assert have < IMAGES // SHARD
        return have

    def end(self, code: int = 0) -> tuple[str, str]:
        out, err = self.process.communicate(timeout=500)
        assert "Traceback" not in err, err
        assert self.process.returncode == code, out + err
        return out, err


def digests(root: Path) -> dict[str, list[Any]]:
    """Every array of every shard, and the digests beside it."""
    found: dict[str, list[Any]] = {}
    for path in list_shards(root).values():
        with h5py.File(path) as file:
            found[path.name] = [
                value
                for name in ARRAYS
                for value in (file[name][()].tobytes(), file.attrs[f"sha256_{name}"])
            ]
    return found


def same(root: Path, local: Path) -> bool:
    stats = [(folder / "stats.json").read_text() for folder in (root, local)]
    return digests(root) == digests(local) and stats[0] == stats[1]


def test_a_node_that_is_killed_half_way_loses_nothing(
    cluster: Any, local: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    driver = Driver(cluster, tmp_path / "d")
    driver.wait_for_shards(8)
    cluster.remove_node(cluster.other, allow_graceful=False)
    have = driver.wait_for_shards(1)
    out, err = driver.end()
    print(f"killed a node at {have} of {IMAGES // SHARD} shards\n{err}{out}")
    assert f"{IMAGES} images, {IMAGES} of them new" in out
    assert "of the Ray cluster is gone; its shards go to the 1 that can render" in err
    assert same(tmp_path / "d", local)
    cli("verify", "d", "--n", IMAGES)
    assert "0 of them new" in cli(*JOB, "d").stdout


def test_a_driver_that_is_killed_or_stopped_goes_on(
    cluster: Any, local: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    driver = Driver(cluster, tmp_path / "d")
    driver.wait_for_shards(5)
    # Meanwhile the directory is the driver's.
    said = cli(*JOB, "d", code=2).stderr
    assert f"another process writes to d (all of it): pid {driver.process.pid} on " in said
    driver.process.kill()
    driver.process.communicate()

    driver = Driver(cluster, tmp_path / "d")
    driver.wait_for_shards(len(list_shards(tmp_path / "d")) + 3)
    driver.process.send_signal(signal.SIGINT)
    out, err = driver.end(130)
    assert "to continue: 3dident render --engine direct" in err
    # Every shard from its start on; those that were interrupted may be in parts, without a gap.
    shards = list_shards(tmp_path / "d")
    ends = {interval.stop for interval in shards}
    assert all(interval.first % SHARD == 0 or interval.first in ends for interval in shards)
    have = sum(interval.count for interval in list_shards(tmp_path / "d"))
    assert f"{have} images, " in out and have < IMAGES

    out, _ = Driver(cluster, tmp_path / "d").end()
    assert f"{IMAGES} images, {IMAGES - have} of them new" in out
    arrays = []
    for root in (tmp_path / "d", local):
        files = [h5py.File(path) for path in list_shards(root).values()]
        arrays.append({name: np.concatenate([file[name][()] for file in files]) for name in ARRAYS})
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in ARRAYS)
    assert not list((tmp_path / "d").glob(".tmp-*"))


def test_what_the_cluster_lacks_is_said(cluster: Any, tmp_path: Path, monkeypatch: Any) -> None:
    _, err = Driver(cluster, tmp_path / "d", "--threads", 64).end(1)
    assert "no node of the Ray cluster has 64 CPU(s) for a render process; its nodes: " in err
    _, err = Driver(cluster, tmp_path / "d", "--device", "cuda").end(1)
    assert "no node of the Ray cluster has 1 CPU(s) and a GPU" in err
    assert not (tmp_path / "d").exists()


def test_a_disk_that_is_not_shared(tmp_path: Path, local: Path) -> None:
    from threedident.errors import DatasetError
    from threedident.render.executors import ray as cluster
    from threedident.render.job import JobOptions
    from threedident.render.settings import EngineSettings
    from threedident.storage.directory import DatasetDir

    # A node where the same dataset lies, but on another disk: it lacks the driver's mark.
    dataset = DatasetDir.open(local)
    preset = dataset.manifest.preset
    assert preset is not None
    engine = EngineSettings(preset, 24, "draft", "cpu", "direct")
    job = cluster._NodeJob(str(local), "mark", "", "", engine, JobOptions(1))
    with pytest.raises(
        DatasetError, match=r"does not see the dataset directory .* all nodes share"
    ):
        cluster._Renderer(job)


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("127.0.0.1:1", 1, "no Ray cluster can be reached at 127.0.0.1:1"),
        ("no-such-host.invalid:6379", 1, "no Ray cluster can be reached at no-such-host.invalid"),
        ("ray://127.0.0.1:10001", 2, "--address expects HOST:PORT"),
        ("here", 2, "--address expects HOST:PORT"),
    ],
)
def test_bad_addresses(cli: Any, tmp_path: Path, address: str, code: int, message: str) -> None:
    said = cli(*JOB, "d", "--executor", "ray", "--address", address, code=code).stderr
    assert message in said
    assert not (tmp_path / "d").exists()


def test_without_ray(tmp_path: Path) -> None:
    words = ["render", "--out", str(tmp_path / "d"), "--executor", "ray"]
    done = without("ray", f"from threedident.cli import main\nmain({words!r})")
    assert done.returncode == MissingExtraError.exit_code
    assert done.stderr.count("\n") == 1
    assert "needs ray, which is not installed: pip install '.[cluster]' in" in done.stderr


def test_options_that_do_not_fit(cli: Any) -> None:
    assert "add --executor ray" in cli(*JOB, "d", "--address", "a:1", code=2).stderr
    both = cli(*JOB, "d", "--executor", "ray", "--estimate", code=2).stderr
    assert "leave out --executor ray" in both


def seconds(text: str) -> float:
    """What `format_seconds` wrote."""
    whole = 0
    for part in text.removesuffix(" s").split(":"):
        whole = 60 * whole + int(part)
    return whole


def test_an_estimate_before_the_start(cli: Any, tmp_path: Path, local: Path) -> None:
    said = cli(*JOB, "d", "--estimate", "--workers", 1).stdout
    assert not list(tmp_path.iterdir())
    lines = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    assert lines["to be rendered"] == f"{IMAGES} images, {IMAGES // SHARD} shards"
    mean, interval = lines["time"].split(" (95 % interval ")
    low, high = interval.split(";")[0].split(" to ")
    assert 0 < seconds(low) <= seconds(mean) <= seconds(high)
    size = sum(path.stat().st_size for path in local.glob("shard-*.h5"))
    assert float(lines["disk"].split(" GB")[0]) == pytest.approx(size / 1e9, rel=0.01)
    # What is there needs no rendering; other settings are refused as by a render.
    shutil.copytree(local, tmp_path / "d")
    next(iter(list_shards(tmp_path / "d").values())).unlink()
    before = sorted(path.name for path in (tmp_path / "d").rglob("*"))
    said = cli(*JOB, "d", "--estimate", "--workers", 1).stdout
    assert f"to be rendered: {SHARD} images, 1 shards" in said
    assert sorted(path.name for path in (tmp_path / "d").rglob("*")) == before
    assert "seed" in cli(*JOB, "d", "--estimate", "--seed", 1, code=2).stderr
    assert "are there" in cli(*JOB, local, "--estimate").stdout


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    from threedident.render.estimate import Measured

    random = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        _, low, high = Measured(1, 0.0, random.normal(1, 0.2, 6), 0.0, 0).mean()
        hits += low <= 1 <= high
    assert hits / 2000 == pytest.approx(0.95, abs=0.02)
