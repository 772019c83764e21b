"""Hooks of mkdocs: the package as it is installed, its modules and its results on pages."""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NORMAL_PAIRS = RESULTS / "normal-pairs"
#: Modules that are no part of the API: code that runs on a device or as a script, and the parts of
#: the page of `3dident explore`, but for the function that serves it.
INTERNAL = {
    "threedident.render.direct.integrand",
    "threedident.render.direct.kernels",
    "threedident.render.executors.child",
    *(
        f"threedident.explore.{path.stem}"
        for path in (ROOT / "threedident" / "explore").glob("[!_]*.py")
        if path.stem != "app"
    ),
}


@event_priority(100)  # before mkdocstrings looks for it
def on_config(config: Any) -> Any:
    """Copy the package's sources to build/api, for mkdocstrings to read.

    `render/` is `threedident.render` only there; pyproject.toml says which folder is what.
    """
    target = ROOT / "build" / "api"
    shutil.rmtree(target, ignore_errors=True)
    for package, folder in packages().items():
        place = target.joinpath(*package.split("."))
        place.mkdir(parents=True, exist_ok=True)
        for source in folder.glob("*.py"):
            shutil.copy(source, place)
    return config


def packages() -> dict[str, Path]:
    """Every package of the project, and the folder of its sources."""
    folders = {name: _folder(name, _package_dir()) for name in _setuptools()["packages"]}
    return {name: at for name, at in folders.items() if (at / "__init__.py").exists()}


def _setuptools() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return dict(project["tool"]["setuptools"])


def _package_dir() -> dict[str, str]:
    """The packages of the top-level folders, and these folders."""
    return dict(_setuptools()["package-dir"])


def _folder(package: str, known: dict[str, str]) -> Path:
    """A package's folder; setuptools looks its parents up, too."""
    if package in known:
        return ROOT / known[package]
    parent, _, name = package.rpartition(".")
    return _folder(parent, known) / name if parent else ROOT / name


def public_modules() -> list[str]:
    """All modules of the API: the public ones, and private ones that define a public name."""
    names = set()
    for package, folder in packages().items():
        if package.startswith("threedident.cli"):
            continue
        names |= {f"{package}.{path.stem}" for path in folder.glob("[!_]*.py")}
        code = ast.parse((folder / "__init__.py").read_text("utf-8"))
        names |= {module for module in _imported(code) if module.rpartition(".")[2][0] == "_"}
        if any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in code.body):
            names.add(package)
    return sorted(names - INTERNAL - {"threedident", "threedident._lazy"})


def _imported(code: ast.Module) -> Iterator[str]:
    """The modules of this project that a package's `__init__` takes names from."""
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("threedident."):
            yield str(node.module)


def page_modules(room: str) -> list[str]:
    """The modules of a room: a top-level folder's package, or `threedident` for the core."""
    return [module for module in public_modules() if _room(module) == room]


def _room(module: str) -> str:
    rooms = [name for name in _package_dir() if f"{module}.".startswith(f"{name}.")]
    return rooms[0] if rooms else "threedident"


def recorded_figures() -> dict[str, str]:
    """The recorded figures of each benchmark in Markdown, by name, and the `machine`."""
    text = (RESULTS / "bench.md").read_text("utf-8")
    machine, *parts = re.split(r"^### (\w+)\n", text, flags=re.M)
    sections = {"machine": machine, **dict(zip(parts[::2], parts[1::2], strict=True))}
    return {name: section.strip() for name, section in sections.items()}


def on_files(files: Any, config: Any) -> Any:
    """Add the page of the leaderboard, which the command makes, and the reports that it links."""
    from threedident.evaluate.leaderboard.entries import read_board
    from threedident.evaluate.leaderboard.page import write_site

    site = ROOT / "build" / "leaderboard"
    shutil.rmtree(site, ignore_errors=True)
    write_site(read_board(ROOT / "leaderboard"), site)
    for path in sorted(site.rglob("*.*")):
        place = f"leaderboard/{path.relative_to(site).as_posix()}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for study in (*recorded_studies(), NORMAL_PAIRS):
        for picture in sorted(study.glob("*.png")):
            files.append(File.generated(config, place_of(picture), abs_src_path=str(picture)))
    return files


def recorded_studies() -> list[Path]:
    """The folders of recorded runs whose tables the site shows."""
    return sorted(path.parent for path in RESULTS.glob("reproduce-cpu/*/table.md"))


def place_of(picture: Path) -> str:
    """The place of a recorded picture in the site."""
    return f"images/results/{picture.parent.name}/{picture.name}"


def table_of(study: Path) -> str:
    """The recorded table of a study in Markdown, one heading lower, with its pictures."""
    table = re.sub("^#", "###", (study / "table.md").read_text("utf-8"), flags=re.M)
    pictures = sorted(study.glob("*.png"))
    shown = [f"![The runs of {study.name}]({place_of(picture)})" for picture in pictures]
    return "\n\n".join([table.strip(), *shown])


def leaderboard_table() -> str:
    """The leaderboard in Markdown: a line for each entry and for each row of the paper."""
    from threedident.evaluate.leaderboard.entries import read_board
    from threedident.evaluate.leaderboard.ranking import make_rows
    from threedident.evaluate.submissions.manifest import TRACKS

    lines = [
        "| entry | track | R2 | MCC | seeds | images |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in make_rows(read_board(ROOT / "leaderboard")):
        scores = [row.averages.get(name) for name in ("linear_r2", "mcc")]
        shown = [
            "-"
            if score is None
            else f"{100 * score.mean:.2f}"
            + ("" if score.std is None else f" ± {100 * score.std:.2f}")
            for score in scores
        ]
        images = row.conditions.label if row.conditions else "published, not run again"
        cells = [row.name, TRACKS[row.track], *shown, str(row.seeds), images]
        lines.append(f"| {' | '.join(cells)} |")
    whole = "[The whole table](leaderboard/index.html) sorts and filters, and links every report."
    return "\n".join([*lines, "", whole])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put modules, figures of benchmarks and tables of `3dident reproduce` where a page says so."""
    markdown = re.sub(
        "<!-- modules of (.*) -->",
        lambda match: "\n\n".join(f"::: {module}" for module in page_modules(match[1])),
        markdown,
    )
    markdown = re.sub(
        "<!-- figures of (.*) -->", lambda match: recorded_figures()[match[1]], markdown
    )
    if "<!-- leaderboard -->" in markdown:
        markdown = markdown.replace("<!-- leaderboard -->", leaderboard_table())
    markdown = markdown.replace("<!-- normal pairs -->", table_of(NORMAL_PAIRS))
    return markdown.replace("<!-- tables -->", "\n\n".join(map(table_of, recorded_studies())))
