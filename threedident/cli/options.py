"""Options and arguments that several commands share, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threedident.errors import (
    UsageError,
)
from threedident.factors import FACTOR_NAMES, factor_index

if TYPE_CHECKING:
    from threedident.distributions import Distribution
    from threedident.presets import Preset


PATH = click.Path(path_type=Path)
#: Images that a dataset can have.
MOST_IMAGES = 100_000_000


def parse_fixed(entries: tuple[str, ...]) -> dict[str, float]:
    """Read `--fix FACTOR=VALUE`, given any number of times."""
    fixed: dict[str, float] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not equals:
            raise UsageError(f"--fix expects FACTOR=VALUE, found {entry!r}")
        factor_index(name)
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"--fix {name}: expected a number, found {text!r}") from None
        if not -1 <= value <= 1:
            raise UsageError(f"--fix {name}: a raw value in [-1, 1], found {text}")
        fixed[name] = value
    return fixed


def chosen_preset(
    name: str, shape: str | None, material: str | None, fixed: tuple[str, ...] = ()
) -> Preset:
    """Load a preset, with the shape, material and fixed factors that were asked for."""
    from threedident.presets import load_preset

    return load_preset(name).changed(fixed=parse_fixed(fixed), shape=shape, material=material)


def generator_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a preset and change it."""
    for option in (
        click.option(
            "--fix",
            "fixed",
            multiple=True,
            metavar="FACTOR=VALUE",
            help="Hold a factor at a raw value in [-1, 1]. Can be repeated.",
        ),
        click.option(
            "--material", metavar="NAME", help="rubber, metal or crystal, instead of the preset's."
        ),
        click.option(
            "--shape",
            metavar="NAME|FILE",
            help="teapot, cube, sphere, cylinder or a mesh file, instead of the preset's.",
        ),
        click.option(
            "--preset",
            default="3dident",
            show_default=True,
            metavar="NAME|FILE.toml",
            help="What to render; see `3dident presets`.",
        ),
    ):
        function = option(function)
    return function


def render_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of rendering: engine, quality, resolution, device, workers."""
    for option in (
        click.option(
            "--engine",
            default="cycles",
            show_default=True,
            metavar="NAME",
            help="cycles (Blender) or direct (direct integration, on NVIDIA Warp).",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1),
            help="Render processes.  [default: one per processor, or per GPU]",
        ),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            metavar="KIND",
            help="auto, cpu, cuda, optix, hip, metal or oneapi.",
        ),
        click.option(
            "--quality",
            default="standard",
            show_default=True,
            metavar="LEVEL",
            help="draft, standard or reference (the published settings).",
        ),
        click.option(
            "--resolution",
            type=int,
            default=224,
            show_default=True,
            help="Pixels along each side, 8 to 4096.",
        ),
    ):
        function = option(function)
    return function


def conditional_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe a conditional."""
    for option in (
        click.option(
            "--change",
            metavar="K",
            help="Only K of the factors, chosen anew for each pair, change; or LEAST-MOST of them.",
        ),
        click.option(
            "--unchanged",
            multiple=True,
            metavar="FACTOR|GROUP",
            help="A factor or group that both members share (content). Can be repeated.",
        ),
        click.option("--beta", type=float, help="Exponent of gennorm.  [default: 3]"),
        click.option("--lambda", "lam", metavar="WIDTH", help="Scale of laplace or gennorm."),
        click.option(
            "--sigma",
            metavar="WIDTH",
            help="Standard deviation of normal, in raw units; or one per factor: 0.1,0.2,...",
        ),
        click.option(
            "--conditional",
            metavar="NAME",
            help="p(z~ | z): normal, laplace, gennorm (generalised normal) or uniform.",
        ),
    ):
        function = option(function)
    return function


