"""Checks of an experiment: values in range, and fields that do not contradict each other."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

from threedident.distributions import Additive, PairProcess, Uniform
from threedident.distributions.spaces import Box, Sphere
from threedident.errors import UsageError

if TYPE_CHECKING:
    from threedident.baselines.experiment import Data, Encoder, Experiment, Loss, Training

OBSERVATIONS = ("synthetic", "images")
MIXINGS = ("network", "decoder")
PAIRS = ("matched", "rendered", "groups", "views", "grid", "sequence", "table", "none")
BODIES = ("mlp", "resnet18", "resnet34", "resnet50", "conv", "mlp-image")
OUTPUTS = ("unbounded", "box", "sphere")
#: Losses that train a decoder as well.
AUTOENCODERS = ("vae", "slowvae", "adagvae")
_OF_INFONCE = ("tau", "learn_tau", "normalize", "negatives", "own", "symmetric")
#: The fields that each loss has, but for those of its start.
_FIELDS_OF_LOSS = {
    "infonce": ("p", *_OF_INFONCE),
    "aninfonce": _OF_INFONCE,
    "tricl": ("normalize", "decorrelation", "contrast"),
    "alignment-uniformity": ("p", "normalize", "alpha"),
    "mse": (),
    "vae": ("beta",),
    "slowvae": ("beta", "gamma", "rate", "as_coded"),
    "adagvae": ("beta",),
}
LOSSES = ("infonce", "aninfonce", "tricl", "alignment-uniformity", "mse", *AUTOENCODERS)
OPTIMIZERS = ("adam", "muon")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")
#: The channels of a published ResNet's first layer.
PUBLISHED_WIDTH = 64
#: The number of times that the published VAE of digits saw its images.
PUBLISHED_EPOCHS = 50
#: The sides of the images that the convolutional encoder takes, as `threedident.encoders.conv` has
#: them; that needs torch.
CONV_SIDES = (64, 32)

_WIDEST = 512
_MOST_CODES = 4096


def check_experiment(e: Experiment) -> None:
    """Check that values are in range, and that fields do not contradict each other.

    Args:
        e: the experiment.

    Raises:
        UsageError: a value is out of range, or fields contradict each other.
    """
    _check_choices(e)
    _check_numbers(e)
    _check_training(e.training)
    _check_loss(e.loss)
    _check_start(e.loss, e.training)
    _check_encoder(e)
    _check_data(e)
    _check_latents(e)
    _check_mixing(e.data)
    if e.supervised:
        _check_targets(e)
    if e.reconstructs:
        _check_autoencoder(e)
    _check_unused(e)


def _check_choices(e: Experiment) -> None:
    data, encoder, loss, training = e.data, e.encoder, e.loss, e.training
    for value, choices, name in (
        (data.observations, OBSERVATIONS, "data.observations"),
        (data.mixing, MIXINGS, "data.mixing"),
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


def _check_numbers(e: Experiment) -> None:
    encoder, loss, training = e.encoder, e.loss, e.training
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


def _check_training(training: Training) -> None:
    for name in (
        *("steps", "batch_size", "accumulate", "log_every", "score_every"),
        *("checkpoint_every", "final_batches"),
    ):
        if getattr(training, name) < 1:
            raise UsageError(f"training.{name} must be at least 1, found {getattr(training, name)}")
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


def _check_loss(loss: Loss) -> None:
    for what, power in (("p", loss.p), ("start_p", loss.start_p)):
        if power is not None and power != 0 and not 1 <= power <= 64:
            raise UsageError(
                f"loss.{what} must be 0 (the dot product) or from 1 to 64, found {power}"
            )
    if not 0 <= loss.alpha <= 1 or loss.decorrelation < 0:
        raise UsageError(
            f"expected loss.alpha in [0, 1] and loss.decorrelation >= 0, found {loss.alpha} and "
            f"{loss.decorrelation}"
        )
    if not (0 <= loss.beta < math.inf and 0 <= loss.gamma < math.inf and 0 < loss.rate < math.inf):
        raise UsageError(
            f"expected loss.beta >= 0, loss.gamma >= 0 and loss.rate > 0, found {loss.beta}, "
            f"{loss.gamma} and {loss.rate}"
        )
    for field in dataclasses.fields(loss):
        has = field.name in ("kind", *_FIELDS_OF_LOSS[loss.kind])
        if not (has or field.name.startswith("start_")) and _is_set(loss, field.name):
            raise UsageError(
                f"loss.{field.name} has no place in loss.kind = {loss.kind!r}, which does without "
                f"it: {_leave_out(loss, field.name)}"
            )
    if loss.negatives == "positives" and not loss.own:
        raise UsageError(
            "loss.own is about negatives that are anchors, and loss.negatives = 'positives' has "
            f"none: {_leave_out(loss, 'own')}"
        )
    if loss.kind == "alignment-uniformity" and loss.p == 0:
        raise UsageError("loss.p of alignment-uniformity must be at least 1")


def _check_encoder(e: Experiment) -> None:
    data, encoder = e.data, e.encoder
    images = data.observations == "images"
    if images != (encoder.body != "mlp"):
        raise UsageError(
            f"{data.observations} observations need encoder.body "
            f"{'resnet18 (or 34, 50), conv or mlp-image' if images else 'mlp'}, found "
            f"{encoder.body}"
        )
    if encoder.body in ("mlp", "conv") and encoder.width != PUBLISHED_WIDTH:
        raise UsageError(
            f"encoder.width is a ResNet's or mlp-image's, and encoder.body = {encoder.body!r} has "
            f"none: leave it out, found {encoder.width}"
        )
    if not 1 <= encoder.width <= _WIDEST:
        raise UsageError(f"encoder.width must be from 1 to {_WIDEST}, found {encoder.width}")
    if not 0 <= encoder.codes <= _MOST_CODES:
        raise UsageError(
            f"encoder.codes must be from 1 to {_MOST_CODES}, or 0 for as many as there are "
            f"factors, found {encoder.codes}"
        )
    if encoder.codes and not images:
        raise UsageError(
            "encoder.codes is for images: of synthetic observations there are as many codes as "
            f"latents: leave it out, found {encoder.codes}"
        )
    if encoder.codes and e.supervised:
        raise UsageError(
            "encoder.codes has no place beside loss.kind = 'mse', whose targets are the factors: "
            f"leave it out, found {encoder.codes}"
        )
    if images and encoder.whiten:
        raise UsageError("encoder.whiten is for synthetic observations: images are normalised")


def _check_data(e: Experiment) -> None:
    data, loss = e.data, e.loss
    if data.hard_count < 1 or data.mixing_layers < 1 or data.mixing_trials < 1:
        raise UsageError("data.hard_count, mixing_layers and mixing_trials must be at least 1")
    if data.conditional is not None and data.conditionals:
        raise UsageError("data.conditional and data.conditionals exclude each other")
    for process in e.processes:  # which refuses what a pair process cannot be made of
        if data.hard_negatives is not None:
            PairProcess(process.space, data.hard_negatives, data.marginal)
    paired = bool(data.conditional or data.conditionals)
    if data.observations == "images":
        _check_images(e)
    elif data.pairs in ("grid", "sequence", "table"):
        raise UsageError(f"data.pairs = {data.pairs!r} is for images, and has no place here")
    elif data.space is None:
        raise UsageError("synthetic observations need data.space")
    elif not (paired or e.supervised):
        raise UsageError("synthetic pairs need data.conditional")
    else:
        data.marginal.check(data.space)
    if data.hard_negatives is not None and loss.symmetric:
        raise UsageError("hard negatives are drawn around the anchor: set loss.symmetric=false")
    if (data.hard_negatives or data.conditionals) and loss.kind not in ("infonce", "aninfonce"):
        raise UsageError(f"hard negatives and ensembles need infonce or aninfonce: {loss.kind}")


def _check_start(loss: Loss, training: Training) -> None:
    """Refuse a start of the loss, or an optimiser, that would not be held."""
    starts = (loss.start_p, loss.start_tau, loss.start_own)
    has_start = any(each is not None for each in starts)
    if loss.start_steps < 0 or has_start != (loss.start_steps > 0):
        raise UsageError(
            "loss.start_steps goes with loss.start_p, loss.start_tau or loss.start_own: set it "
            "and one of these to begin with another loss, or none, found "
            f"{loss.start_steps} with {', '.join(map(str, starts))}"
        )
    if has_start and loss.start_steps >= training.steps:
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
    if loss.start_own is not None and (
        loss.kind not in ("infonce", "aninfonce")
        or loss.negatives == "positives"
        or loss.start_own == loss.own
    ):
        raise UsageError(
            "loss.start_own is for infonce and aninfonce whose negatives are anchors, and differs "
            f"from loss.own, found {loss.start_own} and loss.own = {loss.own} of {loss.kind} with "
            f"negatives = {loss.negatives!r}"
        )
    if training.matrix_lr is not None and training.optimizer != "muon":
        raise UsageError("training.matrix_lr is Muon's: set training.optimizer=muon, or leave it")
    if training.optimizer == "muon" and training.precision == "16-mixed":
        raise UsageError(
            "training.optimizer = 'muon' does not go with 16-mixed, whose scaled gradients it "
            "does not see: set training.precision=bf16-mixed"
        )
    if training.optimizer == "muon" and training.precision == "64-true":
        raise UsageError(
            "training.optimizer = 'muon' computes in float32 and does not go with 64-true: set "
            "training.precision=32-true, or training.optimizer=adam"
        )


def _check_mixing(data: Data) -> None:
    """Refuse a decoder that nothing would be decoded by, and latents that do not fit it."""
    if data.mixing == "network":
        if data.decoder or data.decoder_epochs != PUBLISHED_EPOCHS:
            raise UsageError(
                "data.decoder and data.decoder_epochs go with data.mixing = 'decoder': set that "
                f"too, or leave them out, found {data.decoder!r:.100} and {data.decoder_epochs}"
            )
        return
    if data.observations != "synthetic" or not isinstance(data.space, Sphere):
        raise UsageError(
            "data.mixing = 'decoder' makes synthetic observations of latents on a sphere, found "
            f"data.observations = {data.observations!r} and data.space = {data.space}"
        )
    if not data.decoder:
        raise UsageError(
            "data.mixing = 'decoder' needs data.decoder: the path of a dataset of small images; "
            "sklearn:digits, which scikit-learn brings; or the run of an autoencoder"
        )
    if data.decoder_epochs < 1:
        raise UsageError(f"data.decoder_epochs must be at least 1, found {data.decoder_epochs}")
    if (data.mixing_layers, data.mixing_trials) != (3, 25_000):
        raise UsageError(
            "data.mixing_layers and data.mixing_trials are those of a network: leave them out "
            f"where data.mixing = 'decoder', found {data.mixing_layers} and {data.mixing_trials}"
        )


def _check_latents(e: Experiment) -> None:
    """Refuse a finite number of latents where nothing would be matched to them."""
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


def _check_autoencoder(e: Experiment) -> None:
    """Refuse what an autoencoder cannot be trained on, or has no use for."""
    kind, encoder = e.loss.kind, e.encoder
    name = f"loss.kind = {kind!r}"
    if e.data.observations != "images":
        raise UsageError(f"{name} is for images, found data.observations = 'synthetic'")
    if encoder.body not in ("conv", "mlp-image"):
        raise UsageError(
            f"{name} has a decoder for encoder.body = 'conv' and 'mlp-image', found "
            f"{encoder.body!r}: set encoder.body=conv, for images of 64 x 64"
        )
    if encoder.output != "unbounded":
        raise UsageError(
            f"{name} has Gaussians over unbounded codes, found encoder.output = "
            f"{encoder.output!r}: set encoder.output=unbounded"
        )
    if kind != "vae" and e.data.pairs == "none":
        raise UsageError(
            f"{name} is trained on pairs, found data.pairs = 'none': set data.pairs, or "
            "loss.kind=vae for single images"
        )


def _check_unused(e: Experiment) -> None:
    """Refuse fields of the data and the encoder that nothing would look at."""
    data, output = e.data, e.encoder.output
    images = data.observations == "images"
    matched = data.pairs == "matched"
    single = e.supervised and data.pairs == "none"
    synthetic = "is for synthetic observations"
    for section, fields, used, goes_with in (
        ("data", ("hard_count",), data.hard_negatives is not None, "goes with data.hard_negatives"),
        ("data", ("mixing_layers", "mixing_trials", "mixing_seed"), not images, synthetic),
        ("data", ("factors",), images, "chooses among those of images"),
        ("data", ("pairs",), images or matched or single, "is for images"),
        ("data", ("match",), matched, "goes with data.pairs = 'matched'"),
        ("data", ("marginal",), matched or not images, "goes with data.pairs = 'matched'"),
        (
            *("data", ("space",), not images or data.pairs in ("matched", "rendered")),
            "goes with data.pairs = 'matched' or 'rendered'",
        ),
        ("data", ("conditional", "conditionals"), not e.supervised, "is of pairs"),
        ("encoder", ("radius",), output == "sphere", "goes with encoder.output = 'sphere'"),
        ("encoder", ("size",), output == "box", "goes with encoder.output = 'box'"),
        ("encoder", ("learned",), output != "unbounded", "is for codes in a box or on a sphere"),
    ):
        part = getattr(e, section)
        for name in () if used else fields:
            if _is_set(part, name):
                raise UsageError(
                    f"{section}.{name} {goes_with}, and would not be looked at here: "
                    f"{_leave_out(part, name)}"
                )


def _is_set(part: Data | Encoder | Loss, name: str) -> bool:
    """Tell whether a field of a table differs from its default."""
    return bool(getattr(part, name) != getattr(type(part)(), name))


def _leave_out(part: Data | Encoder | Loss, name: str) -> str:
    """What to do about a field that has no place, for an error."""
    default, found = (json.dumps(getattr(each, name), default=str) for each in (type(part)(), part))
    return f"leave it out, which is {default}, found {found:.100}"


def _check_targets(e: Experiment) -> None:
    """Refuse an output space that does not hold the latents, which are the targets."""
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
    small = isinstance(space, Box) and encoder.output == "box" and encoder.size < space.high
    other = isinstance(space, Sphere) and encoder.output == "sphere" and encoder.radius != space.r
    if (small or other) and not encoder.learned:
        name, found = ("size", encoder.size) if small else ("radius", encoder.radius)
        raise UsageError(
            f"encoder.{name} = {found:g} does not reach the latents of {space}, which loss.kind = "
            f"'mse' has for targets: set encoder.{name} to fit, or encoder.learned=true"
        )


def _check_images(e: Experiment) -> None:
    data = e.data
    if data.hard_negatives or data.conditionals:
        raise UsageError("hard negatives and ensembles are for synthetic observations")
    needed = data.pairs in ("matched", "grid")
    possible = needed or data.pairs == "rendered"
    if (needed and data.conditional is None) or (data.conditional is not None and not possible):
        raise UsageError(
            "data.conditional is needed for matched pairs and those of a grid, can be stated of "
            "rendered ones, and has no place elsewhere, found data.pairs = "
            f"{data.pairs!r} and {data.conditional}"
        )
    _check_other_pairs(e)
    single = data.pairs == "none"
    if e.supervised != single and not (single and e.reconstructs):
        raise UsageError(
            f"data.pairs = 'none' goes with loss.kind = 'mse' or 'vae', found {data.pairs!r} and "
            f"{e.loss.kind!r}"
        )
    if data.space is not None and not isinstance(data.space, Box | Sphere):
        raise UsageError(f"data.space of images must be a box, found {data.space}")


def _check_other_pairs(e: Experiment) -> None:
    """Refuse fields that pairs of a grid, a sequence or a table have no use for."""
    data = e.data
    if data.max_gap < 1 or (data.max_gap > 1 and data.pairs != "sequence"):
        raise UsageError(
            "data.max_gap is the largest number of frames between two of a sequence, at least 1: "
            f"it goes with data.pairs = 'sequence', found {data.max_gap} and {data.pairs!r}"
        )
    if data.pairs not in ("grid", "sequence", "table"):
        return
    if data.space is not None or data.marginal != Uniform():
        raise UsageError(
            f"data.pairs = {data.pairs!r} takes its images in turn: leave out data.space and "
            f"data.marginal, found {data.space} and {data.marginal}"
        )
    if isinstance(data.conditional, Additive):
        raise UsageError(
            f"data.pairs = 'grid' needs a transition between discrete factors: set "
            'data.conditional to { name = "discrete-laplace" } or { name = "uniform-factors" '
            f"}}, found {data.conditional}"
        )
