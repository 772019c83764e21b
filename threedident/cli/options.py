"""Options and arguments that several commands share, and how they are read.

Options that belong together are handed to a command as one object: a command below
`@render_options` has a parameter `how`, a `RenderOptions`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threedident import defaults
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, factor_index

if TYPE_CHECKING:
    from threedident.distributions import Distribution
    from threedident.presets import Preset


PATH = click.Path(path_type=Path)

bootstrap_option = click.option(
    "--bootstrap",
    type=click.IntRange(0),
    default=defaults.BOOTSTRAP,
    show_default=True,
    help="Replicates behind the intervals; 0 for none.",
)


def gathered(
    cls: type, name: str, options: Sequence[Callable[..., Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a decorator that adds options and hands their values to a command in one object.

    Args:
        cls: the dataclass of the object; its fields are the options' parameters.
        name: the command's parameter that takes the object.
        options: the options, in the order of the command's help.
    """
    fields = [field.name for field in dataclasses.fields(cls)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            gathered = cls(**{field: values.pop(field) for field in fields})
            return function(**values, **{name: gathered})

        for option in reversed(options):
            command = option(command)
        return command

    return decorate


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


@dataclasses.dataclass(frozen=True)
class GeneratorOptions:
    """The options that choose a preset and change it, as they are given."""

    preset: str
    shape: str | None
    material: str | None
    fixed: tuple[str, ...]

    def load(self) -> Preset:
        """Load the preset, with the shape, material and fixed factors that were asked for."""
        from threedident.presets import load_preset

        return load_preset(self.preset).changed(
            fixed=parse_fixed(self.fixed), shape=self.shape, material=self.material
        )


#: Adds the options that choose a preset and change it, as a parameter `generator`.
generator_options = gathered(
    GeneratorOptions,
    "generator",
    (
        click.option(
            "--preset",
            default=defaults.PRESET,
            show_default=True,
            metavar="NAME|FILE.toml",
            help="What to render; see `3dident presets`.",
        ),
        click.option(
            "--shape",
            metavar="NAME|FILE",
            help="A built-in shape, such as cube or knot, or a mesh file; not the preset's.",
        ),
        click.option(
            "--material", metavar="NAME", help="rubber, metal or crystal, instead of the preset's."
        ),
        click.option(
            "--fix",
            "fixed",
            multiple=True,
            metavar="FACTOR=VALUE",
            help="Hold a factor at a raw value in [-1, 1]. Can be repeated.",
        ),
    ),
)


def parse_interventions(option: str, entries: tuple[str, ...]) -> dict[str, Any]:
    """Read interventions, such as `object_hue=0.3`, `x+=0.2` or `x=uniform`.

    Args:
        option: the name of the option, for errors.
        entries: its values.

    Returns:
        For each variable a number, an expression or a class, or a table, as in a model's file.
    """
    interventions: dict[str, Any] = {}
    for entry in entries:
        match = re.fullmatch(r"\s*(\w+)\s*([+-]?)=\s*(.+?)\s*", entry)
        if not match:
            raise UsageError(
                f"{option} expects VARIABLE=VALUE, VARIABLE+=NUMBER or VARIABLE=uniform, found "
                f"{entry!r:.80}"
            )
        name, sign, text = match.groups()
        if name in interventions:
            raise UsageError(f"{option} names {name} twice")
        number: float | None = None
        with contextlib.suppress(ValueError):
            number = float(text)
        if sign:
            if number is None:
                raise UsageError(f"{option} {entry!r:.80}: expected a number to shift {name} by")
            interventions[name] = {"shift": -number if sign == "-" else number}
        elif text == "uniform":
            interventions[name] = {"kind": "uniform"}
        else:
            interventions[name] = text if number is None else number
    return interventions


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The options that choose a causal model and what is drawn of it, as they are given."""

    model: str | None
    environments: tuple[str, ...]
    do: tuple[str, ...]
    counterfactual: tuple[str, ...]
    views: str | None
    steps: int | None

    def as_arguments(self) -> dict[str, Any]:
        """The arguments of `render_dataset` that they stand for."""
        return {
            "model": self.model,
            "environments": self.environments,
            "do": parse_interventions("--do", self.do) or None,
            "counterfactual": parse_interventions("--counterfactual", self.counterfactual) or None,
            "views": False if self.views is None else self.views or True,
            "steps": self.steps,
        }


#: The parameters of `model_options`.
MODEL_OPTIONS = tuple(field.name for field in dataclasses.fields(ModelOptions))
#: Adds the options of a causal model, as a parameter `model`.
model_options = gathered(
    ModelOptions,
    "model",
    (
        click.option(
            "--model",
            metavar="NAME|FILE.toml",
            help="A causal model in place of a preset; see `3dident model`. --n then counts "
            "images, pairs or sequences.",
        ),
        click.option(
            "--environment",
            "environments",
            multiple=True,
            metavar="NAME",
            help="One of the model's environments, or independent, or observed. With several, "
            "images take turns.",
        ),
        click.option(
            "--do",
            multiple=True,
            metavar="VARIABLE=VALUE",
            help="An intervention: x=0.3, x+=0.2 or x=uniform. Can be repeated.",
        ),
        click.option(
            "--counterfactual",
            multiple=True,
            metavar="VARIABLE+=VALUE",
            help="Image 2i + 1 is image 2i again, with this intervention. Can be repeated.",
        ),
        click.option(
            "--views",
            is_flag=False,
            flag_value="",
            metavar="[NAME]",
            help="Image 2i + 1 is a second view of image 2i, by the model's views.",
        ),
        click.option(
            "--steps", type=click.IntRange(2), metavar="T", help="Sequences of T images each."
        ),
    ),
)

resolution_option = click.option(
    "--resolution",
    type=int,
    default=defaults.RESOLUTION,
    show_default=True,
    help="Pixels along each side, 8 to 4096.",
)
quality_option = click.option(
    "--quality",
    default=defaults.QUALITY,
    show_default=True,
    metavar="LEVEL",
    help="draft, standard or reference (the published settings).",
)
render_device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="KIND",
    help="auto, cpu, cuda, optix, hip, metal or oneapi.",
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(1),
    help="Render processes.  [default: one per processor, or per GPU]",
)


def engine_option(default: str) -> Callable[..., Any]:
    """Make the option that chooses an engine."""
    return click.option(
        "--engine",
        default=default,
        show_default=True,
        metavar="NAME",
        help="cycles (Blender) or direct (direct integration, on NVIDIA Warp).",
    )


def seed_option(subject: str) -> Callable[..., Any]:
    """Make the option of a seed, 0 by default; `subject` says what it is the seed of."""
    return click.option(
        "--seed", type=int, default=0, show_default=True, help=f"Seed of the {subject}."
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead."
)
trust_option = click.option(
    "--trust", is_flag=True, help="Run code of the submission's authors (Python, torch)."
)
checkpoint_option = click.option(
    "--checkpoint", type=PATH, metavar="FILE", help="The file that a Python factory is handed."
)
fitted_on_option = click.option(
    "--train", type=PATH, help="The dataset that reference:pca is fitted on."
)


def compression_option(default: str) -> Callable[..., Any]:
    """Make the option that chooses how images are compressed; its default is for people."""
    return click.option(
        "--compression",
        metavar="NAME",
        help=f"Compression of the images: none or gzip.  [default: {default}]",
    )


@dataclasses.dataclass(frozen=True)
class RenderOptions:
    """The options of rendering: engine, quality, resolution, device, workers."""

    resolution: int
    quality: str
    device: str
    workers: int | None
    engine: str


#: Adds the options of rendering, as a parameter `how`.
render_options = gathered(
    RenderOptions,
    "how",
    (
        resolution_option,
        quality_option,
        render_device_option,
        workers_option,
        engine_option(defaults.ENGINE),
    ),
)


@dataclasses.dataclass(frozen=True)
class ConditionalOptions:
    """The options that describe a conditional, as they are given."""

    conditional: str | None
    sigma: str | None
    lam: str | None
    beta: float | None
    unchanged: tuple[str, ...]
    change: str | None

    @property
    def any_given(self) -> bool:
        """Whether one of them is given."""
        return any(value not in (None, ()) for value in dataclasses.astuple(self))

    def parse(self, factors: tuple[str, ...] = FACTOR_NAMES) -> Distribution:
        """Make the conditional over the columns `factors`; see `parse_conditional`."""
        return parse_conditional(
            self.conditional,
            self.sigma,
            self.lam,
            self.beta,
            self.unchanged,
            self.change,
            factors,
        )


#: Adds the options that describe a conditional, as a parameter `conditional`.
conditional_options = gathered(
    ConditionalOptions,
    "conditional",
    (
        click.option(
            "--conditional",
            metavar="NAME",
            help="p(z~ | z): normal, laplace, gennorm (generalised normal) or uniform.",
        ),
        click.option(
            "--sigma",
            metavar="WIDTH",
            help="Standard deviation of normal, in raw units; or one per factor: 0.1,0.2,...",
        ),
        click.option("--lambda", "lam", metavar="WIDTH", help="Scale of laplace or gennorm."),
        click.option("--beta", type=float, help="Exponent of gennorm.  [default: 3]"),
        click.option(
            "--unchanged",
            multiple=True,
            metavar="FACTOR|GROUP",
            help="A factor or group that both members share (content). Can be repeated.",
        ),
        click.option(
            "--change",
            metavar="K",
            help="Only K of the factors, chosen anew for each pair, change; or LEAST-MOST of them.",
        ),
    ),
)


#: The options that the widths and shapes of each conditional are given by; --beta has a default.
_TAKES = {
    "normal": ("--sigma",),
    "laplace": ("--lambda",),
    "gennorm": ("--lambda", "--beta"),
    "uniform": (),
}


def parse_conditional(
    name: str | None,
    sigma: str | None,
    lam: str | None,
    beta: float | None,
    unchanged: tuple[str, ...],
    change: str | None,
    factors: tuple[str, ...] = FACTOR_NAMES,
) -> Distribution:
    """Make the conditional that the options describe, over the columns `factors`.

    Raises:
        UsageError: options are missing, do not belong to the conditional, or do not fit.
    """
    from threedident.distributions import PerFactor, Unchanged
    from threedident.factors import factor_columns

    given = {"--sigma": sigma, "--lambda": lam, "--beta": beta}
    _check_conditional(name, given)
    held = {FACTOR_NAMES[c] for c in factor_columns(unchanged)}
    moving = [column for column, factor in enumerate(factors) if factor not in held]
    if not moving:
        raise UsageError("--unchanged leaves no factor that changes")
    widths = {
        option: _parse_width(option, str(text), len(factors), moving)
        for option, text in given.items()
        if text is not None and option != "--beta"
    }
    family = _family(str(name), widths, 3.0 if beta is None else beta)
    if change is not None:
        family = _with_change(family, change)
    if not held:
        return family
    still = tuple(column for column in range(len(factors)) if column not in moving)
    return PerFactor(((tuple(moving), family), (still, Unchanged())))


def _check_conditional(name: str | None, given: dict[str, Any]) -> None:
    if name not in _TAKES:
        found = "it is missing" if name is None else f"found {name!r}"
        separator = ": " if name is None else ", "
        raise UsageError(f"--conditional must be one of {', '.join(_TAKES)}{separator}{found}")
    for option, value in given.items():
        if value is not None and option not in _TAKES[name]:
            instead = f": use {_TAKES[name][0]}" if option != "--beta" and _TAKES[name] else ""
            raise UsageError(f"--conditional {name} takes no {option}{instead}")
    for option in _TAKES[name]:
        if given[option] is None and option != "--beta":
            raise UsageError(
                f"--conditional {name} needs {option}, its width in raw units "
                "(the published default is 0.1)"
            )


def _parse_width(
    option: str, text: str, count: int, moving: Sequence[int]
) -> float | tuple[float, ...]:
    """Read a width for all factors, or `count` of them, of which those that move are kept."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option}: expected a number or a list of them, found {text!r}") from None
    if len(values) == 1:
        return values[0]
    if len(values) != count:
        raise UsageError(f"{option} has {len(values)} widths, expected {count} or one")
    return tuple(values[column] for column in moving)


