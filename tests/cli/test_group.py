"""The group of commands: its help, its version, what it loads."""

from __future__ import annotations

import subprocess
import sys

from helpers.commands import command, python

from threedident.cli import SECTIONS, main


def test_help_and_reading_load_neither_blender_nor_torch():
    done = python(
        "import sys, threedident.cli, threedident.datasets.formats\n"
        "import threedident.datasets.formats.convert\n"
        "heavy = {'bpy', 'torch', 'trimesh', 'faiss', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'loads {heavy}' if heavy else 0)"
    )
    assert done.returncode == 0, done.stderr
    light = python("import sys, threedident.cli; sys.exit('numpy' in sys.modules)")
    assert light.returncode == 0


def test_every_command_explains_itself(cli):
    listed = cli("--help").stdout
    for name in main.commands:
        assert name in listed
        assert len(cli(name, "--help").stdout) > 120
    for words in (command(), [sys.executable, "-m", "threedident"]):
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.strip().endswith("0.1.0")
    assert "No such command" in cli("rendr", code=2).stderr


def test_help_is_grouped_by_what_one_wants_and_cuts_no_sentence(cli):
    listed = [name for commands in SECTIONS.values() for name in commands]
    assert sorted(listed) == sorted(main.commands)
    said = cli("--help").stdout
    assert "..." not in said.replace("COMMAND [ARGS]...", "")
    for title, commands in SECTIONS.items():
        assert f"{title}:" in said
        for name, line in commands.items():
            assert any(f"{name}  " in row and row.endswith(line) for row in said.splitlines())


def test_the_lines_of_the_leaderboards_commands_are_whole(cli):
    commands = cli("leaderboard", "--help").stdout.partition("Commands:")[2]
    assert all(line.endswith(".") and "..." not in line for line in commands.split("\n") if line)
