"""`evaluate`: one submission scored on one test set, and what is written of it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from threedident.datasets.formats.source import ImageSource
from threedident.defaults import BOOTSTRAP
from threedident.errors import ManifestWarning, UsageError
from threedident.evaluate.assumptions import ScoreWarning
from threedident.evaluate.causal_data import warn_of_dependence, warn_of_layout
from threedident.evaluate.inputs import Inputs, check_inputs, check_out, refuse_other_scores
from threedident.evaluate.metrics._linear_fit import Folds
from threedident.evaluate.metrics.registry import check_metrics
from threedident.evaluate.runner.process import (
    BATCH_SIZE,
    MEMORY_LIMIT,
    TIME_LIMIT,
    Encoding,
    Limits,
    run_encoder,
)
from threedident.evaluate.sampled_source import SampledSource
from threedident.evaluate.scores_file import (
    EMBEDDINGS,
    REPORT,
    SCORES,
    ScoredCodes,
    ScoresFile,
    SubmissionRecord,
)
from threedident.evaluate.scoring import check_bootstrap, score
from threedident.evaluate.seen import check_seen
from threedident.evaluate.submissions.submission import Submission, digest
from threedident.evaluate.test_set import TestSet
from threedident.evaluate.text_tables import summary
from threedident.storage.atomic_files import explaining_write_errors, replacing
from threedident.version import toolkit_version

if TYPE_CHECKING:
    from threedident.datasets.dataset import ImageDataset

__all__ = [
    "EvaluationResult",
    "evaluate",
    "evaluate_inputs",
    "libraries",
    "score_codes",
    "summary",
    "write",
]

Float32 = npt.NDArray[np.float32]

LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "onnx", "onnxruntime", "h5py")


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """The scores of a submission on a test set, and the arrays behind them.

    Attributes:
        file: the content of scores.json.
        z: (N, n) float32, the raw latents, or the variables of a causal model.
        z_hat: (N, m) float32, the codes.
        data: the test set.
        submission: the submission.
        notes: lines on the manifest that was read beside the submission, or why it was not.
    """

    file: ScoresFile
    z: Float32
    z_hat: Float32
    data: TestSet
    submission: Submission
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def scores(self) -> Mapping[str, Any]:
        """The content of scores.json, as plain data."""
        return self.file.as_dict()

    @functools.cached_property
    def dataset(self) -> ImageDataset:
        """The test set as a PyTorch dataset."""
        return self.data.as_dataset()

    def summary(self) -> list[str]:
        """Make tables of the scores and their warnings, as lines of text."""
        return summary(self.file)

    def write(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Write scores.json, embeddings.npy and report.html into a folder; see `write`."""
        write(self, Path(out), overwrite=overwrite)


@dataclasses.dataclass(frozen=True)
class ScoringOptions:
    """The options of `score` that an evaluation leaves to its caller.

    Attributes:
        metrics: names from `METRICS`.
        folds: 2, "single" or "in-sample".
        bootstrap: the number of replicates of a score.
        seed: the seed for all random numbers.
    """

    metrics: Sequence[str]
    folds: Folds
    bootstrap: int
    seed: int


def evaluate(
    submission: str | Path,
    data_root: ImageDataset | str | Path,
    *,
    metrics: Sequence[str] | None = None,
    manifest: Path | None = None,
    trust: bool = False,
    checkpoint: Path | None = None,
    train: Path | None = None,
    factors: Sequence[str] = (),
    independent: ImageDataset | str | Path | None = None,
    samples: int | None = None,
    folds: Folds = 2,
    bootstrap: int = BOOTSTRAP,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
) -> EvaluationResult:
    """Run a submission on a test set and score what it recovers; nothing is written.

    A manifest beside the submission that is not used gives an `errors.ManifestWarning`;
    `EvaluationResult.notes` says which one is.

    Args:
        submission: a file, the folder of a run, `package.module:factory` or `reference:NAME`; see
            `identify`.
        data_root: the test set, or its path, in any form.
        metrics: names from `METRICS`, or "all" that can score these factors; None: linear_r2 and
            mcc, and of a causal model r2_beyond_parents and accuracy, where they can be computed.
        manifest: the submission's manifest; None: SUBMISSION.toml beside it, where there is one.
        trust: whether code of the submission's author may be run.
        checkpoint: the file that a Python factory gets.
        train: the dataset that `reference:pca` is fitted on; None: half of the test set.
        factors: names of factors or groups that count, or of variables of a causal model, where
            the test set is given by its path; none: all.
        independent: a dataset of the same causal model in the environment "independent", or its
            path: the same scores are taken on it and stand beside the others; None: none.
        samples: the number of images that are scored of a dataset in the order of a grid or of
            time, drawn from it once and for all; None: 10,000. Of others all are.
        folds: 2, "single" or "in-sample".
        bootstrap: the number of replicates of a score.
        seed: the seed for all random numbers.
        batch_size: the number of images at once.
        time_limit: the seconds that the encoder may take.
        memory_limit: the GB that it may allocate.

    Raises:
        UsageError: an argument does not fit, or the submission does not, fails, or passes a
            limit.
        DatasetError: the test set cannot be read.
    """
    inputs = check_inputs(
        submission,
        data_root,
        metrics=metrics,
        manifest=manifest,
        trust=trust,
        checkpoint=checkpoint,
        train=train,
        factors=factors,
        independent=independent,
        samples=samples,
    )
    if inputs.manifest is None:
        for note in inputs.notes:
            warnings.warn(note, ManifestWarning, stacklevel=2)
    return evaluate_inputs(
        inputs,
        folds=folds,
        bootstrap=bootstrap,
        seed=seed,
        batch_size=batch_size,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )


