"""The test set of an evaluation: opened once, and without torch where no image is encoded."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers.submissions import codes

from threedident.datasets.dataset import ThreeDIdent
from threedident.errors import UsageError
from threedident.evaluate import evaluate, summary, test_set
from threedident.evaluate.test_set import TestSet as ScoredSet  # a name that pytest leaves alone


def test_codes_in_a_file_are_scored_without_torch(rendered, tmp_path):
    np.save(tmp_path / "a.npy", codes())
    code = """
        import sys
        from threedident.cli import main
        words = ["evaluate", "a.npy", "--data", sys.argv[1], "--out", "out", "--bootstrap", "0"]
        assert not main(words, standalone_mode=False)
        assert "torch" not in sys.modules
    """
    words = [sys.executable, "-P", "-c", textwrap.dedent(code), str(rendered["test"])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    expected = evaluate(tmp_path / "a.npy", rendered["test"], bootstrap=0).scores
    assert scores["scores"] == expected["scores"]
    assert (tmp_path / "out" / "report.html").read_text().count("<img") == 12


def test_the_test_set_is_opened_once(rendered, tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", codes())
    opened = []

    def count(root):
        opened.append(root)
        return open_dataset(root)

    open_dataset = test_set.open_dataset
    monkeypatch.setattr(test_set, "open_dataset", count)
    found = evaluate(tmp_path / "a.npy", rendered["test"], bootstrap=0)
    found.write(tmp_path / "out")
    assert opened == [rendered["test"]]
    assert found.summary() == summary(found.scores)
    assert [each.name for each in sorted(Path(tmp_path / "out").iterdir())] == [
        *("embeddings.npy", "report.html", "scores.json")
    ]


def test_it_is_the_dataset_without_torch(rendered):
    whole, some = ThreeDIdent(rendered["test"]), ThreeDIdent(rendered["test"], factors=["hue", "x"])
    assert np.array_equal(ScoredSet.open(rendered["test"]).values, whole.raw_latents)
    opened = ScoredSet.open(rendered["test"], ["hue", "x"])
    assert opened.factor_names == some.factor_names
    assert np.array_equal(opened.values, some.raw_latents)
    assert opened.record() == ScoredSet.of(some).record()
    assert opened.as_dataset().factor_names == some.factor_names
    assert len(opened) == len(some)
    with pytest.raises(UsageError, match="unknown factor or group 'typo'"):
        ScoredSet.open(rendered["test"], ["typo"])
