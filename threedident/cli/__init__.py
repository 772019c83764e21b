"""The command line. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

from threedident.cli import (
    data,
    doctor,
    evaluate,
    explore,
    leaderboard,
    model,
    readout,
    render,
    sprites,
    train,
)
from threedident.cli.group import SECTIONS, main

__all__ = [
    "SECTIONS",
    "data",
    "doctor",
    "evaluate",
    "explore",
    "leaderboard",
    "main",
    "model",
    "readout",
    "render",
    "sprites",
    "train",
]
