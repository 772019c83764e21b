"""Requests: the arguments of a render, checked before any process starts."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from threedident import defaults
from threedident.causal import CausalModel, Sampling, load_model
from threedident.distributions import Distribution
from threedident.distributions.philox_sampler import check_renderable
from threedident.errors import RenderWarning, UsageError
from threedident.latents import (
    SPLIT_SIZES,
    check_raw_latents,
    load_raw_latents,
    sample_raw_latents,
)
from threedident.presets import Preset, load_preset
from threedident.render.content import Content
from threedident.render.executors.local import LocalExecutor
from threedident.render.job import Executor, JobOptions
from threedident.render.quality import Quality, quality_name
from threedident.render.settings import EngineSettings, Probe, default_timeout, resolve_device
from threedident.storage.directory import DatasetDir, check_place
from threedident.storage.manifest import MANIFEST, Manifest, read_manifest
from threedident.storage.shard_plan import default_shard_size
from threedident.storage.shards import check_compression

NOTHING_BEGUN = "nothing was begun"


@dataclasses.dataclass(frozen=True)
class RenderRequest:
    """The arguments of `render_dataset`, which explains them."""

    out: Path
    n: int | None
    preset: Preset | str | Path
    shape: str | Path | None
    material: str | None
    fixed: Mapping[str, float] | None
    split: str
    seed: int
    latents: npt.ArrayLike | str | Path | None
    pairs: Distribution | None
    engine: str
    quality: str | Quality
    resolution: int
    extend: bool
    device: str
    any_device: bool
    workers: int | None
    threads: int
    part: tuple[int, int]
    timeout: float | None
    images_per_worker: int | None
    shard_size: int | None
    compression: str | None
    executor: str | Executor
    address: str | None
    model: CausalModel | str | Path | None = None
    environments: Sequence[str] = ()
    do: Mapping[str, Any] | None = None
    counterfactual: Mapping[str, Any] | None = None
    views: bool | str = False
    steps: int | None = None

    def check(self) -> None:
        """Check what can be checked of single arguments.

        Raises:
            UsageError: one of them does not fit.
        """
        self._check_types()
        if self.n is not None and not 1 <= self.n <= defaults.MOST_IMAGES:
            raise UsageError(
                f"--n must be at least 1 and at most {defaults.MOST_IMAGES}, found {self.n}"
            )
        for name in ("workers", "threads", "shard_size", "images_per_worker"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, found {value}")
        if self.shard_size is not None and self.shard_size > defaults.MOST_IN_A_SHARD:
            raise UsageError(
                f"shard_size must be at most {defaults.MOST_IN_A_SHARD}, found {self.shard_size}"
            )
        if self.timeout is not None and not (math.isfinite(self.timeout) and self.timeout >= 1):
            raise UsageError(
                f"--timeout must be a number of seconds, at least 1, found {self.timeout}"
            )
        if not 0 <= self.part[0] < self.part[1]:
            raise UsageError(f"part must be (I, K) with 0 <= I < K, found {self.part}")
        if isinstance(self.executor, str) and self.executor not in ("local", "ray"):
            raise UsageError(f"unknown executor {self.executor!r}: expected local or ray")
        if self.address is not None and self.executor != "ray":
            raise UsageError("--address is of a Ray cluster: add --executor ray")
        sample_raw_latents((), seed=self.seed, split=self.split)  # refuses what it cannot draw
        check_compression(self.compression or "none")

    def _check_types(self) -> None:
        """Refuse arguments of another type, such as text in place of a number."""
        for name in WHOLE:
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole and not (value is None and name in _CAN_BE_NONE):
                raise UsageError(
                    f"{_spelled(name)} must be a whole number, found {value!r:.100}"
                    + _hint(name, value)
                )
        timeout: Any = self.timeout
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, numbers.Real)
        ):
            raise UsageError(f"--timeout must be a number of seconds, found {timeout!r:.100}")
        part = self.part
        if not isinstance(part, Sequence) or [type(each) for each in part] != [int, int]:
            raise UsageError(f"part must be (I, K), two whole numbers, found {part!r:.100}")
        if self.pairs is not None and not isinstance(self.pairs, Distribution):
            raise UsageError(
                f"pairs must be a distribution, such as Normal(0.1), found {self.pairs!r:.100}"
            )

    def content(self) -> Content:
        """Make the dataset's content, by these arguments or by the dataset that is extended.

        Raises:
            UsageError: the arguments do not fit together.
            DatasetError: the dataset to extend is missing or damaged.
        """
        shape = None if self.shape is None else str(self.shape)
        if self.extend:
            self._refuse_beside_extend()
            return Content.of(DatasetDir.open(self.out), shape)
        sampling = self._sampling()
        preset = self.preset if sampling is None else sampling.model.preset
        if not isinstance(preset, Preset):
            preset = load_preset(preset)
        if self.fixed or shape is not None or self.material is not None:
            preset = preset.changed(fixed=self.fixed, shape=shape, material=self.material)
        given = None
        if isinstance(self.latents, (str, Path)):
            given = load_raw_latents(self.latents)
        elif self.latents is not None:
            given = check_raw_latents(self.latents, "the given latents")
        if self.pairs is not None:
            if given is not None:
                raise UsageError("--pairs draws the latents itself: leave out --latents")
            check_renderable(self.pairs)
        if given is not None:
            refuse_unused([name for name in ("seed", "split") if self._differs(name)])
        quality = self.quality
        if not isinstance(quality, str):
            quality = quality_name(quality, self.engine)
        return Content(
            preset=preset,
            resolution=self.resolution,
            quality=quality,
            engine=self.engine,
            seed=self.seed,
            split=self.split,
            given=given,
            conditional=self.pairs,
            sampling=sampling,
        )

    def _sampling(self) -> Sampling | None:
        """The sampling of a causal model, where one is given."""
        if self.model is None:
            names = [_spelled(name) for name in _OF_A_MODEL if self._differs(name)]
            if names:
                raise UsageError(
                    f"{', '.join(names)} can only be had of a causal model: add one, such as "
                    "--model NAME (`3dident model` lists them)"
                )
            return None
        others = [
            _spelled(name)
            for name in _NOT_WITH_A_MODEL
            if getattr(self, name) != {} and self._differs(name)
        ]
        if others:
            raise UsageError(
                f"a model makes scene and latents by itself: leave out {', '.join(others)}. Its "
                "file has them, in [scene] and [variables]; an intervention (--do) holds a variable"
            )
        model = self.model if isinstance(self.model, CausalModel) else load_model(self.model)
        view: str | None = None
        if self.views is not False:
            model.view(None if self.views is True else self.views)
            view = next(iter(model.views)) if self.views is True else self.views
        sampling = Sampling(
            model,
            tuple(self.environments),
            dict(self.do or {}),
            dict(self.counterfactual or {}),
            view,
            1 if self.steps is None else self.steps,
        )
        return sampling

    def total(self, content: Content) -> int:
        """The number of images that the dataset shall have in the end.

        Raises:
            UsageError: n is larger than the number of given latents, or cannot be known.
        """
        given = content.given
        if given is None:
            if self.n is None and self.extend:
                wanted = DatasetDir.open(self.out).wanted()
                if wanted is None:
                    raise UsageError(
                        f"{self.out} does not record how many images it shall have: add --n"
                    )
                return wanted
            count = SPLIT_SIZES[content.split] if self.n is None else self.n
            return count * content.images_per_item
        total = len(given) if self.n is None else self.n
        if total > len(given):
            source = self._latents_file or "its given latents"
            raise UsageError(f"--n {total} is more than the {len(given)} rows of {source}")
        return total

    def prepare(self) -> tuple[Content, int]:
        """Check all that needs no process: the content, and the number of images of it.

        Raises:
            UsageError: an argument does not fit.
            DatasetError: the directory holds something else, or is damaged.
        """
        self.check()
        content = self.content()
        if content.sampling is None:
            content.preset.require_ten_columns(
                "render it through a model whose [scene] it is, with --model FILE"
            )
        content.engine_settings(self.device)  # refuses what does not fit together
        check_place(self.out)
        total = self.total(content)
        texts = [
            self._fixed_warning(content),
            content.held_warning(),
            content.circle_warning(),
            *content.mesh_warnings(),
            content.frame_warning(),
        ]
        for text in texts:
            if text:
                warnings.warn(text, RenderWarning, stacklevel=3)  # where the function was called
        return content, total

    @contextlib.contextmanager
    def connected(self) -> Iterator[Executor]:
        """Yield the executor that was asked for.

        Raises:
            MissingExtraError, RenderError: Ray is missing, or its cluster cannot be reached.
        """
        if self.executor == "ray":
            from threedident.render.executors.ray import connect

            with connect(self.address) as executor:
                yield executor
        elif isinstance(self.executor, str):
            yield LocalExecutor()
        else:
            yield self.executor

    def resolve(self, content: Content, executor: Executor) -> tuple[EngineSettings, JobOptions]:
        """Settle device, engine version and processes, by what the executor finds.

        A dataset that was begun with device "auto" goes on with the device that it began with,
        where it is available.

        Raises:
            UsageError: the device is not available.
            MissingExtraError, RenderError: the engine is missing or does not load.
        """
        with noting(NOTHING_BEGUN, KeyboardInterrupt):
            available = executor.probe(content.engine, self.device, self.threads)
        kind = resolve_device(self.device, available)
        if self.device == "auto" and (self.out / MANIFEST).exists():
            before = read_manifest(self.out).engine["device"]
            kind = before if before in available.devices else kind
        settings = content.engine_settings(kind, available.version)
        return settings, self._options(settings, available, executor)

    def _options(
        self, settings: EngineSettings, available: Probe, executor: Executor
    ) -> JobOptions:
        kind = settings.device
        return JobOptions(
            workers=self.workers or executor.default_workers(kind, available, self.threads),
            threads=self.threads,
            devices=available.devices[kind],
            part=self.part[0],
            parts=self.part[1],
            timeout=self.timeout or default_timeout(settings.resolution),
            images_per_worker=self.images_per_worker or settings.images_per_worker,
        )

    def manifest(self, content: Content, settings: EngineSettings, command: str) -> Manifest:
        """Make the manifest of a dataset that these arguments begin.

        Args:
            content: the dataset's content.
            settings: the settings that decide the pixels.
            command: the command or call that makes it, for people to read.
        """
        size = self.shard_size or default_shard_size(content.resolution)
        return Manifest.new(
            content.dataset_settings(settings),
            size,
            self.compression or "none",
            content.about(),
            command,
        )

    def open_dataset(self, content: Content, settings: EngineSettings, command: str) -> DatasetDir:
        """Create the dataset, or open the one that is there if it has the same settings.

        Raises:
            DatasetError: the directory holds something else, or a dataset with other settings.
        """
        return DatasetDir.create_or_open(
            self.out,
            content.dataset_settings(settings),
            shard_size=self.shard_size,
            compression=self.compression,
            given=content.given,
            any_device=self.any_device,
            kept=self.manifest(content, settings, command),
        )

    def _differs(self, name: str) -> bool:
        """Whether an argument is not at its default."""
        value, default = getattr(self, name), _DEFAULTS.get(name)
        if isinstance(default, tuple):
            value = tuple(value)
        return value is not None if default is None else bool(value != default)

    def _refuse_beside_extend(self) -> None:
        if others := [name for name in _DEFAULTS if self._differs(name)]:
            raise UsageError(
                f"extend takes all settings from the dataset: leave out {', '.join(others)}"
            )

    def _fixed_warning(self, content: Content) -> str | None:
        """A warning where a dataset goes on whose given latents an older version altered.

        Raises:
            UsageError: a new dataset would be begun so.
        """
        if content.given is None:
            return None
        try:
            source = self._latents_file or "the given latents"
            content.preset.require_fixed(content.given, source)
        except UsageError as error:
            if not (self.out / MANIFEST).exists():
                raise
            return f"{error}. {self.out} was begun so, and goes on"
        return None

    @property
    def _latents_file(self) -> str | None:
        return str(self.latents) if isinstance(self.latents, (str, Path)) else None


#: What the dataset says when it is extended; `seed` and `split` do nothing for given latents.
_DEFAULTS: dict[str, Any] = {
    "preset": defaults.PRESET,
    "material": None,
    "fixed": None,
    "split": "train",
    "seed": 0,
    "latents": None,
    "pairs": None,
    "engine": defaults.ENGINE,
    "quality": defaults.QUALITY,
    "resolution": defaults.RESOLUTION,
    "shard_size": None,
    "compression": None,
    "model": None,
    "environments": (),
    "do": None,
    "counterfactual": None,
    "views": False,
    "steps": None,
}

#: The arguments that only a causal model has, and those that it leaves without effect.
_OF_A_MODEL = ("environments", "do", "counterfactual", "views", "steps")
_NOT_WITH_A_MODEL = ("preset", "shape", "material", "fixed", "latents", "pairs")


#: The arguments that are whole numbers, and those of them that can be None.
WHOLE = (
    "n",
    "steps",
    "resolution",
    "seed",
    "workers",
    "threads",
    "shard_size",
    "images_per_worker",
)
_CAN_BE_NONE = ("n", "steps", "workers", "shard_size", "images_per_worker")


def _spelled(name: str) -> str:
    options = {"environments": "environment", "fixed": "fix"}
    typed = ("n", "steps", "do", "counterfactual", "views", "environments", "fixed")
    return f"--{options.get(name, name)}" if name in typed else name


def _hint(name: str, value: Any) -> str:
    """What was probably meant, where a value of a wrong type tells."""
    if name == "n" and isinstance(value, str | Path):
        return ": expected render_dataset(out, n)"
    if name == "resolution" and isinstance(value, list | tuple) and value:
        return f": images are square, so give one side, such as {value[0]!r:.20}"
    if isinstance(value, float) and value.is_integer():
        return f": write {int(value)}"
    return ""


def refuse_unused(names: Sequence[str]) -> None:
    """Refuse arguments that given latents leave without effect.

    Args:
        names: the names of those that were given; none is fine.

    Raises:
        UsageError: there is one.
    """
    if names:
        raise UsageError(
            f"--latents are not sampled, so that {' and '.join(names)} would do nothing"
        )


@contextlib.contextmanager
def noting(note: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Add a note to exceptions of some kinds, which a traceback shows."""
    try:
        yield
    except kinds as error:
        error.add_note(note)
        raise
