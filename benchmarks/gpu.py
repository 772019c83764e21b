"""Measures on one NVIDIA GPU what runs there: rendering, loading, training; see docs/gpu.md.

    python benchmarks/gpu.py [--minutes 10] [--part NAME]... [--out FOLDER]
    python benchmarks/gpu.py --rehearse

The parts run in order of worth, each in a process of its own. One that crashes, hangs or runs out
of memory loses no other, nor what it has measured by then. Time that a part does not need goes to
those after it. FOLDER gets gpu.json and gpu.md after every part; parts that it already holds of the
same machine stay. Nothing is fetched, and the checkout need not be installed. A part whose
packages are missing says so.

--rehearse runs the same code small and on the CPU, in seconds. Its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # what is imported next is a module beside this one

from where import commit, processor, versions  # noqa: E402

ROOT = HERE.parent
ROOMS = ("render", "datasets", "evaluate", "baselines")

#: The parts in order of worth, and the seconds of ten minutes that each gets.
PARTS = {"engine": 150, "pairs": 100, "step": 130, "cycles": 50, "curve": 150}
LEAST = 5.0  # seconds of a part, however little time is left
_SPARE = 10  # seconds kept back for starting and for writing
_REHEARSAL_MINUTES = 5.0  # at most; it takes a tenth of that
_LOG_LINES = 30

PACKAGES = (
    *("threedident", "warp-lang", "torch", "torchvision", "triton", "lightning-fabric"),
    *("pytorch-lightning", "numpy", "h5py", "trimesh", "faiss-cpu", "bpy"),
)


def gpu() -> dict[str, Any] | None:
    """The first GPU's name, driver and memory; None where there is no GPU."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        lines = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()
        name, driver, memory = lines[0].split(", ")
        return {"name": name, "driver": driver, "memory": memory, "gpus": len(lines)}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        pass
    code = (
        "import torch; p = torch.cuda.get_device_properties(0); "
        "print(p.name, f'{p.total_memory >> 20} MiB', torch.cuda.device_count(), sep='\\n')"
    )
    try:
        text = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
        ).stdout
        name, memory, count = text.splitlines()
        return {"name": name, "driver": "unknown", "memory": memory, "gpus": int(count)}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def machine(rehearse: bool) -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "gpu": None if rehearse else gpu(),
        "processor": processor(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
    }


def environment() -> dict[str, str]:
    """The environment of a part, in which this checkout is the package, installed or not.

    The folders of the checkout are subpackages, and two of them are called as other people's
    packages are, so that the checkout itself is no entry for PYTHONPATH: a folder of links is.
    """
    package = ROOT / "build" / "links" / "threedident"
    package.mkdir(parents=True, exist_ok=True)
    targets = [*(ROOT / "threedident").iterdir(), *(ROOT / room for room in ROOMS)]
    for target in targets:
        link = package / target.name
        if not link.exists():
            with contextlib.suppress(FileExistsError):  # of another run beside this one
                link.unlink(missing_ok=True)
                link.symlink_to(target)
    paths = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
    }


def run_part(name: str, seconds: float, *, rehearse: bool) -> dict[str, Any]:
    """Run a part in a process of its own, and return its state and the rows that it measured."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-") as scratch:
        rows, log = Path(scratch) / "rows.jsonl", Path(scratch) / "log"
        words = [sys.executable, "-P", str(HERE / "gpu_parts.py"), name, str(rows)]
        words += [f"{0.9 * seconds:.1f}", *(["--small"] if rehearse else [])]
        env = {**environment(), "TMPDIR": scratch}
        if rehearse:  # threads of small sums only wait for each other
            env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, stdout=output, stderr=output, env=env, start_new_session=True
            )
            try:
                code = process.wait(seconds)
                state = {0: "done", 3: "packages missing"}.get(code, f"failed, exit code {code}")
            except subprocess.TimeoutExpired:
                state = f"stopped after {seconds:.0f} s"
            finally:
                _end_group(process)
        text = rows.read_text("utf-8") if rows.exists() else ""
        measured = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        lines = log.read_text("utf-8", errors="replace").splitlines()
    result = {
        "state": state,
        "date": began,
        "commit": commit(),
        "seconds": round(time.monotonic() - start, 1),
        "rows": measured,
    }
    if state != "done":
        result["log"] = lines[-_LOG_LINES:]
    return result


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a part and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # none of them is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown: a table for each run of rows with the same figures; errors stand below."""
    lines: list[str] = []
    columns: list[str] = []
    for row in rows:
        if "error" in row:
            lines += ["", f"{row['case']}: **{row['error']}**"]
            columns = []
            continue
        if list(row["figures"]) != columns:
            columns = list(row["figures"])
            lines += ["", f"| case | {' | '.join(columns)} |", f"| --- {'| --- ' * len(columns)}|"]
        cells = [number(value) for value in row["figures"].values()]
        lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    return lines


