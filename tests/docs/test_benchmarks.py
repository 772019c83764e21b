"""The benchmarks' runner, and what keeps the command line quick to start. Nothing is timed here."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from threedident.cli import main
from threedident.evaluate import metrics
from threedident.system import is_running

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEAVY = ("bpy", "faiss", "h5py", "matplotlib", "numba", "numpy", "PIL", "requests")
HEAVY += ("rich", "scipy", "sklearn", "torch", "trimesh", "warp")
ROW = {"case", "name", "figure", "unit", "least", "most", "figures", "baseline"}
ROW |= {"baseline_figure", "ratio", "remark"}


def load(name: str):
    """A module of benchmarks/."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the runner adds its folder
    return load("run")


def bench(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_all_benchmarks_run_in_short_mode(run, tmp_path):
    bench("--short", "--out", tmp_path)
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["short"] is True
    assert content["machine"]["cores"] >= 1
    assert content["machine"]["packages"]["torch"][0].isdigit()
    assert list(content["benchmarks"]) == list(run.BENCHMARKS)
    text = (tmp_path / "bench.md").read_text()
    for name, found in content["benchmarks"].items():
        assert f"### {name}\n" in text
        assert found["about"] and found["date"] and found["commit"]
        cases: dict[str, list] = {}
        for row in found["rows"]:
            assert set(row) == ROW
            cases.setdefault(row["case"], []).append(row)
        for rows in cases.values():
            # The baseline is the first, its figure the others' baseline_figure.
            base = rows[0]
            assert base["name"] == base["baseline"]
            assert base["ratio"] == 1
            assert len(rows) > 1
            for row in rows:
                assert (row["baseline"], row["unit"]) == (base["name"], base["unit"])
                assert row["baseline_figure"] == base["figure"] > 0
                assert len(row["figures"]) == len(base["figures"])
                assert row["figure"] == statistics.median(row["figures"])
                assert row["least"] == min(row["figures"]) <= max(row["figures"]) == row["most"]
                assert math.isclose(row["ratio"], row["figure"] / row["baseline_figure"])
                assert f"| {row['name']} | {run.number(row['figure'])} {row['unit']} |" in text


def test_contenders_take_turns_and_ratios_are_of_medians(run):
    order = []

    def contender(label, figures):
        left = iter(figures)

        def measure():
            order.append(label)
            return next(left), f"{label}!"

        return measure

    case = (
        "case",
        "s",
        3,
        {"slow": contender("slow", [4, 9, 6]), "ours": contender("ours", [2, 1, 3])},
    )
    slow, ours = run.rows(case)
    assert order == ["slow", "ours"] * 3
    assert (slow["figure"], slow["ratio"], slow["remark"]) == (6, 1, "slow!")
    assert (ours["figure"], ours["least"], ours["most"]) == (2, 1, 3)
    assert ours["ratio"] == pytest.approx(1 / 3)
    assert run.table([slow, ours])[2:] == [
        "| case | slow | 6 s | 4 to 9 | baseline | slow! |",
        "|  | ours | 2 s | 1 to 3 | 1/3 | ours! |",
    ]


def result(run, **changes) -> dict:
    return {"about": "", "date": "", "commit": run.commit(), "seconds": 1.0, "rows": [], **changes}


def test_a_stopped_run_goes_on_and_a_finished_one_begins_anew(run, tmp_path):
    names = list(run.BENCHMARKS)
    fresh, wanted = run.begin(tmp_path, False, [])
    assert (fresh["benchmarks"], wanted) == ({}, names)
    fresh["benchmarks"] = {names[1]: result(run), names[0]: result(run)}
    run.write(tmp_path, fresh)
    assert f"Not measured: {', '.join(names[2:])}." in (tmp_path / "bench.md").read_text()
    there, wanted = run.begin(tmp_path, False, [])
    assert (list(there["benchmarks"]), wanted) == (names[:2], names[2:])
    # One alone is measured again, whatever is there.
    there, wanted = run.begin(tmp_path, False, [names[0]])
    assert (list(there["benchmarks"]), wanted) == (names[:2], names[:1])
    # What another state of the code gave is no part of this run.
    fresh["benchmarks"][names[0]] = result(run, commit="another")
    run.write(tmp_path, fresh)
    there, wanted = run.begin(tmp_path, False, [])
    assert (list(there["benchmarks"]), wanted) == ([names[1]], [names[0], *names[2:]])
    # All of it is there: a new run.
    fresh["benchmarks"] = {name: result(run) for name in names}
    run.write(tmp_path, fresh)
    assert run.begin(tmp_path, False, []) == ({**fresh, "benchmarks": {}}, names)


def test_figures_of_two_machines_are_never_mixed(run, tmp_path):
    fresh, names = run.begin(tmp_path, False, [])
    other = {**fresh, "machine": {**fresh["machine"], "processor": "another"}}
    run.write(tmp_path, {**other, "benchmarks": {names[0]: result(run)}})
    assert run.begin(tmp_path, False, []) == (fresh, names)
    with pytest.raises(SystemExit, match="another machine"):
        run.begin(tmp_path, False, [names[0]])


def test_a_benchmark_that_fails_leaves_the_others(run, tmp_path, monkeypatch, capsys):
    def broken(short):
        raise RuntimeError("no disk")

    monkeypatch.setattr(run, "BENCHMARKS", {"bad": ("bad", "x"), "good": ("good", "x")})
    monkeypatch.setattr(
        run, "measure", lambda name, short: result(run) if name == "good" else broken(short)
    )
    monkeypatch.setattr(sys, "argv", ["run.py", "--short", "--out", str(tmp_path)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit, match="failed: bad"):
        run.main()
    assert "no disk" in capsys.readouterr().err
    assert list(json.loads((tmp_path / "bench.json").read_text())["benchmarks"]) == ["good"]


def test_short_figures_do_not_replace_measured_ones():
    assert "--short needs --out" in bench("--short", code=2).stderr


def test_a_call_of_its_own_process(run):
    assert run.apart(os.getpid) != os.getpid()


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from threedident.cli import main\n"
        "for words in ([], *([name] for name in main.commands)):\n"
        "    try:\n"
        "        main([*words, '--help'])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, end.code\n"
        f"    found = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "    assert not found, (words, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == 1 + len(main.commands)


def test_losses_are_held_against_the_distances_of_torch_too():
    cases = {name: contenders for name, _, _, contenders in load("losses").cases(False)}
    for name, contenders in cases.items():
        assert ("torch.cdist" in contenders) == ("dot product" not in name)
        assert {"broadcast", "ours (numba)", "ours (blocks of torch)"} <= set(contenders)
    alone = [contenders for name, contenders in cases.items() if name.startswith("N x N part")]
    assert [next(iter(contenders)) for contenders in alone] == ["torch.cdist"] * 3


@pytest.mark.parametrize("p", [1, 2, 3, None])
def test_all_variants_of_the_losses_benchmark_compute_the_same(p):
    losses = load("losses")
    torch.manual_seed(0)
    z, z_tilde = torch.rand(2, 40, losses.N, dtype=torch.float64)
    found = [losses.sums(z, p, variant) for variant in losses.VARIANTS]
    for each in found[1:]:
        torch.testing.assert_close(each, found[0])
    plain = [losses.plain_loss(z, z_tilde, p, variant) for variant in losses.PLAIN]
    ours = losses.info_nce(z, z_tilde, losses.Dot() if p is None else losses.Power(p))
    for each in plain:
        torch.testing.assert_close(each, ours)


def test_chance_of_a_held_out_r2_is_what_noise_scores():
    benchmark = load("metrics")
    assert benchmark.expected(4096)["linear_r2"]["chance"] == "-0.006"
    random = np.random.default_rng(0)
    scores = [
        metrics.linear_r2(random.uniform(-1, 1, (400, 10)), random.standard_normal((400, 10))).value
        for _ in range(300)
    ]
    error = np.std(scores) / math.sqrt(len(scores))
    assert error < 0.0015
    assert np.mean(scores) == pytest.approx(benchmark.held_out_chance(200, 10), abs=4 * error)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_kept_memory_writes_a_row_for_each_way(tmp_path):
    """How many pages a way waits for varies by run; tests/core/test_system.py counts them."""
    out = tmp_path / "kept-memory.md"
    few = ["--images", "64", "--rounds", "1", "--steps", "2"]
    load("kept_memory").main([*few, "--out", str(out)])
    rows = [line.strip("| ").split(" | ") for line in out.read_text().splitlines()[-2:]]
    assert [row[0] for row in rows] == ["default", "kept"]
    for _, times, pages, most in rows:
        assert float(times) > 0
        assert float(pages.replace(",", "")) >= 0
        assert float(most.replace(",", "")) > 100


def test_the_self_term_takes_from_what_angles_gain(tmp_path):
    out = tmp_path / "self-term.md"
    load("self_term").main(["--batches", "64", "256", "--pairs", "512", "--out", str(out)])
    rows = [line.strip("| ").split(" | ") for line in out.read_text().splitlines()[-2:]]
    assert [row[0] for row in rows] == ["64", "256"]
    for _, loss, scale, gap, loss_without, scale_without, gap_without in rows:
        assert float(loss) > float(loss_without)  # one negative more
        assert 0 < float(scale) < float(scale_without)  # the anchor, at distance 0, bounds it
        assert 0 < float(gap) < float(gap_without)


def test_normal_pairs_writes_its_curve_and_goes_on(tmp_path, capsys):
    benchmark = load("normal_pairs")
    words = ["--runs", tmp_path / "runs", "--out", tmp_path / "out", "--widths", "1"]
    words += ["--steps", "20", "--batch-size", "64", "--threads", "1", "--mixing-trials", "5"]
    for _ in range(2):  # nothing is trained again
        benchmark.main([*map(str, words)])
    table = (tmp_path / "out" / "table.md").read_text()
    assert capsys.readouterr().out.count(table) == 2
    fresh, latents = (line.split(" | ") for line in table.splitlines()[-2:])
    assert (fresh[1], latents[1]) == ("fresh weights", "the latents")
    loss, there, below = map(float, (latents[4], latents[5], latents[6].rstrip(" |")))
    assert below == pytest.approx(there - loss, abs=2e-4)
    curve = (tmp_path / "out" / "curve.csv").read_text().splitlines()
    assert curve[0] == "sigma,start,step,linear_r2,excess"
    assert len(curve) == 1 + 2
    assert (tmp_path / "out" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_rates_of_datasets(tmp_path, monkeypatch, capsys):
    path = tmp_path / "rates.json"
    words = ["rates.py", "--sides", 8, "--qualities", "draft", "--seconds", 0.01, "--rounds", 1]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--json", str(path)])
    load("rates").main()
    (row,) = json.loads(path.read_text())["rows"]
    assert "| 8 x 8 | draft |" in capsys.readouterr().out
    assert row["images"] >= 1
    assert row["cpu_seconds_per_image"] > row["engine_alone"] > 0


# gpu.py


@pytest.fixture
def gpu():
    return load("gpu")


@pytest.mark.slow
def test_the_measurements_of_a_gpu_can_be_rehearsed_without_one(gpu, tmp_path):
    words = [sys.executable, str(BENCHMARKS / "gpu.py"), "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert (content["rehearsal"], content["machine"]["gpu"]) == (True, None)
    assert list(content["parts"]) == list(gpu.PARTS)
    for name, part in content["parts"].items():
        assert part["state"] == "done", (name, part)
        assert not [row for row in part["rows"] if "error" in row]
    rows = {name: part["rows"] for name, part in content["parts"].items()}
    figures = {name: [row["figures"] for row in each] for name, each in rows.items()}
    # On one device everything agrees with itself.
    agreeing = [row for row in figures["engine"] if "dB" in row]
    assert len(agreeing) == 4
    assert all(row["dB"] == "equal" and row["one by one the same"] for row in agreeing)
    assert [row["equal"] for row in figures["engine"] if "equal" in row] == [True]
    shares = [row["share of the time"] for row in figures["engine"] if "share of the time" in row]
    assert sum(shares) == pytest.approx(1) and min(shares) > 0
    assert [row["dB to the CPU"] for row in figures["pairs"] if "dB to the CPU" in row] == ["equal"]
    stored = [row["equal to the CPU"] for row in figures["pairs"] if "equal to the CPU" in row]
    assert stored == [True] * 3
    assert {row["partners as on the CPU"] for row in figures["pairs"][-2:]} == {1.0}
    assert [row["case"].split(", ", 1)[1] for row in rows["step"]] == [
        "bf16-mixed, channels last",
        "bf16-mixed, channels first",
        "32-true, channels last",
        "bf16-mixed, channels last, compiled",
    ]
    work = [row["TFLOPs a second"] * row["ms a step"] for row in figures["step"]]
    assert work == pytest.approx([work[0]] * 4)  # of one step, however quick it is
    assert all(row["loss"] > 0 for row in figures["step"])
    assert [row["case"] for row in rows["cycles"]] == ["devices", "cpu, draft at 32"]
    assert figures["cycles"][1]["dB"] == "equal"
    assert [row["case"].rsplit(" ", 1)[1] for row in rows["curve"]] == ["1", "2", "3"]
    assert all(-1 < row["R2"] <= 1 and 0 < row["MCC"] <= 1 for row in figures["curve"])
    text = (tmp_path / "gpu.md").read_text()
    assert "the figures mean nothing" in text
    assert [line[4:] for line in text.splitlines() if line.startswith("### ")] == list(gpu.PARTS)


def test_parts_run_this_checkout_and_shadow_nobody_elses_packages(gpu):
    code = (
        "import threedident.render.scene, threedident.datasets, importlib.util as u\n"
        "print(threedident.__file__)\n"
        "print(*[u.find_spec(name) for name in ('render', 'datasets', 'evaluate', 'baselines')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**gpu.environment(), "PYTHONSAFEPATH": "1"},
    )
    path, others = done.stdout.splitlines()
    assert Path(path).is_relative_to(BENCHMARKS.parent / "build" / "links")
    assert Path(path).resolve() == BENCHMARKS.parent / "threedident" / "__init__.py"
    assert str(BENCHMARKS.parent) not in others.replace(sys.prefix, "")


PART = """
import json, os, subprocess, sys, time
name, rows = sys.argv[1:3]
with open(rows, "a") as file:
    file.write(json.dumps({"case": name, "figures": {"x": 1.5}}) + "\\n")
    if name == "pairs":
        file.write('{"case": "half')
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(os.environ["PIDS"], "a").write(f"{child.pid} ")
print("what it says")
sys.stdout.flush()
if name == "engine":
    time.sleep(600)
if name == "pairs":
    os.kill(os.getpid(), 9)
if name == "step":
    sys.exit(3)
if name == "cycles":
    raise RuntimeError("too hot")
"""


@pytest.mark.slow
def test_a_part_that_hangs_or_dies_loses_no_other(gpu, monkeypatch, tmp_path, capsys):
    (tmp_path / "gpu_parts.py").write_text(PART)
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "machine", lambda rehearse: MACHINE)
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--minutes", "0.1", "--out", str(out)])
    with pytest.raises(SystemExit, match="not everything ran"):
        gpu.main()
    parts = json.loads((out / "gpu.json").read_text())["parts"]
    states = {name: part["state"] for name, part in parts.items()}
    assert states == {
        "engine": "stopped after 5 s",
        "pairs": "failed, exit code -9",
        "step": "packages missing",
        "cycles": "failed, exit code 1",
        "curve": "done",
    }
    for name, part in parts.items():
        assert part["rows"] == [{"case": name, "figures": {"x": 1.5}}]
        assert ("log" in part) == (name != "curve")
    assert "RuntimeError: too hot" in parts["cycles"]["log"]
    assert "what it says" in parts["engine"]["log"]
    text = (out / "gpu.md").read_text()
    assert "NVIDIA X1 (1 MiB, driver 1.2)" in text
    assert "RuntimeError: too hot" in text
    # What a part has started ends with it.
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == len(gpu.PARTS)
    for _ in range(600):
        left = [pid for pid in pids if is_running(pid) and "State:\tZ" not in status(pid)]
        if not left:
            break
        time.sleep(0.1)
    assert not left
    assert "### curve" in capsys.readouterr().out


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "State:\tZ"


MACHINE = {
    "gpu": {"name": "NVIDIA X1", "driver": "1.2", "memory": "1 MiB", "gpus": 1},
    "processor": "P",
    "cores": 2,
    "system": "Linux",
    "python": "3.11",
    "packages": {"torch": "2"},
}


def test_parts_are_kept_of_one_machine_alone(gpu, monkeypatch, tmp_path):
    started = []

    def run_part(name, seconds, *, rehearse):
        started.append((name, seconds))
        rows = [{"case": "a", "figures": {"x": 2.0, "y": None}}, {"case": "b", "error": "E: no"}]
        return {"state": "done", "date": "2026", "commit": "c", "seconds": 1.0, "rows": rows[:1]}

    monkeypatch.setattr(gpu, "run_part", run_part)
    monkeypatch.setattr(gpu, "machine", lambda rehearse: MACHINE)
    words = ["gpu.py", "--out", str(tmp_path), "--minutes", "10"]
    monkeypatch.setattr(sys, "argv", [*words, "--part", "step", "--part", "curve"])
    gpu.main()
    assert [name for name, _ in started] == ["step", "curve"]
    # What the first does not need, the second has.
    assert started[0][1] < 400
    assert 570 < started[1][1] < 590
    assert "Not run: engine, pairs, cycles." in (tmp_path / "gpu.md").read_text()
    monkeypatch.setattr(sys, "argv", [*words, "--part", "engine"])
    gpu.main()
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert list(content["parts"]) == ["engine", "step", "curve"]
    assert "| a | 2 |  |" in (tmp_path / "gpu.md").read_text()
    monkeypatch.setattr(gpu, "machine", lambda rehearse: {**MACHINE, "python": "3.12"})
    with pytest.raises(SystemExit, match="another machine or other versions: name another --out"):
        gpu.main()
    monkeypatch.setattr(gpu, "machine", lambda rehearse: {**MACHINE, "gpu": None})
    with pytest.raises(SystemExit, match="--rehearse runs on the CPU"):
        gpu.main()
    monkeypatch.setattr(sys, "argv", [*words[:-1], "0"])
    with pytest.raises(SystemExit):
        gpu.main()


def test_errors_of_cases_stand_between_the_tables(gpu):
    rows = [
        {"case": "a", "figures": {"x": 12345.6, "ok": True}},
        {"case": "b", "error": "RuntimeError: out of memory"},
        {"case": "c", "figures": {"x": 0.01234567, "ok": "equal"}},
    ]
    assert gpu.table(rows) == [
        *("", "| case | x | ok |", "| --- | --- | --- |", "| a | 12,346 | True |"),
        *("", "b: **RuntimeError: out of memory**"),
        *("", "| case | x | ok |", "| --- | --- | --- |", "| c | 0.01235 | equal |"),
    ]
