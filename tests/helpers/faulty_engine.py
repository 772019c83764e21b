"""Engines that misbehave where they are told to, for the tests of the worker pool."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

CRASH, HANG, RAISE, CRASH_ONCE, SLOW = 1.0, 2.0, 3.0, 4.0, 5.0


class FaultyEngine:
    """Paints an image with the first latent; does as the second one says."""

    batch = 1

    def __init__(self, settings, *, threads, device_index, scratch):
        self._resolution = settings.resolution
        self._scratch = scratch

    def render_batch(self, latents):
        return np.stack([self.render(row) for row in latents])

    def render(self, latents):
        print(f"painting {int(latents[0])}", flush=True)
        fault = float(latents[1])
        if fault == CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == HANG:
            time.sleep(3600)
        if fault == RAISE:
            raise RuntimeError("no such luck")
        if fault == CRASH_ONCE:
            mark = self._scratch / f"crashed-{int(latents[0])}"
            if not mark.exists():
                mark.touch()
                os._exit(7)
        if fault == SLOW:
            time.sleep(0.2)
        return np.full((self._resolution,) * 2 + (3,), int(latents[0]), np.uint8)

    def close(self):
        pass


class BatchingEngine(FaultyEngine):
    """Paints four images at once."""

    batch = 4


def broken(settings, *, threads, device_index, scratch):
    raise OSError("libgl1 is missing")


def dead(settings, *, threads, device_index, scratch):
    os._exit(3)


def raise_usage():
    from threedident.errors import UsageError

    raise UsageError("wrong")


def raise_missing():
    from threedident.errors import MissingExtraError

    raise MissingExtraError("bpy", "render", "rendering")


def read_signals(pipe):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    pipe.send((*handlers, sys.stdin.read(), os.environ["OPENBLAS_NUM_THREADS"]))


def hang(pipe):
    time.sleep(3600)
