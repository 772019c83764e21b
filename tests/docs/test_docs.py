"""Every command and every piece of Python in README.md and docs/ runs, on small sizes.

A page's blocks run in order, in a folder of their own, in this process (so that torch is
imported once). THREEDIDENT_DOCS=all also runs what is costly. The tables below are
all that is changed of what the pages say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import html
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from threedident.baselines import tables
from threedident.baselines.experiment import load_experiment
from threedident.cli import main
from threedident.cli.group import DefaultGroup
from threedident.evaluate.scoring import METRICS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL = os.environ.get("THREEDIDENT_DOCS") == "all"

#: What a page says, and what stands for it here.
REPLACED = (
    (r"\$SLURM_ARRAY_TASK_ID", "0"),
    (r"/shared/", "shared/"),
    (r"data/release/3dident_test/3dident/test", "data/png"),
    (r"--scale cpu", "--scale smoke"),
    (r"(examples/(?:train|motion).py .*) \d+$", r"\1 2"),
)
_FEW_STEPS = "--set training.steps=2 --set training.batch_size=8 --threads 1"
#: What is added to a command of ours. Of an option that is repeated, the last one counts.
ADDED = (
    (r"render (?!.*--latents)", "--n 24"),
    (
        r"render(?!.*--extend)|traverse|compare-engines",
        "--resolution 32 --quality draft --workers 1",
    ),
    # Blender takes twice as long to start: tests/render has it.
    (r"(render|traverse)(?!.*--(engine|extend|latents))", "--engine direct"),
    (r"traverse", "--steps 3"),
    (r"compare-(engines|release)", "--n 2"),
    (r"compare-release", "--quality draft --workers 1"),
    (r"sprites natural-sprites", "--n 20"),
    (r"sprites --out", "--sizes 3x2x4x4x4"),
    (r"verify", "--n 24"),
    (r"preview", "--count 4"),
    (r"pairs", "--draws 100"),
    (r"pairs --n", "--n 1000"),
    (r"train (?!--)(?!.*--show)", _FEW_STEPS + " --set training.score_samples=32"),
    (r"evaluate (?!--template)", "--bootstrap 0"),
    (r"evaluate .*drawn:sprites", "--samples 400"),
    (r"export", "--resolution 32"),
    (r"leaderboard check .*--fresh", "--n 24 --workers 1"),
    (r"reproduce", _FEW_STEPS),
    (r"readout", "--bootstrap 0"),
)
#: The same in Python.
IN_PYTHON = (
    (r"\b6144\b", "64"),
    (r"batch_size=(512|128)\b", "batch_size=8"),
    (r"resolution=64\b", "resolution=32, workers=1"),
    (r"render\(walk, preset", "render(walk, preset, resolution=32"),
    (r"\b224, 224\b", "32, 32"),
    (r'"data/train", 4000', '"data/train", 24'),
    (r'"resolution": 32}', '"resolution": 32, "workers": 1}'),
    (r'raw, "3dident"\)', 'raw, "3dident", resolution=32, workers=1)'),
)
#: Commands of ours that only THREEDIDENT_DOCS=all runs, and which tests run their like otherwise.
#: Their words are checked always.
COSTLY = (
    (r"reproduce", "tests/baselines"),
    (r"compare-engines", "tests/render"),
    (r"compare-release", "tests/datasets"),
    (r"export", "tests/core"),
    (r"leaderboard check .*--fresh", "tests/evaluate"),
)
#: Commands of ours that never run here, and why. Their words are checked.
ELSEWHERE = (
    (r"download", "fetches gigabytes; tests/datasets has a server of its own"),
    (r"explore", "serves a page until Ctrl-C; tests/explore has one"),
)
#: Programs of others, why they do not run here, and what is checked of them: see CHECKS.
OTHERS = (
    ("pip", "would change the environment that the tests run in"),
    ("make", "sets up an environment of its own"),
    ("python benchmarks/", "measures for minutes"),
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: bash, python, ...
        title: of Python and TOML, a file's name; of commands, "not run here".
        text: its content, snippets filled in.
        line: where it begins.
    """

    language: str
    title: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = []
    for match in re.finditer(r"^( *)```(\w*) *(.*)\n((?:.*\n)*?)\1```$", text, re.M):
        indent, language, rest, content = match.groups()
        content = re.sub(rf"^{indent}", "", content, flags=re.M)
        content = re.sub(r'^--8<-- "(.*)"$', lambda m: (ROOT / m[1]).read_text("utf-8"), content)
        title = re.search(r'title="([^"]*)"', rest)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(language, title[1] if title else "", content, line))
    return found


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block of bash, as words."""
    text = block.text.replace("\\\n", " ")
    for pattern, small in REPLACED:
        text = re.sub(pattern, small, text, flags=re.M)
    for line in text.splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def matching(table: Sequence[tuple[str, str]], words: Sequence[str]) -> list[str]:
    """The right sides of the rows that fit a command of ours."""
    line = shlex.join(words)
    return [right for pattern, right in table if re.match(pattern, line)]


def find(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """A command of ours, and the words after its name."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group):
        if isinstance(command, DefaultGroup) and (not rest or rest[0] not in command.commands):
            return command.commands[command.default], rest
        if not rest or rest[0].startswith("-"):
            break
        assert rest[0] in command.commands, f"there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    return command, rest


