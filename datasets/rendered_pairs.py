"""`RenderedPairs`: exact pairs, rendered on demand by the direct engine."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from threedident.defaults import PRESET, QUALITY
from threedident.distributions import Distribution, PairProcess, Uniform, check_free
from threedident.distributions.spaces import Box, Space
from threedident.errors import MissingExtraError, RenderError, UsageError
from threedident.factors import FACTOR_NAMES
from threedident.presets import Preset, load_preset
from threedident.render.engine import create_engine
from threedident.render.executors.processes import ChildProcess, wait_for_close
from threedident.render.scene import SceneBuilder
from threedident.render.settings import EngineSettings
from threedident.system import usable_processors

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "train", "rendered pairs") from error

from threedident.datasets.loader import Batch, Buffers, PairLoader, check_sizes
from threedident.distributions.torch_sampler import seeded

UInt8 = npt.NDArray[np.uint8]

_PIECE = 16  # images a process renders before it hands them over
_DIED = (
    "a render process of RenderedPairs has died; make a new one to go on (the same seed, epoch and "
    "batch number give the same batch)"
)


class _Renderers:
    """A pool of processes that render pieces of batches, for any thread."""

    def __init__(self, settings: EngineSettings, count: int) -> None:
        self.processes = [ChildProcess(_serve, settings) for _ in range(count)]
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        for process in self.processes:
            self._idle.put(process)
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "rendered-pairs")
        self._dead = False

    def submit(self, latents: npt.NDArray[np.float32]) -> concurrent.futures.Future[UInt8]:
        """Start to render scene latents (N, 10); the future gives their images (N, H, W, 3)."""
        return self._threads.submit(self._render, latents)

    def _render(self, latents: npt.NDArray[np.float32]) -> UInt8:
        process = self._idle.get()
        try:
            if self._dead:
                raise RenderError(_DIED)
            process.pipe.send(latents)
            answer = process.pipe.recv()
        except (EOFError, OSError) as error:
            self._dead = True
            raise RenderError(_DIED) from error
        finally:
            self._idle.put(process)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the processes, and wait until they have ended."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self.processes:
            process.kill()
            process.pipe.close()
        for process in self.processes:
            process.join(10)


class RenderedPairs:
    """Endless batches of exact pairs, rendered on demand.

    Batches have the form that `PositivePairs` gives: `((z, z~), (x, x~))`, latents (B, 10) float32
    in raw units, images uint8 (B, 3, H, W), channels last in memory. They depend on the settings,
    the seed, the epoch and the batch's number alone. On a CPU, processes render; on a GPU, the
    images are made on it and stay there. Close it, or use it as a context manager.

    Attributes:
        process: the space, the marginal and the conditional of the pairs, in raw units.
        preset: the generator.
        batches: the number of batches in an epoch; None: there is no end.
    """

    def __init__(
        self,
        space: Space | None = None,
        conditional: Distribution | None = None,
        preset: Preset | str = PRESET,
        resolution: int = 64,
        device: str = "auto",
        *,
        marginal: Distribution | None = None,
        batch_size: int = 512,
        batches: int | None = None,
        seed: int = 0,
        quality: str = QUALITY,
        workers: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        """Check the arguments; processes start with the first batch.

        Args:
            space: the space of the raw latents, within [-1, 1]^10; None: all of it.
            conditional: the distribution p(z~ | z) of the pairs; give it by name.
            preset: the generator, or its name; factors that it holds fixed are fixed in both.
            resolution: the number of pixels along each side.
            device: the device that renders: cpu; cuda for torch's current GPU, or one of several
                by its number, such as cuda:1; or auto, which takes a GPU where torch finds one.
            marginal: the distribution p(z); None: uniform.
            batch_size: the number of pairs in a batch.
            batches: the number of batches in an epoch; None: there is no end.
            seed: the seed for the pairs.
            quality: the quality of the images: draft, standard or reference.
            workers: the number of processes on a CPU; None: one for each processor.
            pin_memory: a flag to put a CPU's images into pinned memory, from which a GPU copies
                faster.

        Raises:
            UsageError: an argument does not fit.
        """
        if conditional is None:
            raise UsageError("say which pairs are rendered, e.g. conditional=Normal(0.3)")
        space = Box(len(FACTOR_NAMES)) if space is None else space
        inside = isinstance(space, Box) and space.low >= -1 and space.high <= 1
        if not inside or space.n != len(FACTOR_NAMES):
            raise UsageError(f"pairs are rendered from a box within [-1, 1]^10, found {space}")
        check_sizes(batch_size, batches)
        if workers is not None and workers < 1:
            raise UsageError(f"expected at least 1 worker, found {workers}")
        kind, self._gpu_number = _choose_device(device)
        self.preset = load_preset(preset) if isinstance(preset, str) else preset
        self.process = PairProcess(space, conditional, marginal or Uniform())
        check_free(conditional, self.preset.fixed)
        self.batches = batches
        self._batch_size, self._seed = batch_size, seed
        self._settings = EngineSettings(self.preset, resolution, quality, kind, "direct")
        _check_shape(self.preset)
        self._workers = workers or usable_processors()
        self._buffers = Buffers(pin_memory=pin_memory)
        self._lock = threading.Lock()
        self._renderers: _Renderers | None = None
        self._gpu: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        side, device = self._settings.resolution, self._settings.device
        epoch = "no end" if self.batches is None else f"{self.batches} batches an epoch"
        return (
            f"{type(self).__name__}({self.process.conditional}, preset {self.preset.name}, "
            f"{side} x {side}, {device}, {self._batch_size} pairs a batch, {epoch})"
        )

    def close(self) -> None:
        """End the processes, or free what a GPU holds of the engine; another batch begins anew."""
        with self._lock:
            if self._renderers is not None:
                self._renderers.close()
            self._renderers = self._gpu = None

    def batch(self, epoch: int, number: int) -> Batch:
        """Render batch `number` of an epoch.

        Raises:
            RenderError: a render process has died.
        """
        z = self.process.sample(self._batch_size, generator=seeded(self._seed, epoch, number))
        raw = self.preset.hold_fixed(torch.cat(z).numpy())
        latents = self.preset.to_scene(raw)
        count = self._batch_size
        both = torch.from_numpy(raw)
        if self._settings.device == "cuda":
            images = self._on_gpu(latents)
            both = both.to(images.device)
        else:
            images = self._on_cpu(latents)
        x = images.permute(0, 3, 1, 2)
        return Batch((both[:count], both[count:]), (x[:count], x[count:]))

    def loader(self, *, threads: int = 2, ahead: int = 1) -> PairLoader:
        """Make a loader of the batches in order, which renders the next ones ahead."""
        return PairLoader(self, threads=threads, ahead=ahead)

    def _on_cpu(self, latents: npt.NDArray[np.float32]) -> torch.Tensor:
        side = self._settings.resolution
        out = self._buffers.take((len(latents), side, side, 3))
        with self._lock:
            if self._renderers is None:
                self._renderers = _Renderers(self._settings, self._workers)
            renderers = self._renderers
        starts = range(0, len(latents), _PIECE)
        pieces = [renderers.submit(latents[s : s + _PIECE]) for s in starts]
        for start, piece in zip(starts, pieces, strict=True):
            out[start : start + _PIECE] = torch.from_numpy(piece.result())
        return out

    def _on_gpu(self, latents: npt.NDArray[np.float32]) -> torch.Tensor:
        with self._lock:  # one after the other, each of which fills the GPU
            if self._gpu is None:
                self._gpu = create_engine(self._settings, device_index=self._gpu_number)
            images, finished = _start_rendering(self._gpu, latents, self._settings.resolution)
        # Without the lock: the next batch is prepared while this one is rendered. From here on
        # the images can be read on whichever stream of whichever thread.
        finished()
        return images


def _choose_device(device: str) -> tuple[str, int]:
    """Find the kind of a device, and the number of a GPU.

    Raises:
        UsageError: there is no such device.
    """
    name, colon, number = device.partition(":")
    if device not in ("auto", "cpu", "cuda") and not (name == "cuda" and number.isdecimal()):
        raise UsageError(
            f"pairs are rendered on auto, cpu or cuda, found {device} (one of several GPUs is "
            "named by its number, such as cuda:1)"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return "cpu", 0
    if not count:
        raise UsageError('torch finds no CUDA device here: take device="cpu", or leave it out')
    # Here, as threads that make batches have a current GPU of their own.
    index = int(number) if colon else torch.cuda.current_device()
    if index >= count:
        raise UsageError(f"there is no {device}: torch finds {count} CUDA device(s), from cuda:0")
    return "cuda", index


def _start_rendering(
    engine: Any, latents: npt.NDArray[np.float32], side: int
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Start to render scene latents into memory of torch, on the engine's device.

    The engine works on a stream of its own. It begins once torch's current stream has reached this
    point, as what used the memory before may still be read there. On the CPU there are no streams.

    Args:
        engine: the direct engine.
        latents: the scene latents, (N, 10).
        side: the pixels along each side.

    Returns:
        The images, (N, H, W, 3) uint8, and the function that waits until they are there.

    Raises:
        UsageError: the device has too little memory.
    """
    import warp as wp

    place = _place(engine.device)
    try:
        images = torch.empty((len(latents), side, side, 3), dtype=torch.uint8, device=place)
    except torch.OutOfMemoryError as error:
        raise _too_large(len(latents), side, place) from error
    if place.type == "cuda":
        wp.get_stream(engine.device).wait_stream(
            wp.stream_from_torch(torch.cuda.current_stream(place))
        )
    done, emptied = 0, False
    while done < len(latents):
        rows = latents[done : done + engine.batch]
        try:
            pixels = engine.encode(engine.render_linear(rows))
        except RuntimeError as error:
            if "allocat" not in str(error):
                raise
            if not emptied:  # memory that torch keeps for later is lost to the engine
                emptied = True
                torch.cuda.empty_cache()
            elif engine.batch > 1:
                engine.shrink()
            else:
                raise _too_large(len(latents), side, place) from error
            continue
        wp.copy(wp.from_torch(images[done : done + len(rows)]), pixels)
        done += len(rows)
    if place.type != "cuda":
        return images, lambda: None
    event = wp.get_stream(engine.device).record_event()
    return images, lambda: wp.synchronize_event(event)


