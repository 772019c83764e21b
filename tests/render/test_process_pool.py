import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import faulty_engine as faulty

from threedident.errors import MissingExtraError, RenderError, UsageError
from threedident.presets import load_preset
from threedident.render.executors.process_pool import Done, Failed, Task, WorkerPool
from threedident.render.executors.processes import ChildProcess, call_in_process
from threedident.render.settings import EngineSettings

SETTINGS = EngineSettings(load_preset("3dident"), resolution=8)


def tasks(faults, count=20):
    for i in range(count):
        yield Task(i, np.array([i, faults.get(i, 0.0)], np.float32))


def run(tmp_path, faults, count=20, stop=None, **options):
    options = {"workers": 2, "factory": faulty.FaultyEngine, "timeout": 60.0, **options}
    with WorkerPool(SETTINGS, log_dir=tmp_path, **options) as pool:
        results = list(pool.run(tasks(faults, count), count, stop))
    done = {r.index: r.image for r in results if isinstance(r, Done)}
    failed = {r.index: r.reason for r in results if isinstance(r, Failed)}
    assert len(done) + len(failed) == len(results)
    return done, failed


def test_every_image_arrives_once(tmp_path):
    done, failed = run(tmp_path, {}, count=50)
    assert not failed
    assert sorted(done) == list(range(50))
    assert all((image == index).all() for index, image in done.items())
    # The logs do not grow with the images.
    logs = [path.read_text() for path in tmp_path.glob("worker-*.log")]
    assert logs
    assert all(text.count("painting") <= 1 for text in logs)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(faulty.CRASH, "SIGSEGV"), (faulty.RAISE, "no such luck")],
)
def test_an_image_that_always_fails_is_reported_and_the_rest_is_rendered(tmp_path, fault, reason):
    done, failed = run(tmp_path, {3: fault, 11: fault})
    assert sorted(failed) == [3, 11]
    assert all(reason in text for text in failed.values())
    assert sorted(done) == sorted(set(range(20)) - {3, 11})
    if fault == faulty.RAISE:
        kept = [path.read_text() for path in tmp_path.glob("worker-*-failed.log")]
        assert all("RuntimeError: no such luck" in text for text in kept)
        assert kept


def test_a_worker_that_hangs_is_replaced(tmp_path):
    started = time.monotonic()
    done, failed = run(tmp_path, {5: faulty.HANG}, count=8, timeout=1.5)
    assert list(failed) == [5]
    assert "1.5 s" in failed[5]
    assert sorted(done) == [0, 1, 2, 3, 4, 6, 7]
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("fault", [faulty.CRASH, faulty.HANG, faulty.RAISE, faulty.CRASH_ONCE])
def test_of_images_made_at_once_the_one_that_fails_is_named(tmp_path, fault):
    options = {"factory": faulty.BatchingEngine, "workers": 1}
    if fault == faulty.HANG:
        options["timeout"] = 1.5
    bad = [5] if fault == faulty.HANG else [5, 6]
    done, failed = run(tmp_path, dict.fromkeys(bad, fault), **options)
    assert sorted(failed) == ([] if fault == faulty.CRASH_ONCE else bad)
    assert sorted(done) == sorted(set(range(20)) - set(failed))
    assert all((image == index).all() for index, image in done.items())


def test_large_images_made_at_once_come_in_several_messages(tmp_path):
    settings = EngineSettings(load_preset("3dident"), resolution=512)  # 786 KB an image
    options = {"workers": 1, "factory": faulty.BatchingEngine}
    with WorkerPool(settings, log_dir=tmp_path, **options) as pool:
        results = list(pool.run(tasks({}, 7), 7))
    assert [result.index for result in results] == list(range(7))
    assert all((result.image == result.index).all() for result in results)


def test_an_image_that_fails_once_is_tried_again(tmp_path):
    done, failed = run(tmp_path, {4: faulty.CRASH_ONCE, 9: faulty.CRASH_ONCE})
    assert not failed
    assert sorted(done) == list(range(20))
    lost = [path.read_text() for path in tmp_path.glob("worker-*-lost.log")]
    assert any(text in ("painting 4\n", "painting 9\n") for text in lost)


def test_workers_are_replaced_after_a_number_of_images(tmp_path, monkeypatch):
    starts = []
    start = WorkerPool._start
    monkeypatch.setattr(
        WorkerPool, "_start", lambda self, slot: starts.append(slot) or start(self, slot)
    )
    done, _ = run(tmp_path, {}, count=30, workers=1, images_per_worker=10)
    assert len(done) == 30
    assert starts == [0, 0, 0]


