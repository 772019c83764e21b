"""Does to a render what machines do to it, and prints a table of what happened.

    python benchmarks/hardening.py [--n 200] [--kills 50] [--engine direct] [--only kills]

Kills at random moments, a full disk, a read-only disk, render processes that segfault, a clock that
jumps. Each time the same command goes on until it is finished, and every array must then equal
that of a render left in peace. What this system does not allow is skipped, and said so: small
disks need root, the clock needs Debian's libfaketime (or its path in LIBFAKETIME).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
from crashing import CRASH_AT, Crashing

from threedident.presets import load_preset
from threedident.render import job, settings
from threedident.render.executors.local import LocalExecutor
from threedident.render.executors.process_pool import WorkerPool
from threedident.render.settings import EngineSettings
from threedident.storage.directory import DatasetDir
from threedident.storage.shards import ARRAYS, list_shards

COMMAND = str(Path(sys.executable).with_name("3dident"))
SHARD = 5  # images
RESOLUTION, WORKERS = 16, 2
FEW = 60  # images of which some crash
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"


class Skip(Exception):
    """This system does not allow a trial; says why."""


class Render:
    """One dataset, rendered by the command line.

    Attributes:
        command: that renders it.
        root: where.
    """

    def __init__(self, engine: str, n: int, root: Path) -> None:
        self.root, self.n = root, n
        self.command = [COMMAND, "render", "--engine", engine, "--quality", "draft", "--device"]
        self.command += ["cpu", "--resolution", RESOLUTION, "--shard-size", SHARD, "--n", n]
        self.command += ["--workers", WORKERS, "--out", root]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            list(map(str, self.command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )

    def finish(self) -> None:
        """Goes on until everything is there, and checks it."""
        process = self.start()
        said, _ = process.communicate()
        assert process.returncode == 0, said
        subprocess.run(
            [COMMAND, "verify", self.root, "--n", str(self.n)], check=True, capture_output=True
        )

    def have(self) -> int:
        """Images in finished shards."""
        return sum(i.count for i in list_shards(self.root)) if self.root.exists() else 0

    def wait_for(
        self, images: int, process: subprocess.Popen[str], seconds: float = math.inf
    ) -> None:
        """Until so many images are in shards, the render has ended, or the time is over."""
        end = time.monotonic() + seconds
        while self.have() < images and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)

    def digest(self) -> str:
        """Of the arrays of its images, in order, whatever the shards and the images after them."""
        total = hashlib.sha256()
        for name in ARRAYS:
            for interval, path in list_shards(self.root).items():
                with h5py.File(path) as file:
                    total.update(file[name][: max(0, self.n - interval.first)].tobytes())
        return total.hexdigest()

    def leftovers(self) -> int:
        """Temporary files that are still there."""
        return sum(path.name.startswith(".tmp") for path in self.root.iterdir())


class Trial:
    """What the trials share: a folder, chance, and a dataset that was rendered in peace."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.random = random.Random(arguments.seed)
        self.calm = self.render(folder / "calm")
        began = time.monotonic()
        self.calm.finish()
        self.seconds = time.monotonic() - began

    def render(self, root: Path, n: int | None = None) -> Render:
        return Render(self.arguments.engine, n or self.arguments.n, root)

    def compare(self, render: Render) -> str:
        """Finishes a dataset and says how it compares with the calm one."""
        render.finish()
        self.check(render)
        return "the same command finished it, bit-identical"

    def check(self, render: Render) -> None:
        """Checks that a dataset is the calm one, or the beginning of it."""
        calm = Render(self.arguments.engine, render.n, self.calm.root)
        assert render.digest() == calm.digest(), f"{render.root} differs"
        assert not render.leftovers(), f"{render.root} holds temporary files"


