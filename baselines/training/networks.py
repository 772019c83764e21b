"""The encoder and the loss that a training begins with."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from threedident.baselines.criterion import Criterion, make_criterion
from threedident.baselines.data import Problem
from threedident.baselines.experiment import Experiment, load_experiment
from threedident.baselines.training.checkpoints import load_checkpoint
from threedident.baselines.training.run_folder import ENCODER, EXPERIMENT
from threedident.encoders import (
    BoxOutput,
    ConvDecoder,
    ConvEncoder,
    GaussianOutput,
    ImageEncoder,
    MLPDecoder,
    MLPEncoder,
    MLPImageEncoder,
    Part,
    ResNetEncoder,
    SphereOutput,
    UnboundedOutput,
    VectorEncoder,
    WhitenedMLP,
    read_encoder,
)
from threedident.errors import UsageError

#: Observations that a whitening is measured on; no batch that is scored has this number.
_WHITENED = 1 << 16
_FLOOR = 1e-4  # of the largest variance: the least that decoded images are whitened by


def make_networks(
    experiment: Experiment, problem: Problem
) -> tuple[ImageEncoder | VectorEncoder, Criterion]:
    """Make the encoder and the loss of an experiment, their parameters drawn from its seed.

    torch's global random numbers stay as they are.

    Args:
        experiment: the experiment.
        problem: the experiment's data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.training.seed)
        encoder = _make_encoder(experiment, problem)
        members = max(1, len(experiment.data.conditionals))
        hard = experiment.data.hard_count if experiment.data.hard_negatives else 0
        codes = experiment.encoder.codes or problem.n
        decoder = _make_decoder(experiment, problem) if experiment.reconstructs else None
        criterion = make_criterion(
            experiment.loss, codes, members=members, hard=hard, decoder=decoder
        )
        return encoder, criterion


def _make_encoder(experiment: Experiment, problem: Problem) -> ImageEncoder | VectorEncoder:
    settings = experiment.encoder
    n = settings.codes or problem.n
    output: Part
    outputs = n
    match settings.output:
        case "box":
            output = BoxOutput(n, settings.learned)
            nn.init.constant_(output.bound, settings.size)
        case "sphere":
            output = SphereOutput(settings.radius, settings.learned)
        case _ if experiment.reconstructs:
            output, outputs = GaussianOutput(n), 2 * n
        case _:
            output = UnboundedOutput()
    if problem.images is not None and settings.body in ("conv", "mlp-image"):
        height, width, channels = problem.images.source.shape
        body: Part
        if settings.body == "conv":
            body = ConvEncoder(outputs, channels, height)
        else:
            body = MLPImageEncoder(outputs, height * width * channels, settings.width)
        # As published, they see pixels in [0, 1].
        return ImageEncoder((0.0,) * channels, (1.0,) * channels, body, output)
    if problem.normalization is not None:
        colors = len(problem.normalization[0])
        resnet = ResNetEncoder(n, settings.body, settings.width, colors)
        return ImageEncoder(*problem.normalization, resnet, output)
    assert problem.mixing is not None
    size = problem.mixing.outputs
    if not settings.whiten:
        return VectorEncoder(MLPEncoder(size, n, unit=n), output)
    whitened = WhitenedMLP(size, n, unit=n)
    # Decoded images hardly vary along most directions: pixels that are dark in all of them.
    floor = _FLOOR if experiment.data.mixing == "decoder" else 0.0
    whitened.whiten(problem.fresh(_WHITENED, _WHITENED)[1], floor=floor)
    return VectorEncoder(whitened, output)


def _make_decoder(experiment: Experiment, problem: Problem) -> ConvDecoder | MLPDecoder:
    assert problem.images is not None
    settings = experiment.encoder
    height, width, channels = problem.images.source.shape
    codes = settings.codes or problem.n
    if settings.body == "conv":
        return ConvDecoder(codes, channels, height)
    return MLPDecoder(codes, height * width * channels, settings.width)


def start_from(
    encoder: ImageEncoder | VectorEncoder, objective: Criterion, experiment: Experiment
) -> None:
    """Take over the weights of another run's encoder, and what its loss has learned if it fits.

    Args:
        encoder: the encoder that is changed.
        objective: the loss that is changed.
        experiment: the experiment, whose `start` is the other run's folder, or the file of an
            encoder.

    Raises:
        UsageError: the other encoder has another form, or learned from another mixing.
        DatasetError: the other run cannot be read.
    """
    start = Path(experiment.start)
    path = start / ENCODER if start.is_dir() else start
    if (start / EXPERIMENT).exists():
        _check_first_run(load_experiment(start / EXPERIMENT), experiment)
    other, _ = read_encoder(path)
    try:
        encoder.load_state_dict(other.state_dict())
    except RuntimeError as error:
        raise UsageError(f"the encoder of {path} has another form than this experiment's") from (
            error
        )
    state = load_checkpoint(start)[0] if start.is_dir() else None
    learned = {} if state is None else state["objective"]
    own = objective.state_dict()
    if {k: v.shape for k, v in learned.items()} == {k: v.shape for k, v in own.items()}:
        objective.load_state_dict(learned)


def _check_first_run(first: Experiment, experiment: Experiment) -> None:
    """Raise a UsageError where the weights of a run would not be what an experiment says."""
    fields = ["encoder.output", "encoder.radius", "encoder.size", "encoder.whiten"]
    if experiment.data.observations == "synthetic":
        fields += ["data.mixing", "data.mixing_layers", "data.mixing_trials", "training.seed"]
    for name in fields:
        section, field = name.split(".")
        before = getattr(getattr(first, section), field)
        now = getattr(getattr(experiment, section), field)
        if before != now:
            why = "its weights keep" if section == "encoder" else "decides the mixing"
            raise UsageError(
                f"{experiment.start} was trained with {name} = {before}, which {why}, and this "
                f"experiment has {now}: set {name} = {before}, or start from another run"
            )
