"""What is refused before an evaluation begins, and where scores go."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_dataset import as_rendered
from helpers.submissions import COUNT, codes, externally, scaled

from threedident.datasets.formats import open_dataset
from threedident.errors import UsageError
from threedident.evaluate import evaluation as run
from threedident.evaluate.inputs import check_inputs, default_out
from threedident.evaluate.scores_file import ScoresFile
from threedident.evaluate.submissions.submission import identify

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def test_scores_of_another_submission_are_not_overwritten(cli, tmp_path, rendered):
    np.save("a.npy", codes())
    np.save("b.npy", codes(4))
    words = ("--data", rendered["test"], "--out", "out", "--bootstrap", 0)
    cli("evaluate", "a.npy", *words)
    before = Path("out/scores.json").read_bytes()
    cli("evaluate", "a.npy", *words, "--metrics", "mcc")  # the same submission and data
    assert Path("out/scores.json").read_bytes() != before
    before = Path("out/scores.json").read_bytes()

    def refused(message, *words):
        said = cli("evaluate", *words, "--bootstrap", 0, code=2).stderr
        assert message in said
        assert "choose another --out, or add --overwrite" in said
        assert Path("out/scores.json").read_bytes() == before

    refused("out holds the scores of a.npy (embeddings), not of b.npy", "b.npy", *words)
    kept = Path("a.npy").read_bytes()
    np.save("a.npy", codes(2))
    refused("out holds the scores of another a.npy, of SHA-256 ", "a.npy", *words)
    Path("a.npy").write_bytes(kept)
    other = ("--data", rendered["train"], "--out", "out")
    refused("out holds scores of a.npy on another test set, of fingerprint ", "a.npy", *other)
    with pytest.raises(UsageError, match=r"out holds the scores of a\.npy"):
        run.write(run.evaluate("b.npy", rendered["test"], bootstrap=0), Path("out"))
    cli("evaluate", "b.npy", *words, "--overwrite")
    assert json.loads(Path("out/scores.json").read_text())["submission"]["name"] == "b.npy"
    for damaged in ("{}", "[", "[]", '{"submission": [], "data": {}}'):
        Path("out/scores.json").write_text(damaged)
        before = damaged.encode()
        refused("is damaged: it does not say whose scores it holds", "a.npy", *words)


def test_scores_on_fewer_images_or_fitted_on_others_are_not_overwritten(tmp_path):
    """A dataset that is extended keeps its fingerprint, and reference:pca its name."""
    few, more = (as_rendered(tmp_path / str(n), n, split="test") for n in (COUNT, COUNT + 20))
    train = as_rendered(tmp_path / "train", COUNT)
    other = as_rendered(tmp_path / "other", COUNT, seed=1)
    out = tmp_path / "out"

    def write(data, fitted_on):
        options = {"train": fitted_on, "metrics": ["linear_r2"]}
        check_inputs("reference:pca=3", data, out=out, **options)
        run.write(run.evaluate("reference:pca=3", data, bootstrap=0, **options), out)

    for _ in range(2):
        write(few, train)
    scores = ScoresFile.read(out / "scores.json").as_dict()
    fingerprint = open_dataset(train).manifest.fingerprint
    assert scores["submission"]["fitted_on"] == {"fingerprint": fingerprint, "images": COUNT}
    extended = r"on 40 images of this test set, which has 60 now: choose another --out, or add"
    with pytest.raises(UsageError, match=extended):
        write(more, train)
    found = run.evaluate("reference:pca=3", more, train=train, bootstrap=0, metrics=["mcc"])
    with pytest.raises(UsageError, match=extended):
        run.write(found, out)
    for fitted_on in (other, as_rendered(tmp_path / "extended", COUNT + 1), None):
        with pytest.raises(UsageError, match="holds scores of reference:pca=3 fitted on other im"):
            write(few, fitted_on)
    # Scores of earlier versions name no such images; those fitted on the test set are known.
    del scores["submission"]["fitted_on"]
    (out / "scores.json").write_text(json.dumps(scores))
    ScoresFile.read(out / "scores.json")
    with pytest.raises(UsageError, match="fitted on images that they do not name"):
        write(few, train)
    scores["submission"]["about"] = "3 principal components, fitted on the first half of the test"
    (out / "scores.json").write_text(json.dumps(scores))
    write(few, None)


def test_a_submission_with_weights_beside_it_can_be_scored_again(tmp_path, rendered):
    """Also where its scores, of an earlier version, do not name the weights' file."""
    path = scaled(tmp_path / "a.onnx", externally("a.onnx.data"))
    (tmp_path / "a.onnx.data").write_bytes(np.ones(3, np.float32).tobytes())
    for _ in range(2):
        found = run.evaluate(path, rendered["test"], bootstrap=0)
        run.write(found, tmp_path / "out")
    assert found.scores["submission"]["files"] == ["a.onnx.data"]
    plain = json.loads((tmp_path / "out/scores.json").read_text())
    del plain["submission"]["files"]
    (tmp_path / "out/scores.json").write_text(json.dumps(plain))
    run.write(found, tmp_path / "out")
    (tmp_path / "a.onnx.data").write_bytes(np.zeros(3, np.float32).tobytes())
    with pytest.raises(UsageError, match=r"out holds the scores of another a\.onnx"):
        run.write(found, tmp_path / "out")


