"""Experiments as plain data: what is trained, on what, with which loss and for how long.

A TOML file with the tables `data`, `encoder`, `loss` and `training`, one file for a row of the
papers' tables. Every field has the published default, unknown fields are errors, and any field
can be set by its dotted name (`training.steps=1000`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from threedident.baselines.tables import merged, read_presets
from threedident.distributions import Distribution, PairProcess, Uniform, parse_distribution
from threedident.distributions.serialisation import parse_space, space_as_dict
from threedident.distributions.spaces import Box, Space, Sphere
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, factor_columns
from threedident.plain_data import read_toml

OBSERVATIONS = ("synthetic", "images")
PAIRS = ("matched", "rendered", "views", "none")
BODIES = ("mlp", "resnet18", "resnet34", "resnet50")
OUTPUTS = ("unbounded", "box", "sphere")
LOSSES = ("infonce", "aninfonce", "tricl", "alignment-uniformity", "mse")
_SPACES = typing.get_args(Space)
OPTIMIZERS = ("adam", "muon")
#: Channels of a ResNet's first layer.
PUBLISHED_WIDTH = 64
_WIDEST = 512
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclasses.dataclass(frozen=True)
class Data:
    """What is observed, and in which pairs.

    Attributes:
        observations: synthetic (a random invertible network's outputs) or images.
        space: of the latents; for images None is the box of the dataset's raw latents.
        marginal: p(z).
        conditional: p(z~ | z); None without pairs, and for images rendered in pairs.
        conditionals: of an ensemble, one per member, in place of `conditional`.
        hard_negatives: from which p(z- | z) further negatives are drawn; None: there are none.
        hard_count: how many an anchor has.
        pairs: of images: matched (to drawn latents), rendered (in pairs), views (two
            augmentations of an image) or none. Synthetic pairs are exact.
        match: nearest or resample; see `LatentMatcher`.
        latents: number of synthetic latents, drawn once, that pairs are matched to as they are to
            images; 0: all are drawn afresh, in exact pairs.
        factors: names of the factors that count; none: all ten.
        mixing_layers, mixing_trials, mixing_seed: of the synthetic network; the seed None is the
            training's.
    """

    observations: str = "synthetic"
    space: Space | None = None
    marginal: Distribution = dataclasses.field(default_factory=Uniform)
    conditional: Distribution | None = None
    conditionals: tuple[Distribution, ...] = ()
    hard_negatives: Distribution | None = None
    hard_count: int = 3
    pairs: str = "matched"
    match: str = "nearest"
    latents: int = 0
    factors: tuple[str, ...] = ()
    mixing_layers: int = 3
    mixing_trials: int = 25_000
    mixing_seed: int | None = None


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The network f and the space of its codes.

    Attributes:
        body: mlp for vectors, a ResNet for images.
        width: the channels of a ResNet's first layer, which all others follow; 64 as published.
        whiten: whether vectors first go through a fixed affine map to unit covariance.
        output: unbounded, box or sphere.
        learned: whether the box's bounds or the sphere's radius are parameters.
        radius: of a sphere, at the beginning where it is learned.
        size: of a box along every dimension, likewise.
    """

    body: str = "mlp"
    width: int = PUBLISHED_WIDTH
    whiten: bool = False
    output: str = "unbounded"
    learned: bool = False
    radius: float = 1.0
    size: float = 1.0


@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss; see `threedident.baselines.losses`.

    Attributes:
        kind: infonce, aninfonce, tricl, alignment-uniformity or mse (to the latents).
        p: the similarity -||.||_p^p of infonce and alignment-uniformity; 0: the dot product.
        tau: temperature, by which the similarity is divided.
        learn_tau: whether it is a parameter that begins at `tau`.
        normalize: whether the loss sees the codes scaled to length 1.
        negatives: anchors, positives or both; see `info_nce`.
        own: whether the anchor's own code is among its negatives, as in the published code.
        symmetric: whether both members of a pair are anchors.
        alpha: weight of uniformity in L_AU.
        decorrelation: weight of TriCL's decorrelation term.
        contrast: TriCL's other term, info_nce or spectral.
        start_steps: steps at the start of a training in which `start_p` and `start_tau` stand
            for `p` and `tau`; 0 for none.
        start_p, start_tau: see `start_steps`; None: the same as later.
    """

    kind: str = "infonce"
    p: float = 2.0
    tau: float = 1.0
    learn_tau: bool = False
    normalize: bool = False
    negatives: str = "anchors"
    own: bool = True
    symmetric: bool = False
    alpha: float = 0.5
    decorrelation: float = 1.0
    contrast: str = "info_nce"
    start_steps: int = 0
    start_p: float | None = None
    start_tau: float | None = None


@dataclasses.dataclass(frozen=True)
class Training:
    """How it is trained.

    Attributes:
        steps: of the optimiser.
        batch_size: pairs (or single images) to a step, over all devices and accumulated parts.
        optimizer: adam, or muon: Muon on the encoder's weight matrices and convolution kernels,
            Adam on all else.
        lr: Adam's learning rate, of the encoder.
        matrix_lr: Muon's learning rate; None: the same.
        loss_lr: of the loss's own parameters; None: the same.
        schedule: constant, or cosine (to 0 at the last step).
        warmup: steps over which the learning rate rises from 0.
        accumulate: parts of a batch whose gradients are summed; each has its own negatives.
        precision: 32-true, bf16-mixed, 16-mixed or 64-true.
        channels_last: memory format of a convolutional encoder.
        compile: whether the encoder goes through torch.compile.
        seed: of weights, mixing, order and pairs.
        log_every, score_every, checkpoint_every: steps.
        score_samples: on which R2 and MCC are measured.
        final_batches: batches over which the final scores of synthetic codes are averaged.
    """

    steps: int = 300_001
    batch_size: int = 6144
    optimizer: str = "adam"
    lr: float = 1e-4
    matrix_lr: float | None = None
    loss_lr: float | None = None
    schedule: str = "constant"
    warmup: int = 0
    accumulate: int = 1
    precision: str = "32-true"
    channels_last: bool = True
    compile: bool = False
    seed: int = 0
    log_every: int = 50
    score_every: int = 1000
    score_samples: int = 4096
    checkpoint_every: int = 1000
    final_batches: int = 10


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One training, in full.

    Attributes:
        name: of the preset, or the file.
        title: one line for people.
        source: paper, table and row.
        start: a run whose encoder is trained on; "" for fresh weights.
    """

    name: str
    title: str = ""
    source: str = ""
    start: str = ""
    data: Data = dataclasses.field(default_factory=Data)
    encoder: Encoder = dataclasses.field(default_factory=Encoder)
    loss: Loss = dataclasses.field(default_factory=Loss)
    training: Training = dataclasses.field(default_factory=Training)

    SECTIONS: ClassVar[tuple[str, ...]] = ("data", "encoder", "loss", "training")

    def __post_init__(self) -> None:
        _check(self)

    @property
    def supervised(self) -> bool:
        """Whether the loss knows the latents."""
        return self.loss.kind == "mse"

    @property
    def processes(self) -> tuple[PairProcess, ...]:
        """Of the members' pairs; none where the data bring their own, or there are no pairs."""
        conditionals = self.data.conditionals or (
            () if self.data.conditional is None else (self.data.conditional,)
        )
        space = self.data.space
        if space is None:
            if self.data.observations != "images":
                return ()
            space = Box(len(factor_columns(self.data.factors)) or len(FACTOR_NAMES))
        return tuple(PairProcess(space, each, self.data.marginal) for each in conditionals)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in a TOML file; fields that are None are left out."""
        plain: dict[str, Any] = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in self.SECTIONS
        }
        for section in self.SECTIONS:
            values = vars(getattr(self, section))
            plain[section] = {k: _plain(v) for k, v in values.items() if v is not None}
        return plain

    def to_toml(self) -> str:
        """The text of a TOML file that `load_experiment` reads back as the same."""
        import tomli_w

        return tomli_w.dumps(self.as_dict())

    def changed(self, changes: Mapping[str, Any]) -> Experiment:
        """This experiment with fields set by dotted names, e.g. {"training.steps": 1000}.

        Raises:
            UsageError: a name is unknown, or a value does not fit.
        """
        plain = self.as_dict()
        for name, value in changes.items():
            section, dot, field = name.partition(".")
            if dot and section in self.SECTIONS:
                table = plain[section]
                *outer, field = field.split(".")
                for each in outer:  # data.conditional.sigma
                    table = table.get(each)
                    if not isinstance(table, dict):
                        raise UsageError(
                            f"{name}: there is no {section}.{each} to change: set it as a whole, "
                            f"as in --set 'data.conditional={{ name = \"normal\", sigma = 0.2 }}'"
                        )
                if value is None:
                    table.pop(field, None)
                else:
                    table[field] = value
            elif name in {f.name for f in dataclasses.fields(self)} - set(self.SECTIONS):
                plain[name] = value
            else:
                raise UsageError(
                    f"unknown field {name!r}: expected TABLE.FIELD, such as training.steps, with a "
                    f"TABLE of {', '.join(self.SECTIONS)}"
                )
        return parse_experiment(plain, f"experiment {self.name!r}", self.name)


def experiment_names() -> list[str]:
    """List the names of the built-in experiments."""
    return sorted(read_presets())


def load_experiment(name: str | Path) -> Experiment:
    """Load a built-in experiment, or one's own from a TOML file.

    A file that names a built-in experiment as its `base` changes that one: what it leaves out is
    the base's.

    Args:
        name: the name of the built-in experiment, or the path of a file that ends in `.toml`.

    Raises:
        UsageError: the name is unknown, or the file is missing or does not fit.
    """
    text = str(name)
    if not text.endswith(".toml"):
        return parse_experiment(_find_preset(text), f"preset {text}", text)
    path, source = Path(name), f"experiment {name}"
    plain = read_toml(path, source)
    base = plain.pop("base", None)
    if base is not None:
        try:
            if not isinstance(base, str):
                raise UsageError(f"base must be the name of a preset, found {base!r:.100}")
            plain = merged(_find_preset(base), plain)
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from error
    return parse_experiment(plain, source, path.stem)


def _find_preset(name: str) -> Mapping[str, Any]:
    """A built-in experiment as plain data.

    Raises:
        UsageError: there is none of this name.
    """
    presets = read_presets()
    if name in presets:
        return presets[name]
    near = difflib.get_close_matches(name, sorted(presets), 3)
    raise UsageError(
        f"unknown experiment {name!r:.100}: expected the path of a .toml file, or a preset"
        + (f", such as {' or '.join(near)}" if near else "")
        + "; `3dident train --list` prints them all"
    )


def parse_setting(text: str) -> tuple[str, Any]:
    """A `NAME=VALUE` of the command line; the value as in TOML, null, or a bare word.

    Raises:
        UsageError: it is none.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise UsageError(f"expected NAME=VALUE such as training.steps=1000, found {text!r}")
    if value == "null":
        return name, None
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError, KeyError):
        return name, value


