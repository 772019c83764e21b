"""How long the command line takes to start; see run.py."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("3dident"))


def seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def cases(short: bool) -> Iterator[Any]:
    """Start-up of the command line, from the start of the process to its end."""
    python = (sys.executable, "-c")
    commands = {
        "python -c pass": (*python, "pass"),
        "python -c 'import click'": (*python, "import click"),
        "python -c 'import numpy'": (*python, "import numpy"),
        "3dident --help": (COMMAND, "--help"),
        "3dident render --help": (COMMAND, "render", "--help"),
    }
    contenders = {name: functools.partial(seconds, *words) for name, words in commands.items()}
    yield "start", "s", 2 if short else 11, contenders
