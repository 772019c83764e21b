"""`LiveEncoder`: an encoder beside the sliders, and factors read out of its codes.

A stranger's encoder runs in the process, behind the walls, that scoring uses. One of this toolkit's
own is read without unpickling, and runs in a thread.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from threedident import defaults
from threedident.errors import MissingExtraError, ThreeDIdentError, UsageError
from threedident.evaluate.runner.process import Limits
from threedident.evaluate.runner.session import REQUEST_LIMIT, Account, EncoderSession
from threedident.evaluate.seen import check_seen, split_of, training_record
from threedident.evaluate.submissions.submission import TRUSTED, identify
from threedident.explore.linear_readout import LinearReadout, best_r2_of, draw_sample
from threedident.explore.renderers import Superseded
from threedident.explore.scenes import (
    LEAST_SIDE,
    MOST_SIDE,
    QUALITIES,
    RenderedScene,
    Scene,
    View,
    look_of,
)
from threedident.explore.stored_images import StoredImages
from threedident.system import usable_processors

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

#: The size of images where neither a dataset nor the encoder says one.
SIDE = 64
_PIXELS = 2**19  # of the dataset's images that are encoded at once; others wait for them
_MOST_AT_ONCE = 64
_SLOTS = 256  # that are remembered
_OWN = ("reference:encoder", "reference:supervised")


class Network(Protocol):
    """An encoder that runs somewhere."""

    def account(self) -> Account:
        """Load it, and say what it takes."""

    def encode(self, images: UInt8, first: int = 0) -> Float32:
        """Compute the codes (B, m) of images (B, H, W, C)."""

    def close(self) -> None:
        """End it."""


class OwnEncoder:
    """An encoder of this toolkit, in a thread of this process."""

    def __init__(self, path: Path) -> None:
        """Prepare it; nothing is read.

        Args:
            path: its file.
        """
        self._path = path
        self._thread = ThreadPoolExecutor(1, "3dident-own-encoder")
        self._encoder: Any = None
        self._account: Account | None = None

    def account(self) -> Account:
        """Read it, where that was not done before, and say what it takes.

        Raises:
            UsageError: it is an encoder of vectors.
            DatasetError: it cannot be read.
            MissingExtraError: torch is not installed.
        """
        return self._thread.submit(self._read).result()

    def encode(self, images: UInt8, first: int = 0) -> Float32:
        """Compute the codes (B, m) of images (B, H, W, C).

        Raises:
            UsageError: they do not fit it, or their codes are not finite.
        """
        return self._thread.submit(self._encode, images, first).result()

    def close(self) -> None:
        """End its thread."""
        self._thread.shutdown(cancel_futures=True)

    def _read(self) -> Account:
        if self._account is not None:
            return self._account
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "train", "an encoder of this toolkit") from error
        from threedident.encoders import ImageEncoder, read_encoder

        torch.set_num_threads(1)  # the page and its renderers need the others
        encoder, about = read_encoder(self._path)
        if not isinstance(encoder, ImageEncoder):
            raise UsageError(f"{self._path} is an encoder of vectors, expected one of images")
        self._encoder = encoder
        side, channels = _own_side(encoder.spec), len(encoder.spec["mean"])
        trained_on = training_record(self._path, about)
        self._account = Account((channels, side, side), None, trained_on)
        return self._account

    def _encode(self, images: UInt8, first: int) -> Float32:
        import torch

        channels, side, _ = self._read().takes
        if images.shape[3] != channels or side not in (None, images.shape[1]):
            own = f"{side} x {side}" if side else "any size"
            raise UsageError(
                f"{self._path.name} takes images of {channels} channel{'s'[: channels != 1]} and "
                f"{own}, found {_by(images.shape[1:])}"
            )
        try:
            with torch.inference_mode():
                pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
                codes: Float32 = self._encoder(pixels).float().numpy()
        except RuntimeError as error:  # images too small for its layers, for one
            said = str(error).strip().splitlines() or ["RuntimeError"]
            raise UsageError(f"{self._path.name} failed: {said[0]:.300}") from error
        finite = np.isfinite(codes).all(1)
        if not finite.all():
            raise UsageError(
                f"{self._path.name}: the codes of image {first + int(np.argmin(finite))} are not "
                "finite"
            )
        return codes


def _own_side(spec: Mapping[str, Any]) -> int | None:
    """The side of the images that an encoder of this toolkit takes; None where any will do."""
    body = spec["encoder"]
    if body["kind"] == "mlp-image":
        return math.isqrt(body["inputs"] // len(spec["mean"]))
    side: int | None = body.get("side")
    return side


@dataclasses.dataclass
class ReadoutState:
    """How far the read-out is.

    Attributes:
        state: none (there will be none), waiting, encoding, ready or failed.
        why: the sentence that says why there is none.
        done: the images that are encoded.
        total: those that are to be encoded.
        warnings: sentences about what its scores do not say.
    """

    state: str = "none"
    why: str = ""
    done: int = 0
    total: int = 0
    warnings: tuple[str, ...] = ()


class LiveEncoder:
    """An encoder that follows the sliders. Use it as an asynchronous context manager.

    Attributes:
        name: its name.
        quality: the quality of the images that are rendered for it.
        readout: the linear map from codes to factors; None before it is fitted, or without one.
        state: how far the read-out is.
    """

    def __init__(
        self,
        encoder: str | Path,
        *,
        stored: StoredImages | None = None,
        trust: bool = False,
        checkpoint: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Tell what the encoder is; nothing is loaded.

        Args:
            encoder: an ONNX file, an encoder of this toolkit or its run's folder; with trust also
                a file of torch.export or torch.jit, or `package.module:factory`.
            stored: the dataset that a read-out is fitted on; None: none.
            trust: whether code of its author may be run.
            checkpoint: the file that a Python factory gets.
            limits: the limits of its process, the time that of a request; None: a minute, and the
                memory of scoring.

        Raises:
            UsageError: it is no encoder, or would run code and is not trusted.
        """
        self._submission = submission = identify(encoder, trust=trust, checkpoint=checkpoint)
        if submission.kind == "embeddings":
            raise UsageError(
                f"{submission.name} holds codes of fixed images, and the page needs an encoder, "
                "which gives codes of any: export it to ONNX (`torch.onnx.export`)"
            )
        self._own = submission.kind == "reference"
        if self._own and submission.name not in _OWN:
            raise UsageError(
                f"{submission.name} cannot follow sliders: expected an ONNX file, or an encoder "
                "that `3dident train` has trained"
            )
        self.name = str(submission.checkpoint) if self._own else submission.label
        self._limits = limits or Limits(time=REQUEST_LIMIT)
        self._network: Network
        if self._own:
            assert submission.checkpoint is not None
            self._network = OwnEncoder(submission.checkpoint)
        else:
            threads = max(1, usable_processors() // 2)  # the others render
            self._network = EncoderSession(submission, self._limits, threads=threads)
        self._stored = stored
        self._account: Account | None = None
        self._codes: int | None = None
        self._size, self._why_size, self._square = (SIDE, SIDE), "", True
        self.quality = defaults.QUALITY
        self.readout: LinearReadout | None = None
        self.state = ReadoutState("waiting" if stored else "none")
        if stored is None:
            self.state.why = (
                "Without a dataset there are codes alone: `3dident explore DATASET --encoder ...` "
                "fits a linear read-out of the factors on its images"
            )
        self._failure = ""
        self._turns: collections.OrderedDict[Hashable, int] = collections.OrderedDict()
        self._progress: collections.OrderedDict[Hashable, tuple[int, int]]
        self._progress = collections.OrderedDict()
        self._lock: anyio.Lock | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to load it and to fit the read-out, in the background; once is enough."""
        if self._task is None:
            self._lock = anyio.Lock()  # who comes first is first, so that nobody waits for long
            self._task = asyncio.create_task(self._prepare())

    async def close(self) -> None:
        """End its process or thread, and the work in the background."""
        if self._task is not None:
            self._task.cancel()
        await anyio.to_thread.run_sync(self._network.close)
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # What the page asks for

    def turn(self, slot: Hashable | None) -> int:
        """Take the turn of a place on the page: older requests of it are superseded.

        Args:
            slot: the place; None: no other request takes this one's place.
        """
        if slot is None:
            return 0
        turn = self._turns.pop(slot, 0) + 1
        self._turns[slot] = turn
        if len(self._turns) > _SLOTS:
            self._turns.popitem(last=False)
        return turn

    def require_turn(self, slot: Hashable | None, turn: int) -> None:
        """Check that no newer request of a place has come.

        Raises:
            Superseded: one has.
        """
        if slot is not None and self._turns.get(slot, turn) != turn:
            raise Superseded("a newer request has taken its place")

    def note_progress(self, slot: Hashable | None, done: int, total: int) -> None:
        """Keep how many of a place's images are encoded."""
        self._progress[slot] = done, total
        self._progress.move_to_end(slot)
        if len(self._progress) > _SLOTS:
            self._progress.popitem(last=False)

    def progress(self, slot: Hashable | None) -> tuple[int, int]:
        """How many of a place's images are encoded, and how many there are."""
        return self._progress.get(slot, (0, 0))

    async def view(self, scene: Scene) -> View:
        """How the images of a scene are made for it; it is loaded first.

        Raises:
            UsageError: it cannot be loaded, or takes images that cannot be rendered.
        """
        await self._open()
        if isinstance(scene, RenderedScene) and not self._square:
            raise self._not_rendered(self._size)
        return View(self._size[0], self.quality)

    async def encode(
        self, images: UInt8, *, slot: Hashable | None = None, turn: int = 0
    ) -> Float32:
        """Compute the codes (B, m) of images (B, H, W, C).

        Args:
            images: the images.
            slot: the place on the page that they are for.
            turn: its turn, which `turn` has given.

        Raises:
            Superseded: a newer request of the same place has come.
            UsageError: they do not fit it, or it fails.
        """
        self.start()
        assert self._lock is not None
        async with self._lock:
            self.require_turn(slot, turn)
            return await self._encode(images, 0)

    def describe(self) -> dict[str, Any]:
        """What is known of it by now, as plain data for the page."""
        state = "failed" if self._failure else "loading" if self._account is None else "ready"
        readout: dict[str, Any] = {**dataclasses.asdict(self.state), "factors": []}
        if self.readout is not None:
            readout |= {
                "fitted": self.readout.fitted,
                "measured": self.readout.measured,
                "factors": [
                    {"name": column.name, "kind": column.kind, **dataclasses.asdict(score)}
                    for column, score in zip(self.readout.columns, self.readout.scores, strict=True)
                ],
            }
        return {
            "name": self.name,
            "state": state,
            "error": self._failure,
            "codes": self._codes,
            "size": None if self._account is None else list(self._size),
            "quality": self.quality,
            "notes": self._notes() if self._account is not None else [],
            "readout": readout,
        }

    def differs(self, scene: Scene) -> str:
        """The sentence that says that a scene is not the dataset's; empty where it is.

        Args:
            scene: the scene that the page shows.
        """
        if self._stored is None or not isinstance(scene, RenderedScene):
            return ""
        manifest = self._stored.source.manifest
        if manifest is None or manifest.preset is None:
            return (
                "Nothing says how the dataset's images were rendered: the read-out may have been "
                "fitted on images of another kind than those here."
            )
        theirs, ours = (
            {**look_of(preset), "fixed": dict(preset.fixed)}
            for preset in (manifest.preset, scene.preset)
        )
        if theirs == ours:
            return ""
        fields = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        return (
            "The read-out was fitted on other images than those here: the dataset's generator is "
            f"{manifest.preset.name}, which differs in {', '.join(fields[:4])}."
        )

    @functools.cached_property
    def best_r2(self) -> Mapping[str, float]:
        """The best R2 that any encoder can reach on the dataset, by factor, where it is known."""
        return {} if self._stored is None else best_r2_of(self._stored)

    # Loading and fitting

    async def _encode(self, images: UInt8, first: int) -> Float32:
        """Encode images; the lock is held."""
        codes = await anyio.to_thread.run_sync(self._network.encode, images, first)
        self._codes = codes.shape[1]
        return codes

    async def _open(self) -> None:
        """Load it, where that was not done before."""
        self.start()
        assert self._lock is not None
        async with self._lock:
            if self._account is None:
                try:
                    account = await anyio.to_thread.run_sync(self._network.account)
                    self._choose_size(account)
                except ThreeDIdentError as error:
                    self._failure = str(error)
                    raise
                self._account, self._failure = account, ""

    def _choose_size(self, account: Account) -> None:
        """Choose the size of its images: the dataset's, its own, or that it was trained on.

        Raises:
            UsageError: no image of that size is rendered.
        """
        channels, height, width = account.takes
        trained = account.trained_on.get("resolution")
        shape = None if self._stored is None else self._stored.source.shape
        fits = shape is not None and all(
            own in (None, theirs)
            for own, theirs in zip((height, width, channels), shape, strict=True)
        )
        if shape is not None and fits:
            size, why = (shape[0], shape[1]), "the size of the dataset's images"
        elif height is not None or width is not None:
            size = height or width or 0, width or height or 0
            why = "the only size that it takes"
        elif isinstance(trained, int):
            size, why = (trained, trained), "the size that it was trained on"
        else:
            size, why = (SIDE, SIDE), "as neither it nor a dataset names a size"
        square = size[0] == size[1] and LEAST_SIDE <= size[0] <= MOST_SIDE
        if not square and not fits:
            raise self._not_rendered(size)
        self._size, self._why_size, self._square = size, why, square
        if shape is not None and not fits:
            self.state = ReadoutState(
                "none",
                f"There is no read-out: {self.name} takes images of "
                f"{_by((*size, channels or shape[2]))}, and the dataset's have {_by(shape)}",
            )
        engine = self._engine()
        if engine.get("name") == "direct" and engine.get("quality") in QUALITIES:
            self.quality = engine["quality"]

    def _not_rendered(self, size: tuple[int, int]) -> UsageError:
        return UsageError(
            f"{self.name} takes images of {_by(size)}: the page renders square ones of "
            f"{LEAST_SIDE} to {MOST_SIDE} pixels along each side"
        )

    def _engine(self) -> Mapping[str, Any]:
        manifest = None if self._stored is None else self._stored.source.manifest
        return {} if manifest is None else manifest.engine

    def _notes(self) -> list[str]:
        """Sentences on what it is, where it runs and what it sees."""
        assert self._account is not None
        notes = [
            f"It looks at images of {_by(self._size)} pixels, {self._why_size}; rendered ones come "
            f"from the direct engine at quality {self.quality}."
        ]
        engine = self._engine()
        if engine.get("name") not in (None, "direct"):
            notes.append(
                "The dataset was rendered by Blender; images at the sliders' values come from the "
                "direct engine, which is close to it, but not the same."
            )
        trained = self._account.trained_on.get("resolution")
        if isinstance(trained, int) and trained != self._size[0]:
            notes.append(
                f"It was trained on images of {trained} pixels along each side, and sees "
                f"{self._size[0]} here."
            )
        limits = f"{self._limits.memory:g} GB of memory and {self._limits.time:g} s a request"
        if self._own:
            notes.append("It is this toolkit's own: it runs beside the page, in one thread.")
        elif self._submission.kind in TRUSTED:
            notes.append(
                f"It runs its author's code, which you trust, in a process of at most {limits}."
            )
        elif self._account.network_blocked:
            notes.append(
                "It runs in the sandbox of scoring: without a network, without other files, with "
                f"at most {limits}."
            )
        else:
            notes.append(
                f"It runs in a process of at most {limits}; this system could not take the "
                "network away from it."
            )
        return notes

    async def _prepare(self) -> None:
        """Load the encoder and fit the read-out; what goes wrong is kept for the page."""
        try:
            await self._open()
            if self._stored is not None and self.state.state == "waiting":
                await self._fit(self._stored)
        except Exception as error:
            known = isinstance(error, ThreeDIdentError | OSError)
            said = str(error) if known else f"{type(error).__name__}: {error}"
            if self.state.state in ("waiting", "encoding"):
                self.state = dataclasses.replace(self.state, state="failed", why=said[:1500])

    async def _fit(self, stored: StoredImages) -> None:
        sample = await anyio.to_thread.run_sync(draw_sample, stored)
        warnings = await anyio.to_thread.run_sync(self._warnings, stored)
        total = len(sample.numbers)
        self.state = ReadoutState("encoding", total=total, warnings=warnings)
        step = max(1, min(_MOST_AT_ONCE, _PIXELS // math.prod(stored.source.shape)))
        codes: Float32 | None = None
        assert self._lock is not None
        for start in range(0, total, step):
            numbers = sample.numbers[start : start + step].tolist()
            images = await anyio.to_thread.run_sync(sample.source.images, numbers)
            async with self._lock:
                part = await self._encode(images, numbers[0])
            if codes is None:
                codes = np.empty((total, part.shape[1]), np.float32)
            codes[start : start + len(part)] = part
            self.state.done = start + len(part)
        assert codes is not None
        self.readout = await anyio.to_thread.run_sync(LinearReadout, sample, codes)
        if self.readout.underdetermined:
            warnings = (
                *warnings,
                f"There are {codes.shape[1]} codes and {self.readout.fitted} images to fit on: "
                "such a read-out says little. A larger dataset gives a better one.",
            )
        self.state = ReadoutState("ready", done=total, total=total, warnings=warnings)

    def _warnings(self, stored: StoredImages) -> tuple[str, ...]:
        """Sentences on a dataset that is no test of the encoder."""
        assert self._account is not None
        recorded = self._account.trained_on
        seen = [
            _sentence(warning.message)
            for warning in check_seen(
                stored.source, trained_on=recorded, checkpoint=self._submission.checkpoint
            )
            if warning.code == "seen_images"
        ]
        if not seen and split_of(stored.source) == "train":
            seen = [
                "These images are of the split `train`: an encoder that was trained on them has "
                "seen them, and R2 is then no test."
            ]
        return tuple(seen)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _by(shape: Any) -> str:
    return " x ".join(map(str, shape))
