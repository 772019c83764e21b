"""Entries of the leaderboard from the runs of `3dident reproduce table4`.

    python benchmarks/leaderboard.py --reproduced OUT [--data OUT/data] [--board leaderboard]

OUT is the folder of the reproduction. Every run that has been trained is scored on the test set
that it was scored on there, as `3dident evaluate` scores any encoder, and becomes an entry: its
manifest, its scores and its report, without weights. An entry that is there already stays.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from threedident.baselines.reproduce.studies import STUDIES, TEST, TRAIN, Row
from threedident.baselines.training.run_folder import ENCODER, RESULT
from threedident.datasets import ThreeDIdent
from threedident.evaluate.evaluation import evaluate
from threedident.evaluate.leaderboard.add import add, as_toml
from threedident.evaluate.leaderboard.entries import given_fields
from threedident.evaluate.submissions.manifest import SubmissionManifest

BOARD = Path(__file__).parents[1] / "leaderboard"
AUTHORS = ("the authors of threedident",)
LINK = "https://proceedings.mlr.press/v139/zimmermann21a.html"
TRACKS = {"matched": "pairs-matched", "exact": "pairs-exact", "views": "augmentations"}


def manifest_of(row: Row, scale: str, seed: int, fields: dict[str, Any], train: ThreeDIdent) -> str:
    """The manifest of a run, as TOML.

    Args:
        row: the row of the table.
        scale: the scale that it was run at.
        seed: the seed of the run.
        fields: the experiment of the run, as plain data.
        train: the dataset that it was trained on.
    """
    settings = train.source.manifest.settings
    experiment = row.published_experiment()
    training = fields["training"]
    data = experiment.data
    supervised = experiment.supervised
    track = "supervised" if supervised else TRACKS[data.pairs]
    paired = data.conditional is not None and track.startswith("pairs")
    conditional = data.conditional.as_dict() if paired and data.conditional else {}
    width = next((value for key, value in conditional.items() if key != "name"), None)
    loss = "mean squared error" if supervised else "InfoNCE"
    space = "sphere" if experiment.loss.normalize else experiment.encoder.output
    method = (
        f"{loss}, {experiment.encoder.body} of width {fields['encoder']['width']}, "
        f"{training['steps']:,} steps of {training['batch_size']} with {training['optimizer']}"
    )
    title = experiment.title.removeprefix("3DIdent, ")
    manifest = SubmissionManifest(
        name=f"{title[0].upper()}{title[1:]}",
        authors=AUTHORS,
        method=f"{method}; 3dident reproduce table4 --scale {scale}",
        link=LINK,
        preprocessing="mean and standard deviation of the training images",
        output_space=space,
        track=track,
        conditional=conditional.get("name"),
        width=width,
        preset=settings["preset"]["name"],
        images=len(train),
        steps=training["steps"],
        hyperparameters="training split",
        entry=f"{row.name}-{scale}",
        seed=seed,
        data_seeds=(settings["seed"],),
    )
    return as_toml(given_fields(manifest))


def entries(reproduced: Path, data: Path, board: Path, scale: str) -> list[str]:
    """Score the finished runs of Table 4, and add them; returns a line for each."""
    train = ThreeDIdent(data / TRAIN)
    lines = []
    for row in (row for row in STUDIES["table4"].rows if row.is_trained):
        for path in sorted((reproduced / "runs" / row.name).glob(f"seed*/{RESULT}")):
            result = json.loads(path.read_text("utf-8"))
            seed = int(path.parent.name.removeprefix("seed"))
            with tempfile.TemporaryDirectory() as scratch:
                place = Path(scratch)
                toml = manifest_of(row, scale, seed, result["experiment"], train)
                (place / "SUBMISSION.toml").write_text(toml, "utf-8")
                scored = evaluate(
                    path.parent / ENCODER, data / TEST, manifest=place / "SUBMISSION.toml"
                )
                scored.write(place / "scores")
                run, is_new = add(place / "scores", board)
            shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in _values(run).items())
            known = "" if is_new else " (there already)"
            lines.append(f"{run.entry} seed {run.seed}: {shown}{known}")
            print(lines[-1], flush=True)
    return lines


def _values(run: Any) -> dict[str, float]:
    values = {name: run.value(name) for name in ("linear_r2", "mcc")}
    return {name: value for name, value in values.items() if value is not None}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reproduced", type=Path, required=True, help="OUT of the reproduction")
    parser.add_argument("--data", type=Path, help="where its datasets lie; OUT/data if left out")
    parser.add_argument("--board", type=Path, default=BOARD)
    parser.add_argument("--scale", default="cpu")
    asked = parser.parse_args(arguments)
    data = asked.data or asked.reproduced / "data"
    if not entries(asked.reproduced, data, asked.board, asked.scale):
        parser.error(f"{asked.reproduced} holds no finished run of table4")


if __name__ == "__main__":
    main()