def _family(name: str, widths: dict[str, float | tuple[float, ...]], beta: float) -> Distribution:
    from threedident.distributions import GeneralizedNormal, Laplace, Normal, Uniform

    match name:
        case "normal":
            return Normal(widths["--sigma"])
        case "laplace":
            return Laplace(widths["--lambda"])
        case "gennorm":
            return GeneralizedNormal(widths["--lambda"], beta)
        case _:
            return Uniform()


def _with_change(family: Distribution, text: str) -> Distribution:
    from threedident.distributions import Change

    return Change(family, _parse_change(text))


def _parse_change(text: str) -> int | tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", text)
    if not match or int(match[2] or match[1]) < 1:
        raise UsageError(f"--change expects K or LEAST-MOST, found {text!r}")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


@dataclasses.dataclass(frozen=True)
class OtherPairsOptions:
    """The options of pairs over a grid and of sequences, as they are given."""

    transition: str | None
    rate: str | None
    redraw: str | None
    coin: bool
    replace: bool
    max_gap: int | None

    @property
    def given(self) -> tuple[str, ...]:
        """The names of those that are given."""
        values = dataclasses.asdict(self)
        return tuple(
            f"--{name.replace('_', '-')}"
            for name, value in values.items()
            if value not in (None, False)
        )

    def parse(self, change: str | None) -> Distribution:
        """Make the transition over a grid.

        Args:
            change: the value of --change; None without.

        Raises:
            UsageError: options are missing, do not belong to the transition, or do not fit.
        """
        from threedident.distributions import DiscreteLaplace, UniformFactors

        given = {*self.given, *(["--change"] if change is not None else [])}
        kind = _TRANSITIONS.get(str(self.transition).lower())
        if kind is None:
            found = "it is missing" if self.transition is None else f"found {self.transition!r}"
            raise UsageError(
                "--transition must be uni (k factors change to any value) or lap (small steps of "
                f"all factors), {found}"
            )
        takes = {"--transition", *_TAKEN[kind]}
        if wrong := sorted(given - takes):
            raise UsageError(
                f"--transition {kind} takes no {wrong[0]}: expected some of "
                f"{', '.join(_TAKEN[kind])}"
            )
        if kind == "uni":
            k = None if change is None else _parse_change(change)
            return UniformFactors(k, self.replace, self.coin)
        rate = _parse_rate("1" if self.rate is None else self.rate)
        return DiscreteLaplace(rate, self.redraw or "one")