def _place(device: str) -> torch.device:
    """Torch's name for a device of Warp."""
    import warp as wp

    return torch.device(wp.device_to_torch(device))


def _too_large(count: int, side: int, place: torch.device) -> UsageError:
    return UsageError(
        f"too little memory on {place} to render {count} images of {side} x {side}, which are "
        f"{count * side * side * 3 / 1e6:.0f} MB: take a smaller batch_size, or free memory there"
    )


def _check_shape(preset: Preset) -> None:
    """Check here that a preset's meshes can be used, before a render process fails on them.

    Raises:
        UsageError: a mesh cannot be read or does not fit, or the ten factors do not say all.
    """
    preset.require_ten_columns("pairs are rendered of presets without those")
    SceneBuilder(preset)


def _serve(pipe: Connection, settings: EngineSettings) -> None:
    """Serve in a render process: answer latents with their images, or with the error."""

    def watch() -> None:
        wait_for_close(pipe)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    engine: Any = None
    while True:
        latents = pipe.recv()
        try:
            if engine is None:  # here, where somebody waits for the answer
                engine = create_engine(settings)
            starts = range(0, len(latents), engine.batch)
            pieces = [engine.render_batch(latents[s : s + engine.batch]) for s in starts]
            pipe.send(np.concatenate(pieces))
        except Exception as error:
            pipe.send(error)