def test_kept_workers_render_run_after_run(tmp_path):
    options = {"workers": 1, "images_per_worker": 25, "factory": faulty.FaultyEngine}
    with WorkerPool(SETTINGS, log_dir=tmp_path, keep=True, **options) as pool:
        for starts in (1, 1, 2):  # the third run needs a fresh one
            done = list(pool.run(tasks({}, 10), 10))
            assert [result.index for result in done] == list(range(10))
            assert len(pool.starts) == starts
        os.kill(pool._workers[0].process.pid, signal.SIGKILL)
        assert len(list(pool.run(tasks({}, 10), 10))) == 10


def test_a_worker_killed_from_outside(tmp_path):
    with WorkerPool(SETTINGS, workers=2, log_dir=tmp_path, factory=faulty.FaultyEngine) as pool:
        seen, killed = set(), 0
        slow = dict.fromkeys(range(30), faulty.SLOW)
        for result in pool.run(tasks(slow, 30), 30):
            seen.add(result.index)
            if len(seen) in (5, 12) and killed < 2:
                os.kill(pool._workers[0].process.pid, signal.SIGKILL)
                killed += 1
    assert killed == 2
    assert seen == set(range(30))


def test_a_worker_killed_in_the_middle_of_an_image(tmp_path):
    # A megabyte does not fit a pipe: the worker waits for us to read while it is killed.
    settings = EngineSettings(load_preset("3dident"), resolution=600)
    with WorkerPool(settings, workers=1, log_dir=tmp_path, factory=faulty.FaultyEngine) as pool:
        seen = []
        for result in pool.run(tasks({}, 12), 12):
            seen.append(result.index)
            if len(seen) == 3:
                time.sleep(0.5)
                os.kill(pool._workers[0].process.pid, signal.SIGKILL)
    assert sorted(seen) == list(range(12))


def test_stopping_takes_seconds(tmp_path):
    stop = threading.Event()
    threading.Timer(2.0, stop.set).start()
    started = time.monotonic()
    done, _ = run(tmp_path, dict.fromkeys(range(2, 20), faulty.HANG), stop=stop)
    assert time.monotonic() - started < 8
    assert set(done) <= {0, 1}