def parse_experiment(plain: Mapping[str, Any], source: str, name: str) -> Experiment:
    """An experiment from plain data, every field checked.

    Raises:
        UsageError: a field is unknown, of the wrong type or out of range, or fields contradict
            each other.
    """
    fields: dict[str, Any] = {"name": name}
    sections = {"data": Data, "encoder": Encoder, "loss": Loss, "training": Training}
    texts = [f.name for f in dataclasses.fields(Experiment) if f.name not in sections]
    try:
        for key, value in plain.items():
            if key in sections:
                fields[key] = _section(sections[key], key, value)
            elif key not in texts:
                expected = ", ".join([*texts, *sections])
                raise UsageError(f"unknown field {key!r}: expected some of {expected}")
            elif not isinstance(value, str):
                raise UsageError(f"{key} must be a string, found {value!r:.100}")
            else:
                fields[key] = value
        return Experiment(**fields)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def _section(kind: Any, title: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise UsageError(f"{title} must be a table, found {values!r:.100}")
    expected = typing.get_type_hints(kind)
    found = {}
    for key, value in values.items():
        if key not in expected:
            raise UsageError(f"unknown field {title}.{key}: expected some of {', '.join(expected)}")
        try:
            found[key] = _value(expected[key], value)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{title}.{key}: {error}") from error
    return kind(**found)


def _value(expected: Any, value: Any) -> Any:
    """A value as the field's type, from what TOML can hold."""
    if isinstance(expected, types.UnionType):
        expected = next(each for each in typing.get_args(expected) if each is not type(None))
    if expected in _SPACES:
        return value if isinstance(value, _SPACES) else parse_space(value)
    if expected is Distribution:
        return value if isinstance(value, Distribution) else parse_distribution(value)
    if typing.get_origin(expected) is tuple:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"expected a list, found {value!r:.100}")
        return tuple(_value(typing.get_args(expected)[0], each) for each in value)
    if expected is float and type(value) is int:
        return float(value)
    if type(value) is not expected:
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise TypeError(f"expected {kinds[expected]}, found {value!r:.100}")
    if expected is float and not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {value}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, _SPACES):
        return space_as_dict(value)
    if isinstance(value, Distribution):
        return value.as_dict()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _check(e: Experiment) -> None:
    """Refuses values out of range, and fields that contradict each other."""
    data, encoder, loss, training = e.data, e.encoder, e.loss, e.training
    for value, choices, name in (
        (data.observations, OBSERVATIONS, "data.observations"),
        (data.pairs, PAIRS, "data.pairs"),
        (data.match, ("nearest", "resample"), "data.match"),
        (encoder.body, BODIES, "encoder.body"),
        (encoder.output, OUTPUTS, "encoder.output"),
        (loss.kind, LOSSES, "loss.kind"),
        (loss.contrast, ("info_nce", "spectral"), "loss.contrast"),
        (loss.negatives, ("anchors", "positives", "both"), "loss.negatives"),
        (training.optimizer, OPTIMIZERS, "training.optimizer"),
        (training.precision, PRECISIONS, "training.precision"),
        (training.schedule, ("constant", "cosine"), "training.schedule"),
    ):
        if value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}, found {value!r}")
    for name in (
        *("steps", "batch_size", "accumulate", "log_every", "score_every"),
        *("checkpoint_every", "final_batches"),
    ):
        if getattr(training, name) < 1:
            raise UsageError(f"training.{name} must be at least 1, found {getattr(training, name)}")
    for what, number in (
        ("training.lr", training.lr),
        ("training.loss_lr", training.lr if training.loss_lr is None else training.loss_lr),
        ("training.matrix_lr", training.lr if training.matrix_lr is None else training.matrix_lr),
        ("loss.tau", loss.tau),
        ("loss.start_tau", loss.tau if loss.start_tau is None else loss.start_tau),
        ("encoder.radius", encoder.radius),
        ("encoder.size", encoder.size),
    ):
        if not 0 < number < math.inf:
            raise UsageError(f"{what} must be above 0, found {number}")
    if training.warmup < 0 or not 0 <= training.seed < 2**62 or training.score_samples < 16:
        raise UsageError(
            "expected training.warmup >= 0, 0 <= training.seed < 2^62 and training.score_samples "
            f">= 16, found {training.warmup}, {training.seed} and {training.score_samples}"
        )
    if training.batch_size // training.accumulate < 2:
        raise UsageError(
            "training.batch_size must be at least 2 for each of training.accumulate parts, found "
            f"{training.batch_size} and {training.accumulate}"
        )
    if training.batch_size % training.accumulate:
        raise UsageError(
            f"training.batch_size must be a multiple of training.accumulate, found "
            f"{training.batch_size} and {training.accumulate}"
        )
    for what, power in (("p", loss.p), ("start_p", loss.start_p)):
        if power is not None and power != 0 and not 1 <= power <= 64:
            raise UsageError(
                f"loss.{what} must be 0 (the dot product) or from 1 to 64, found {power}"
            )
    _check_start(loss, training)
    if not 0 <= loss.alpha <= 1 or loss.decorrelation < 0:
        raise UsageError(
            f"expected loss.alpha in [0, 1] and loss.decorrelation >= 0, found {loss.alpha} and "
            f"{loss.decorrelation}"
        )
    if loss.kind == "alignment-uniformity" and loss.p == 0:
        raise UsageError("loss.p of alignment-uniformity must be at least 1")
    if data.hard_count < 1 or data.mixing_layers < 1 or data.mixing_trials < 1:
        raise UsageError("data.hard_count, mixing_layers and mixing_trials must be at least 1")
    images = data.observations == "images"
    if images != (encoder.body != "mlp"):
        raise UsageError(
            f"{data.observations} observations need encoder.body "
            f"{'resnet18 (or 34, 50)' if images else 'mlp'}, found {encoder.body}"
        )
    if not images and encoder.width != PUBLISHED_WIDTH:
        raise UsageError(
            f"encoder.width is a ResNet's, and encoder.body = {encoder.body!r} has none: leave it "
            f"out, found {encoder.width}"
        )
    if not 1 <= encoder.width <= _WIDEST:
        raise UsageError(f"encoder.width must be from 1 to {_WIDEST}, found {encoder.width}")
    if images and encoder.whiten:
        raise UsageError("encoder.whiten is for synthetic observations: images are normalised")
    if data.conditional is not None and data.conditionals:
        raise UsageError("data.conditional and data.conditionals exclude each other")
    for process in e.processes:
        if data.hard_negatives is not None:
            PairProcess(process.space, data.hard_negatives, data.marginal)
    asked = bool(data.conditional or data.conditionals)
    if images:
        _check_images(e)
    elif data.space is None:
        raise UsageError("synthetic observations need data.space")
    elif not (asked or e.supervised):
        raise UsageError("synthetic pairs need data.conditional")
    else:
        data.marginal.check(data.space)
    _check_latents(e)
    if data.hard_negatives is not None and loss.symmetric:
        raise UsageError("hard negatives are drawn around the anchor: set loss.symmetric=false")
    if e.supervised:
        _check_targets(e)
    if (data.hard_negatives or data.conditionals) and loss.kind not in ("infonce", "aninfonce"):
        raise UsageError(f"hard negatives and ensembles need infonce or aninfonce: {loss.kind}")


