"""Scores as `3dident evaluate` writes them, made up."""

from __future__ import annotations

import copy
import html.parser
import json
from pathlib import Path
from typing import Any

import numpy as np

from threedident.factors import FACTOR_NAMES

BEST = {"object_hue": 0.963, "spotlight_hue": 0.9844, "background_hue": 0.9986}


def make_manifest(entry: str = "an-entry", seed: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "name": "An entry",
        "authors": ["J. Doe", "R. Roe"],
        "method": "InfoNCE, ResNet-18",
        "link": "https://example.org/our-paper",
        "preprocessing": "mean and std of the training set",
        "output_space": "box",
        "track": "pairs-exact",
        "conditional": "normal",
        "width": 0.28,
        "preset": "3dident",
        "images": 250000,
        "steps": 30000,
        "hyperparameters": "validation split",
        "entry": entry,
        "seed": seed,
        "data_seeds": [0],
        **changes,
    }


def make_scores(
    entry: str = "an-entry", seed: int = 0, r2: float = 0.95, mcc: float = 0.97, **changes: Any
) -> dict[str, Any]:
    """Scores of an entry; `changes` are the manifest's."""
    factors = list(FACTOR_NAMES)
    best = {name: BEST.get(name, 1.0) for name in factors}

    def score(value: float, best: dict[str, float] | None, **parts: Any) -> dict[str, Any]:
        each = {name: round(value - 0.01 * (i - 4.5) / 4.5, 6) for i, name in enumerate(factors)}
        return {
            "value": value,
            "interval": [value - 0.004, min(value + 0.004, 1.0)],
            "chance": -0.002 if best else 0.03,
            "per_factor": each,
            "per_factor_interval": {n: [v - 0.006, min(v + 0.006, 1.0)] for n, v in each.items()},
            "best_per_factor": best,
            "share_of_best": {n: v / best[n] for n, v in each.items()} if best else None,
            "parts": parts,
            "choices": {"folds": 2} if best else {"correlation": "pearson"},
        }

    return {
        "format": "3dident-scores",
        "format_version": 1,
        "created": "2026-11-21T12:00:00+00:00",
        "toolkit": "0.1.0",
        "libraries": {"numpy": "1.26.4", "scipy": "1.17.1"},
        "submission": {
            "kind": "onnx",
            "name": "encoder.onnx",
            "sha256": f"{seed:064x}",
            "codes": 10,
            "manifest": make_manifest(entry, seed, **changes),
        },
        "data": {
            "fingerprint": "ab" * 32,
            "images": 4096,
            "preset": "3dident",
            "split": "test",
            "seed": 7,
            "resolution": 224,
            "engine": {
                "name": "direct",
                "version": "1.19.0",
                "device": "cpu",
                "quality": "standard",
                "recipe": 1,
            },
            "factors": factors,
            "not_injective": ["the hues are not wrapped: whole ranges share one colour"],
            "best_r2": dict(best),
        },
        "settings": {"folds": 2, "bootstrap": 1000, "seed": 0},
        "scores": {
            "linear_r2": score(r2, best),
            "mcc": score(mcc, None, permutation=list(range(10))),
        },
        "warnings": [
            {"code": "not_injective", "message": "the generator is not injective; see best R2"}
        ],
    }


def scores_file() -> Any:
    """The same, as the object that is read of the file."""
    from threedident.evaluate.scores_file import ScoresFile

    return ScoresFile.from_dict(make_scores())


def changed(scores: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one field, named as a.b.c, replaced."""
    made = copy.deepcopy(scores)
    *inner, last = path.split(".")
    place = made
    for key in inner:
        place = place[key]
    place[last] = value
    return made


def make_codes(
    count: int = 400, codes: int = 10, noise: float = 0.2
) -> tuple[np.ndarray, np.ndarray]:
    """Latents (N, 10), and codes (N, m) that hold them, scaled, turned round and noisy."""
    generator = np.random.default_rng(0)
    z = generator.uniform(-1, 1, (count, 10))
    z_hat = noise * generator.normal(size=(count, codes))
    width = min(codes, 10)
    z_hat[:, :width] += z[:, :width] * np.linspace(-2, 2, width)
    return z, z_hat


def written(scores: dict[str, Any], folder: Path) -> Path:
    """Scores and their report in a folder, as `3dident evaluate` leaves them; scores.json."""
    from threedident.evaluate.report.report import write_report
    from threedident.evaluate.scores_file import ScoresFile

    write_report(ScoresFile.from_dict(scores), *make_codes(40), None, folder / "report.html")
    (folder / "scores.json").write_text(json.dumps(scores))
    return folder / "scores.json"


def put(board: Path, scores: dict[str, Any]) -> None:
    """Adds a run to a board."""
    from threedident.evaluate.leaderboard.add import add

    add(written(scores, board.parent / "written"), board, link="https://example.org/encoder.onnx")


def fill(board: Path) -> None:
    """A board of entries of every sort."""
    for seed, (r2, mcc) in enumerate([(0.953, 0.97), (0.951, 0.972), (0.955, 0.969)]):
        put(board, make_scores("normal", seed, r2, mcc, name="Exact normal pairs"))
    laplace = {"name": "Exact Laplace pairs", "conditional": "laplace", "authors": ["C. Someone"]}
    laplace |= {"method": "InfoNCE (L1)", "hyperparameters": "test split"}
    for seed, (r2, mcc) in enumerate([(0.963, 0.962), (0.961, 0.96), (0.965, 0.959)]):
        put(board, make_scores("laplace", seed, r2, mcc, **laplace))
    trained = {"name": "A supervised one", "track": "supervised", "method": "MSE, ResNet-18"}
    trained |= {"conditional": None, "width": None}
    for seed, (r2, mcc) in enumerate([(0.983, 0.982), (0.981, 0.98)]):
        scores = make_scores("trained", seed, r2, mcc, **trained)
        put(board, changed(scores, "submission.kind", "embeddings"))
    other = make_scores("elsewhere", 0, 0.9, 0.91, name="On other data", track="pairs-matched")
    put(board, changed(changed(other, "data.fingerprint", "cd" * 32), "data.seed", 8))


#: More than `add` lets in: pages must not rest on what was checked elsewhere.
HOSTILE = {
    "name": "<script>window.hacked = 1</script> \u202eevil\u202c " + "long" * 40,
    "authors": ["<img src=x onerror='window.hacked = 2'>"],
    "method": '\u05e9\u05dc\u05d5\u05dd "><svg onload=window.hacked=3>',
    "link": "javascript:window.hacked=4",
    "track": "other",
}


def hostile_run(folder: Path) -> Any:
    """A run of which every text is an attack."""
    from threedident.evaluate.leaderboard.entries import KeptSubmission, Run
    from threedident.evaluate.scores_file import ScoresFile

    scores = make_scores("hostile", 0, 0.2, 0.3, **HOSTILE)
    written(scores, folder)
    link = "javascript:window.hacked=5"
    return Run(
        folder,
        ScoresFile.from_dict(scores),
        KeptSubmission("onnx", "<b>", None, "<script>.onnx", link),
    )


class Structure(html.parser.HTMLParser):
    """Reads a page: its elements, whether they are closed, and their attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.names, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())
