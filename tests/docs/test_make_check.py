"""`pytest --fast`, which `make check` runs, leaves out what is heavy and nothing else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.fast import SLOW

TESTS = Path(__file__).parents[1]

CONFTEST = """
import sys
sys.path.append({tests!r})
from helpers.fast import pytest_addoption, pytest_configure
"""
EXAMPLES = """
import subprocess, sys
from pathlib import Path
import pytest

def python(code):
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)

def test_passes():
    python("print('hello')")

def test_fails():
    assert not "passed"

def test_fails_in_another_process():
    python("1 / 0")

def test_left_out_blender():
    import bpy

def test_left_out_blender_in_another_process():
    python("import bpy")

def test_left_out_render():
    import threedident as tdi
    tdi.render_images([[0.0] * 10], resolution=32, quality="draft", workers=1)

def test_left_out_command():
    subprocess.run([Path(sys.executable).with_name("3dident"), "--version"], check=True)

def test_left_out_training(tmp_path):
    import threedident as tdi
    tdi.train(tdi.baselines.load_experiment("aninfonce"), tmp_path / "run", quiet=True)

def test_left_out_training_in_a_fork(tmp_path):
    import multiprocessing
    import threedident as tdi
    arguments = (tdi.baselines.load_experiment("aninfonce"), tmp_path / "run")
    child = multiprocessing.get_context("fork").Process(target=tdi.train, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 0

def test_left_out_render_in_a_thread():
    import threading
    import threedident as tdi
    work = lambda: tdi.render_images([[0.0] * 10], resolution=32, quality="draft", workers=1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not "reached"

def test_left_out_cluster():
    import ray

@pytest.mark.slow
def test_slow():
    raise AssertionError("it is not run")
"""


@pytest.mark.slow
def test_only_tests_that_start_something_heavy_are_left_out(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    (tmp_path / "test_examples.py").write_text(EXAMPLES)
    words = ["--fast", "-p", "no:cacheprovider", f"--junitxml={tmp_path / 'outcomes.xml'}"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *words, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    outcomes = {
        case.get("name"): [part.tag for part in case]
        for case in ElementTree.parse(tmp_path / "outcomes.xml").iter("testcase")
    }
    names = [node.name for node in ast.parse(EXAMPLES).body if isinstance(node, ast.FunctionDef)]
    assert set(outcomes) == {name for name in names if name.startswith("test_")} - {"test_slow"}
    for name, tags in outcomes.items():
        kind = name.split("_")[1]
        assert tags == {"passes": [], "fails": ["failure"], "left": ["skipped"]}[kind], (
            f"{name}: {tags}\n{done.stdout}"
        )


def test_every_test_that_is_listed_as_slow_exists():
    text = "".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    assert not [name for name in SLOW if f"def {name}(" not in text]
