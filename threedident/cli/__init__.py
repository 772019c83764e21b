"""The command line. Heavy modules are imported inside the commands that need them."""

from __future__ import annotations

<<<<<<< HEAD
from threedident.cli import data, doctor, evaluate, leaderboard, model, readout, render, train
=======
from threedident.cli import data, doctor, evaluate, leaderboard, model, render, sprites, train
>>>>>>> main
from threedident.cli.group import SECTIONS, main

__all__ = [
    "SECTIONS",
    "data",
    "doctor",
    "evaluate",
    "leaderboard",
    "main",
    "model",
    "readout",
    "render",
    "sprites",
    "train",
]