def test_an_engine_that_cannot_start(tmp_path):
    with pytest.raises(RenderError, match="libgl1 is missing"):
        run(tmp_path, {}, factory=faulty.broken)
    with pytest.raises(RenderError, match=r"3 render processes in a row.*exit code 3"):
        run(tmp_path, {}, factory=faulty.dead)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("threedident.render.executors.process_pool.MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "3dident-scratch-999999999-old").mkdir()
    run(tmp_path, {2: faulty.CRASH})
    assert list((tmp_path / "memory").iterdir()) == []


def test_calls_in_another_process():
    assert call_in_process(max, 3, 5) == 5
    with pytest.raises(UsageError, match="wrong"):
        call_in_process(faulty.raise_usage)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[render\]'"):
        call_in_process(faulty.raise_missing)
    with pytest.raises(RenderError, match="ZeroDivisionError"):
        call_in_process(divmod, 1, 0)
    with pytest.raises(RenderError, match="exit code 4"):
        call_in_process(os._exit, 4)


# --- processes that do not run the caller's main module

ARGUMENTS = "(np.zeros((2, 10)), '3dident', resolution=16, quality='draft', "
UNGUARDED = {
    "images": "from threedident.render.images import render_images\n"
    f"x = render_images{ARGUMENTS}engine='direct', device='cpu', workers=1)\n"
    "print('done', x.shape)\n",
    "pairs": "from threedident.datasets import Normal, RenderedPairs\n"
    "pairs = RenderedPairs(None, Normal(0.1), resolution=16, quality='draft', batch_size=2, "
    "workers=1)\n"
    "(z, z_tilde), (x, x_tilde) = pairs.batch(0, 0)\n"
    "print('done', tuple(x.shape))\n",  # and does not close them
}


@pytest.mark.parametrize(
    ("what", "way"), [("images", "file"), ("pairs", "file"), ("images", "standard input")]
)
def test_scripts_need_no_guard(tmp_path, what, way):
    code = f"import numpy as np\nprint('the main module runs')\n{UNGUARDED[what]}"
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", script if way == "file" else "-"],
        input=code,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done (2, " in done.stdout
    assert done.stdout.count("the main module runs") == 1
    # On a busy machine there are lines of progress.
    said = [line for line in done.stderr.splitlines() if not line.startswith("rendering: ")]
    assert said == []


def test_what_the_main_script_defines_is_refused_with_the_reason(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from threedident.errors import UsageError\n"
        "from threedident.presets import load_preset\n"
        "from threedident.render.settings import EngineSettings\n"
        "from threedident.render.executors.process_pool import Task, WorkerPool\n"
        "from threedident.render.executors.processes import call_in_process\n"
        "class Mine: pass\n"
        "def mine(*a, **k): pass\n"
        "settings = EngineSettings(load_preset('3dident'), resolution=8)\n"
        "def pool(factory):\n"
        "    with WorkerPool(settings, workers=1, log_dir=Path(), factory=factory) as pool:\n"
        "        list(pool.run([Task(0, None)], 1))\n"
        "for call in (lambda: call_in_process(mine), lambda: call_in_process(max, Mine(), 1),\n"
        "             lambda: call_in_process(max, [Mine], 1), lambda: pool(mine),\n"
        "             lambda: pool(lambda: 0)):\n"
        "    try: call()\n"
        "    except UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    names = ["mine", "Mine", "Mine", "mine", "<lambda>.<locals>.<lambda>"]
    why = "is defined in the main script, which render processes do not run: put it into a module"
    for line, name in zip(done.stdout.splitlines(), names, strict=True):
        assert line.startswith(f"{name} {why}")


def test_modules_are_found_where_they_are_found_here(tmp_path, monkeypatch):
    (tmp_path / "made_for_the_test.py").write_text("def answer(): return 42\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        from made_for_the_test import answer

        assert call_in_process(answer) == 42
    with pytest.raises(RenderError, match="No module named 'made_for_the_test'"):
        call_in_process(answer)
    with (
        WorkerPool(SETTINGS, workers=1, log_dir=tmp_path, factory=answer) as pool,
        pytest.raises(RenderError, match=r"cannot start: .*No module named 'made_for_the_test'"),
    ):
        list(pool.run(tasks({}), 20))


def wait_until(true):
    """As long as it takes on a busy machine."""
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it does not come true")


def test_a_pool_that_is_killed_leaves_neither_processes_nor_scratch(tmp_path):
    """Workers end with their parent, and remove the folder that it cannot remove any more."""
    (tmp_path / "memory").mkdir()
    script = tmp_path / "script.py"
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    script.write_text(
        f"import sys\nsys.path[:0] = {folders!r}\n"
        "import os, signal\nfrom pathlib import Path\n"
        "from helpers import faulty_engine as faulty\nimport test_process_pool as tests\n"
        "from threedident.render.executors import process_pool as workers\n"
        f"workers.MEMORY = Path({str(tmp_path / 'memory')!r})\n"
        "slow = dict.fromkeys(range(20), faulty.SLOW)\n"
        "pool = workers.WorkerPool(tests.SETTINGS, workers=2, log_dir=Path(), "
        "factory=faulty.FaultyEngine)\n"
        "with pool:\n"
        "    for n, _ in enumerate(pool.run(tests.tasks(slow), 20)):\n"
        "        if n == 3:\n"
        "            print(*(w.process.pid for w in pool._workers), flush=True)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2
    wait_until(lambda: not list((tmp_path / "memory").iterdir()))
    wait_until(lambda: not any(runs(pid) for pid in pids))


def runs(pid):
    try:
        return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False


def test_a_child_ignores_interrupts_wherever_it_was_started():
    children = []
    thread = threading.Thread(target=lambda: children.append(ChildProcess(faulty.read_signals)))
    thread.start()
    thread.join()
    children.append(ChildProcess(faulty.read_signals))
    for child in children:
        found = child.pipe.recv()
        assert found == (signal.SIG_IGN, signal.SIG_DFL, "", "1")
        assert child.join(60) == 0


def test_a_child_that_is_let_go_of_is_ended():
    child = ChildProcess(faulty.hang)
    pid = child.pid
    assert runs(pid)
    del child
    assert not runs(pid)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        ChildProcess(lambda pipe: None)


def test_a_log_that_cannot_be_written(tmp_path):
    with pytest.raises(
        RenderError, match=r"cannot start: cannot write .*no/worker-0\.log: No such"
    ):
        run(tmp_path / "no", {})


def test_an_interrupt_while_a_process_starts_is_not_lost():
    from threedident.render.executors.processes import holding_interrupts

    said = []

    def interrupted():
        with holding_interrupts():
            signal.raise_signal(signal.SIGINT)  # to this thread
            said.append("it has not come yet")

    # Whoever starts the tests in the background has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert said
    with holding_interrupts():  # a child has it held back from its first moment on
        code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "alive\n"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == set()
