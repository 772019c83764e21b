"""Pairs rendered on demand, and the processes that render them."""

from __future__ import annotations

import dataclasses
import multiprocessing as mp
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.fake_dataset import same
from helpers.pairs import loader_threads, on_demand

from threedident.datasets import (
    Box,
    Normal,
    RenderedPairs,
    Sphere,
    VonMisesFisher,
)
from threedident.distributions.torch_sampler import seeded
from threedident.errors import RenderError, UsageError
from threedident.presets import load_preset
from threedident.render.direct import render
from threedident.system import is_running


def alive(pids):
    return [pid for pid in pids if is_running(pid) and b"\nState:\tZ" not in status(pid)]


def status(pid):
    try:
        return Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return b"\nState:\tZ"


def wait_until_gone(pids):
    """As long as it takes on a busy machine."""
    for _ in range(600):
        if not alive(pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {alive(pids)}")


def test_pairs_rendered_on_demand_and_a_process_that_dies():
    with on_demand(workers=1, preset="3dident-positions", batches=3) as one:
        expected = [one.batch(0, 0), one.batch(0, 1), one.batch(2, 1)]
        pids = [process.pid for process in one._renderers.processes]
        assert len(alive(pids)) == 1
        for epoch, number, ((z, z_tilde), (x, x_tilde)) in zip(
            (0, 0, 2), (0, 1, 1), expected, strict=True
        ):
            drawn = one.process.sample(10, generator=seeded(4, epoch, number))
            preset = load_preset("3dident-positions")
            assert preset.fixed
            for latents, images, exact in ((z, x, drawn[0]), (z_tilde, x_tilde, drawn[1])):
                assert np.array_equal(latents, preset.hold_fixed(exact.numpy()))
                assert images.dtype == torch.uint8
                assert images.shape == (10, 3, 16, 16)
                assert images.is_contiguous(memory_format=torch.channels_last)
                there = render(
                    latents, preset, resolution=16, quality="draft", device="cpu", seed=0
                )
                assert np.array_equal(images.permute(0, 2, 3, 1), there)
            assert len({image.numpy().tobytes() for image in (*x, *x_tilde)}) == 20
        assert not same(expected[0], expected[1])
    wait_until_gone(pids)
    with on_demand(workers=2, preset="3dident-positions", batches=3) as two:
        loader = two.loader()
        found = [*loader, *loader, *loader]
        assert len(found) == 9
        for batch, number in zip(expected, (0, 1, 7), strict=True):
            assert same(found[number], batch)

        # And one of the two dies.
        pids = [process.pid for process in two._renderers.processes]
        assert len(alive(pids)) == 2
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RenderError, match="a render process of RenderedPairs has died"):
            for _ in range(10):
                list(loader)
        assert not loader_threads()
        with pytest.raises(RenderError, match="same seed, epoch and batch number"):
            two.batch(0, 0)
    wait_until_gone(pids)


def test_an_engine_that_cannot_be_made_says_so(tmp_path):
    path = tmp_path / "shape.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n")
    with on_demand(
        workers=1, preset=dataclasses.replace(load_preset("3dident"), shape=str(path))
    ) as pairs:
        path.unlink()
        with pytest.raises(UsageError, match=r"shape\.obj"):
            pairs.batch(0, 0)


def render_on(pipe):
    """Renders pairs until it is killed; sends the numbers of its processes."""
    pairs = on_demand(batch_size=24, workers=2)
    pairs.batch(0, 0)
    pipe.send([process.pid for process in pairs._renderers.processes])
    for _ in pairs.loader():
        pass
    time.sleep(600)


@pytest.mark.slow
def test_render_processes_end_with_their_parent():
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=render_on, args=(theirs,))
    process.start()
    assert ours.poll(120)
    pids = ours.recv()
    assert len(alive(pids)) == 2
    process.kill()
    process.join()
    wait_until_gone(pids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": Sphere(10)}, r"from a box within \[-1, 1\]\^10, found Sphere"),
        ({"space": Box(9)}, "found Box"),
        ({"space": Box(10, -1.0, 2.0)}, "found Box"),
        ({"batch_size": 0}, "at least 1 pair and batch, found 0"),
        ({"batches": 0}, "at least 1 pair and batch, found 10, 0"),
        ({"workers": 0}, "at least 1 worker"),
        ({"resolution": 4}, "resolution must lie in"),
        ({"quality": "best"}, "quality"),
        ({"device": "metal"}, "auto, cpu or cuda, found metal"),
        ({"preset": "3dindent"}, "3dindent"),
        ({"preset": dataclasses.replace(load_preset("3dident"), material="crystal")}, "crystal"),
        ({"conditional": VonMisesFisher(1.0)}, "is defined on a sphere"),
    ],
)
def test_what_is_not_rendered_on_demand(options, message):
    options = {"space": None, "conditional": Normal(0.1), "batch_size": 10, **options}
    with pytest.raises(UsageError, match=message):
        RenderedPairs(**options)


def test_rendered_pairs_need_a_conditional_and_take_it_as_before():
    with pytest.raises(UsageError, match="conditional=Normal"):
        RenderedPairs()
    with RenderedPairs(None, Normal(0.1), "3dident") as pairs:  # as before it went by name
        assert pairs.process.conditional == Normal(0.1)
