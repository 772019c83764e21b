"""How quickly the page of `3dident explore` answers, and what memory it takes.

    python benchmarks/explore.py [--out FOLDER] [--requests 200] [--seconds 60] [--moves 1000]
                                 [--images 250000] [--scratch FOLDER]

Starts the real command, on a free port, and asks it as a page does, over HTTP:

- start: from the start of the process to the first answer of the page, and to the first image;
- slider to image: one request after the other, in draft quality as while a slider moves, and in
  standard quality as when it rests, at 224 pixels;
- two tabs: 20 requests a second from each of them, whether or not the last were answered (a page
  never does that: it waits for its image); meanwhile the page itself is asked for twice a second;
- moves: random points, memory of the server and of its render processes as they go;
- filters: ranges of factors over a dataset of noise with many latents.

FOLDER (benchmarks/results/explore) gets explore.json and explore.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from threedident.datasets.formats.hdf5 import to_shards
from threedident.datasets.formats.source import Origin, Source
from threedident.storage.atomic_files import replacing, write_json
from threedident.system import processor_name, usable_processors

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # the benchmarks are modules beside this one

from where import commit, versions  # noqa: E402

COMMAND = str(Path(sys.executable).with_name("3dident"))
PACKAGES = ("threedident", "numpy", "pillow", "starlette", "uvicorn", "warp-lang")
SIDE = 224
RATE = 20  # requests a second of each tab
STARTS = 5


class Noise(Source):
    """Images of noise with uniform latents."""

    root, form, origin = Path("noise"), "noise", Origin()

    def __init__(self, count: int, side: int = 8) -> None:
        random = np.random.default_rng(0)
        self.shape = (side, side, 3)
        self.pixels = random.integers(0, 256, (count, *self.shape), np.uint8)
        self.raw_latents = random.uniform(-1, 1, (count, 10)).astype(np.float32)
        self.latents = 3 * self.raw_latents

    def read(self, indices: Any, out: Any) -> None:
        out[:] = self.pixels[list(indices)]


class Server:
    """`3dident explore`, running; use it as a context manager.

    Attributes:
        begun: when its process was started.
    """

    def __init__(self, *words: str) -> None:
        self.begun = time.perf_counter()
        command = [COMMAND, "explore", *words, "--no-browser", "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        address = None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            address = re.search(r"http://([\w.]+):(\d+)/\?token=(\S+)", line)
            if address:
                break
        if address is None:
            raise SystemExit("the command has ended without an address")
        self.host, self.port, self.token = address[1], int(address[2]), address[3]
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
        self._local = threading.local()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Send a request on this thread's connection: the status and the answer."""
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        connection = self._local.connection
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def page(self) -> None:
        """Ask for the page itself."""
        status, _ = self.ask("GET", "/")
        if status != 200:
            raise SystemExit(f"the page was answered with {status}")

    def image(self, values: list[float], *, moving: bool, tab: str = "bench") -> tuple[int, bytes]:
        """Ask for the image of a point, as the page does while a slider moves or once it rests."""
        return self.ask(
            "POST",
            "/api/image",
            {
                "generator": {"preset": "3dident"},
                "values": values,
                "resolution": SIDE,
                "quality": "draft" if moving else "standard",
                "moving": moving,
                "tab": tab,
                "slot": "image",
            },
        )

    def memory(self) -> dict[str, float]:
        """Resident memory in MB: of the server, and of its processes together."""
        server = self._process.pid
        children = children_of(server)
        return {
            "server": resident(server),
            "renderers": sum(resident(pid) for pid in children),
            "processes": len(children),
        }