_TRANSITIONS = {
    "uni": "uni",
    "uniform-factors": "uni",
    "lap": "lap",
    "discrete-laplace": "lap",
}
_TAKEN = {"uni": ("--change", "--coin", "--replace"), "lap": ("--rate", "--redraw")}

#: Adds the options of pairs over a grid and of sequences, as a parameter `other`.
other_pairs_options = gathered(
    OtherPairsOptions,
    "other",
    (
        click.option(
            "--transition",
            metavar="uni|lap",
            help="Pairs over a grid: uni changes K factors (--change; from 1 to all but one where "
            "it is left out), lap moves all by Laplace steps.",
        ),
        click.option(
            "--rate",
            metavar="RATE",
            help="Rate of lap; LOW-HIGH gives each pair its own.  [default: 1]",
        ),
        click.option(
            "--redraw",
            metavar="HOW",
            help="Cure of pairs that lap leaves alone: one (a factor moves) or reject.  "
            "[default: one]",
        ),
        click.option("--coin", is_flag=True, help="Half of the pairs of uni change one factor."),
        click.option("--replace", is_flag=True, help="New values of uni may be the old ones."),
        click.option(
            "--max-gap",
            type=click.IntRange(1),
            metavar="FRAMES",
            help="Most frames from one image of a pair to the other, in sequences.  [default: 1]",
        ),
    ),
)


