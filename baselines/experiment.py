"""Experiments as plain data: the data, the encoder, the loss and the steps of a training.

An experiment is a TOML file with the tables `data`, `encoder`, `loss` and `training`, or a row of
the papers' tables. Every field has the published default, unknown fields are errors, and any field
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

from threedident.baselines.experiment_checks import (
    AUTOENCODERS,
    PUBLISHED_EPOCHS,
    PUBLISHED_WIDTH,
    check_experiment,
)
from threedident.baselines.tables import merged, read_presets
from threedident.distributions import Distribution, PairProcess, Uniform, parse_distribution
from threedident.distributions.serialisation import parse_space, space_as_dict
from threedident.distributions.spaces import Box, Space
from threedident.errors import UsageError
from threedident.factors import FACTOR_NAMES, factor_columns
from threedident.plain_data import read_toml

_SPACES = typing.get_args(Space)
#: Stands in a title between the experiment that was changed and the fields in which it was.
_CHANGED = ", changed: "


@dataclasses.dataclass(frozen=True)
class Data:
    """The observations, and the pairs that they come in.

    Attributes:
        observations: the kind of observations: synthetic (the outputs of a map from latents) or
            images.
        space: the space of the latents; for images None is the box of the dataset's raw latents.
        marginal: the distribution p(z).
        conditional: the distribution p(z~ | z); None without pairs. Of images rendered in pairs
            it can be stated, and must be theirs.
        conditionals: the distributions of an ensemble, one for each member, in place of
            `conditional`.
        hard_negatives: the distribution p(z- | z) of further negatives; None: there are none.
        hard_count: the number of hard negatives of an anchor.
        pairs: the way that images come in pairs: matched (to drawn latents), rendered (in pairs),
            groups (two images of a causal model that belong together: views, counterfactuals,
            frames t and t + 1 of a sequence), views (two augmentations of an image), grid (exact
            pairs of a dataset on a grid, whose transition is `conditional`), sequence (frames of
            a sequence), table (pairs that the dataset names) or none. Synthetic pairs are exact.
        max_gap: the largest number of frames from one image of a pair to the other, in a sequence.
        match: the way of matching, nearest or resample; see `LatentMatcher`.
        latents: the number of synthetic latents, drawn once, that pairs are matched to as they are
            to images; 0: all are drawn afresh, in exact pairs.
        factors: the names of the factors that count; none: all ten.
        mixing: the map from latents to synthetic observations: network (random and invertible) or
            decoder (the frozen decoder of a VAE, which gives images).
        decoder: the dataset that the VAE learns, such as sklearn:digits (1,797 images of 8 x 8);
            or the decoder of an autoencoder, its file (.pt) or run. "" for a network.
        decoder_epochs: the number of times that the VAE sees its images.
        mixing_layers: the number of layers of the synthetic network.
        mixing_trials: the number of networks that are tried for a well-conditioned one.
        mixing_seed: the seed of the synthetic network, or of the VAE; None: the training's.
    """

    observations: str = "synthetic"
    space: Space | None = None
    marginal: Distribution = dataclasses.field(default_factory=Uniform)
    conditional: Distribution | None = None
    conditionals: tuple[Distribution, ...] = ()
    hard_negatives: Distribution | None = None
    hard_count: int = 3
    pairs: str = "matched"
    max_gap: int = 1
    match: str = "nearest"
    latents: int = 0
    factors: tuple[str, ...] = ()
    mixing: str = "network"
    decoder: str = ""
    decoder_epochs: int = PUBLISHED_EPOCHS
    mixing_layers: int = 3
    mixing_trials: int = 25_000
    mixing_seed: int | None = None


@dataclasses.dataclass(frozen=True)
class Encoder:
    """The encoder f, and the space of its codes.

    Attributes:
        body: the network: mlp for vectors; for images resnet18, resnet34 or resnet50, conv (of
            images of 64 x 64 or 32 x 32) or mlp-image (of images as vectors).
        width: the channels of a ResNet's first layer, which all others follow, 64 as published;
            of mlp-image (and its decoder) the width of both hidden layers.
        codes: the number of codes, for images; 0: as many as there are factors that count. A
            supervised encoder has as many as those.
        whiten: whether vectors first go through a fixed affine map to unit covariance.
        output: the space of the codes: unbounded, box or sphere.
        learned: whether the box's bounds or the sphere's radius are parameters.
        radius: the radius of a sphere, at the beginning where it is learned.
        size: the size of a box along every dimension, at the beginning where it is learned.
    """

    body: str = "mlp"
    width: int = PUBLISHED_WIDTH
    codes: int = 0
    whiten: bool = False
    output: str = "unbounded"
    learned: bool = False
    radius: float = 1.0
    size: float = 1.0


@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss; see `threedident.baselines.losses`.

    Attributes:
        kind: the loss: infonce, aninfonce, tricl, alignment-uniformity or mse (to the latents);
            vae, slowvae or adagvae, which train a decoder as well.
        p: the power of the similarity -||.||_p^p of infonce and alignment-uniformity; 0: the dot
            product.
        tau: the temperature, by which the similarity is divided.
        learn_tau: whether the temperature is a parameter that begins at `tau`.
        normalize: whether the loss sees the codes scaled to length 1.
        negatives: the codes that are negatives: anchors, positives or both; see `info_nce`.
        own: whether the anchor's own code is among its negatives, as in the published code.
        symmetric: whether both members of a pair are anchors.
        alpha: the weight of uniformity in L_AU.
        decorrelation: the weight of TriCL's decorrelation term.
        contrast: TriCL's other term, info_nce or spectral.
        start_steps: the number of first steps in which `start_p`, `start_tau` and `start_own`
            stand for `p`, `tau` and `own`; 0 for none.
        start_p: the power in the first steps; None: the same as later.
        start_tau: the temperature in the first steps; None: the same as later.
        start_own: whether the anchor's own code is among its negatives in the first steps; None:
            the same as later.
        beta: the weight of an autoencoder's KL to N(0, I).
        gamma: the weight of SlowVAE's term about pairs.
        rate: the rate of SlowVAE's Laplace density, the inverse of its scale.
        as_coded: whether SlowVAE subtracts one entropy from its two cross-entropies, as the
            published code does, and not two.
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
    start_own: bool | None = None
    beta: float = 1.0
    gamma: float = 10.0
    rate: float = 6.0
    as_coded: bool = True


@dataclasses.dataclass(frozen=True)
class Training:
    """The steps of a training, its optimiser, and what is measured on the way.

    Attributes:
        steps: the number of steps of the optimiser.
        batch_size: the number of pairs (or single images) to a step, over all devices and
            accumulated parts.
        optimizer: the optimiser: adam, or muon, which is Muon on the weight matrices and
            convolution kernels of the encoder (and decoder) and Adam on all else.
        lr: Adam's learning rate of the encoder (and decoder).
        matrix_lr: Muon's learning rate; None: the same.
        loss_lr: the learning rate of the loss's own parameters; None: the same.
        schedule: the learning rate over the steps: constant, or cosine (to 0 at the last step).
        warmup: the number of steps over which the learning rate rises from 0.
        accumulate: the number of parts of a batch whose gradients are summed; each has its own
            negatives.
        precision: the precision: 32-true, bf16-mixed, 16-mixed or 64-true.
        channels_last: whether a convolutional encoder keeps its channels last in memory.
        compile: whether the encoder goes through torch.compile.
        seed: the seed of weights, mixing, order and pairs.
        log_every: the number of steps from one row of the log to the next.
        score_every: the number of steps from one score to the next.
        checkpoint_every: the number of steps from one checkpoint to the next.
        score_samples: the number of samples that R2 and MCC are measured on.
        final_batches: the number of batches over which the final scores of synthetic codes are
            averaged.
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
    """The full description of one training.

    Attributes:
        name: the name of the preset or the file.
        title: a line for people.
        source: the paper and the table.
        start: the run whose encoder is trained on; "" for fresh weights.
        data: the table `data`.
        encoder: the table `encoder`.
        loss: the table `loss`.
        training: the table `training`.
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
        check_experiment(self)

    @property
    def supervised(self) -> bool:
        """Whether the loss knows the latents."""
        return self.loss.kind == "mse"

    @property
    def reconstructs(self) -> bool:
        """Whether a decoder is trained with the encoder: the loss is an autoencoder's."""
        return self.loss.kind in AUTOENCODERS

    @property
    def processes(self) -> tuple[PairProcess, ...]:
        """The processes of the members' pairs; none where the data bring theirs, or have none."""
        conditionals = self.data.conditionals or (
            () if self.data.conditional is None else (self.data.conditional,)
        )
        space = self.data.space
        if self.data.pairs == "grid":  # which the dataset has
            return ()
        if space is None:
            if self.data.observations != "images":
                return ()
            space = Box(len(factor_columns(self.data.factors)) or len(FACTOR_NAMES))
        return tuple(PairProcess(space, each, self.data.marginal) for each in conditionals)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as in a TOML file; fields that are None are left out."""
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
        """Return the text of a TOML file that `load_experiment` reads back as the same."""
        import tomli_w

        return tomli_w.dumps(self.as_dict())

    def changed(self, changes: Mapping[str, Any]) -> Experiment:
        """Return this experiment with other values of some fields.

        Args:
            changes: the values by dotted name, such as {"training.steps": 1000}; None unsets a
                field.

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
        new = parse_experiment(plain, f"experiment {self.name!r}", self.name)
        return new if "title" in changes else _retitled(self, new)


