"""The benchmarks' runner, and what keeps the command line quick to start. Nothing is timed here."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from threedident.cli import main
from threedident.evaluate import metrics

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


def test_normal_pairs_writes_its_curve_and_goes_on(tmp_path, capsys):
    benchmark = load("normal_pairs")
    words = ["--runs", tmp_path / "runs", "--out", tmp_path / "out", "--widths", "1"]
    words += ["--steps", "100", "--batch-size", "64", "--threads", "1", "--mixing-trials", "5"]
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
