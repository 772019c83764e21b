"""The group of commands: sections of its help, errors in one line, exit codes."""

from __future__ import annotations

import contextlib
import shlex
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import click

from threedident.errors import ThreeDIdentError, ThreeDIdentWarning, UsageError

EXIT_INTERRUPTED = 130


EXIT_UNREAD = 141  # as of a program that SIGPIPE ends


#: `3dident --help`: what one wants to do, the commands for it, and a line on each.
SECTIONS = {
    "Make a dataset": {
        "render": "Render a dataset, or continue one.",
        "presets": "List what can be rendered.",
        "model": "List causal models, check one, draw its graph; or fit one.",
        "download": "Fetch the published dataset.",
        "sprites": "Draw images like those of dSprites into a file.",
    },
    "Look at it": {
        "explore": "Open a page with sliders: scene, pairs, dataset, encoder.",
        "info": "Say what a dataset is.",
        "verify": "Check that a dataset is whole and unchanged.",
        "preview": "Write a contact sheet.",
        "stats": "Print mean and standard deviations.",
        "pairs": "Measure how far positive pairs follow their conditional.",
        "traverse": "Render what each factor does.",
        "compare-engines": "Measure how far the two engines differ.",
        "compare-release": "Find out which preset made a dataset.",
    },
    "Hand it over": {
        "pack": "Join a dataset into one HDF5 file.",
        "convert": "Write a dataset in another form.",
    },
    "Train": {
        "train": "Train a baseline, or continue a run.",
        "reproduce": "Train the rows of a paper's table, and compare.",
        "export": "Write a trained encoder as ONNX.",
    },
    "Score": {
        "evaluate": "Score an encoder, or recovered latents.",
        "readout": "Probe an encoder for augmentations and classes.",
        "leaderboard": "Collect, rank and re-check scored entries.",
    },
    "Set up": {"doctor": "Check what is installed."},
}


def command_line() -> str:
    """The command as it was typed, quoted for a shell."""
    return shlex.join(["3dident", *sys.argv[1:]])


def say(message: str) -> None:
    """Print a line on stderr; where nobody can read it, the work goes on all the same."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(message, err=True)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show our own warnings in one line each, without the line of code that they come from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_plainly(message: Any, category: type[Warning], *place: Any) -> None:
            if issubclass(category, ThreeDIdentWarning):
                say(f"warning: {message}")
            else:
                show(message, category, *place)

        warnings.simplefilter("always", ThreeDIdentWarning)
        warnings.showwarning = show_plainly  # type: ignore[assignment]
        yield


class Group(click.Group):
    """A group of commands in the order in which one needs them, errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in the order in which they were added."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn errors into a line and an exit code."""
        try:
            with plain_warnings():
                return super().invoke(ctx)
        except ThreeDIdentError as error:
            say(f"error: {error}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            say("interrupted")
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            # Whoever read our output has seen enough of it; what was not done yet is not done.
            sys.stderr.close()
            ctx.exit(EXIT_UNREAD)
        except OSError as error:
            say(f"error: {error}")
            ctx.exit(UsageError.exit_code)


class DefaultGroup(Group):
    """A group whose command `show`, if it has one, is run where none of its commands is named."""

    default = "show"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front of words that name no command."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if self.default in self.commands and not named:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


class _Main(Group):
    """The commands of `3dident`, by what one wants to do."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="For example: 3dident render --engine direct --resolution 64 --n 1000 --out data/small. "
    "3dident COMMAND --help explains a command.",
)
@click.version_option(package_name="threedident", prog_name="3dident")
def main() -> None:
    """Render 3DIdent, load it, train the baselines, score any encoder."""
