"""Trainings of autoencoders: their steps, folders, resumption, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_runs import before_step, dies, rows, run, same, weights
from PIL import Image

from threedident.baselines.experiment import Experiment, parse_experiment
from threedident.baselines.training import checkpoints
from threedident.baselines.training import loop as training
from threedident.baselines.training.optimizers import make_optimizers
from threedident.baselines.training.reconstructions import RECONSTRUCTIONS
from threedident.baselines.training.run_folder import DECODER, ENCODER
from threedident.encoders import load_decoder, load_encoder
from threedident.errors import UsageError

PAIRS = {"pairs": "matched", "conditional": {"name": "normal", "sigma": 0.5}}
SINGLE = {"pairs": "none"}
WEIGHED = {"beta": 2.0}


def autoencoder(
    kind: str = "vae",
    data: dict[str, Any] = PAIRS,
    loss: dict[str, Any] = WEIGHED,
    **changes: Any,
) -> Experiment:
    plain = {
        "data": {"observations": "images", **data},
        "encoder": {"body": "conv", "codes": 4},
        "loss": {"kind": kind, **loss},
        "training": {
            **{"steps": 6, "batch_size": 16, "lr": 0.001, "log_every": 1, "score_every": 6},
            **{"score_samples": 64, "checkpoint_every": 2},
        },
    }
    experiment = parse_experiment(plain, "test", "test")
    return experiment.changed({k.replace("__", "."): v for k, v in changes.items()})


@pytest.mark.parametrize(
    ("kind", "data"),
    [("vae", SINGLE), ("vae", PAIRS), ("slowvae", PAIRS), ("adagvae", PAIRS)],
)
def test_a_training_lowers_the_loss_and_leaves_encoder_decoder_and_a_picture(
    tmp_path: Path, images: Path, kind: str, data: dict[str, Any]
) -> None:
    out = tmp_path / "run"
    result = run(autoencoder(kind, data, training__steps=20), out, data=images)
    log = rows(out)
    assert float(log[-1]["loss"]) < float(log[0]["loss"]) - 1
    for row in log:
        terms = {name: row[name] for name in ("reconstruction", "kl", "transition") if row[name]}
        r, kl, transition = (float(terms.get(k, 0)) for k in ("reconstruction", "kl", "transition"))
        assert ("transition" in terms) == (kind == "slowvae")
        whole = 2 * r + 2 * kl + 10 * transition if kind == "slowvae" else r + 2 * kl
        assert float(row["loss"]) == pytest.approx(whole, rel=1e-5)
    assert set(result["scores"]) == {"linear_r2", "mcc"}  # there is no batch normalisation
    assert result["learned"] == {"scale": pytest.approx(result["learned"]["scale"])}
    assert result["at_latents"] is None and result["loss"] is None
    encoder, decoder = load_encoder(out / ENCODER), load_decoder(out / DECODER)
    assert encoder.spec["output"] == {"kind": "gaussian", "n": 4}
    assert decoder.spec == {"kind": "conv-decoder", "codes": 4, "channels": 3, "side": 32}
    picture = np.array(Image.open(out / RECONSTRUCTIONS))
    assert picture.shape == (2 * 34 - 2, 16 * 34 - 2, 3)
    with torch.no_grad():
        first = torch.from_numpy(picture[:32, :32]).permute(2, 0, 1)
        logits = decoder(encoder(first[None]))
    below = torch.from_numpy(picture[34:, :32]).permute(2, 0, 1)
    assert (255 * torch.sigmoid(logits[0]) - below).abs().max() <= 0.51


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__precision": "bf16-mixed"},
        {"training__optimizer": "muon", "training__matrix_lr": 0.003},
        {"training__accumulate": 2},
    ],
    ids=["adam", "bfloat16", "muon", "accumulated"],
)
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    experiment = autoencoder("slowvae", **changes)
    run(experiment, tmp_path / "whole", data=images)
    with monkeypatch.context() as patched:
        before_step(patched, 3, dies)
        with pytest.raises(RuntimeError, match="killed"):
            run(experiment, tmp_path / "parts", data=images)
    torch.manual_seed(99)  # noise does not come from global random numbers
    training.resume(tmp_path / "parts", quiet=True, device="cpu")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    decoders = [load_decoder(tmp_path / name / DECODER).state_dict() for name in ("whole", "parts")]
    assert same(*decoders)
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def test_encoder_and_decoder_are_trained_alike(tmp_path: Path, images: Path) -> None:
    out = tmp_path / "run"
    run(autoencoder(training__steps=1, training__loss_lr=1e-30), out, data=images)
    state, _ = checkpoints.load_checkpoint(out)
    assert state is not None
    run(autoencoder(training__steps=2, training__loss_lr=1e-30), out, data=images)
    after, _ = checkpoints.load_checkpoint(out)
    assert after is not None
    for name in ("encoder", "objective"):
        learned = {k: v for k, v in state[name].items() if "normalize" not in k}
        assert learned and all((after[name][k] != v).any() for k, v in learned.items())


def test_muon_takes_the_matrices_of_both_networks() -> None:
    from threedident.baselines.criterion import make_criterion
    from threedident.encoders import ConvDecoder, ConvEncoder

    experiment = autoencoder(training__optimizer="muon")
    decoder = ConvDecoder(4, 3, 32)
    objective = make_criterion(experiment.loss, 4, decoder=decoder)
    encoder = ConvEncoder(8, 3, 32)
    adam, muon = make_optimizers(experiment.training, encoder, objective)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    count = sum(p.ndim >= 2 for p in parameters)
    assert len(muon.param_groups[0]["params"]) == count
    assert [len(group["params"]) for group in adam.param_groups] == [len(parameters) - count]


def test_images_as_vectors_have_decoders_as_well(tmp_path: Path, images: Path) -> None:
    experiment = autoencoder(encoder__body="mlp-image", encoder__width=24)
    run(experiment, tmp_path / "run", data=images)
    decoder = load_decoder(tmp_path / "run" / DECODER)
    assert decoder.spec == {"kind": "mlp-decoder", "codes": 4, "outputs": 3072, "hidden": 24}


def test_a_contrastive_training_takes_the_same_encoder(tmp_path: Path, images: Path) -> None:
    experiment = autoencoder("infonce", loss={}, encoder__output="box", encoder__learned=True)
    run(experiment, tmp_path / "run", data=images)
    encoder = load_encoder(tmp_path / "run" / ENCODER)
    assert encoder.spec["mean"] == [0.0] * 3 and encoder.spec["std"] == [1.0] * 3
    assert encoder.spec["encoder"] == {"kind": "conv", "codes": 4, "channels": 3, "side": 32}
    assert not (tmp_path / "run" / DECODER).exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"encoder__body": "resnet18"}, "set encoder.body=conv"),
        ({"encoder__output": "box"}, "set encoder.output=unbounded"),
        ({"loss__learn_tau": True}, "loss.learn_tau has no place"),
        ({"loss__normalize": True}, "loss.normalize has no place"),
        ({"loss__rate": 0.0}, "loss.rate > 0"),
        ({"loss__beta": -1.0}, "loss.beta >= 0"),
        ({"encoder__width": 32}, "encoder.width is a ResNet's or mlp-image's"),
        ({"loss__kind": "slowvae", "data__pairs": "none", "data__conditional": None}, "pairs"),
        ({"loss__kind": "infonce"}, "loss.beta has no place"),
        (
            {
                **{"loss__kind": "infonce", "loss__beta": 1.0},
                **{"data__pairs": "none", "data__conditional": None},
            },
            "'vae'",
        ),
        ({"encoder__body": "mlp"}, "conv or mlp-image"),
    ],
)
def test_experiments_that_contradict_themselves(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        autoencoder(**changes)


def test_synthetic_observations_have_no_autoencoder() -> None:
    space = {"name": "box", "n": 4, "low": 0.0, "high": 1.0}
    data = {"observations": "synthetic", "space": space, "conditional": PAIRS["conditional"]}
    with pytest.raises(UsageError, match=r"is for images, found data\.observations = 'synthetic'"):
        parse_experiment({"data": data, "loss": {"kind": "vae"}}, "test", "test")


def test_images_of_a_size_that_the_network_does_not_take(tmp_path: Path) -> None:
    from helpers.fake_dataset import make

    make(tmp_path / "data", 40, side=24)
    with pytest.raises(UsageError, match=r"images of 64 x 64 .* has 24 x 24"):
        run(autoencoder(), tmp_path / "run", data=tmp_path / "data")
    assert not (tmp_path / "run").exists()
