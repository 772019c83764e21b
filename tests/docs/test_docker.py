"""The container files: what can go stale in them without anybody building an image."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from threedident.cli import main
from threedident.render.blender import DEBIAN_PACKAGES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
GUIDE = (ROOT / "docs/containers.md").read_text()


def joined(text):
    """Lines without comments, continued ones joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [line.strip() for line in kept.replace("\\\n", " ").splitlines() if line.strip()]


INSTRUCTIONS = [line.split(maxsplit=1) for line in joined((ROOT / "docker/Dockerfile").read_text())]


def stages():
    """[name, what it is made from, its instructions], in order; a stage without a name is ''."""
    found = []
    for word, rest in INSTRUCTIONS:
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            found.append((name, source, []))
        elif found:
            found[-1][2].append((word, rest))
    return found


def arguments():
    """The defaults of what stands before the first FROM."""
    return dict(rest.split("=", 1) for word, rest in INSTRUCTIONS if word == "ARG" and "=" in rest)


def parse(words):
    """Has click read a command line, without running it: an unknown option is an error."""
    name, *rest = words
    main.commands[name].make_context(name, rest)


def test_the_base_is_pinned_and_every_stage_stands_on_it():
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", arguments()["BASE"])
    seen = {"${BASE}"}
    for name, source, _ in stages():
        variants = [source.replace("${VARIANT}", variant) for variant in ("cpu", "cuda")]
        assert seen.issuperset(variants), source
        seen.add(name)


def test_blenders_libraries_are_in_the_final_image():
    by_name = {name: (source, body) for name, source, body in stages()}
    source, _ = by_name[""]
    assert by_name[source][0] == "${BASE}"
    installed = by_name[source][1][0][1].split()
    assert installed[:2] == ["apt-get", "update"]
    assert set(DEBIAN_PACKAGES.split()) <= set(installed)
    assert "python3" in installed


def test_nothing_is_left_of_package_managers():
    for word, rest in INSTRUCTIONS:
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        if word == "RUN" and "pip install" in rest:
            assert "--mount=type=cache,target=/root/.cache/pip" in rest


def test_it_runs_the_command_as_somebody_without_rights():
    body = stages()[-1][2]
    assert [rest for word, rest in body if word == "USER"] == ["1000"]
    assert ["ENTRYPOINT", '["3dident"]'] in INSTRUCTIONS
    assert [word for word, _ in body][-4:] == ["USER", "WORKDIR", "ENTRYPOINT", "CMD"]


def test_what_is_copied_exists_and_is_not_ignored():
    ignored, kept = [], []
    for line in joined((ROOT / ".dockerignore").read_text()):
        (kept if line.startswith("!") else ignored).append(line.lstrip("!"))
    assert ignored[0] == "*"
    copied = set()
    for _, _, body in stages():
        for word, rest in body:
            *sources, _ = rest.split()
            if word != "COPY" or sources[0].startswith("--from="):
                continue
            for source in sources:
                assert (ROOT / source).exists(), source
                assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source
            copied.update(sources)
    setup = PROJECT["tool"]["setuptools"]
    for package in setup["packages"]:
        folder = setup["package-dir"].get(package, package.replace(".", "/"))
        assert folder.split("/")[0] in copied, package


def test_stages_that_are_copied_from_exist():
    names = {name for name, _, _ in stages()}
    sources = set(re.findall(r"--from=(\S+)", "\n".join(rest for _, rest in INSTRUCTIONS)))
    assert sources == {"dependencies", "package"}
    assert sources <= names


def test_requirements_are_those_of_the_extras_and_pinned():
    (command,) = [rest for _, rest in INSTRUCTIONS if "requirements.py pyproject.toml" in rest]
    extras = re.search(r"requirements\.py pyproject\.toml ([\w ]+?) >", command)[1].split()
    script = [sys.executable, str(ROOT / "docker/requirements.py"), str(ROOT / "pyproject.toml")]
    said = subprocess.run([*script, *extras], capture_output=True, text=True, check=True).stdout
    found = {Requirement(line).name for line in said.splitlines()}
    wanted = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        wanted += PROJECT["project"]["optional-dependencies"][extra]
    assert found == {Requirement(line).name for line in wanted}
    assert {"bpy", "torch", "torchvision", "warp-lang", "click"} <= found
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {name.replace("_", "-") for name in found} <= {name.replace("_", "-") for name in pinned}
    environment = " ".join(rest for word, rest in INSTRUCTIONS if word == "ENV")
    assert "PIP_CONSTRAINT=/build/constraints.txt" in environment


@pytest.mark.parametrize("name", SERVICES)
def test_services(name):
    service, cuda = SERVICES[name], name.endswith("-cuda")
    program, *words = service.get("entrypoint", ["3dident"])
    assert program == "3dident"
    assert words in ([], [name.removesuffix("-cuda")])
    assert all(word in main.commands for word in words)
    variant = service["build"].get("args", {}).get("VARIANT", arguments()["VARIANT"])
    assert service["image"] == f"threedident:{variant}"
    assert f"torch-{variant}" in {stage for stage, _, _ in stages()}
    assert variant == ("cuda" if cuda else "cpu")
    assert ("deploy" in service) == cuda
    assert service.get("profiles", []) == (["cuda"] if cuda else [])
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert service["user"] == "${USER_ID:-1000}:${GROUP_ID:-1000}"
    assert {volume.split(":")[0] for volume in service["volumes"] if isinstance(volume, str)} <= {
        *COMPOSE["volumes"]
    }


def test_the_check_uses_commands_that_exist():
    script = (ROOT / "docker/check.sh").read_text()
    subprocess.run(["bash", "-n", ROOT / "docker/check.sh"], check=True)
    (small,) = re.findall(r"^small=\((.*)\)$", script, re.MULTILINE)
    lines = re.findall(r"^toolkit (.*)$", script, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        parse(shlex.split(line.replace('"${small[@]}"', small)))


def test_the_guide_uses_commands_that_exist():
    blocks = "\n".join(re.findall(r"^```bash.*?\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
    lines = [shlex.split(line, comments=True) for line in joined(blocks)]
    runs = [words[3:] for words in lines if words[:3] == ["docker", "compose", "run"]]
    assert len(runs) > 3
    for words in runs:
        service, *rest = (word for word in words if word != "--rm")
        parse([*SERVICES[service].get("entrypoint", ["3dident"])[1:], *rest])