def check(words: Sequence[str]) -> None:
    """Fails unless a command of ours takes these words."""
    command, rest = find(words)
    with contextlib.suppress(click.exceptions.Exit):  # --help and --list end by themselves
        given = command.make_context("3dident", rest).params
        if given.get("experiment"):
            load_experiment(given["experiment"])


#: What commands have made, by their words: pages that make the same thing share it.
MADE: dict[str, Path] = {}


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)


def run(words: Sequence[str], out: str | None = None) -> None:
    command, rest = find(words)
    if command.name in ("render", "traverse", "train") and "--out" in words:
        options = command.make_context(command.name, rest).params
        target = Path(options.pop("out"))
        before = MADE.setdefault(f"{command.name} {options}", target.resolve())
        if before != target.resolve() and before.exists() and not target.exists():
            copy(before, target)
            return
    sys.argv = ["3dident", *words]  # datasets record it
    with contextlib.ExitStack() as stack:
        if out:
            stack.enter_context(
                contextlib.redirect_stdout(stack.enter_context(Path(out).open("w")))
            )
        try:
            code = main.main(list(words), "3dident", standalone_mode=False)
        except SystemExit as end:
            code = end.code
    if out and "--template" in words:
        fill_in(Path(out))
    assert not code, f"3dident {shlex.join(words)} exits with {code}; what it says stands below"


def fill_in(path: Path) -> None:
    """Writes what a reader would into a template of a manifest."""
    values = {"output_space": "box", "track": "supervised", "hyperparameters": "published"}
    numbers = {"images": 24, "steps": 2, "seed": 0, "data_seeds": [0]}
    text = re.sub(r"^(conditional|width) = .*\n", "", path.read_text("utf-8"), flags=re.M)
    text = text.replace('submission = "FILL IN"', 'submission = "encoder.onnx"')
    text = text.replace('entry = "FILL IN"', 'entry = "our-encoder"')
    for key, value in (values | numbers).items():
        text = re.sub(rf'^{key} = "FILL IN"', f"{key} = {json.dumps(value)}", text, flags=re.M)
    path.write_text(
        text.replace('= "FILL IN"', '= "of a reader"').replace('["FILL IN"]', '["A reader"]')
    )