def evaluate_inputs(
    inputs: Inputs,
    *,
    folds: Folds = 2,
    bootstrap: int = BOOTSTRAP,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    time_limit: float = TIME_LIMIT,
    memory_limit: float = MEMORY_LIMIT,
) -> EvaluationResult:
    """Evaluate as `evaluate` does, given checked inputs; their notes are the caller's to show."""
    check_bootstrap(bootstrap)  # before the images are encoded
    options = ScoringOptions(inputs.metrics, folds, bootstrap, seed)
    limits = Limits(time_limit, memory_limit, batch_size)
    data, encoding = _encode(inputs, inputs.data, limits, seed)
    codes = _score(encoding.codes, data, _seen(inputs, data, encoding), options)
    beside = None
    warnings_of_data = warn_of_layout(data.source)
    if inputs.independent is None:
        warnings_of_data += warn_of_dependence(data.source.manifest)
    else:
        other, encoded = _encode(inputs, inputs.independent, limits, seed)
        fit = set(other.choose_metrics(["all"]))
        both = [name for name in inputs.metrics if name in fit]
        if both:
            seen = _seen(inputs, other, encoded)
            same = dataclasses.replace(options, metrics=both)
            beside = _score(encoded.codes, other, seen, same)
    file = ScoresFile(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        toolkit=toolkit_version(),
        libraries=libraries(),
        submission=_record(inputs, encoding, batch_size),
        data=codes.data,
        settings=codes.settings,
        scores=codes.scores,
        warnings=(*warnings_of_data, *codes.warnings),
        independent=beside,
    )
    return EvaluationResult(
        file.as_written(), data.values, encoding.codes, data, inputs.submission, inputs.notes
    )


def _seen(inputs: Inputs, data: TestSet, encoding: Encoding) -> Iterable[ScoreWarning]:
    return check_seen(
        data.source,
        declared=inputs.manifest,
        fitted_on=None if inputs.train is None else inputs.train.source,
        trained_on=encoding.trained_on,
        checkpoint=inputs.submission.checkpoint,
    )


def _encode(inputs: Inputs, data: TestSet, limits: Limits, seed: int) -> tuple[TestSet, Encoding]:
    """Run the submission on a dataset; return that, as it was when it ran, and the codes."""
    if inputs.submission.kind != "reference":
        return data, _run(inputs.submission, data, limits)
    from threedident.evaluate.reference_encoders import run_reference

    dataset = data.as_dataset()
    encoding = run_reference(
        inputs.submission,
        dataset,
        train=None if inputs.train is None else inputs.train.as_dataset(),
        normalised_by=None if data is inputs.data else inputs.data.as_dataset(),
        seed=seed,
        batch_size=limits.batch_size,
    )
    return dataclasses.replace(data, source=dataset.source), encoding


def _run(submission: Submission, data: TestSet, limits: Limits) -> Encoding:
    """Run an encoder on the images that are scored; embeddings are of all images, or of those."""
    source = data.source
    if submission.kind != "embeddings" or not isinstance(source, SampledSource):
        return run_encoder(submission, data, limits)
    try:
        encoding = run_encoder(submission, dataclasses.replace(data, source=source.whole), limits)
    except UsageError as error:
        with contextlib.suppress(UsageError):
            return run_encoder(submission, data, limits)  # what an evaluation has written
        raise error
    return dataclasses.replace(encoding, codes=encoding.codes[source.numbers])