def _check_start(loss: Loss, training: Training) -> None:
    """Refuses a start of the loss, or an optimiser, that would not be held."""
    asked = loss.start_p is not None or loss.start_tau is not None
    if loss.start_steps < 0 or asked != (loss.start_steps > 0):
        raise UsageError(
            "loss.start_steps goes with loss.start_p or loss.start_tau: set both to begin with "
            f"another similarity, or neither, found {loss.start_steps}, {loss.start_p} and "
            f"{loss.start_tau}"
        )
    if asked and loss.start_steps >= training.steps:
        raise UsageError(
            "loss.start_steps must be less than training.steps, so that the loss itself is "
            f"minimised at last, found {loss.start_steps} of {training.steps}"
        )
    if loss.start_p is not None and loss.kind not in ("infonce", "alignment-uniformity"):
        raise UsageError(f"loss.start_p: {loss.kind} has no p")
    if loss.start_p == 0 and loss.kind == "alignment-uniformity":
        raise UsageError("loss.start_p of alignment-uniformity must be at least 1")
    if loss.start_tau is not None and (loss.learn_tau or loss.kind not in ("infonce", "aninfonce")):
        raise UsageError(
            "loss.start_tau is for infonce and aninfonce with a fixed temperature, found loss.kind "
            f"= {loss.kind!r} and loss.learn_tau = {str(loss.learn_tau).lower()}"
        )
    if training.matrix_lr is not None and training.optimizer != "muon":
        raise UsageError("training.matrix_lr is Muon's: set training.optimizer=muon, or leave it")
    if training.optimizer == "muon" and training.precision == "16-mixed":
        raise UsageError(
            "training.optimizer = 'muon' does not go with 16-mixed, whose scaled gradients it "
            "does not see: set training.precision=bf16-mixed"
        )


