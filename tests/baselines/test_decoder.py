from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from threedident.baselines.experiment import Experiment, load_experiment
from threedident.baselines.reproduce.runs import reproduce
from threedident.baselines.training import loop as training
from threedident.baselines.training.decoder import (
    digest_of,
    prepare_decoder,
    read_images,
    train_decoder,
)
from threedident.baselines.training.run_folder import DECODER, RESULT
from threedident.datasets.papers import digits, image_folder
from threedident.encoders import MLPDecoder, MLPEncoder, WhitenedMLP, build, load_encoder
from threedident.encoders.files import read_decoder, save_decoder
from threedident.errors import UsageError

SMALL = {
    "data.decoder_epochs": 1,
    "training.steps": 6,
    "training.batch_size": 32,
    "training.log_every": 2,
    "training.score_every": 3,
    "training.score_samples": 64,
    "training.checkpoint_every": 3,
    "training.final_batches": 1,
}


def small(**changes: Any) -> Experiment:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return load_experiment("mnist-vae-to-50").changed({**SMALL, **named})


def digest(path: Path) -> str:
    return digest_of(read_decoder(path)[0])


def test_a_vae_learns_its_images_and_leaves_torchs_random_numbers_alone() -> None:
    images = read_images("sklearn:digits")[0][:256]
    state = torch.random.get_rng_state()
    _, first = train_decoder(images, 10, epochs=1, seed=1)
    decoder, last = train_decoder(images, 10, epochs=12, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert last["cross_entropy"] < 0.75 * first["cross_entropy"]
    again, same = train_decoder(images, 10, epochs=12, seed=1)
    assert digest_of(again) == digest_of(decoder) and same == last
    assert digest_of(train_decoder(images, 10, epochs=12, seed=2)[0]) != digest_of(decoder)


def test_a_decoder_is_kept_while_it_fits_and_made_anew_where_it_does_not(tmp_path: Path) -> None:
    path = prepare_decoder(small(), tmp_path, quiet=True)
    assert path == tmp_path / DECODER
    before = path.stat().st_mtime_ns, digest(path)
    prepare_decoder(small(), tmp_path, quiet=True)
    assert (path.stat().st_mtime_ns, digest(path)) == before
    prepare_decoder(small(data__mixing_seed=1), tmp_path, quiet=True)
    assert digest(path) != before[1]
    assert prepare_decoder(load_experiment("aninfonce"), tmp_path / "none") is None


def test_a_decoder_can_be_given_as_a_file_or_a_run(tmp_path: Path) -> None:
    given = tmp_path / "run" / DECODER
    given.parent.mkdir()
    save_decoder(given, MLPDecoder(10, 12, 8))
    for number, name in enumerate((given, given.parent)):
        out = tmp_path / f"out{number}"
        out.mkdir()
        path = prepare_decoder(small(data__decoder=str(name)), out, quiet=True)
        assert path is not None and digest(path) == digest(given)
    save_decoder(given, MLPDecoder(7, 12, 8))
    with pytest.raises(UsageError, match="decodes 7 codes"):
        prepare_decoder(small(data__decoder=str(given)), tmp_path, quiet=True)


def test_images_of_any_dataset_can_be_learned_unless_they_are_large(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (70, 8, 8, 3), np.uint8)
    image_folder.write(tmp_path / "small", pixels, ["a", "b"] * 35)
    images, shape = read_images(str(tmp_path / "small"))
    assert images.shape == (70, 192) and shape == (8, 8, 3)
    assert float(images.min()) >= 0 and float(images.max()) == 1
    digits.write(
        tmp_path / "mnist",
        {"train": np.full((66, 28, 28), 255, np.uint8), "test": np.zeros((70, 28, 28), np.uint8)},
        {"train": np.zeros(66, np.uint8), "test": np.zeros(70, np.uint8)},
    )
    images, shape = read_images(str(tmp_path / "mnist"))
    assert images.shape == (66, 784) and bool((images == 1).all())
    image_folder.write(tmp_path / "large", np.zeros((2, 64, 64, 3), np.uint8), ["a", "b"])
    with pytest.raises(UsageError, match="a fully connected decoder is for at most 4,096"):
        read_images(str(tmp_path / "large"))
    image_folder.write(tmp_path / "few", np.zeros((2, 8, 8, 3), np.uint8), ["a", "b"])
    with pytest.raises(UsageError, match="holds 2 images, expected at least 64"):
        read_images(str(tmp_path / "few"))


def test_a_run_trains_on_decoded_images_and_goes_on_with_its_own_decoder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = training.train(small(), out, device="cpu", quiet=True)
    about = result["data"]["decoder"]
    assert about["sha256"] == digest(out / DECODER)
    assert about["made_of"]["images"] == 1797
    assert about["stretching"]["least"] > 0
    assert load_encoder(out / "encoder.pt").spec["encoder"] == {
        **{"kind": "mlp", "n": 64, "codes": 10, "unit": 10}
    }
    # Stopped midway and started again, it gives the same.
    longer = training.train(small(training__steps=9), out, device="cpu", quiet=True)
    whole = training.train(small(training__steps=9), tmp_path / "whole", device="cpu", quiet=True)
    assert longer["scores"] == whole["scores"]
    about_other = read_decoder(out / DECODER)[1]
    save_decoder(out / DECODER, MLPDecoder(10, 64, 512), about_other)
    with pytest.raises(UsageError, match="is not the one that the run began with"):
        training.train(small(training__steps=12), out, device="cpu", quiet=True)


def test_a_run_goes_on_where_the_images_of_its_decoder_are_gone(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (70, 8, 8, 3), np.uint8)
    image_folder.write(tmp_path / "images", pixels, ["a", "b"] * 35)
    changes = {"data__decoder": str(tmp_path / "images")}
    out = tmp_path / "run"
    training.train(small(**changes), out, device="cpu", quiet=True)
    shutil.rmtree(tmp_path / "images")
    longer = training.train(small(training__steps=9, **changes), out, device="cpu", quiet=True)
    assert longer["steps"] == 9


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"data.mixing": "network"}, "data.decoder and data.decoder_epochs go with"),
        ({"data.decoder": ""}, "needs data.decoder"),
        ({"data.decoder_epochs": 0}, "decoder_epochs must be at least 1"),
        ({"data.mixing_trials": 5}, "are those of a network"),
        ({"data.mixing": "other"}, "data.mixing must be one of network, decoder"),
        (
            {
                "data.space": {"name": "box", "n": 10, "low": 0.0, "high": 1.0},
                "data.conditional": {"name": "normal", "sigma": 0.1},
                "loss.p": 2,
            },
            "of latents on a sphere",
        ),
    ],
)
def test_fields_that_contradict_a_decoder_are_refused(changes: Any, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        load_experiment("mnist-vae-to-50-infonce").changed(changes)


def test_the_study_runs_and_its_rows_share_one_decoder(tmp_path: Path) -> None:
    table = reproduce(
        "mnist-vae",
        tmp_path,
        rows="to-50,to-200-infonce",
        scale="smoke",
        changes={"training.steps": 4},
        device="cpu",
        quiet=True,
    ).read_text("utf-8")
    assert "| `mnist-vae-to-50` | AnInfoNCE: Lambda linearly spaced from 5 to 50 | 99.70 |" in table
    assert "76.30" in table
    results = [json.loads(path.read_text()) for path in tmp_path.glob(f"runs/*/seed0/{RESULT}")]
    digests = {result["data"]["decoder"]["sha256"] for result in results}
    assert len(results) == 2 and digests == {digest(tmp_path / DECODER)}


def test_an_encoder_of_many_inputs_has_the_hidden_widths_of_its_unit() -> None:
    encoder = MLPEncoder(64, 10, unit=10)
    assert [layer.out_features for layer in encoder.layers[::2]] == [
        100,
        500,
        500,
        500,
        500,
        100,
        10,
    ]
    spec = {"kind": "vector", "encoder": encoder.spec, "output": {"kind": "unbounded"}}
    assert build(spec).encoder.spec == encoder.spec
    assert "unit" not in MLPEncoder(10).spec


def test_whitening_with_a_floor_takes_directions_without_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 3, generator=generator) * torch.tensor([1.0, 0.1, 0.0])
    with pytest.raises(UsageError, match="cannot be whitened"):
        WhitenedMLP(3).whiten(x)
    encoder = WhitenedMLP(3)
    encoder.whiten(x, floor=1e-4)
    white = (x - encoder.mean) @ encoder.matrix
    variances = white.var(0).sort().values
    assert float(variances[0]) == pytest.approx(0, abs=1e-6)
    assert variances[1:].tolist() == pytest.approx([1, 1], rel=1e-3)
