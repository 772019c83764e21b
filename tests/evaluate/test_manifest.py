"""SUBMISSION.toml: what fits it, and which one belongs to a submission."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.fake_scores import make_manifest
from helpers.submissions import codes, fields, save_manifest

from threedident.errors import ManifestWarning, UsageError
from threedident.evaluate import evaluation as run
from threedident.evaluate.inputs import check_inputs
from threedident.evaluate.scores_schema import check_scores
from threedident.evaluate.submissions import manifest as manifests

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def test_a_filled_template_is_a_manifest(tmp_path):
    filled = {**make_manifest(), "submission": "encoder.onnx"}
    text = manifests.template().replace("# link = ", "link = ")
    for key, value in filled.items():
        text, count = re.subn(
            rf'^{key} = (".*?"|\[.*?\])',
            lambda _, v=value, k=key: f"{k} = {json.dumps(v)}",
            text,
            flags=re.M,
        )
        assert count == 1, key
    (tmp_path / "SUBMISSION.toml").write_text(text)
    found = manifests.read_manifest(tmp_path / "SUBMISSION.toml")
    assert found.as_dict() == filled
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()


#: As `evaluate --template` printed it before.
OLD_TEMPLATE = {
    **make_manifest("our-encoder"),
    "name": "Our encoder",
    "authors": ["A. Author", "B. Author"],
    "link": "https://example.org/paper",
}


def test_a_template_that_nobody_filled_in_is_refused(tmp_path, root):
    np.save("a.npy", codes())
    Path("SUBMISSION.toml").write_text(manifests.template())
    with pytest.raises(UsageError, match=r"submission, name, .*, data_seeds are still to be fill"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, steps="FILL IN")
    with pytest.raises(UsageError, match=r"SUBMISSION.toml: steps is still to be filled in"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, **OLD_TEMPLATE)
    with pytest.raises(UsageError, match="name, authors, link, entry are as in the template"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, authors=["A. Author", "B. Author"])
    with pytest.raises(UsageError, match="authors is as in the template"):
        run.evaluate("a.npy", root, bootstrap=0)
    save_manifest(tmp_path, entry="our-encoder")  # which someone can mean
    scores = run.evaluate("a.npy", root, bootstrap=0).scores
    assert scores["submission"]["manifest"]["entry"] == "our-encoder"


def test_a_manifest_that_is_found_is_named(cli, tmp_path, root):
    np.save("mine.npy", codes())
    words = ("evaluate", "mine.npy", "--data", root, "--bootstrap", 0)
    save_manifest(tmp_path)
    assert "manifest: SUBMISSION.toml (entry an-entry, seed 0)\n" in cli(*words).stdout
    save_manifest(tmp_path, submission="mine.npy")
    assert "manifest: SUBMISSION.toml (entry an-entry, seed 0)\n" in cli(*words).stdout
    scores = json.loads(Path("scores/mine/scores.json").read_text())
    assert scores["submission"]["manifest"]["submission"] == "mine.npy"
    check_scores(scores, "scores.json")


def test_a_manifest_of_another_submission_is_not_taken(cli, tmp_path, root):
    np.save("mine.npy", codes())
    words = ("evaluate", "mine.npy", "--data", root, "--bootstrap", 0)

    def used():
        scores = json.loads(Path("scores/mine/scores.json").read_text())
        return scores["submission"]["manifest"] is not None

    save_manifest(tmp_path, submission="encoder.onnx")
    said = cli(*words).stdout
    assert "SUBMISSION.toml is of 'encoder.onnx', not of 'mine.npy': it is not used" in said
    assert not used()
    said = cli(*words, "--manifest", "SUBMISSION.toml", code=2).stderr
    assert "is of 'encoder.onnx', not of 'mine.npy': give the manifest of this one" in said
    # Of several submissions it must name its own.
    Path("encoder.onnx").write_bytes(b"x")
    save_manifest(tmp_path)
    said = cli(*words).stdout
    assert "does not say whether it is of mine.npy or of encoder.onnx: it is not used" in said
    assert not used()
    assert "manifest: " in cli(*words, "--manifest", "SUBMISSION.toml").stdout
    assert used()
    save_manifest(tmp_path, submission="mine.npy")
    assert "manifest: " in cli(*words).stdout
    assert used()


def test_a_manifest_beside_a_submission_is_visible_in_python(tmp_path, rendered):
    np.save("mine.npy", codes())
    save_manifest(tmp_path)
    found = run.evaluate("mine.npy", rendered["test"], bootstrap=0, metrics=["linear_r2"])
    assert found.notes == ("manifest: SUBMISSION.toml (entry an-entry, seed 0)",)
    np.save("theirs.npy", codes())
    with pytest.warns(ManifestWarning, match=r"of mine\.npy or of theirs\.npy: it is not used"):
        found = run.evaluate("mine.npy", rendered["test"], bootstrap=0, metrics=["linear_r2"])
    assert "it is not used" in found.notes[0]
    assert found.scores["submission"]["manifest"] is None


def test_every_kind_of_submission_beside_a_manifest_counts(tmp_path, rendered):
    """A manifest that names none is not taken where it may be of another."""
    np.save("mine.npy", codes())
    save_manifest(tmp_path)

    def found():
        return check_inputs("mine.npy", rendered["test"])

    assert found().manifest is not None
    with warnings.catch_warnings(action="ignore"):  # torch calls it deprecated
        script = torch.jit.script(torch.nn.Identity())
    for name in ("a.pt", "a.pth", "a.ts"):
        script.save(name)
        assert f"is of mine.npy or of {name}: it is not used" in found().notes[0]
        assert found().manifest is None
        torch.save({"weights": torch.zeros(2)}, name)  # a checkpoint, which nobody can hand in
        assert found().manifest is not None
        Path(name).unlink()
    for name in ("a.pt2", "a.onnx", "a.npz", "a.h5", "a.hdf5", "embeddings.npy"):
        np.save("x.npy", codes())
        Path("x.npy").rename(name)
        assert f"is of mine.npy or of {name}: it is not used" in found().notes[0]
        if name != "embeddings.npy":
            Path(name).unlink()
    Path("scores.json").write_text("{}")  # then they are the codes of that evaluation
    assert found().manifest is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "name must be text of 1 to 80"),
        ({"name": "x" * 81}, "name must be text"),
        ({"name": 3}, "name must be text"),
        ({"name": "a\nb"}, "one line without invisible"),
        ({"name": "a\u202eb"}, "one line without invisible"),
        ({"authors": "me"}, "authors must be a list"),
        ({"authors": []}, "authors must be a list"),
        ({"authors": [""]}, "authors must be text"),
        ({"link": "javascript:alert(1)"}, "link must begin with https"),
        ({"link": "file:///etc/passwd"}, "link must begin with https"),
        ({"output_space": "torus"}, "output_space must be one of box, sphere"),
        ({"track": "best"}, "track must be one of supervised"),
        ({"track": ["other"]}, "track must be one of supervised"),
        ({"track": "supervised"}, "conditional is for the tracks pairs"),
        ({"conditional": None}, "conditional is missing"),
        ({"width": -1}, "width must be a number above 0"),
        ({"width": float("nan")}, "width must be a number above 0"),
        ({"width": [0.1, True]}, "width must be a number above 0"),
        ({"images": 1.5}, "images must be a whole number"),
        ({"images": True}, "images must be a whole number"),
        ({"steps": -1}, "steps must be a whole number"),
        ({"seed": 2**64}, "seed must be a whole number"),
        ({"data_seeds": 0}, "data_seeds must be a list"),
        ({"data_seeds": list(range(101))}, "data_seeds must be a list"),
        ({"hyperparameters": "luck"}, "hyperparameters must be one of published"),
        ({"entry": "../up"}, "entry must be an id"),
        ({"entry": "A"}, "entry must be an id"),
        ({"score": 1}, "unknown field 'score'"),
        ({"submission": 3}, "submission must be text"),
        ({"method": None}, "method is missing"),
    ],
)
def test_manifests_that_do_not_fit(changes, said):
    with pytest.raises(UsageError, match=f"SUBMISSION.toml: .*{said}"):
        manifests.parse_manifest(fields(**changes), "SUBMISSION.toml")


def test_all_fields_that_do_not_fit_are_said_at_once():
    off = {"track": "matched pairs", "preprocessing": None, "entry": "A b", "autor": "me"}
    advice = "`3dident evaluate --template` prints a manifest with all fields"
    with pytest.raises(UsageError) as caught:
        manifests.parse_manifest(fields(**off), "m.toml")
    said = str(caught.value)
    assert said.startswith("m.toml: preprocessing is missing; track must be one of supervised, ")
    assert "found 'matched pairs'; entry must be an id" in said
    assert "unknown field 'autor': expected some of name, authors" in said
    assert said.count("conditional") == 1  # the list of fields: it waits for a track
    assert said.endswith(f". {advice}")
    with pytest.raises(
        UsageError, match=r"steps is still to be .*; prep.*; track must be .*; entr"
    ):
        manifests.parse_manifest(fields(**off, steps="FILL IN"), "m.toml")
    names = [field.name for field in dataclasses.fields(manifests.SubmissionManifest)]
    assert list(manifests._CHECKS) == names


def test_manifest_files_that_do_not_fit(tmp_path):
    path = tmp_path / "m.toml"
    for content, said in (
        (b"name = ", "is not TOML"),
        (b"\xff", "is not TOML"),
        (b"a = " + b"[" * 20_000, "is not TOML"),
        (b"#" * 70_000, "larger than"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            manifests.read_manifest(path)
    with pytest.raises(UsageError, match="cannot read the manifest"):
        manifests.read_manifest(tmp_path / "none.toml")