def score_codes(
    z_hat: Any,
    data: ImageDataset | str | Path,
    *,
    metrics: Sequence[str] | None = None,
    factors: Sequence[str] = (),
    samples: int | None = None,
    folds: Folds = 2,
    bootstrap: int = BOOTSTRAP,
    seed: int = 0,
) -> ScoredCodes:
    """Score codes at hand on a test set; `summary` makes tables of the result.

    Args:
        z_hat: (N, m), a row for every image, in order; numpy or torch.
        data: the test set, or its path.
        metrics: names from `METRICS`, as for `evaluate`.
        factors: names of factors or groups that count, or of variables of a causal model, where
            `data` is a path; none: all.
        samples: the number of images that are scored of a dataset in the order of a grid or of
            time, as for `evaluate`. `z_hat` has a row for every image all the same, in the order
            of the dataset; or, where fewer are scored, for each of those in their order, as the
            embeddings that an evaluation writes.
        folds: 2, "single" or "in-sample".
        bootstrap: the number of replicates of a score.
        seed: the seed for all random numbers.

    Returns:
        The test set, the settings, a report for every metric, and warnings: what scores.json
        holds of them.

    Raises:
        UsageError: an argument does not fit.
        DatasetError: the test set cannot be read.
    """
    if isinstance(z_hat, str | Path) or isinstance(getattr(z_hat, "source", None), ImageSource):
        raise UsageError(
            f"z_hat must be an array of codes (N, m), found {type(z_hat).__name__}: call "
            "score_codes(codes, data), the codes first. evaluate_encoder(path, data) scores a file"
        )
    if metrics is not None and "all" not in metrics:
        check_metrics(metrics)
    test_set = TestSet.take(data, factors, samples)
    if isinstance(source := test_set.source, SampledSource):
        z_hat = _rows_of(z_hat, source)
    options = ScoringOptions(test_set.choose_metrics(metrics), folds, bootstrap, seed)
    warnings_of_data = (
        *check_seen(test_set.source),
        *warn_of_dependence(test_set.source.manifest),
        *warn_of_layout(test_set.source),
    )
    return _score(z_hat, test_set, warnings_of_data, options)


def _rows_of(z_hat: Any, source: SampledSource) -> Any:
    """Return the codes of the images that are scored.

    Raises:
        UsageError: there is not a row for every image.
    """
    codes = z_hat.detach().cpu().numpy() if hasattr(z_hat, "detach") else np.asarray(z_hat)
    if codes.ndim == 2 and len(codes) == len(source.whole):
        return codes[source.numbers]
    if codes.ndim == 2 and len(codes) == len(source):
        return codes
    raise UsageError(
        f"z_hat must have a row for every image of {source.root}, in order: expected shape "
        f"({len(source.whole)}, m), or ({len(source)}, m) of the images that are scored, found "
        f"{codes.shape}"
    )


def _score(
    z_hat: Any, data: TestSet, seen: Iterable[ScoreWarning], options: ScoringOptions
) -> ScoredCodes:
    record = data.record()
    result = score(
        data.values,
        z_hat,
        factors=data.factor_names,
        metrics=options.metrics,
        best_r2=_known(record.best_r2),
        not_injective=record.not_injective or (),
        folds=options.folds,
        bootstrap=options.bootstrap,
        seed=options.seed,
        kinds=data.kinds,
        parents=data.scored_parents,
    )
    return ScoredCodes(
        data=record,
        settings=result.settings,
        scores=result.scores,
        warnings=(*seen, *result.warnings),
    )


def _known(values: Mapping[str, float | None] | None) -> dict[str, float]:
    return {name: value for name, value in (values or {}).items() if value is not None}


def _record(inputs: Inputs, encoding: Encoding, batch_size: int) -> SubmissionRecord:
    submission = inputs.submission
    return SubmissionRecord(
        kind=submission.kind,
        name=submission.name,
        sha256=digest(submission, encoding.external),
        files=tuple(encoding.external),
        codes=int(encoding.codes.shape[1]),
        about=encoding.about,
        manifest=inputs.manifest,
        network_blocked=encoding.network_blocked,
        fitted_on=None if inputs.train is None else inputs.train.identity,
        batch_size=batch_size,
    )


def write(evaluation: EvaluationResult, out: Path, *, overwrite: bool = False) -> None:
    """Write scores.json, embeddings.npy and report.html into a folder.

    Those of the same submission on the same test set are replaced.

    Args:
        evaluation: the result of `evaluate`.
        out: the folder.
        overwrite: whether to replace those of another submission or test set as well.

    Raises:
        UsageError: the folder holds the scores of another submission or test set.
        DatasetError: the disk is full or cannot be written to.
    """
    from threedident.evaluate.report.report import write_report

    check_out(out, evaluation.submission)
    file = evaluation.file
    if not overwrite:
        fitted_on = file.submission.fitted_on
        refuse_other_scores(out, evaluation.submission, file.data.identity, fitted_on)
    with explaining_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with replacing(out / EMBEDDINGS) as temporary, temporary.open("wb") as embeddings:
        np.save(embeddings, _in_dataset_order(evaluation))
    write_report(
        file,
        evaluation.z,
        evaluation.z_hat,
        evaluation.data.source,
        out / REPORT,
        label=evaluation.submission.label,
        kinds=evaluation.data.kinds,
    )
    file.write(out / SCORES)


def _in_dataset_order(evaluation: EvaluationResult) -> Float32:
    """Return the codes in the order of the dataset where all of its images are scored.

    They are scored in random order. Of the file nothing but its length tells whether it is of all
    images, so that those of all must lie in their order.
    """
    source, codes = evaluation.data.source, evaluation.z_hat
    if not isinstance(source, SampledSource) or len(source) < len(source.whole):
        return codes
    ordered = np.empty_like(codes)
    ordered[source.numbers] = codes
    return ordered


def libraries() -> dict[str, str]:
    """Return versions of the libraries that scores depend on, as far as they are installed."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
