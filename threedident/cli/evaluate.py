"""The command that scores: evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from threedident import defaults
from threedident.cli.group import main
from threedident.cli.options import (
    PATH,
    bootstrap_option,
    checkpoint_option,
    fitted_on_option,
    seed_option,
    trust_option,
)
from threedident.errors import UsageError

if TYPE_CHECKING:
    from threedident.evaluate.evaluation import EvaluationResult


def _print_template(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from threedident.evaluate.submissions.manifest import template

        click.echo(template(), nl=False)
        ctx.exit()


@main.command()
@click.argument("submission")
@click.option(
    "--data",
    type=PATH,
    help="The test set, in any form.  [default: data/3dident-test, if there]",
)
@click.option(
    "--out",
    type=PATH,
    help="The folder for scores and report.  [default: scores/NAME, by the submission's]",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace scores of another submission or test set in --out."
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="NAME,...",
    help="Metrics, such as mcc,dci, or all. Can be repeated.  [default: linear_r2,mcc; of a causal "
    "model also r2_beyond_parents,accuracy]",
)
@click.option(
    "--manifest",
    type=PATH,
    metavar="FILE.toml",
    help="Who made the submission, and how.  [default: SUBMISSION.toml beside it, if there]",
)
@click.option(
    "--template",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_template,
    help="Print a manifest to fill in, only.",
)
@trust_option
@checkpoint_option
@fitted_on_option
@click.option(
    "--factors",
    multiple=True,
    metavar="FACTOR|GROUP,...",
    help="Score these alone; of a causal model, variables. Can be repeated.  [default: all]",
)
@click.option(
    "--independent",
    type=PATH,
    metavar="DATASET",
    help="Also score on this dataset of the same causal model, in the environment independent.",
)
@click.option(
    "--samples",
    type=click.IntRange(8),
    metavar="N",
    help="Images to score of a dataset in the order of a grid or of time, drawn from it.  "
    "[default: 10,000]",
)
@click.option(
    "--folds",
    type=click.Choice(["2", "single", "in-sample"]),
    default="2",
    show_default=True,
    help="Folds of the linear R2: each half by the other's fit, the published split, or none.",
)
@bootstrap_option
@seed_option("splits, replicates and subsets that are drawn")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=defaults.BATCH_SIZE,
    show_default=True,
    help="Images that the encoder is handed at once.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=defaults.TIME_LIMIT,
    show_default=True,
    metavar="SECONDS",
    help="Time that the encoder may take for everything.",
)
@click.option(
    "--memory-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=defaults.MEMORY_LIMIT,
    show_default=True,
    metavar="GB",
    help="Memory that the encoder may take.",
)
def evaluate(
    submission: str,
    data: Path | None,
    out: Path | None,
    overwrite: bool,
    metrics: tuple[str, ...],
    manifest: Path | None,
    trust: bool,
    checkpoint: Path | None,
    train: Path | None,
    factors: tuple[str, ...],
    independent: Path | None,
    samples: int | None,
    folds: str,
    bootstrap: int,
    seed: int,
    batch_size: int,
    time_limit: float,
    memory_limit: float,
) -> None:
    """Score an encoder, or the latents it recovered, on a test set.

    SUBMISSION is one of: embeddings (.npy, .npz or .h5: a row for every test image, in order);
    an encoder (.onnx: uint8 images (B, C, H, W) in, codes (B, m) out); a run of `3dident train`
    (its folder, or the encoder.pt in it); with --trust also a Python factory
    (package.module:factory), .pt2 or TorchScript; or a reference encoder: reference:identity,
    reference:random, reference:pca. reference:encoder=RUN and reference:supervised=RUN score a
    run under that name.

    \b
    Examples:
      3dident evaluate runs/mine --data data/3dident-test
      3dident evaluate encoder.onnx --data data/3dident-test
      3dident evaluate reference:pca --data data/3dident-test --train data/3dident
      3dident evaluate runs/causal --data data/test --independent data/independent
    """
    from threedident.evaluate.inputs import DEFAULT_DATA, check_inputs, default_out
    from threedident.evaluate.scores_file import EMBEDDINGS, REPORT, SCORES
    from threedident.evaluate.submissions.submission import identify

    if data is None:
        data = DEFAULT_DATA
        if not data.exists():
            raise UsageError(
                f"which test set? --data TEST. `3dident render --split test --out {data}` makes "
                "the one that is taken where none is given"
            )
    if out is None:
        out = default_out(identify(submission, trust=trust, checkpoint=checkpoint))
    groups = _split_list(factors)
    inputs = check_inputs(
        submission,
        data,
        metrics=_split_list(metrics) or None,
        manifest=manifest,
        trust=trust,
        checkpoint=checkpoint,
        train=train,
        factors=groups,
        independent=independent,
        samples=samples,
        out=out,
        overwrite=overwrite,
    )
    for note in inputs.notes:
        click.echo(note)

    from threedident.evaluate import evaluation as run

    evaluation = run.evaluate_inputs(
        inputs,
        folds=2 if folds == "2" else folds,
        bootstrap=bootstrap,
        seed=seed,
        batch_size=batch_size,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )
    # What lies there was looked at before the work, which is not to be lost by now.
    run.write(evaluation, out, overwrite=True)
    _print_scores(evaluation)
    click.echo(f"wrote {out / SCORES}, {out / REPORT} and {out / EMBEDDINGS}")


def _print_scores(evaluation: EvaluationResult) -> None:
    from threedident.evaluate.evaluation import summary

    about = evaluation.scores["submission"]
    click.echo(
        f"{evaluation.submission.label}: {about['codes']} codes of {len(evaluation.z)} images"
    )
    if about["about"]:
        click.echo(about["about"])
    if about["network_blocked"] is False:
        click.echo("this system could not take the network from the encoder's process")
    for line in summary(evaluation.scores):
        click.echo(line)


def _split_list(given: tuple[str, ...]) -> list[str]:
    """The names of an option that takes lists, as a,b, and can be repeated."""
    return [name for each in given for name in each.split(",")]
