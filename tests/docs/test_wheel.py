"""The wheel, as it is built and installed: nothing is missing from it, and all of it imports."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "threedident": "threedident",
    **{f"threedident/{name}": name for name in ("render", "datasets", "evaluate", "baselines")},
}

#: Imports every module of the package, and prints as JSON where it lies, which modules were
#: imported, and which need an extra that is not installed.
WALK = """
import importlib, json, pkgutil
import threedident
from threedident.errors import MissingExtraError

done, missing, pending = [], {}, [("threedident", threedident.__path__)]
while pending:
    package, path = pending.pop()
    for module in pkgutil.iter_modules(path, f"{package}."):
        if module.name.endswith(".__main__"):  # runs the command line
            continue
        try:
            loaded = importlib.import_module(module.name)
        except MissingExtraError as error:
            missing[module.name] = str(error)
            continue
        done.append(module.name)
        if module.ispkg:
            pending.append((module.name, loaded.__path__))
print(json.dumps({"path": threedident.__file__, "done": done, "missing": missing}))
"""


def run(*words: object, cwd: Path | None = None) -> str:
    command = [*map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: builds leave files behind."""
    root = tmp_path_factory.mktemp("sources")
    for folder in FOLDERS.values():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    out = tmp_path_factory.mktemp("wheel")
    # What builds is fetched only where it is not installed.
    here = ["--no-build-isolation"] if importlib.util.find_spec("setuptools") else []
    run(*(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *here), "-w", out, root)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for place, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == expected


def test_every_module_of_the_installed_wheel_imports(wheel, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", wheel)
    # The libraries of these tests come behind the wheel. Of what is installed in editable form,
    # this package too, nothing comes with them: that takes another folder's .pth files.
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    libraries = [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n", "utf-8")

    report = json.loads(run(python, "-I", "-c", WALK, cwd=tmp_path).splitlines()[-1])

    assert Path(report["path"]).is_relative_to(tmp_path / "env")
    # A package that needs a missing extra hides its modules, but says which extra that is.
    hidden = tuple(f"{name}." for name in report["missing"])
    expected = {name for name in _modules(wheel) if not (hidden and name.startswith(hidden))}
    assert {*report["done"], *report["missing"]} == expected
    assert all("pip install '.[" in text for text in report["missing"].values())
    assert {"threedident.storage.directory", "threedident.cli.group"} <= set(report["done"])
    if importlib.util.find_spec("torch"):
        assert "threedident.encoders.files" in report["done"]


def _modules(wheel: Path) -> set[str]:
    """The dotted names of a wheel's modules, but those that run the command line."""
    with zipfile.ZipFile(wheel) as archive:
        files = [Path(name) for name in archive.namelist() if name.endswith(".py")]
    parts = (
        path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts
        for path in files
    )
    return {".".join(each) for each in parts if each[-1] != "__main__"} - {"threedident"}