def _check_latents(e: Experiment) -> None:
    """Refuses a finite number of latents where nothing would be matched to them."""
    data, size = e.data, e.training.batch_size
    synthetic = data.observations == "synthetic"
    if data.latents == 0:
        if synthetic and data.match != "nearest":
            raise UsageError(
                f"data.match = {data.match!r} needs latents to match to: set data.latents to their "
                "number, or leave data.match out; synthetic pairs are exact otherwise"
            )
        return
    if not synthetic:
        raise UsageError(
            f"data.latents is for synthetic observations: images bring their own latents, found "
            f"{data.latents}"
        )
    if e.supervised or data.conditionals or data.hard_negatives is not None:
        raise UsageError(
            "data.latents is for pairs of one data.conditional: leave it out of supervised "
            "experiments, ensembles and hard negatives"
        )
    if not isinstance(data.space, Box):
        raise UsageError(
            f"data.latents are uniform in a box: set data.space to one, found {data.space}"
        )
    if data.latents < max(2, size):
        raise UsageError(
            f"a batch of {size} pairs does not fit data.latents = {data.latents}: set "
            "training.batch_size to less, or data.latents to more"
        )


def _check_targets(e: Experiment) -> None:
    """Refuses an output space that does not hold the latents, which are the targets."""
    space, encoder = e.data.space, e.encoder
    box = isinstance(space, Box) and space.low >= 0
    sphere = isinstance(space, Sphere)
    holds = {"unbounded": True, "box": box, "sphere": sphere}[encoder.output]
    if not holds:
        raise UsageError(
            f"encoder.output = {encoder.output!r} does not hold the latents of "
            f"{space or 'the raw box [-1, 1]^n'}, which loss.kind = 'mse' has for targets: set "
            "encoder.output=unbounded"
        )


def _check_images(e: Experiment) -> None:
    data = e.data
    if data.hard_negatives or data.conditionals:
        raise UsageError("hard negatives and ensembles are for synthetic observations")
    needed, possible = data.pairs == "matched", data.pairs in ("matched", "rendered")
    if (needed and data.conditional is None) or (data.conditional is not None and not possible):
        raise UsageError(
            "data.conditional is needed for matched pairs, can be stated of rendered ones, and has "
            f"no place elsewhere, found data.pairs = {data.pairs!r} and {data.conditional}"
        )
    if (data.pairs == "none") != e.supervised:
        raise UsageError(
            f"data.pairs = 'none' goes with loss.kind = 'mse', found {data.pairs!r} and "
            f"{e.loss.kind!r}"
        )
    if data.space is not None and not isinstance(data.space, Box | Sphere):
        raise UsageError(f"data.space of images must be a box, found {data.space}")