def children_of(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            children += [int(child), *children_of(int(child))]
    return children


def resident(pid: int) -> float:
    """The resident memory of a process, MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1000 if found else 0.0


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, 95th percentile and most of times, in ms."""
    return {
        "requests": len(seconds),
        "median": 1000 * statistics.median(seconds),
        "p95": 1000 * float(np.percentile(seconds, 95)),
        "most": 1000 * max(seconds),
    }


def points(count: int, seed: int = 0) -> list[list[float]]:
    raw = np.random.default_rng(seed).uniform(-1, 1, (count, 10))
    return [[round(value, 3) for value in row] for row in raw.tolist()]


def check(status: int, answer: bytes) -> None:
    if status != 200:
        raise SystemExit(f"{status}: {answer[:300]!r}")


def starts() -> dict[str, Any]:
    """Seconds from the start of the command to the first page and to the first image."""
    page, image = [], []
    for _ in range(STARTS):
        with Server() as server:
            server.page()
            page.append(time.perf_counter() - server.begun)
            check(*server.image([0.0] * 10, moving=False))
            image.append(time.perf_counter() - server.begun)
    return {"page": page, "image": image}


def sliders(server: Server, requests: int) -> dict[str, Any]:
    """Times from a slider to its image, one request after the other."""
    results = {}
    for name, moving in (("draft", True), ("standard", False)):
        for values in points(10, seed=1):  # each process makes its engine first
            check(*server.image(values, moving=moving))
        seconds = []
        for values in points(requests):
            begin = time.perf_counter()
            check(*server.image(values, moving=moving))
            seconds.append(time.perf_counter() - begin)
        results[name] = spread(seconds)
    return results


def storm(server: Server, seconds: float) -> dict[str, Any]:
    """Requests at a fixed rate from two tabs, whatever is answered, and the page meanwhile."""
    count = int(seconds * RATE)
    answers: list[tuple[int, float]] = []
    page: list[float] = []
    memory = [server.memory()]
    over = threading.Event()

    def one(tab: str, values: list[float]) -> None:
        begin = time.perf_counter()
        status, _ = server.image(values, moving=True, tab=tab)
        answers.append((status, time.perf_counter() - begin))

    def visit() -> None:
        while not over.wait(0.5):
            begin = time.perf_counter()
            server.page()
            page.append(time.perf_counter() - begin)
            memory.append(server.memory())

    def drag(tab: str, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        begin = time.perf_counter()
        for number, values in enumerate(points(count, seed=len(tab))):
            time.sleep(max(0.0, begin + number / RATE - time.perf_counter()))
            pool.submit(one, tab, values)

    visitor = threading.Thread(target=visit)
    visitor.start()
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        tabs = [threading.Thread(target=drag, args=(name, pool)) for name in ("one", "second")]
        for tab in tabs:
            tab.start()
        for tab in tabs:
            tab.join()
    over.set()
    visitor.join()
    shown = [took for status, took in answers if status == 200]
    return {
        "seconds": seconds,
        "rate": RATE,
        "tabs": 2,
        "sent": len(answers),
        "answered": len(shown),
        "superseded": sum(status == 409 for status, _ in answers),
        "failed": sum(status not in (200, 409) for status, _ in answers),
        "images": spread(shown),
        "page": spread(page),
        "memory_before": memory[0],
        "memory_most": {
            name: max(each[name] for each in memory) for name in ("server", "renderers")
        },
        "memory_after": server.memory(),
    }


def moves(server: Server, count: int) -> list[dict[str, float]]:
    """Memory at the start, and after each quarter of random moves; each fifth one rests."""
    memory = [{"moves": 0, **server.memory()}]
    for number, values in enumerate(points(count, seed=2), start=1):
        check(*server.image(values, moving=number % 5 != 0))
        if number % max(1, count // 4) == 0:
            memory.append({"moves": number, **server.memory()})
    return memory


def filters(folder: Path, images: int) -> dict[str, Any]:
    """Times of filters over a dataset of noise, with one factor, with three, and with all."""
    root = folder / f"noise-{images}"
    if not root.exists():
        print(f"writing {images} images of noise to {root}", flush=True)
        to_shards(Noise(images), root, shard_size=100, compression="none")
    ranges = {name: [-0.5, 0.5] for name in ("x", "phi", "object_hue")}
    names = ("x", "y", "z", "phi", "theta", "psi")
    names += ("spotlight_position", "object_hue", "spotlight_hue", "background_hue")
    cases = {
        "one factor": {"x": [-0.5, 0.5]},
        "three factors": ranges,
        "ten factors": {name: [-0.9, 0.9] for name in names},
    }
    with Server(str(root)) as server:
        server.page()
        results: dict[str, Any] = {"images": images, "page": time.perf_counter() - server.begun}
        random = np.random.default_rng(0)
        for name, chosen in cases.items():
            seconds, passing = [], []
            for _ in range(100):
                moved = {  # as a brush does
                    factor: [low + shift, high + shift]
                    for (factor, (low, high)), shift in zip(
                        chosen.items(), random.uniform(-0.1, 0.1, len(chosen)), strict=True
                    )
                }
                begin = time.perf_counter()
                status, answer = server.ask("POST", "/api/dataset-filter", {"filters": moved})
                seconds.append(time.perf_counter() - begin)
                check(status, answer)
                passing.append(json.loads(answer)["passing"])
            results[name] = {**spread(seconds), "passing": statistics.median(passing)}
        results["memory"] = server.memory()
    return results


def report(content: dict[str, Any]) -> str:
    """The record as Markdown."""

    def row(*cells: Any) -> str:
        return f"| {' | '.join(map(str, cells))} |"

    def ms(times: dict[str, float]) -> list[str]:
        return [f"{times[key]:.0f}" for key in ("median", "p95", "most")]

    machine = content["machine"]
    load = ", ".join(f"{each:.1f}" for each in machine["load_before"])
    lines = [
        f"{machine['processor']}, {machine['processors']} processors; load {load} before it began "
        f"(other work ran meanwhile where that is above 0.5); {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        + f"; {content['date']}, commit {content['commit']}. Images are {SIDE} x {SIDE}.",
        "",
        row("from the command to", "median, s", "least to most"),
        row("---", "---", "---"),
    ]
    for name, words in (("page", "the page"), ("image", "its first image, standard")):
        each = content["start"][name]
        lines.append(
            row(words, f"{statistics.median(each):.2f}", f"{min(each):.2f} to {max(each):.2f}")
        )
    head = row("request to answer", "number", "median, ms", "95th percentile", "most")
    lines += ["", head, row(*["---"] * 5)]
    for name, words in (("draft", "draft, a slider moves"), ("standard", "standard, it rests")):
        times = content["sliders"][name]
        lines.append(row(words, times["requests"], *ms(times)))
    if "storm" in content:
        storm = content["storm"]
        words = f"{storm['tabs']} tabs, {storm['rate']} a second each, {storm['seconds']:g} s"
        lines.append(row(f"{words}: images", storm["answered"], *ms(storm["images"])))
        lines.append(row(f"{words}: the page", storm["page"]["requests"], *ms(storm["page"])))
    if "filters" in content:
        found = content["filters"]
        for name in ("one factor", "three factors", "ten factors"):
            words = f"filter of {found['images']:,} images by {name}"
            lines.append(row(words, found[name]["requests"], *ms(found[name])))
    if "storm" in content:
        lines += [
            "",
            f"Of the {storm['sent']} requests of both tabs {storm['answered']} were answered with "
            f"an image, {storm['superseded']} gave way to a newer one of their tab, "
            f"{storm['failed']} failed.",
        ]
    lines += [
        "",
        row("resident memory, MB", "server", "render processes, together"),
        row("---", "---", "---"),
    ]
    for each in content["moves"]:
        words = f"after {each['moves']} moves" if each["moves"] else "before the first move"
        lines.append(row(words, f"{each['server']:.0f}", f"{each['renderers']:.0f}"))
    if "storm" in content:
        for key, words in (("memory_most", "most with two tabs"), ("memory_after", "after them")):
            each = storm[key]
            lines.append(row(words, f"{each['server']:.0f}", f"{each['renderers']:.0f}"))
    if "filters" in content:
        each = found["memory"]
        words = f"with the dataset of {found['images']:,} images"
        lines.append(row(words, f"{each['server']:.0f}", f"{each['renderers']:.0f}"))
        lines += ["", f"With that dataset the page came after {found['page']:.2f} s."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "explore")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--moves", type=int, default=1000)
    parser.add_argument("--images", type=int, default=250_000, help="0: no dataset")
    parser.add_argument("--scratch", type=Path, help="where the dataset of noise lies")
    arguments = parser.parse_args()
    content: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": {
            "processor": processor_name(),
            "processors": usable_processors(),
            "load_before": os.getloadavg(),
            "python": f"Python {sys.version.split()[0]}",
            "packages": versions(PACKAGES),
        },
    }
    print("load", *content["machine"]["load_before"], flush=True)
    content["start"] = starts()
    print("start", content["start"], flush=True)
    with Server() as server:
        server.page()
        content["sliders"] = sliders(server, arguments.requests)
        print("sliders", content["sliders"], flush=True)
        content["moves"] = moves(server, arguments.moves)
        print("moves", content["moves"], flush=True)
        if arguments.seconds:
            content["storm"] = storm(server, arguments.seconds)
            print("storm", content["storm"], flush=True)
    if arguments.images:
        with tempfile.TemporaryDirectory() as folder:
            content["filters"] = filters(arguments.scratch or Path(folder), arguments.images)
        print("filters", content["filters"], flush=True)
    content["machine"]["load_after"] = os.getloadavg()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "explore.json", content)
    with replacing(arguments.out / "explore.md") as temporary:
        temporary.write_text(report(content), "utf-8")
    print(report(content))


if __name__ == "__main__":
    main()
