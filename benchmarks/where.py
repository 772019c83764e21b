"""Where a benchmark ran: commit, processor and packages. It needs nothing that is installed."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def commit() -> str:
    """Of the checkout, and whether it has been changed since; the results do not count."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        words = ("git", "-C", str(ROOT), *words)
        return subprocess.run(words, capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "--short=10", "HEAD")
        changed = git("diff", "--quiet", "HEAD", "--", ":/", ":!/benchmarks/results").returncode
    except OSError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + (" with changes" if changed else "")


def processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
        return re.search(r"^model name\s*: (.*)$", text, re.M)[1]  # type: ignore[index]
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