def test_a_submission_is_not_overwritten_by_its_codes(rendered):
    np.save("embeddings.npy", codes(dtype=np.float64))
    with pytest.raises(
        UsageError, match=r"--out \. would overwrite the submission embeddings\.npy"
    ):
        check_inputs("embeddings.npy", rendered["test"], out=Path())


def test_what_does_not_fit_is_said_before_torch_is_imported(rendered):
    np.save("a.npy", codes())
    code = """
        import json, sys
        from threedident.cli import main
        for words in json.loads(sys.argv[1]):
            assert main(["evaluate", *words], standalone_mode=False) == 2
        assert "torch" not in sys.modules
    """
    data = ("--data", str(rendered["test"]))
    cases = (
        (("a.npy", "--data", "typo"), "cannot open typo as a dataset"),
        (("typo.npy", *data), "there is no file typo.npy"),
        (("a.npy",), "which test set? --data TEST"),
        (("a.npy", *data, "--metrics", "typo"), "unknown metric 'typo'"),
        (("a.npy", *data, "--factors", "typo"), "unknown factor or group"),
        (("a.npy", *data, "--out", "a.npy"), "--out a.npy is a file"),
        (("a.npy", *data, "--manifest", "typo"), "cannot read the manifest typo"),
        (("a.npy", *data, "--train", "typo"), "--train is for reference:pca"),
        (("reference:pca", *data, "--train", "typo"), "cannot open typo as a dataset"),
    )
    words = [sys.executable, "-P", "-c", textwrap.dedent(code), json.dumps([w for w, _ in cases])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, (_, said) in zip(done.stderr.splitlines(), cases, strict=True):
        assert line.startswith(f"error: {said}")


def test_where_scores_go_by_themselves():
    for words, folder in (
        ("mine.onnx", "scores/mine"),
        ("some/codes.v2.npy", "scores/codes.v2"),
        ("mine:make", "scores/mine-make"),
        ("reference:identity=full", "scores/identity-full"),
        ("reference:encoder=runs/box", "scores/encoder-box"),
        ("runs/box", "scores/encoder-box"),
        ("reference:encoder=runs/box/encoder.pt", "scores/encoder-box"),
        ("reference:encoder=copied.pt", "scores/encoder-copied"),
    ):
        Path("runs/box").mkdir(parents=True, exist_ok=True)
        for file in ("mine.onnx", "some/codes.v2.npy", "runs/box/encoder.pt", "copied.pt"):
            Path(file).parent.mkdir(exist_ok=True)
            Path(file).touch()
        assert default_out(identify(words, trust=True)) == Path(folder)