def _parse_rate(text: str) -> float | tuple[float, float]:
    match = re.fullmatch(r"([\d.]+)(?:-([\d.]+))?", text)
    try:
        if not match:
            raise ValueError
        return float(text) if match[2] is None else (float(match[1]), float(match[2]))
    except ValueError:
        raise UsageError(f"--rate expects RATE or LOW-HIGH, found {text!r}") from None


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
    "--split",
    metavar="NAME",
    help="train, val or test, of a dataset with several splits; also both, of SmallNORB.",
)


def check_figure(target: Path) -> None:
    """Fail early if the figure cannot be written."""
    from threedident.storage.atomic_files import explaining_write_errors

    if target.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UsageError(f"cannot write {target}: expected a name that ends in .png, .jpg or .webp")
    with explaining_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        existed = target.exists()
        with target.open("ab"):
            pass
        if not existed:
            target.unlink()


def save_figure(figure: Any, target: Path, say: Callable[[str], None] = click.echo) -> None:
    """Save a picture of Pillow's or a figure of matplotlib's."""
    from threedident.storage.atomic_files import explaining_write_errors

    check_figure(target)
    save = getattr(figure, "savefig", None) or figure.save
    with explaining_write_errors(target):
        save(target)
    say(f"wrote {target}")


@dataclasses.dataclass(frozen=True)
class DeviceOptions:
    """The options of where a training runs."""

    devices: int
    device: str
    threads: int | None


#: Adds the options of where a training runs, as a parameter `where`.
device_options = gathered(
    DeviceOptions,
    "where",
    (
        click.option(
            "--devices",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="GPUs or processes, which share the batch and its negatives.",
        ),
        click.option(
            "--device", default="auto", show_default=True, metavar="KIND", help="auto, cpu or cuda."
        ),
        click.option(
            "--threads",
            type=click.IntRange(1),
            help="Threads of each process on a CPU.  [default: torch's choice, one per core]",
        ),
    ),
)
