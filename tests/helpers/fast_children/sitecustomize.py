"""Loaded by every Python that a test of `pytest --fast` starts: see helpers/fast.py."""

import os
import sys

_NOTES, _HEAVY = os.environ.get("THREEDIDENT_FAST", "").partition(":")[::2]


def _watch(event, arguments):
    if event == "import" and arguments[0] in _HEAVY.split(","):
        with open(_NOTES, "a") as notes:  # noqa: PTH123
            notes.write(f"{arguments[0]}\n")
        raise ImportError(f"pytest --fast leaves out tests that load {arguments[0]}")


if _NOTES and "PYTEST_CURRENT_TEST" in os.environ:  # not pytest's own workers
    sys.addaudithook(_watch)
