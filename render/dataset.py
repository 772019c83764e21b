"""Rendering a dataset into a directory: the one way in, from Python and the command line."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.causal import CausalModel
from threedident.distributions import Distribution
from threedident.errors import DatasetError, RenderError, UsageError
from threedident.presets import Preset, load_preset
from threedident.progress import Progress, format_bytes
from threedident.render.job import Executor, JobOptions, Summary, image_bytes, run_job
from threedident.render.quality import Quality
from threedident.render.request import WHOLE, RenderRequest, noting
from threedident.render.settings import EngineSettings
from threedident.storage.directory import DatasetDir
from threedident.storage.shard_plan import missing_intervals

FINISHED_KEPT = "finished shards are kept"


class RenderInterrupted(KeyboardInterrupt):
    """A render was stopped by SIGINT or SIGTERM; what is finished is kept.

    Attributes:
        summary: the summary of what it did until then.
    """

    def __init__(self, summary: Summary) -> None:
        super().__init__(f"the render of {summary.root} was stopped")
        self.summary = summary


def render_dataset(
    out: str | Path,
    n: int | None = None,
    *,
    preset: Preset | str | Path = defaults.PRESET,
    shape: str | Path | None = None,
    material: str | None = None,
    fixed: Mapping[str, float] | None = None,
    split: str = "train",
    seed: int = 0,
    latents: npt.ArrayLike | str | Path | None = None,
    pairs: Distribution | None = None,
    engine: str = defaults.ENGINE,
    quality: str | Quality = defaults.QUALITY,
    resolution: int = defaults.RESOLUTION,
    extend: bool = False,
    device: str = "auto",
    any_device: bool = False,
    workers: int | None = None,
    threads: int = 1,
    part: tuple[int, int] = (0, 1),
    timeout: float | None = None,
    images_per_worker: int | None = None,
    shard_size: int | None = None,
    compression: str | None = None,
    executor: str | Executor = "local",
    address: str | None = None,
    model: CausalModel | str | Path | None = None,
    environments: Sequence[str] = (),
    do: Mapping[str, Any] | None = None,
    counterfactual: Mapping[str, Any] | None = None,
    views: bool | str = False,
    steps: int | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> Summary:
    """Render a dataset, or what a directory lacks of it; as `3dident render` does.

    Image i depends on the preset, the engine's settings and (seed, split, i) alone. Called again
    with the same arguments it goes on where it was stopped or killed, and with a larger `n` it
    extends the dataset. Other settings than the directory's are refused. Render processes are
    plain ones: scripts need no `__main__` guard, and notebooks work.

        >>> import threedident as tdi
        >>> summary = tdi.render_dataset(
        ...     "data/small", 8, engine="direct", quality="draft", resolution=32, quiet=True
        ... )
        >>> summary.images, summary.failed
        (8, {})

    Args:
        out: the dataset's directory; made if it is missing.
        n: the number of images, of pairs with `pairs`. None: all given latents, else 250,000 for
            split train, and 25,000 for val and test; with `extend` the largest number that was
            ever asked for.
        preset: the generator: a preset, the name of a built-in one, or a .toml file.
        shape: the object in place of the preset's: a built-in shape or a mesh file. With
            `extend`: the mesh file of a dataset whose object is one, or the folder of its mesh
            files, where its preset has a shape table.
        material: the object's material in place of the preset's.
        fixed: factors to hold, and their raw values in [-1, 1].
        split: the split that the latents are drawn for: train, val or test.
        seed: the seed of the latents, from 0 to 2^64 - 1.
        latents: raw latents to render instead of drawn ones: an array (N, 10) in [-1, 1], or a
            .npy file.
        pairs: the conditional that makes images 2i and 2i + 1 a positive pair.
        engine: the engine: cycles or direct.
        quality: the quality level: draft, standard or reference, or the settings of one.
        resolution: the pixels along each side of an image.
        extend: whether `out` is a dataset that is continued with all of its own settings; those
            must then be left at their defaults here.
        device: the kind of device: auto, cpu, cuda, optix, hip, metal or oneapi. "auto" is
            settled when a dataset is begun.
        any_device: whether to continue a dataset that was begun on another kind of device.
        workers: the number of render processes. None: one per processor, or per GPU.
        threads: the threads of each render process.
        part: the pair (I, K): only every K-th shard from the I-th on is rendered, as one member
            of a job array.
        timeout: the seconds after which an image counts as hung. None: 600, more above 224 pixels.
        images_per_worker: the images after which a render process is replaced. None: 1000, of the
            direct engine 20,000.
        shard_size: the images in a file. None: the dataset's, or 100, fewer of large images.
        compression: the compression of the images: none or gzip. None: the dataset's, or none.
        executor: the place to render: local (processes of this machine), ray (a Ray cluster), or
            an executor of your own.
        address: the HOST:PORT of the Ray cluster's head. None: $RAY_ADDRESS, the cluster that
            this machine belongs to, or one started here.
        model: a causal model in place of a preset: a model, the name of a built-in one, or a
            .toml file. `n` then counts items: images, pairs or sequences.
        environments: the names of the model's environments; item i is of environment i modulo
            their number. Empty: the model as it is.
        do: interventions by variable: a value, a table with the `kind` of another mechanism, or
            {"shift": number}.
        counterfactual: interventions likewise; images 2i and 2i + 1 have the same noise, and the
            second has these interventions.
        views: the name of the model's views, by which image 2i + 1 is a second view of image 2i;
            True: the only ones that it has.
        steps: the images of a sequence.
        quiet: whether to print nothing. Otherwise lines and a progress bar go to stderr.
        command: the text that the dataset records as what made it. None: this call.

    Returns:
        What was done. `summary.failed` names images that could not be rendered in three attempts.

    Raises:
        UsageError: an argument does not fit, or another process renders the same shards.
        DatasetError: the directory holds something else or a dataset of other settings, or the
            disk is full.
        RenderError: the engine does not start, or all images fail.
        MissingExtraError: the engine's package is not installed.
        RenderInterrupted: Ctrl-C or SIGTERM stopped it. Call it again to continue.
    """
    arguments = locals()  # exactly the parameters, as nothing else is there yet
    request = _request(arguments)
    content, total = request.prepare()
    with request.connected() as runner:
        settings, options = request.resolve(content, runner)
        dataset = request.open_dataset(content, settings, command or call_text(arguments))

        def announce() -> None:
            if not quiet:
                place = runner.place(options)
                lines = first_lines(
                    dataset, total, settings, options, place, typed=command is not None
                )
                for line in lines:
                    Progress.print(line)

        with noting(FINISHED_KEPT, DatasetError, RenderError, KeyboardInterrupt):
            summary = run_job(
                dataset, total, settings, options, runner, announce=announce, quiet=quiet
            )
            if summary.interrupted:
                raise RenderInterrupted(summary)
    return summary


def bind_request(*arguments: Any, **named: Any) -> RenderRequest:
    """Make a request of the arguments of `render_dataset`; missing ones are at their defaults."""
    bound = inspect.signature(render_dataset).bind(*arguments, **named)
    bound.apply_defaults()
    return _request(bound.arguments)


def _request(arguments: Mapping[str, Any]) -> RenderRequest:
    kept = {name: value for name, value in arguments.items() if name not in ("quiet", "command")}
    out = arguments["out"]
    if not isinstance(out, str | os.PathLike):
        raise UsageError(
            f"out must be the path of a directory, found {out!r:.100}: expected "
            "render_dataset(out, n)"
        )
    # Those of numpy do not fit into `dataset.json`.
    numpy = [name for name in WHOLE if isinstance(kept[name], np.integer)]
    return RenderRequest(**{**kept, **{name: int(kept[name]) for name in numpy}, "out": Path(out)})


def call_text(arguments: Mapping[str, Any]) -> str:
    """Write a call of `render_dataset` with what differs from the defaults, for `dataset.json`.

    Args:
        arguments: the values of its parameters, by name.
    """
    words = [repr(str(arguments["out"]))]
    for name, parameter in inspect.signature(render_dataset).parameters.items():
        value = arguments[name]
        if name in ("out", "quiet", "command") or value is parameter.default:
            continue
        if isinstance(value, Preset):
            words.append(f"{name}={_preset_text(value)}")
            continue
        plain = isinstance(value, (str, int, float, tuple, Path, Distribution, Mapping))
        if not (plain and value == parameter.default):
            text = repr(str(value) if isinstance(value, Path) else value) if plain else "..."
            words.append(f"{name}={text}")
    return f"render_dataset({', '.join(words)})"


def _preset_text(preset: Preset) -> str:
    """Write a preset as its name, or as a call that makes it where a built-in one was changed."""
    try:
        built_in = load_preset(preset.name)
    except UsageError:
        return "..."  # of a file, or made in Python
    if preset == built_in:
        return repr(preset.name)
    fields = (field.name for field in dataclasses.fields(preset))
    changed = [name for name in fields if getattr(preset, name) != getattr(built_in, name)]
    shown = ("fixed", "shape", "material")
    words = [f"{name}={getattr(preset, name)!r}" for name in shown if name in changed]
    if set(changed) - {*shown, "best_r2"} or not words:
        words.append("...")
    return f"load_preset({preset.name!r}).changed({', '.join(words)})"


def first_lines(
    dataset: DatasetDir,
    total: int,
    settings: EngineSettings,
    options: JobOptions,
    place: str,
    *,
    typed: bool,
) -> list[str]:
    """Say what a render is about to do, where, how much disk it takes, and how to stop it.

    Args:
        dataset: the directory.
        total: the number of images that it shall have.
        settings: the settings that decide the pixels.
        options: the options of the render.
        place: a phrase that says where.
        typed: whether a command was typed; otherwise the hints are those of a function.
    """
    root, manifest = dataset.root, dataset.manifest
    shards = dataset.shards()
    present = sum(interval.count for interval in shards)
    missing, ours = (
        sum(
            interval.count
            for interval in missing_intervals(
                total, manifest.shard_size, shards, part=part, parts=parts
            )
        )
        for part, parts in ((0, 1), (options.part, options.parts))
    )
    if not ours:
        more = [f"{root} already has {present} images, more than the {total} asked for"]
        return more if present > total else []
    source = manifest.settings["latents"]["source"]
    sampling = manifest.sampling
    items = f"{total:,} images"
    if source == "pairs" or (sampling is not None and sampling.frames > 1):
        frames = 2 if sampling is None else sampling.frames
        kind = "sequences" if sampling is not None and sampling.group == "sequence" else "pairs"
        items = f"{total // frames:,} {kind}, {total:,} images,"
    drawn = f"split {manifest.settings['split']}, seed {manifest.settings['seed']}"
    rest = "the rest"
    if options.parts > 1:
        rest = f"part {options.part}/{options.parts}, {ours:,} of the rest,"
    size = image_bytes(ours, settings.resolution)
    slow = (
        settings.engine == "cycles"
        and settings.device == "cpu"  # all that it was measured on
        and "crystal" not in settings.preset.drawn_materials
    )
    engine, again = "engine='direct'", "started again, it continues"
    if typed:
        engine, again = "--engine direct", "the same command continues"
    return [
        f"rendering {items} into {root}: {'model' if sampling else 'preset'} "
        f"{settings.preset.name}, "
        f"{'given latents' if source == 'file' else drawn}, {settings.resolution} x "
        f"{settings.resolution} pixels",
        f"engine {settings.engine}, quality {settings.quality}, {settings.device}, on {place}",
        f"{total - missing:,} of {total:,} images are there; {rest} takes "
        f"{'up to ' if manifest.compression != 'none' else ''}{format_bytes(size)} of disk "
        f"({format_bytes(shutil.disk_usage(root).free)} are free)",
        "how long it takes is said after half a minute"
        + ("; --estimate measures it beforehand" if typed else "")
        + (f"; {engine} is quicker" if slow else ""),
        f"Ctrl-C stops it and keeps what is finished; {again}",
    ]
