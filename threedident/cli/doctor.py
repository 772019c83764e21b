"""The command doctor: checks what is installed, and says what to do about the rest."""

from __future__ import annotations

import dataclasses
import importlib
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata, util

import click

from threedident.cli.group import main, say
from threedident.cli.options import json_option
from threedident.errors import ThreeDIdentError

#: Distributions by the extra that installs them (None: the base), and what they import as.
PACKAGES: dict[str | None, dict[str, str]] = {
    None: {
        "click": "click",
        "h5py": "h5py",
        "numpy": "numpy",
        "pillow": "PIL",
        "requests": "requests",
        "rich": "rich",
    },
    "render": {"bpy": "bpy", "trimesh": "trimesh"},
    "direct": {"warp-lang": "warp"},
    "train": {
        "faiss-cpu": "faiss",
        "lightning-fabric": "lightning_fabric",
        "matplotlib": "matplotlib",
        "numba": "numba",
        "onnx": "onnx",
        "onnxruntime": "onnxruntime",
        "onnxscript": "onnxscript",
        "scikit-learn": "sklearn",
        "scipy": "scipy",
        "tensorboard": "tensorboard",
        "threadpoolctl": "threadpoolctl",
        "tomli-w": "tomli_w",
        "torch": "torch",
        "torchvision": "torchvision",
    },
    "cluster": {"ray": "ray"},
    "export": {"pyarrow": "pyarrow"},
    "explore": {"starlette": "starlette", "uvicorn": "uvicorn"},
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: the name of what was looked at.
        state: ok, missing (an extra that is not installed) or broken.
        detail: the version, or what to do.
        extra: the extra it belongs to; None for what everything needs.
    """

    name: str
    state: str
    detail: str
    extra: str | None = None


#: Of the longest name, and a space beside it.
NAME_WIDTH = 2 + max(len(name) for packages in PACKAGES.values() for name in packages)


def look() -> Iterator[Finding]:
    """Look at everything the toolkit can use; yield a finding for each."""
    yield Finding("threedident", "ok", metadata.version("threedident"))
    yield _python()
    for extra, packages in PACKAGES.items():
        for name, module in packages.items():
            yield _package(name, module, extra)
    if util.find_spec("bpy") is not None:
        yield from _blender()
    usage = shutil.disk_usage(".")
    yield Finding("disk here", "ok", f"{usage.free / 1e9:.0f} GB free")


def examine() -> list[Finding]:
    """All that `look` finds."""
    return list(look())


def is_fault(finding: Finding) -> bool:
    """Whether the toolkit cannot do what it is installed for: an extra may be missing."""
    return finding.state == "broken" or (finding.state != "ok" and finding.extra is None)


def _python() -> Finding:
    version = platform.python_version()
    if platform.python_version_tuple()[:2] == ("3", "11"):
        return Finding("python", "ok", version)
    return Finding(
        "python",
        "ok",
        f"{version} (only 3.11 is tested, and rendering needs it: bpy has no other wheels)",
    )


def _package(name: str, module: str, extra: str | None) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        target = f".[{extra}]" if extra else "."
        return Finding(name, "missing", f"pip install '{target}' in the checkout", extra)
    if module == "bpy":  # loaded in a process of its own, below
        return Finding(name, "ok", version, extra)
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever an import can do
        return Finding(name, "broken", f"{version}, but it does not load: {error}", extra)
    return Finding(name, "ok", version, extra)


def _blender() -> list[Finding]:
    from threedident.render.settings import probe

    try:
        available = probe()
    except ThreeDIdentError as error:
        return [Finding("Blender", "broken", str(error), "render")]
    devices = ", ".join(
        kind if count == 1 else f"{kind} ({count})" for kind, count in available.devices.items()
    )
    return [
        Finding("Blender", "ok", available.version, "render"),
        Finding("render devices", "ok", devices, "render"),
    ]


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check what is installed, with versions, and say what to do about the rest.

    With --json: `good`, and `findings` with `name`, `state` (ok, missing or broken), `detail`
    and `extra`.

    \b
    Example:
      3dident doctor
    """
    import dataclasses
    import json

    from threedident.cli.doctor import NAME_WIDTH, is_fault, look

    marks = {"ok": "ok     ", "missing": "-      ", "broken": "BROKEN "}
    if not as_json:
        click.echo("loading what is installed, which takes some seconds")
    findings = []
    for finding in look():
        findings.append(finding)
        if not as_json:
            click.echo(f"{marks[finding.state]}{finding.name:<{NAME_WIDTH}}{finding.detail}")
    broken = [finding.name for finding in findings if is_fault(finding)]
    if as_json:
        document = {"good": not broken, "findings": [dataclasses.asdict(f) for f in findings]}
        click.echo(json.dumps(document, indent=2))
    elif broken:
        say(f"error: broken: {', '.join(broken)}")
    if broken:
        raise SystemExit(1)