def number(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return f"{value:,}" if type(value) is int else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def report(content: dict[str, Any]) -> str:
    on = content["machine"]
    card = on["gpu"]
    name = "no GPU"
    if card:
        name = f"{card['name']} ({card['memory']}, driver {card['driver']})"
    packages = ", ".join(f"{k} {v}" for k, v in on["packages"].items())
    lines = [
        f"{name}; {on['processor']}, {on['cores']} cores, {on['system']}, Python {on['python']}; "
        f"{packages}."
    ]
    if content["rehearsal"]:
        lines += ["", "**A rehearsal on the CPU: everything ran, and the figures mean nothing.**"]
    for part, result in content["parts"].items():
        lines += ["", f"### {part}", *table(result["rows"]), ""]
        lines += [
            f"{result['state']}; {result['seconds']:.0f} s, {result['date'][:10]}, "
            f"commit {result['commit']}."
        ]
        if "log" in result:
            lines += ["", "```", *result["log"], "```"]
    missing = [part for part in PARTS if part not in content["parts"]]
    if missing:
        lines += ["", f"Not run: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def write(folder: Path, content: dict[str, Any]) -> None:
    parts = content["parts"]
    content["parts"] = {name: parts[name] for name in PARTS if name in parts}
    for name, text in (
        ("gpu.json", json.dumps(content, indent=1) + "\n"),
        ("gpu.md", report(content)),
    ):
        temporary = folder / f".{name}"
        temporary.write_text(text, "utf-8")
        temporary.replace(folder / name)


def begin(folder: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """What the folder holds of this machine already, or a fresh content."""
    path = folder / "gpu.json"
    if not path.exists():
        return fresh
    kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
    same = all(kept[key] == fresh[key] for key in ("machine", "rehearsal"))
    if not same:
        sys.exit(f"{path} is of another machine or other versions: name another --out")
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="the time for all parts [default: 10]")
    parser.add_argument("--part", action="append", default=[], choices=PARTS)
    parser.add_argument("--out", type=Path, help="[default: benchmarks/results/gpu-NAME]")
    parser.add_argument("--rehearse", action="store_true", help="small, and on the CPU")
    arguments = parser.parse_args()
    if arguments.minutes is not None and not arguments.minutes > 0:
        parser.error(f"--minutes must be above 0, found {arguments.minutes:g}")
    start = time.monotonic()
    fresh = {"machine": machine(arguments.rehearse), "rehearsal": arguments.rehearse, "parts": {}}
    card = fresh["machine"]["gpu"]
    if card is None and not arguments.rehearse:
        sys.exit("neither nvidia-smi nor torch finds a GPU here; --rehearse runs on the CPU")
    folder = arguments.out
    if folder is None and arguments.rehearse:
        folder = ROOT / "build" / "gpu-rehearsal"
    elif folder is None:
        folder = HERE / "results" / re.sub(r"[^a-z0-9]+", "-", f"gpu-{card['name']}".lower())
    folder.mkdir(parents=True, exist_ok=True)
    content = begin(folder, fresh)
    minutes = arguments.minutes or (_REHEARSAL_MINUTES if arguments.rehearse else 10.0)
    end = start + 60 * minutes - _SPARE
    wanted = [name for name in PARTS if not arguments.part or name in arguments.part]
    for place, name in enumerate(wanted):
        left = end - time.monotonic()
        seconds = left * PARTS[name] / sum(PARTS[each] for each in wanted[place:])
        print(f"\n### {name}, at most {seconds:.0f} s", flush=True)
        result = run_part(name, max(LEAST, seconds), rehearse=arguments.rehearse)
        content["parts"][name] = result
        write(folder, content)
        print("\n".join([*table(result["rows"]), "", result["state"], *result.get("log", [])]))
    print(f"\n{folder / 'gpu.md'}, after {time.monotonic() - start:.0f} s", flush=True)
    states = {name: content["parts"][name]["state"] for name in wanted}
    broken = [name for name, state in states.items() if state.startswith("failed")]
    if broken or any("error" in row for name in wanted for row in content["parts"][name]["rows"]):
        sys.exit(f"not everything ran: see {folder / 'gpu.md'}")


if __name__ == "__main__":
    main()