def run_script(words: Sequence[str]) -> None:
    sys.argv = list(words)
    runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def check_pip(words: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    for names in re.findall(r"\[(.*?)\]", " ".join(words)):
        assert set(names.split(",")) <= set(project["optional-dependencies"]), names


def check_make(words: Sequence[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {word for word in words if "=" not in word} <= set(targets)


def check_script(words: Sequence[str]) -> None:
    assert (ROOT / words[0]).is_file(), words[0]


CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "pip": check_pip,
    "make": check_make,
    "python benchmarks/": check_script,
}


def inner(words: Sequence[str]) -> list[str]:
    """The words of ours in a command that does not run here: behind `exec`, Docker, torchrun."""
    line = shlex.join(words)
    if words[0] in ("docker", "docker-compose") and " run " not in line:
        return []
    # A service of compose.yaml is called as the command that it runs; `toolkit` runs any.
    service = re.search(r"docker compose .*run .*?\b((?:render|train)(?:-cuda)?) (.*)", line)
    if service:
        return [service[1].removesuffix("-cuda"), *shlex.split(service[2])]
    ours = re.search(r"(?:3dident|-m threedident|threedident:\w+|toolkit(?:-cuda)?) (.*)", line)
    return shlex.split(ours[1]) if ours else []


def follow(words: Sequence[str], *, runs: bool) -> None:
    """Runs one command, or checks it where it is not to run."""
    line = shlex.join(words)
    for name, _ in OTHERS:
        if line.startswith(name):
            return CHECKS[name](words[1:])
    if line.startswith("python examples/"):
        check_script(words[1:])
        return run_script(words[1:]) if runs else None
    if not runs:
        if ours := inner(words):
            check(ours)
        return None
    assert words[0] == "3dident", f"what is to be done with {line!r}? See OTHERS"
    out = None
    if ">" in words:
        *words, _, out = words
    words = words[1:]
    runs = not matching(ELSEWHERE, words) and (ALL or not matching(COSTLY, words))
    added = " ".join(matching(ADDED, words)).split() if runs else []
    check([*words, *added])
    if runs:
        run([*words, *added], out)
    elif words[0] == "export":
        encoder(Path("encoder.onnx"))  # what follows takes it for granted
    return None


@pytest.fixture(scope="session")
def taken_for_granted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes, once, what pages use without having made it."""
    root = tmp_path_factory.mktemp("granted")

    def make(name: str) -> Path:
        path = root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            GRANTED[name](path)
        return path

    return make


def small_dataset(path: Path, split: str) -> None:
    words = f"render --split {split} --out {path}".split()
    run([*words, *" ".join(matching(ADDED, words)).split()])


def encoder(path: Path) -> None:
    """An ONNX encoder whose codes are the mean colours."""
    axes = numpy_helper.from_array(np.array([2, 3]), "axes")
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["codes"], keepdims=0),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["B", 3, "H", "W"])
    codes = helper.make_tensor_value_info("codes", TensorProto.FLOAT, ["B", 3])
    graph = helper.make_graph(nodes, "means", [images], [codes], [axes])
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


#: What pages may take for granted, and how it is made.
GRANTED: dict[str, Callable[[Path], None]] = {
    "shared/3dident": lambda path: small_dataset(path, "train"),
    "data/3dident": lambda path: small_dataset(path, "train"),
    "data/3dident-test": lambda path: small_dataset(path, "test"),
    "encoder.onnx": encoder,
    "mine.npy": lambda path: np.save(path, np.zeros((3, 10), np.float32)),
}


@pytest.fixture(autouse=True)
def _metrics_of_pages_go_with_them():
    with mock.patch.dict(METRICS):
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # of readers that pages break off
def test_what_a_page_says_runs(page, tmp_path, monkeypatch, taken_for_granted):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HF_HOME", str(tmp_path / ".cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parts = blocks(page)
    text = "\n".join(
        part.text if part.language == "python" else shlex.join(words)
        for part in parts
        if part.title != "not run here"
        for words in (commands(part) if part.language == "bash" else [()])
    )
    for name in GRANTED:
        first = re.search(rf"(--out )?{name}(?![\w-])", text)
        if first and not first[1]:
            source = taken_for_granted(name)
            copy(source, tmp_path / name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for part in parts:
        where = f"{page.relative_to(ROOT)}, line {part.line}"
        match part.language:
            case "bash":
                for words in commands(part):
                    print(f"{where}: {shlex.join(words)}", file=sys.stderr)
                    follow(words, runs=part.title != "not run here")
            case "python" if part.title.startswith("examples/"):
                pass  # the script runs where the page says so
            case "python" | "toml" if part.title:
                Path(part.title).write_text(part.text)
            case "python":
                print(where, file=sys.stderr)
                code = part.text
                for pattern, small in IN_PYTHON:
                    code = re.sub(pattern, small, code)
                exec(compile(code, where, "exec"), namespace)
            case language:
                assert language in ("", "text", "toml", "yaml", "json"), (
                    f"{where}: a block of {language}?"
                )
    if len(namespace) > 1:
        namespace.clear()
        gc.collect()  # warnings of what is left over belong to this page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_exist(page):
    """They may be cut short or hold placeholders, so that only names are checked."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    for span in re.findall(r"`((?:3dident|python|make|pip) [^`]+)`", text):
        words = shlex.split(span)
        if words[0] in CHECKS:
            CHECKS[words[0]](words[1:])
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), span
        else:
            command, rest = find(words[1:])
            known = {name for option in command.params for name in option.opts}
            known |= {name for option in command.params for name in option.secondary_opts}
            options = {word.partition("=")[0] for word in rest if word.startswith("--")}
            assert options <= known | {"--help", "--version"}, span


def test_the_readme_is_short_and_begins_with_commands_that_run():
    readme = ROOT / "README.md"
    assert len(readme.read_text("utf-8").splitlines()) <= 200
    first = blocks(readme)[0]
    assert first.language == "bash"
    assert first.title != "not run here"
    install, *ours = commands(first)
    assert install[:2] == ["pip", "install"]
    assert [words[:2] for words in ours] == [
        ["3dident", name] for name in ("render", "render", "train", "evaluate", "explore")
    ]
    for words in ours[:-1]:  # the last one opens a page, and goes on until Ctrl-C
        assert not matching((*COSTLY, *ELSEWHERE), words[1:])
    # What the commands read is what those before them write, so nothing is taken for granted.
    written: set[str] = set()
    assert ours[-1][2:] == ["data/test", "--encoder", "runs/demo"]
    *ours, page = ours
    for words in ours:
        read = {words[n + 1] for n, word in enumerate(words) if word in ("--data", "--test")}
        read |= {re.split(r"=|/encoder", word)[1] for word in words if word.startswith("reference")}
        assert read <= written
        written.add(words[words.index("--out") + 1])
    assert {page[2], page[4]} <= written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    """In the files as they are; mkdocs checks the pages of the site, with what it fills in."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^):]+)\)", text)
    assert len(links) > 20 or page.name != "README.md"
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, link


def test_every_recorded_benchmark_has_its_heading_and_its_figures():
    recorded = (ROOT / "benchmarks/results/bench.md").read_text("utf-8")
    page = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    names = re.findall(r"^### (\w+)$", recorded, re.M)
    assert len(names) > 5
    for name in names:
        assert f"\n### {name}\n" in page
        assert page.count(f"<!-- figures of {name} -->") == 1


def test_the_rays_of_the_page_on_gpus_are_those_of_the_page_on_engines():
    engines = (ROOT / "docs/engines.md").read_text("utf-8")
    rows = re.findall(r"^\| \w+_kernel \| ([\d.]+) \| (\d+) \| (\d+) \|", engines, re.M)
    assert len(rows) >= 5
    milliseconds = sum(float(row[0]) for row in rows)
    rays = sum(int(count) for row in rows for count in row[1:])
    page = " ".join((ROOT / "docs/gpu.md").read_text("utf-8").split())
    per_thread = rays / milliseconds / 1e3  # millions a second
    cycles = 132 * 1.7e9 / (1000 * rays)
    for text in (
        f"at most {rays:,} rays",
        f"{rays / 1e3:.0f} million rays a second",
        f"traces {per_thread:.1f} million rays a second",
        f"work of {milliseconds:.0f} such threads",
        f"a multiprocessor {cycles:.0f} cycles",
        f"{round(128 * cycles, -3):,.0f} cycles of a single lane",
        f"some {round(3e3 / per_thread, -1):.0f} cycles a ray",
    ):
        assert text in page, text


def test_the_row_that_a_page_adds_to_a_table_is_one(tmp_path, monkeypatch):
    page = ROOT / "docs/extending.md"
    parts = {part.title: part.text for part in blocks(page) if part.language == "toml"}
    quoted = [part.text for part in blocks(page) if part.language == "toml" and not part.title]
    folder = tmp_path / "tables"
    shutil.copytree(ROOT / "baselines/tables", folder)
    file = folder / "table4.toml"
    table = file.read_text("utf-8")
    assert all(line in table for text in quoted for line in text.splitlines())
    row = parts["row.toml"].removeprefix("[rows]\n")
    file.write_text(table.replace("[rows]\n", f"[rows]\n{row}"))
    monkeypatch.setattr(tables, "_FOLDER", folder)
    cached = (tables._files, tables.read_presets, tables.read_tables, tables.read_images)
    for function in cached:
        function.cache_clear()
    try:
        experiment = load_experiment("table4-laplace-unbounded")
        assert "table4-laplace-unbounded" in [
            row["name"] for row in tables.read_tables()["table4"].rows
        ]
    finally:
        for function in cached:
            function.cache_clear()
    (tmp_path / "own.toml").write_text(parts["laplace-unbounded.toml"])
    own = load_experiment(tmp_path / "own.toml")
    assert experiment.training.steps == 10_000
    assert experiment.title == "3DIdent, Laplace(0.1) pairs; model: unbounded, Normal"
    for part in ("data", "encoder", "loss"):
        assert getattr(experiment, part) == getattr(own, part)


def test_the_readme_quotes_the_least_favourable_recorded_figures():
    results = ROOT / "benchmarks" / "results"
    recorded = json.loads((results / "bench.json").read_text())["benchmarks"]

    def figure(benchmark: str, case: str, name: str) -> float:
        rows = recorded[benchmark]["rows"]
        return next(r["figure"] for r in rows if (r["case"], r["name"]) == (case, name))

    alone = {
        f"{row['engine']}, {row['quality']}": row
        for row in json.loads((results / "render.json").read_text())["rows"]
    }

    def least(slow: str, quick: str) -> float:
        return float(alone[slow]["cpu_seconds_per_image"] / alone[quick]["cpu_seconds_per_image"])

    text = (ROOT / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| ([^|]*) \| .* \| (.*) \| \[", text, re.M))
    blender = rows["Blender, quality `standard`"]
    direct = rows["`direct`, quality `standard`"]
    assert f"1/{least('cycles, reference', 'cycles, standard'):.0f} of the" in blender
    assert f"{least('cycles, standard', 'direct, standard'):.1f} times as fast" in direct
    assert f"{least('cycles, standard', 'direct, standard'):.1f} times as fast" in " ".join(
        text[text.index("No Blender?") :].split()
    )
    for engine, quoted in (("cycles", blender), ("direct", direct)):
        row = alone[f"{engine}, standard"]
        assert f"{row['psnr_mean_db']:.1f}" in quoted
        assert f"{row['psnr_worst_db']:.1f}" in quoted
    plain, ours = (figure("storage", "random reads", n) for n in ("PNG files", "contiguous (none)"))
    assert f"{ours / plain:.0f} times" in rows["reading single images"]
    losses = json.loads((results / "losses" / "bench.json").read_text())["benchmarks"]["losses"]
    for case, plain in (("p = 2", "torch.cdist"), ("dot product", "broadcast")):
        name = f"step, {case}, 6,144 pairs"
        step = {row["name"]: row["figure"] for row in losses["rows"] if row["case"] == name}
        quoted = f"{step[plain] / step['ours (numba)']:.1f} times"
        assert quoted in rows["a training step on 6,144 pairs"]
    slower = [
        figure("scoring", f"{metric}, 25,000 samples", "ours")
        / figure("scoring", f"{metric}, 25,000 samples", baseline)
        for metric, baseline in (
            ("R2", "scikit-learn"),
            ("MCC", "numpy.corrcoef, scipy's assignment"),
        )
    ]
    assert "{:.1f} and {:.1f} times *slower*".format(*slower) in rows["linear R2 and MCC"]


def test_the_table_of_engines_is_the_recorded_one():
    rows = json.loads((ROOT / "benchmarks/results/render.json").read_text())["rows"]
    text = (ROOT / "docs/engines.md").read_text("utf-8")
    slowest = rows[0]["cpu_seconds_per_image"]
    for row in rows:
        seconds = row["cpu_seconds_per_image"]
        cells = (row["engine"], row["quality"], row["images"], f"{seconds:.3g}")
        decibels = f"{row['psnr_mean_db']:.1f} / {row['psnr_worst_db']:.1f}"
        tail = f"{row['tail_mean_levels']:.1f} / {row['tail_worst_levels']:.0f}"
        off = f"{row['share_off_mean']:.2%} / {row['share_off_worst']:.2%}"
        line = " | ".join(map(str, (*cells, f"{slowest / seconds:.0f}", decibels, tail, off)))
        assert f"| {line} |" in text


def test_no_row_of_the_tables_is_idle():
    """A row that fits nothing is left over from a page that has changed."""
    bash = [part for page in PAGES for part in blocks(page) if part.language == "bash"]
    python = "".join(p.text for page in PAGES for p in blocks(page) if p.language == "python")
    raw = "".join(part.text for part in bash)
    lines = [shlex.join(words) for part in bash for words in commands(part)]
    ours = [line.removeprefix("3dident ") for line in lines if line.startswith("3dident ")]
    assert ours
    idle = [row for row in REPLACED if not re.search(row[0], raw, re.M)]
    idle += [row for row in IN_PYTHON if not re.search(row[0], python)]
    for table in (ADDED, COSTLY, ELSEWHERE):
        idle += [row for row in table if not any(re.match(row[0], line) for line in ours)]
    idle += [row for row in OTHERS if not any(line.startswith(row[0]) for line in lines)]
    assert not idle
    assert all((ROOT / place).is_dir() for _, place in COSTLY)


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "PYTHONSAFEPATH": "1", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        text = page.read_text("utf-8")
        fetched = re.findall(
            r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\" >]*)", text
        )
        assert not fetched, page.name
        assert "--8" not in re.sub("<[^>]*>", "", text), f"{page.name}: a snippet is not filled in"
    shown = (tmp_path / "site/reproducing.html").read_text("utf-8")
    tables = sorted((ROOT / "benchmarks/results/reproduce-cpu").glob("*/table.md"))
    assert tables
    for table in tables:
        assert html.escape(table.read_text("utf-8").splitlines()[0].removeprefix("# ")) in shown
    board = (tmp_path / "site/leaderboard/index.html").read_text("utf-8")
    listed = (tmp_path / "site/leaderboard.html").read_text("utf-8")
    for manifest in (ROOT / "leaderboard").glob("entries/*/*/manifest.toml"):
        name = tomllib.loads(manifest.read_text("utf-8"))["name"]
        assert name in board and name in listed
        report = manifest.parent.relative_to(ROOT / "leaderboard") / "report.html"
        assert (tmp_path / "site/leaderboard" / report).is_file()
    recorded = (ROOT / "benchmarks/results/bench.md").read_text("utf-8")
    measured = (tmp_path / "site/benchmarks.html").read_text("utf-8")
    assert measured.count("least to most") > recorded.count("least to most") > 5
    api = (tmp_path / "site/api/datasets.html").read_text("utf-8")
    assert "threedident.datasets.dataset.ThreeDIdent" in api
