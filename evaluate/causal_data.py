"""Datasets of causal models as scoring sees them: kinds, parents, and whether latents depend."""

from __future__ import annotations

import shlex

from threedident import defaults
from threedident.causal import INDEPENDENT, CausalModel, Sampling, model_names
from threedident.datasets.formats import ImageSource
from threedident.datasets.formats.family import FamilySource
from threedident.errors import UsageError
from threedident.evaluate.assumptions import ScoreWarning
from threedident.evaluate.metrics._kinds import Kind
from threedident.storage.manifest import Manifest, differences

#: The images that the command of a warning renders.
_IMAGES = 2000
_SHOWN = 4


def kinds_of(model: CausalModel) -> dict[str, Kind]:
    """Return the kind of every variable, by name."""
    return {
        each.name: Kind("circular", each.range[1] - each.range[0])
        if each.kind == "circular"
        else Kind(each.kind)
        for each in model.variables
    }


def parents_of(sampling: Sampling) -> dict[str, tuple[str, ...]]:
    """Return the parents of every variable in its own image, by name, under interventions.

    With several environments, those of any of them. The frame before, or the first view, is none.
    """
    names, graph = sampling.model.names, sampling.adjacency
    return {
        name: tuple(names[i] for i in range(len(names)) if graph[i, column])
        for column, name in enumerate(names)
    }


def why_dependent(sampling: Sampling) -> str | None:
    """Say why the variables of images depend on each other; None where they do not."""
    if sampling.group != "single":
        return f"its images come as {_GROUPS[sampling.group]}, and depend on each other"
    if len(sampling.environments) > 1:
        return "it mixes environments, which make variables that differ in them dependent"
    edges = [
        f"{name} on {' and '.join(parents)}"
        for name, parents in parents_of(sampling).items()
        if parents
    ]
    if not edges:
        return None
    more = f" and {len(edges) - _SHOWN} more" if len(edges) > _SHOWN else ""
    return f"variables depend on others: {', '.join(edges[:_SHOWN])}{more}"


_GROUPS = {"counterfactual": "counterfactual pairs", "views": "two views", "sequence": "sequences"}


def check_independent(first: Manifest | None, second: Manifest | None, second_name: str) -> None:
    """Refuse a second dataset that is not of the same generator with independent variables.

    Args:
        first: the manifest of the test set.
        second: the manifest of the dataset for independent variables.
        second_name: its path, for errors.

    Raises:
        UsageError: it is not, or the test set is of no causal model.
    """
    if first is None or first.sampling is None:
        raise UsageError(
            "--independent goes with a test set of a causal model, whose variables depend on each "
            "other: this one's latents are independent as they are. Leave it out"
        )
    cure = f"Render one: {render_command(first)}"
    if second is None or second.sampling is None:
        raise UsageError(f"--independent {second_name} is of no causal model. {cure}")
    one, other = (
        {
            # Not its environments, views and interventions: those are of what is drawn of it.
            "variables": manifest.sampling.model.law()["variables"] if manifest.sampling else {},
            "scene": {k: v for k, v in manifest.settings["preset"].items() if k != "name"},
            "mesh_sha256": manifest.settings["mesh_sha256"],
            "resolution": manifest.resolution,
            "engine": {key: manifest.engine[key] for key in ("name", "quality")},
        }
        for manifest in (first, second)
    )
    unequal = differences(one, other)
    if unequal:
        names = ", ".join(name for name, _, _ in unequal[:_SHOWN])
        raise UsageError(
            f"--independent {second_name} is of another generator than the test set: they differ "
            f"in {names}{' and more' if len(unequal) > _SHOWN else ''}. {cure}"
        )
    reason = why_dependent(second.sampling)
    if reason:
        raise UsageError(
            f"--independent {second_name} has no independent variables: {reason}. {cure}"
        )


def warn_of_dependence(manifest: Manifest | None) -> tuple[ScoreWarning, ...]:
    """Warn where the variables of a test set depend on each other and nothing stands beside."""
    if manifest is None or manifest.sampling is None:
        return ()
    reason = why_dependent(manifest.sampling)
    if reason is None:
        return ()
    return (
        ScoreWarning(
            "no_independent_set",
            f"scores on dependent variables alone: {reason}. A code that holds one then scores on "
            "others too. --independent DATASET shows the same scores on independent variables "
            f"beside these; {render_command(manifest)} renders such a dataset",
        ),
    )


def warn_of_layout(source: ImageSource) -> tuple[ScoreWarning, ...]:
    """Warn where a published layout of the family has more than the ten numbers that are scored."""
    if not isinstance(source, FamilySource):
        return ()
    moves = (source.variables != source.variables[:1]).any(0)
    columns = [each for each, varies in zip(source.columns, moves, strict=True) if varies]
    classes = [each.name for each in columns if each.name in ("shape", "material")]
    circular = [each.name for each in columns if each.kind == "circular"]
    parts = []
    if classes:
        parts.append(f"not scored: {', '.join(classes)}")
    if circular:
        parts.append(f"scored as numbers, although they come round again: {', '.join(circular)}")
    if not parts:
        return ()
    return (
        ScoreWarning(
            "published_layout",
            f"of a published layout only the ten latents are scored; {'; '.join(parts)}. A dataset "
            "of `3dident render --model` is scored by the kinds of its variables",
        ),
    )


def render_command(manifest: Manifest) -> str:
    """Return the command that renders independent variables of a manifest's generator."""
    assert manifest.sampling is not None, "the manifest is of a causal model"
    name = manifest.sampling.model.name
    words = ["3dident", "render", "--model", name if name in model_names() else f"{name}.toml"]
    words += ["--environment", INDEPENDENT, "--split", "test", "--n", str(_IMAGES)]
    engine = manifest.engine
    usual = (
        ("--engine", engine["name"], defaults.ENGINE),
        ("--quality", engine["quality"], defaults.QUALITY),
        ("--resolution", manifest.resolution, defaults.RESOLUTION),
    )
    for option, value, default in usual:
        words += [option, str(value)] if value != default else []
    return f"`{shlex.join(words)} --out DIR`"
