"""Warnings where an encoder has seen the images that it is scored on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.fake_dataset import as_rendered
from helpers.submissions import (
    AXES,
    COUNT,
    codes,
    mean_nodes,
    save_manifest,
    save_onnx,
    scored,
    warned,
)
from onnx import helper

from threedident.datasets.formats import open_dataset
from threedident.datasets.formats.convert import to_published
from threedident.encoders import (
    read_encoder,
    save_encoder,
)
from threedident.evaluate import evaluation as run
from threedident.evaluate.submissions.onnx_check import TRAINED_ON
from threedident.latents import latents_digest

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def test_a_training_split_is_said(rendered):
    np.save("a.npy", codes())
    found = warned(scored("a.npy", rendered["train"]))
    assert "the test set is of the split `train`" in found["training_split"]
    assert "seen_images" not in found
    assert not {"training_split", "seen_images"} & set(warned(scored("a.npy", rendered["test"])))
    assert "training_split" in warned(
        run.score_codes(codes(), rendered["train"], bootstrap=0).as_dict()
    )


def test_a_training_split_of_imported_images_is_said(cli, tmp_path, root):
    """Nothing but the export says which split they are, and it says train by itself."""
    np.save("a.npy", codes())
    for folder, words in (("unnamed", ()), ("train", ("--split", "train"))):
        cli("convert", root, "--to", "webdataset", *words, "--out", folder)
        found = scored("a.npy", tmp_path / folder / "3dident-train.json")
        assert "calls these images its split `train`" in warned(found)["training_split"]
        assert found["data"]["split"] == "train"
    for name, split in (("val", "validation"), ("test", "test")):
        cli("convert", root, "--to", "webdataset", "--split", name, "--out", name)
        found = scored("a.npy", tmp_path / name / f"3dident-{split}.json")
        assert "training_split" not in warned(found)
        assert found["data"]["split"] == name
    assert scored("a.npy", root)["data"]["split"] is None


def test_images_that_principal_components_were_fitted_on_are_said(tmp_path, rendered):
    words = {"metrics": ["linear_r2"]}
    more = as_rendered(tmp_path / "more", 50, split="test")
    for train in (rendered["test"], more):
        seen = scored("reference:pca=3", rendered["test"], train=train, **words)
        assert "as 40 of these 40" in warned(seen)["seen_images"]
    some = scored("reference:pca=3", more, train=rendered["test"], **words)
    assert "as 40 of these 50" in warned(some)["seen_images"]
    other = scored("reference:pca=3", rendered["test"], train=rendered["train"], **words)
    assert "seen_images" not in warned(other)


def test_images_that_the_manifest_names_are_said(tmp_path, rendered):
    np.save("a.npy", codes())
    save_manifest(tmp_path, data_seeds=[4, 0])
    found = warned(scored("a.npy", rendered["train"]))
    assert "trained on images of seed 0" in found["seen_images"]
    for changes in ({"data_seeds": [4]}, {"preset": "3dident-wrapped"}):
        save_manifest(tmp_path, **changes)
        assert "seen_images" not in warned(scored("a.npy", rendered["train"]))
    save_manifest(tmp_path, data_seeds=[0])
    assert "seen_images" not in warned(scored("a.npy", rendered["test"]))


def test_images_that_a_run_was_trained_on_are_said(cli, tmp_path, rendered):
    """The encoder's file records them, and of earlier versions the run's result beside it."""
    small = ("training.steps=1", "training.batch_size=8", "training.score_samples=32")
    options = [word for each in small for word in ("--set", each)]
    places = ("--data", rendered["train"], "--test", rendered["test"], "--out", "run")
    cli("train", "demo", *places, "--threads", 1, *options)
    shutil.copy("run/encoder.pt", "copied.pt")
    encoder, about = read_encoder(Path("run/encoder.pt"))
    assert len(about["data"]["latents"]) == 64
    test, train = rendered["test"], rendered["train"]

    def said(checkpoint, data):
        return warned(scored(f"reference:encoder={checkpoint}", data, metrics=["linear_r2"]))

    assert "trained on images of the same latents" in said("run", train)["seen_images"]
    assert "seen_images" in said("copied.pt", train)
    assert not {"seen_images", "other_resolution"} & set(said("copied.pt", test))
    larger = as_rendered(tmp_path / "larger", COUNT, split="test", side=32)
    found = said("copied.pt", larger)["other_resolution"]
    assert "trained on images of 16 pixels along each side, and these have 32" in found
    cli("export", "run/encoder.pt", "--out", "encoder.onnx", "--resolution", 16)
    assert "trained on images of the same latents" in warned(scored("encoder.onnx", train)).get(
        "seen_images", ""
    )
    assert not {"seen_images", "other_resolution"} & set(warned(scored("encoder.onnx", test)))
    # Some of the images, and all of them with others, in any form: row by row.
    to_published(open_dataset(as_rendered(tmp_path / "few", COUNT // 2)), tmp_path / "png")
    more = as_rendered(tmp_path / "more", COUNT + 8)
    (tmp_path / "png/3dident.json").unlink()
    for folder, words in ((tmp_path / "png", "as 20 of these 20"), (more, "as 40 of these 48")):
        assert words in said("run", folder)["seen_images"]
        assert "seen_images" not in said("copied.pt", folder)  # which no run's folder surrounds
    Path("run/data.json").write_text(json.dumps({"data": str(more)}))  # extended since
    assert "as 20 of these 20" in said("run", tmp_path / "png")["seen_images"]
    for elsewhere in ("[]", "{", '{"data": null}', json.dumps({"data": str(test)})):
        Path("run/data.json").write_text(elsewhere)
        assert "seen_images" not in said("run", tmp_path / "png")
    del about["data"]
    save_encoder("run/encoder.pt", encoder, about)
    save_encoder("copied.pt", encoder, about)
    assert "trained on images of the same latents" in said("run", train)["seen_images"]
    assert "seen_images" not in said("copied.pt", train)


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        ('{"latents": "%s"}', "seen_images"),
        ('{"resolution": 17}', "other_resolution"),
        ('{"latents": ["%s"], "resolution": 1e999}', None),
        ('{"resolution": ' + 400 * "9" + "}", None),
        (900 * "[", None),
        ("[3]", None),
        ('{"latents": "%s"}' + 5000 * "\U0001f600", None),
    ],
    ids=("latents", "side", "types", "large", "deep", "list", "long"),
)
def test_what_a_stranger_says_of_the_training_only_warns(tmp_path, rendered, claim, code):
    path = save_onnx(tmp_path / "a.onnx", mean_nodes("z_hat"), initializers=[AXES])
    model = onnx.load(path)
    latents = latents_digest(open_dataset(rendered["test"]).raw_latents)
    helper.set_model_props(model, {TRAINED_ON: claim.replace("%s", latents)})
    onnx.save(model, path)
    found = warned(scored(path, rendered["test"], metrics=["linear_r2"]))
    assert {"seen_images", "other_resolution"} & set(found) == ({code} if code else set())


def test_images_of_pairs_are_said_to_depend_on_each_other(rendered):
    np.save("a.npy", codes())
    assert "intervals are too narrow" in warned(scored("a.npy", rendered["pairs"]))["paired_images"]
    assert "paired_images" not in warned(scored("a.npy", rendered["test"]))
