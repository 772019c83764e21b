"""The images of a reproduction: which datasets its runs use, rendered where they are missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threedident.baselines.reproduce.scales import Rendering
from threedident.baselines.reproduce.studies import ImageSet
from threedident.datasets.formats import open_dataset
from threedident.datasets.papers import FORMS
from threedident.errors import DatasetError, RenderError, UsageError
from threedident.progress import Progress
from threedident.storage.atomic_files import read_json, write_json
from threedident.storage.directory import DatasetDir
from threedident.storage.manifest import MANIFEST

CLAIM = "reproduce.json"


class Images:
    """The datasets of a reproduction: given, found in a folder, or rendered when they are needed.

    A reproduction keeps to those that its runs used, so that no table mixes two.
    """

    def __init__(
        self,
        out: Path,
        folder: Path,
        given: Mapping[str, Path | None],
        rendering: Rendering,
        *,
        draws: bool = True,
        quiet: bool = False,
    ) -> None:
        """Take the places of the datasets; nothing is rendered yet.

        Args:
            out: the folder of the reproduction.
            folder: the folder that datasets are rendered into, by name.
            given: the datasets that the user has named, by name.
            rendering: the sizes of what is rendered.
            draws: whether drawn images stand in for datasets of other authors that are not given.
            quiet: whether rendering prints nothing.
        """
        self._out, self._folder, self._rendering = out, folder, rendering
        self._draws, self._quiet = draws, quiet
        self._named = {name: path for name, path in given.items() if path is not None}
        self._paths: dict[str, Path] = {}
        self._used: dict[str, dict[str, str]] = {}

    def path(self, images: ImageSet) -> Path:
        """Return where a dataset lies, and render it first where it is missing or not whole.

        Args:
            images: the dataset.

        Raises:
            UsageError: finished runs used another, or it is of other authors and not given.
            DatasetError: it cannot be rendered or read.
        """
        name = images.name
        if name not in self._paths:
            path = self._named.get(name)
            if path is None and images.drawn:
                check_given(images, None, draws=self._draws)
                path = Path(images.drawn)
            elif path is None:
                path = self._folder / name
                _render(path, images, self._rendering, *self._like_the_given(), quiet=self._quiet)
            about = describe_images(path)
            before = read_images_of(self._out).get(name, about)
            if before != about:
                raise UsageError(
                    f"{self._out} holds runs on another {name}: {before.get('what')} (latents "
                    f"{before.get('latents')!s:.12}), found {about['what']} (latents "
                    f"{about['latents']:.12}) in {path}: give it the data it began with, or "
                    "choose another --out"
                )
            self._paths[name], self._used[name] = path, about
        return self._paths[name]

    def record(self) -> None:
        """Tie the reproduction to the datasets of the runs that have finished.

        Raises:
            DatasetError: its folder cannot be written to.
        """
        before = read_images_of(self._out)
        if before != (now := {**before, **self._used}):
            path = self._out / CLAIM
            write_json(path, {**read_json(path), "datasets": now})

    def _like_the_given(self) -> tuple[int, str]:
        """Return resolution and quality: those of the datasets that were given, if any."""
        resolution, quality = self._rendering.resolution, self._rendering.quality
        for path in reversed(self._named.values()):  # those to train on count more
            with open_dataset(path) as source:
                resolution = int(source.shape[0])
                if source.manifest is not None and source.manifest.engine["quality"]:
                    quality = str(source.manifest.engine["quality"])
        return resolution, quality


def check_given(images: ImageSet, path: Path | None, *, draws: bool) -> None:
    """Refuse a dataset of other authors that is not given, at a scale that draws none like it.

    Args:
        images: the dataset.
        path: where the user says that it lies; None: nowhere.
        draws: whether drawn images can stand in for it.

    Raises:
        UsageError: it must be given.
    """
    if images.drawn and path is None and not draws:
        raise UsageError(
            f"at this scale the encoders are trained on {images.name} itself: say where it lies by "
            f"--data, or choose --scale cpu, where {images.drawn} stands in for it"
        )


def _render(
    folder: Path,
    images: ImageSet,
    sizes: Rendering,
    resolution: int,
    quality: str,
    *,
    quiet: bool = False,
) -> None:
    """Render a dataset, or what is missing of it, unless it is whole.

    Args:
        folder: the folder of the dataset.
        images: the description of the dataset.
        sizes: the sizes that the scale gives.
        resolution: the pixels along each side.
        quality: the quality of the direct engine.
        quiet: whether to print nothing.

    Raises:
        DatasetError: it does not get finished.
    """
    from threedident.render.dataset import render_dataset

    total, paired = getattr(sizes, images.count), images.is_paired
    if (folder / MANIFEST).exists():
        dataset = DatasetDir.open(folder)
        engine = dataset.manifest.engine
        whole = sum(interval.count for interval in dataset.shards()) >= total * (1 + paired)
        settings = (dataset.manifest.resolution, engine["name"], engine["quality"])
        if whole and settings == (resolution, "direct", quality):
            return
    if not quiet:
        Progress.print(f"rendering {images.name}: {total:,} {'pairs' if paired else 'images'}")
    try:
        summary = render_dataset(
            folder,
            total,
            **_generator(images),
            split=images.split,
            pairs=images.conditional,
            engine="direct",
            quality=quality,
            resolution=resolution,
            quiet=quiet,
        )
        reason = summary.failures()
    except (DatasetError, RenderError) as error:
        reason = str(error)
    if reason:
        raise DatasetError(
            f"{folder} could not be rendered: {reason}. What is finished is kept: start the same "
            "command again to continue, or give datasets of your own"
        )


def _generator(images: ImageSet) -> dict[str, Any]:
    """The arguments of `render_dataset` that say what is rendered: a preset or a causal model."""
    if not images.model:
        return {"preset": images.preset}
    environments = (images.environment,) if images.environment else ()
    return {"model": images.model, "views": images.view or False, "environments": environments}


def describe_images(path: Path) -> dict[str, str]:
    """Describe a dataset by a text for people (`what`) and its latents' digest (`latents`).

    Args:
        path: the dataset.

    Raises:
        DatasetError: it cannot be read.
    """
    with open_dataset(path) as source:
        side, engine = source.shape[0], ""
        if source.manifest is not None:
            made_by = source.manifest.engine
            engine = f", {made_by['name']} engine, quality {made_by['quality']}"
        elif source.form in FORMS:
            engine = f", {FORMS[source.form]}"
        what = f"{len(source):,} images of {side} x {side}{engine}"
        return {"what": what, "latents": source.fingerprint}


def read_images_of(out: Path) -> dict[str, dict[str, Any]]:
    """Read the descriptions of the datasets that a reproduction's runs have used, by name.

    Args:
        out: the folder of the reproduction.

    Raises:
        DatasetError: its claim cannot be read.
    """
    recorded = read_json(out / CLAIM).get("datasets")
    items = recorded.items() if isinstance(recorded, dict) else ()
    return {name: about for name, about in items if isinstance(about, dict)}
