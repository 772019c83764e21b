"""Where the minimum of the loss lies for Normal pairs in unbounded space, by their width.

    python benchmarks/normal_pairs.py --runs FOLDER [--out benchmarks/results/normal-pairs]

Table 1 of Zimmermann et al. 2021 prints Normal(1) pairs around a Normal(1) marginal; the default
of its code is 0.05. For each width an encoder is trained twice, from fresh weights and from an
encoder that was trained to give the latents. If the latents were the minimum, the second would
stay there, and no loss would lie below that of the latents at their best scale. Recipe: the scale
`cpu` of `3dident reproduce table1`. FOLDER keeps the runs: started again, it goes on.

The output folder gets table.md, curve.csv and curve.png.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

from threedident.baselines.experiment import Experiment
from threedident.baselines.reproduce.scales import SCALES, changes_of
from threedident.baselines.reproduce.studies import STUDIES
from threedident.baselines.training.loop import train
from threedident.baselines.training.training_log import read_records

mpl.use("Agg")
import matplotlib.pyplot as plt

ROW = "table1-unbounded-normal-normal-normal"
SUPERVISED = "table1-unbounded-normal-supervised"
WIDTHS = (0.05, 0.25, 1.0)
FRESH, LATENTS = "fresh weights", "the latents"
OUT = Path(__file__).parent / "results" / "normal-pairs"
HEAD = ("sigma", "start", "step", "linear_r2", "excess")


def recipe(row: str, changes: dict[str, Any]) -> Experiment:
    """A row of Table 1 at the scale `cpu`, with changes."""
    study = STUDIES["table1"]
    chosen = study.row(row)
    return chosen.published_experiment().changed(
        {**changes_of(SCALES["cpu"], study, chosen), **changes}
    )


def run(
    runs: Path, widths: tuple[float, ...], changes: dict[str, Any], threads: int | None
) -> list[dict[str, Any]]:
    """Trains what is missing; returns a line a width and start, with its curve."""
    options: dict[str, Any] = {"threads": threads, "device": "cpu"}
    at_latents = runs / "supervised"
    train(recipe(SUPERVISED, changes), at_latents, **options)
    lines = []
    for sigma in widths:
        for start in (FRESH, LATENTS):
            folder = runs / f"{sigma:g}-{'fresh' if start == FRESH else 'latents'}"
            experiment = recipe(ROW, {**changes, "data.conditional.sigma": sigma})
            if start == LATENTS:
                experiment = experiment.changed({"start": str(at_latents.absolute())})
            result = train(experiment, folder, **options)
            lines.append(
                {
                    "sigma": sigma,
                    "start": start,
                    "scores": result["scores"],
                    "loss": result["loss"],
                    "at_latents": result["at_latents"]["loss"],
                    "steps": result["steps"],
                    "batch": result["experiment"]["training"]["batch_size"],
                    "precision": result["experiment"]["training"]["precision"],
                    "hardware": result["hardware"],
                    "curve": [each for each in read_records(folder) if each["linear_r2"]],
                }
            )
    return lines


def write(lines: list[dict[str, Any]], out: Path) -> None:
    """Writes the table, the curve and its figure."""
    out.mkdir(parents=True, exist_ok=True)
    first = lines[0]
    text = [
        f"{first['steps']:,} steps of {first['batch']:,} pairs, {first['precision']}, one seed, on "
        f"{first['hardware']}.",
        "`below`: by how much the loss of the encoder lies below that of the latents at their best "
        "scale, on the same pairs, in nats.",
        "",
        "| sigma of the pairs | trained from | R2 | MCC | loss | loss of the latents | below |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        r2, mcc = (100 * line["scores"][name] for name in ("linear_r2", "mcc"))
        below = line["at_latents"] - line["loss"]
        text.append(
            f"| {line['sigma']:g} | {line['start']} | {r2:.2f} | {mcc:.2f} | {line['loss']:.4f} "
            f"| {line['at_latents']:.4f} | {below:+.4f} |"
        )
    (out / "table.md").write_text("\n".join([*text, ""]), "utf-8")
    with (out / "curve.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for line in lines:
            for row in line["curve"]:
                writer.writerow([line["sigma"], line["start"], *(row[k] for k in HEAD[2:])])
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    widths = list(dict.fromkeys(line["sigma"] for line in lines))
    for line in lines:
        style = {
            "color": f"C{widths.index(line['sigma'])}",
            "linestyle": "-" if line["start"] == FRESH else "--",
            "label": f"Normal({line['sigma']:g}), from {line['start']}",
        }
        steps = [int(row["step"]) for row in line["curve"]]
        for axis, name in zip(axes, HEAD[3:], strict=True):
            axis.plot(steps, [float(row[name] or math.nan) for row in line["curve"]], **style)
    axes[0].set(xlabel="steps", ylabel="R2")
    axes[1].set(xlabel="steps", ylabel="loss less that of the latents (one batch)", ylim=(None, 1))
    axes[1].axhline(0, color="grey", linewidth=0.8)
    axes[0].legend(fontsize="x-small")
    figure.savefig(out / "curve.png", dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--widths", type=float, nargs="+", default=WIDTHS)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=6144)
    parser.add_argument("--precision", default="32-true", help="as training.precision has it")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--mixing-trials", type=int, help="fewer, for a quick look")
    asked = parser.parse_args(arguments)
    changes = {
        "training.steps": asked.steps,
        "training.batch_size": asked.batch_size,
        "training.precision": asked.precision,
    }
    if asked.mixing_trials:
        changes["data.mixing_trials"] = asked.mixing_trials
    lines = run(asked.runs, tuple(asked.widths), changes, asked.threads)
    write(lines, asked.out)
    print((asked.out / "table.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