def workers_of(pid: int) -> list[int]:
    """The render processes of a render (Linux; else none)."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(c) for c in children if b"child.py" in Path(f"/proc/{c}/cmdline").read_bytes()]
    return []


def ended(process: subprocess.Popen[str], code: int, *words: str) -> str:
    """Waits for a render that must fail in the way expected; returns its last words."""
    said, _ = process.communicate()
    assert process.returncode == code and "Traceback" not in said, f"{process.returncode}\n{said}"
    for each in words:
        assert each in said, said
    return next(line for line in said.splitlines() if words[0] in line)


def kills(trial: Trial) -> tuple[str, str]:
    """SIGKILL to all processes at once or to one worker, at random moments."""
    all_at_once = one_worker = finished = 0
    render = trial.render(trial.folder / "killed-0")
    process = render.start()
    while all_at_once + one_worker < trial.arguments.kills:
        more = trial.random.randrange(trial.arguments.n // 4)
        at_most = trial.random.uniform(0.02, 0.5) * trial.seconds
        render.wait_for(render.have() + more, process, at_most)
        time.sleep(trial.random.uniform(0, 0.5))
        if process.poll() is not None:  # it was faster: the next one, from the beginning
            process.communicate()
            trial.compare(render)
            finished += 1
            render = trial.render(trial.folder / f"killed-{finished}")
            process = render.start()
            continue
        workers = workers_of(process.pid)
        if workers and trial.random.random() < 0.3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(trial.random.choice(workers), signal.SIGKILL)
                one_worker += 1
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        all_at_once += 1
        say(f"killed {all_at_once} + {one_worker} times, {render.have()} images in shards")
        process = render.start()
    process.communicate()
    trial.compare(render)
    done = f"{all_at_once} SIGKILLs to all processes, {one_worker} to one worker, at random moments"
    return done, (
        f"finished shards stayed; {finished + 1} dataset(s) finished by the same command, each "
        "bit-identical to the calm one; no temporary file left"
    )


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory."""
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skip("mounting a small file system is not allowed here (it needs root)") from error
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def full_disk(trial: Trial) -> tuple[str, str]:
    """Somebody else fills the disk while it renders."""
    with small_disk(trial.folder / "full", "16m") as disk:
        render, ballast = trial.render(disk / "d"), disk / "ballast"
        process = render.start()
        render.wait_for(trial.arguments.n // 4, process)
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        said = ended(process, 2, "the disk is full")
        have = render.have()
        assert have >= trial.arguments.n // 4, have
        refused = ended(render.start(), 2, "disk")
        ballast.unlink()
        then = trial.compare(render)
    return (
        "a tmpfs of 16 MB, filled by others after a quarter of the images",
        f"exit 2, `{short(said)}`; {have} images stayed; with the disk still full again exit 2, "
        f"`{short(refused)}`; with room {then}",
    )


def read_only_disk(trial: Trial) -> tuple[str, str]:
    """A disk that is mounted read-only between two runs."""
    with small_disk(trial.folder / "readonly", "16m") as disk:
        render = trial.render(disk / "d")
        process = render.start()
        render.wait_for(trial.arguments.n // 4, process)
        process.send_signal(signal.SIGINT)
        process.communicate()
        have = render.have()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        said = ended(render.start(), 2, "cannot write")
        assert render.have() == have
        new = ended(trial.render(disk / "new").start(), 2, "cannot write")
        read = subprocess.run([COMMAND, "info", disk / "d"], check=True, capture_output=True)
        assert read.stdout
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        then = trial.compare(render)
    return (
        "a tmpfs that is remounted read-only between two runs",
        f"going on: exit 2, `{short(said)}`; a new dataset: exit 2, `{short(new)}`; `info` "
        f"reads it all the same; writable again, {then}",
    )


def read_only_within(trial: Trial) -> tuple[str, str]:
    """The folder of a dataset cannot be written to from one moment on."""
    render = trial.render(trial.folder / "immutable")
    process = render.start()
    render.wait_for(trial.arguments.n // 4, process)
    closed = closing(render.root)
    try:
        said = ended(process, 2, "cannot write")
        have = render.have()
    finally:
        closed()
    then = trial.compare(render)
    return (
        "the dataset's folder made immutable (root) or unwritable while it renders",
        f"exit 2, `{short(said)}`; {have} images stayed; writable again, {then}",
    )


def closing(root: Path) -> Callable[[], object]:
    """Makes a folder unwritable; returns what undoes that."""
    if os.geteuid() != 0:
        root.chmod(0o555)
        return lambda: root.chmod(0o755)
    try:  # permissions say nothing to root
        subprocess.run(["chattr", "+i", root], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skip("root is kept out of immutable folders alone, which are not here") from error
    return lambda: subprocess.run(["chattr", "-i", root], check=True)


def crash(trial: Trial, how: str) -> tuple[Render, job.Summary, int]:
    """Renders with the engine that segfaults; also how many images it crashed at."""
    render = trial.render(trial.folder / f"crash-{how}", FEW)
    marks = trial.folder / f"marks-{how}"
    marks.mkdir()
    os.environ[CRASH_AT] = f"{marks}:{how}"
    engine = EngineSettings(
        load_preset("3dident"),
        resolution=RESOLUTION,
        quality="draft",
        engine=trial.arguments.engine,
        version=settings.probe(trial.arguments.engine).version,
    )
    about = settings.dataset_settings(engine, seed=0, split="train")
    dataset = DatasetDir.create_or_open(
        render.root,
        about,
        shard_size=SHARD,
        compression="none",
        about=engine.preset.about(),
    )
    pool = job.WorkerPool
    job.WorkerPool = functools.partial(WorkerPool, factory=Crashing)  # type: ignore[assignment,misc]
    try:
        options = job.JobOptions(workers=WORKERS)
        with contextlib.redirect_stderr(io.StringIO()):
            summary = job.run_job(dataset, FEW, engine, options, LocalExecutor())
    finally:
        job.WorkerPool = pool  # type: ignore[misc]
    return render, summary, len(list(marks.iterdir()))


def segfaults(trial: Trial) -> tuple[str, str]:
    """Render processes that segfault once at a twentieth of the images."""
    render, summary, crashes = crash(trial, "once")
    assert crashes and not summary.failed, summary
    trial.check(render)
    return (
        f"workers that read address 0, once at each of {crashes} of {FEW} images",
        f"replaced {crashes} times, {summary.rendered} images rendered, none failed, bit-identical",
    )


def segfaults_always(trial: Trial) -> tuple[str, str]:
    """Images at which every render process segfaults."""
    render, summary, crashes = crash(trial, "always")
    assert len(summary.failed) == crashes > 0
    assert all("SIGSEGV" in reason for reason in summary.failed.values()), summary
    assert render.have() == FEW - crashes
    then = trial.compare(render)
    return (
        f"the same, every time at these {crashes} images",
        f"each tried three times and reported (`{short(next(iter(summary.failed.values())))}`), "
        f"the other {FEW - crashes} finished; without the fault, {then}",
    )


def clock(trial: Trial) -> tuple[str, str]:
    """The system's time jumps by years, both ways, every few moments."""
    found = [os.environ.get("LIBFAKETIME", ""), *map(str, Path("/").glob(FAKETIME[1:]))]
    library = next((path for path in found if path and Path(path).exists()), None)
    if library is None:
        raise Skip("libfaketime is not there (Debian: apt-get install libfaketime)")
    now = trial.folder / "now"
    now.write_text("+0")
    render = trial.render(trial.folder / "clock")
    process = render.start(
        LD_PRELOAD=library,
        FAKETIME_TIMESTAMP_FILE=str(now),
        FAKETIME_NO_CACHE="1",
        # A clock that is set anew does not change the time since the machine was started.
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        NO_FAKE_STAT="1",
    )
    jumps, seen = 0, 0
    while process.poll() is None:
        time.sleep(0.1)
        have = render.have()
        if have > seen or not have:  # also before it has started
            seen = have
            now.write_text(trial.random.choice(("+10y", "-10y", "+1d", "-1d", "+0", "+400s")))
            jumps += have > 0
    said, _ = process.communicate()
    assert process.returncode == 0 and "Traceback" not in said, said
    assert jumps, said
    then = trial.compare(render)
    return (
        f"{jumps} jumps of the system's time, from 400 s to 10 years, forwards and backwards",
        f"it rendered on, no worker was taken for hanging; {then}",
    )


TRIALS = {
    "kills": kills,
    "full disk": full_disk,
    "read-only disk": read_only_disk,
    "read-only meanwhile": read_only_within,
    "segfault": segfaults,
    "segfault always": segfaults_always,
    "clock": clock,
}


def short(text: str) -> str:
    """An error without the names of temporary folders."""
    text = " ".join(text.replace("|", "/").split())
    words = [Path(w).name if w.startswith("/") else w for w in text.removeprefix("error: ").split()]
    return " ".join(words)[:160]


def say(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=200, help=f"images, at least {FEW}")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--engine", default="direct")
    parser.add_argument("--only", choices=TRIALS, action="append")
    arguments = parser.parse_args()
    held = True
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(arguments, Path(folder))
        say(f"undisturbed: {trial.seconds:.1f} s")
        print("| trial | what was done | what happened |")
        print("| --- | --- | --- |")
        for name in arguments.only or TRIALS:
            try:
                done, happened = TRIALS[name](trial)
            except Skip as reason:
                done, happened = "skipped", str(reason)
            except AssertionError as error:
                done, happened, held = "FAILED", str(error).replace("\n", " "), False
            print(f"| {name} | {done} | {happened} |", flush=True)
    sys.exit(not held)


if __name__ == "__main__":
    main()
