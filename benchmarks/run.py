"""Runs the benchmarks: every figure beside that of a named baseline in the same run.

    python benchmarks/run.py [--short] [--only NAME]... [--out FOLDER]

A benchmark is a function that yields cases `(name, unit, rounds, contenders)`; contenders are
functions by label, the baseline first, and each gives one figure, or a figure and a remark. They
take turns, `rounds` times; reported are the median, the least and the most, and the ratio of the
median to the baseline's. Every benchmark has a process of its own.

FOLDER (benchmarks/results; with --short it must be named) gets bench.json and bench.md after
every benchmark. The same command goes on with a run that was stopped; --only measures one again
and leaves the others as they are. --short checks that everything runs, on one thread and in one
process, at sizes whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from threedident.storage.atomic_files import replacing, write_json
from threedident.system import processor_name

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # the benchmarks are modules beside this one

from where import commit, versions  # noqa: E402

Contender = Callable[[], float | tuple[float, str]]
Case = tuple[str, str, int, dict[str, Contender]]

#: Where each one's cases are.
BENCHMARKS = {
    "startup": ("startup", "cases"),
    "render": ("render", "cases"),
    "storage": ("storage", "cases"),
    "matching": ("pairs", "matching_cases"),
    "pairs": ("pairs", "cases"),
    "losses": ("losses", "cases"),
    "training": ("training", "cases"),
    "scoring": ("metrics", "cases"),
}
PACKAGES = (
    *("threedident", "bpy", "click", "faiss-cpu", "h5py", "numba", "numpy", "pillow"),
    *("scikit-learn", "scipy", "torch", "torchvision", "warp-lang"),
)


def machine() -> dict[str, Any]:
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
    }


def rows(case: Case) -> list[dict[str, Any]]:
    """Measures a case: the contenders take turns, so that a busy spell meets all of them."""
    name, unit, rounds, contenders = case
    figures: dict[str, list[float]] = {label: [] for label in contenders}
    remarks = dict.fromkeys(contenders, "")
    for _ in range(rounds):
        for label, measure in contenders.items():
            found = measure()
            figure, remarks[label] = found if isinstance(found, tuple) else (found, "")
            figures[label].append(figure)
    baseline = next(iter(contenders))
    base = statistics.median(figures[baseline])
    return [
        {
            "case": name,
            "name": label,
            "figure": statistics.median(measured),
            "unit": unit,
            "least": min(measured),
            "most": max(measured),
            "figures": measured,
            "baseline": baseline,
            "baseline_figure": base,
            "ratio": statistics.median(measured) / base,
            "remark": remarks[label],
        }
        for label, measured in figures.items()
    ]


def measure(benchmark: str, short: bool) -> dict[str, Any]:
    """All rows of a benchmark, which are printed as they come."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.monotonic()
    module, function = BENCHMARKS[benchmark]
    source: Callable[[bool], Iterator[Case]] = getattr(importlib.import_module(module), function)
    about = " ".join((source.__doc__ or "").split())
    found = []
    for case in source(short):
        measured = rows(case)
        found += measured
        print("\n".join(table(measured, head=not found[: -len(measured)])), flush=True)
    seconds = round(time.monotonic() - start, 1)
    return {"about": about, "date": began, "commit": commit(), "seconds": seconds, "rows": found}


def apart(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives in a fresh process."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as own:
        return own.submit(call, *arguments).result()


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def times(ratio: float) -> str:
    """As 31 or 1/31."""
    return f"{ratio:.3g}" if ratio >= 1 else f"1/{1 / ratio:.3g}"


def table(measured: list[dict[str, Any]], *, head: bool = True) -> list[str]:
    lines = []
    if head:
        lines += ["| case | what | median | least to most | times the baseline | remark |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
    for row in measured:
        first = row["name"] == row["baseline"]
        lines.append(
            f"| {row['case'] if first else ''} | {row['name']} "
            f"| {number(row['figure'])} {row['unit']} "
            f"| {number(row['least'])} to {number(row['most'])} "
            f"| {'baseline' if first else times(row['ratio'])} | {row['remark']} |"
        )
    return lines


def report(content: dict[str, Any]) -> str:
    on, done = content["machine"], content["benchmarks"]
    packages = ", ".join(f"{k} {v}" for k, v in on["packages"].items())
    lines = [
        f"{on['processor']}, {on['cores']} cores, {on['memory_gib']} GiB, {on['system']}, "
        f"Python {on['python']}; {packages}."
    ]
    if content["short"]:
        lines += ["", "**Short mode: everything ran, at sizes whose figures mean nothing.**"]
    for name, each in done.items():
        lines += ["", f"### {name}", "", each["about"], "", *table(each["rows"])]
        lines += ["", f"{each['date'][:10]}, commit {each['commit']}, {each['seconds']:.0f} s."]
    missing = [name for name in BENCHMARKS if name not in done]
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def write(folder: Path, content: dict[str, Any]) -> None:
    known = content["benchmarks"]
    content["benchmarks"] = {name: known[name] for name in BENCHMARKS if name in known}
    write_json(folder / "bench.json", content)
    with replacing(folder / "bench.md") as temporary:
        temporary.write_text(report(content))


def begin(folder: Path, short: bool, only: list[str]) -> tuple[dict[str, Any], list[str]]:
    """What is there already, and the benchmarks that are to be measured."""
    fresh = {"machine": machine(), "short": short, "benchmarks": {}}
    path = folder / "bench.json"
    if not path.exists():
        return fresh, only or list(BENCHMARKS)
    there = json.loads(path.read_text())
    same = (there["machine"], there["short"]) == (fresh["machine"], short)
    if only:
        if not same:
            sys.exit(f"{path} is of another machine, versions or mode: name another --out")
        return there, only
    kept = {k: v for k, v in there["benchmarks"].items() if v["commit"] == commit()}
    missing = [name for name in BENCHMARKS if name not in kept]
    if not same or not missing:
        return fresh, list(BENCHMARKS)
    if kept:
        print(f"going on; measured already: {', '.join(kept)}", flush=True)
    return {**there, "benchmarks": kept}, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="small sizes: does everything run?")
    parser.add_argument("--only", action="append", default=[], choices=BENCHMARKS)
    parser.add_argument("--out", type=Path, help="[default: benchmarks/results]")
    arguments = parser.parse_args()
    if arguments.short and arguments.out is None:
        parser.error("--short needs --out, so that its figures do not replace measured ones")
    if arguments.short:
        os.environ["OMP_NUM_THREADS"] = "1"  # before any of the libraries that look at it
    folder = arguments.out or HERE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    content, wanted = begin(folder, arguments.short, arguments.only)
    failed = []
    for name in wanted:
        print(f"\n{name}", flush=True)
        try:
            found = measure(name, True) if arguments.short else apart(measure, name, False)
        except KeyboardInterrupt:
            sys.exit(f"stopped; what is measured stands in {folder}, the same command goes on")
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        content["benchmarks"][name] = found
        write(folder, content)
        print(f"{found['seconds']:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the others stand in {folder}")
    print(f"\nwrote {folder / 'bench.json'} and {folder / 'bench.md'}")


if __name__ == "__main__":
    main()