def _retitled(base: Experiment, new: Experiment) -> Experiment:
    """The new experiment, with a title that claims nothing of the base that was changed.

    Titles state data, encoder and loss, and nothing of the table `training`.
    """
    if not base.title:
        return new
    before, after = base.as_dict(), new.as_dict()
    changes = {
        f"{section}.{field}"
        for section in Experiment.SECTIONS
        if section != "training"
        for field in {**before[section], **after[section]}
        if before[section].get(field) != after[section].get(field)
    }
    if not changes:
        return new
    origin, is_changed, earlier = base.title.partition(_CHANGED)
    if is_changed:
        changes.update(earlier.split(", "))
    title = (origin if is_changed else base.name) + _CHANGED + ", ".join(sorted(changes))
    return dataclasses.replace(new, title=title)


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
    if not isinstance(name, str | Path):
        raise UsageError(f"expected the name of an experiment or a path, found {name!r:.100}")
    text = str(name)
    if not text.endswith(".toml"):
        return parse_experiment(_find_preset(text), f"preset {text}", text)
    path, source = Path(name), f"experiment {name}"
    plain = read_toml(path, source)
    base = plain.pop("base", None)
    if base is None:
        return parse_experiment(plain, source, path.stem)
    try:
        if not isinstance(base, str):
            raise UsageError(f"base must be the name of a preset, found {base!r:.100}")
        if base.endswith(".toml"):
            raise UsageError(
                f"base must be the name of a preset (`3dident train --list` prints them), found "
                f"the file {base!r:.100}: name the preset that it is based on, and copy its fields"
            )
        preset = _find_preset(base)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
    new = parse_experiment(merged(preset, plain), source, path.stem)
    return new if "title" in plain else _retitled(parse_experiment(preset, source, base), new)


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
    """Parse a `NAME=VALUE` of the command line; the value is as in TOML, null, or a bare word.

    Args:
        text: the text.

    Raises:
        UsageError: the text has no name or no value.
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
    """Make an experiment of plain data, every field checked.

    Args:
        plain: the data, as in a TOML file.
        source: the name of the data in errors.
        name: the name of the experiment.

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
    fields = {}
    for key, value in values.items():
        if key not in expected:
            raise UsageError(f"unknown field {title}.{key}: expected some of {', '.join(expected)}")
        try:
            fields[key] = _value(expected[key], value)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{title}.{key}: {error}") from error
    return kind(**fields)


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