def parse_conditional(
    name: str | None,
    sigma: str | None,
    lam: str | None,
    beta: float | None,
    unchanged: tuple[str, ...],
    change: str | None,
    factors: tuple[str, ...] = FACTOR_NAMES,
) -> Distribution:
    """The conditional that the options describe, over the columns `factors`."""
    from threedident.distributions import (
        Change,
        GeneralizedNormal,
        Laplace,
        Normal,
        PerFactor,
        Unchanged,
        Uniform,
    )
    from threedident.factors import factor_columns

    takes = {"normal": {"--sigma"}, "laplace": {"--lambda"}, "gennorm": {"--lambda", "--beta"}}
    takes["uniform"] = set()
    if name is None:
        raise UsageError(f"--conditional must be one of {', '.join(takes)}: it is missing")
    if name not in takes:
        raise UsageError(f"--conditional must be one of {', '.join(takes)}, found {name!r}")
    given = {"--sigma": sigma, "--lambda": lam, "--beta": beta}
    for option, value in given.items():
        if value is not None and option not in takes[name]:
            raise UsageError(f"--conditional {name} takes no {option}")
    for option in takes[name] - {"--beta"}:
        if given[option] is None:
            raise UsageError(
                f"--conditional {name} needs {option}, its width in raw units "
                "(the published default is 0.1)"
            )

    held = {FACTOR_NAMES[c] for c in factor_columns(unchanged)}
    moving = [column for column, factor in enumerate(factors) if factor not in held]
    if not moving:
        raise UsageError("--unchanged leaves no factor that changes")

    def width(option: str) -> float | tuple[float, ...]:
        text = str(given[option])
        try:
            values = tuple(float(part) for part in text.split(","))
        except ValueError:
            raise UsageError(
                f"{option}: expected a number or a list of them, found {text!r}"
            ) from (None)
        if len(values) == 1:
            return values[0]
        if len(values) != len(factors):
            raise UsageError(f"{option} has {len(values)} widths, expected {len(factors)} or one")
        return tuple(values[column] for column in moving)

    made: Distribution
    match name:
        case "normal":
            made = Normal(width("--sigma"))
        case "laplace":
            made = Laplace(width("--lambda"))
        case "gennorm":
            made = GeneralizedNormal(width("--lambda"), 3.0 if beta is None else beta)
        case _:
            made = Uniform()
    if change is not None:
        match = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", change)
        if not match or int(match[2] or match[1]) < 1:
            raise UsageError(f"--change expects K or LEAST-MOST, found {change!r}")
        made = Change(made, int(match[1]) if match[2] is None else (int(match[1]), int(match[2])))
    if not held:
        return made
    still = tuple(column for column in range(len(factors)) if column not in moving)
    return PerFactor(((tuple(moving), made), (still, Unchanged())))


def _or_default_dataset(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> Any:
    if value is not None or ctx.resilient_parsing:
        return value
    from threedident.storage.directory import default_out

    if default_out().exists():
        return default_out()
    raise click.UsageError(
        f"Missing argument 'DATASET', and there is no {default_out()} to take instead: name a "
        "dataset, or make one with `3dident render`.",
        ctx,
    )


dataset_argument = click.argument(
    "dataset", type=PATH, required=False, callback=_or_default_dataset
)


split_option = click.option(
    "--split", metavar="NAME", help="train, val or test: of an export with several splits."
)


def check_figure(target: Path) -> None:
    """Complains of a figure's place before the work for it is done."""
    from threedident.storage.atomic_files import explaining_write_errors

    if target.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UsageError(f"cannot write {target}: expected a name that ends in .png, .jpg or .webp")
    with explaining_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        there = target.exists()
        with target.open("ab"):
            pass
        if not there:
            target.unlink()


def save_figure(figure: Any, target: Path, say: Callable[[str], None] = click.echo) -> None:
    """Saves a picture of Pillow's or a figure of matplotlib's."""
    from threedident.storage.atomic_files import explaining_write_errors

    check_figure(target)
    save = getattr(figure, "savefig", None) or figure.save
    with explaining_write_errors(target):
        save(target)
    say(f"wrote {target}")


def device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of where a training runs."""
    for option in (
        click.option(
            "--threads",
            type=click.IntRange(1),
            help="Of each process on a CPU.  [default: torch's choice, one per core]",
        ),
        click.option(
            "--device", default="auto", show_default=True, metavar="KIND", help="auto, cpu or cuda."
        ),
        click.option(
            "--devices",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="GPUs or processes, which share the batch and its negatives.",
        ),
    ):
        function = option(function)
    return function
