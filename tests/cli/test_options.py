"""What all commands have in common: options of one name, help, examples."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from threedident.cli import main
from threedident.cli.group import DefaultGroup


def commands(group: click.Group = main, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands that do something, by their words."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


COMMANDS = dict(commands())
OPTIONS = {
    words: [p for p in command.params if isinstance(p, click.Option)]
    for words, command in COMMANDS.items()
}
#: Options of one name that differ from command to command, and why.
THEIR_OWN = {
    "--out": "what is written is another thing in every command",
    "--n": "of images, pairs or latents, with limits of their own",
    "--data": "a test set where something is scored, a training set where something is trained",
    "--test": "a reproduction renders what train must be given",
    "--list": "of what the command chooses from",
    "--factors": "what is done with those factors",
    "--seed": "says what it is the seed of; a training has one in its experiment",
    "--set": "a field of one experiment, or of all of a study",
    "--split": "to read from an export, to write into one, or to draw latents for",
    "--steps": "the values of a factor in a traversal, the images of a sequence in a dataset",
    "--submission": "kept with an entry by add, run by check",
    "--threads": "of a render process or of torch, with other defaults",
    "--device": "the devices of a renderer, or of torch",
    "--environment": "those that are rendered, or the one whose graph is drawn",
}
#: Where one command differs for good.
EXCEPTIONS = {
    ("compare-release", "--preset"): "candidates, several of them",
    ("compare-release", "--engine"): "the quick engine is enough to tell presets apart",
    ("pack", "--resolution"): "of images that are resized, and not rendered",
    ("export", "--resolution"): "of images that an encoder takes, which nobody renders",
    ("explore", "--model"): "draws one unit, and has no --n",
    ("convert", "--shard-size"): "files of exports may hold more images",
}


def wording(option: click.Option) -> str:
    """The help without what it says of the default."""
    return (option.help or "").split("  [default")[0]


def test_options_of_one_name_are_one_option():
    first: dict[str, tuple[str, click.Option]] = {}
    for words, options in OPTIONS.items():
        for option in options:
            for name in option.opts:
                if name in THEIR_OWN or (words, name) in EXCEPTIONS:
                    continue
                other, its = first.setdefault(name, (words, option))
                both = f"{name} of {words} and {other}"
                assert wording(option) == wording(its), both
                assert repr(option.type).split(" object")[0] == repr(its.type).split(" object")[0]
                assert (option.is_flag, option.multiple) == (its.is_flag, its.multiple), both
                assert (option.default, option.metavar) == (its.default, its.metavar), both


def test_no_reason_stands_for_nothing():
    names = [name for options in OPTIONS.values() for o in options for name in o.opts]
    assert all(names.count(name) > 1 for name in THEIR_OWN)
    for words, name in EXCEPTIONS:
        assert any(name in option.opts for option in OPTIONS[words])


def test_options_come_in_one_order():
    before: dict[tuple[str, str], str] = {}
    for words, options in OPTIONS.items():
        names = [option.opts[0] for option in options]
        for pair in itertools.combinations(names, 2):
            assert pair[::-1] not in before, (
                f"{pair} of {words} are reversed in {before[pair[::-1]]}"
            )
            before[pair] = words


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_has_words_that_name_a_thing(words):
    for option in OPTIONS[words]:
        assert option.help, option.opts
        assert not re.match(r"(Of|For) ", option.help), option.opts


@pytest.mark.parametrize("words", COMMANDS)
def test_help_ends_with_an_example_that_can_be_typed(words):
    lines = (COMMANDS[words].help or "").strip().splitlines()
    place = next(i for i, line in enumerate(lines) if line.strip() in ("Example:", "Examples:"))
    examples = [line.strip() for line in lines[place + 1 :]]
    assert examples and (len(examples) > 1) == (lines[place].strip() == "Examples:")
    for example in examples:
        program, *rest = shlex.split(example)
        assert program == "3dident"
        command: click.Command = main
        while isinstance(command, click.Group):
            default = command.default if isinstance(command, DefaultGroup) else None
            named = bool(rest) and rest[0] in command.commands
            command = command.commands[rest.pop(0) if named else str(default)]
        assert command is COMMANDS[words]
        with command.make_context(words, list(rest)):  # refuses unknown options and bad values
            pass


def test_a_width_of_another_conditional_names_the_right_option(cli):
    said = cli("pairs", "--n", 10, "--conditional", "laplace", "--sigma", 0.3, code=2).stderr
    assert "--conditional laplace takes no --sigma: use --lambda" in said
    said = cli("pairs", "--n", 10, "--conditional", "normal", "--beta", 3, code=2).stderr
    assert "--conditional normal takes no --beta\n" in said
