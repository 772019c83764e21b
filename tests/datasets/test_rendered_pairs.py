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
import warp as wp
from helpers.fake_dataset import same
from helpers.pairs import loader_threads, on_demand

from threedident.datasets import (
    Box,
    Change,
    Normal,
    PerFactor,
    RenderedPairs,
    Sphere,
    Unchanged,
    VonMisesFisher,
    rendered_pairs,
)
from threedident.distributions.torch_sampler import seeded
from threedident.errors import RenderError, UsageError
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.direct import render
from threedident.render.direct.engine import DirectEngine
from threedident.render.quality import get_quality
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


# On a GPU, as far as that can be tested without one.


class Engine:
    """The direct engine on the CPU, which runs out of memory the first times that it is asked."""

    def __init__(self, resolution, batch, failures=0, message="Failed to allocate 5 bytes"):
        quality = get_quality("draft", "direct")
        self.own = DirectEngine(load_preset("3dident"), quality, resolution=resolution)
        self.device, self.encode, self.shrink = "cpu", self.own.encode, self._shrink
        self.batch, self.failures, self.message = batch, failures, message
        self.sizes = []

    def render_linear(self, latents):
        if self.failures:
            self.failures -= 1
            raise RuntimeError(self.message)
        self.sizes.append(len(latents))
        return self.own.render_linear(latents)

    def _shrink(self):
        self.own.batch = self.batch
        self.own.shrink()
        self.batch = self.own.batch


def scenes(count):
    preset = load_preset("3dident")
    return preset.to_scene(sample_raw_latents(range(count), seed=0, split="train"))


def test_images_are_rendered_into_memory_of_torch_a_launch_after_the_other():
    engine = Engine(16, batch=3)
    images, finished = rendered_pairs._start_rendering(engine, scenes(7), 16)
    finished()
    assert engine.sizes == [3, 3, 1]
    assert (images.dtype, images.device.type) == (torch.uint8, "cpu")
    assert images.is_contiguous()
    assert np.array_equal(images, engine.own.render_batch(scenes(7)))


def test_a_gpu_that_runs_out_of_memory_renders_fewer_images_at_once(monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    # What torch keeps for later comes first, and may be enough.
    engine = Engine(16, batch=4, failures=1)
    images, _ = rendered_pairs._start_rendering(engine, scenes(6), 16)
    assert (emptied, engine.sizes) == ([True], [4, 2])
    expected = engine.own.render_batch(scenes(6))
    assert np.array_equal(images, expected)
    engine = Engine(16, batch=4, failures=3)
    with pytest.warns(RuntimeWarning, match="going on with"):
        images, _ = rendered_pairs._start_rendering(engine, scenes(6), 16)
    assert engine.sizes == [1] * 6
    assert np.array_equal(images, expected)
    assert len(emptied) == 2
    engine = Engine(16, batch=1, failures=2)
    with pytest.raises(UsageError, match=r"too little memory .* 6 images of 16 x 16.*batch_size"):
        rendered_pairs._start_rendering(engine, scenes(6), 16)
    engine = Engine(16, batch=4, failures=1, message="an illegal memory access")
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        rendered_pairs._start_rendering(engine, scenes(6), 16)


def test_a_batch_that_does_not_fit_says_so(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    engine = Engine(16, batch=4)
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(UsageError, match="too little memory on cpu to render 4 images"):
        rendered_pairs._start_rendering(engine, scenes(4), 16)


class Streams:
    """The calls by which Warp and torch wait for each other, in order."""

    def __init__(self, monkeypatch):
        self.calls = []
        monkeypatch.setattr(rendered_pairs, "_place", lambda _: _Gpu())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda place: ("torch's", place.type))
        monkeypatch.setattr(wp, "stream_from_torch", lambda stream: stream)
        monkeypatch.setattr(wp, "get_stream", lambda device: self)
        monkeypatch.setattr(wp, "synchronize_event", self.note("synchronize"))
        monkeypatch.setattr(wp, "copy", self.note("copy", wp.copy))

    def note(self, name, function=None):
        def noted(*arguments):
            self.calls.append(name)
            return function(*arguments) if function else None

        return noted

    def wait_stream(self, stream):
        assert stream == ("torch's", "cuda")
        self.calls.append("wait for torch")

    def record_event(self):
        self.calls.append("record")
        return "event"


class _Gpu:
    """A device that says it is a GPU, and whose memory is the CPU's."""

    type = "cuda"


def test_warp_begins_after_torch_and_a_batch_is_there_before_it_is_handed_over(monkeypatch):
    engine = Engine(16, batch=3)
    streams = Streams(monkeypatch)
    empty = torch.empty

    def on_the_cpu(*shape, device, **options):
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", on_the_cpu)
    images, finished = rendered_pairs._start_rendering(engine, scenes(4), 16)
    first, *copies, last = streams.calls
    assert (first, set(copies), last) == ("wait for torch", {"copy"}, "record")
    finished()
    assert streams.calls[-2:] == ["record", "synchronize"]
    assert np.array_equal(images, engine.own.render_batch(scenes(4)))


@pytest.fixture
def two_gpus(monkeypatch):
    """torch finds two GPUs, of which the second is the current one; engines are on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    numbers = []

    def create(settings, *, device_index):
        assert settings.device == "cuda"
        numbers.append(device_index)
        return Engine(settings.resolution, batch=8)

    monkeypatch.setattr(rendered_pairs, "create_engine", create)
    return numbers


@pytest.mark.parametrize(
    ("device", "number"), [("cuda", 1), ("auto", 1), ("cuda:0", 0), ("cuda:1", 1)]
)
def test_pairs_of_a_gpu_are_those_of_a_cpu(two_gpus, device, number):
    with on_demand(device=device, batches=4) as pairs:
        assert "cuda" in repr(pairs)
        batches = [*pairs.loader()]
        assert two_gpus == [number]
        for k in (0, 3):
            (z, z_tilde), (x, x_tilde) = batches[k]
            assert x.shape == (10, 3, 16, 16)
            assert x.is_contiguous(memory_format=torch.channels_last)
            for latents, images in ((z, x), (z_tilde, x_tilde)):
                expected = render(
                    latents, "3dident", resolution=16, quality="draft", device="cpu", seed=0
                )
                assert np.array_equal(images.permute(0, 2, 3, 1), expected)
        assert not same(batches[0], batches[3])
        pairs.close()
        assert same(pairs.batch(0, 1), batches[1])
        assert two_gpus == [number] * 2


def test_a_gpu_that_is_not_there(two_gpus, monkeypatch):
    with pytest.raises(UsageError, match=r"no cuda:2: torch finds 2 CUDA device\(s\)"):
        on_demand(device="cuda:2")
    for name in ("cuda:", "cuda:x", "cuda:-1", "cpu:0", "auto:1"):
        with pytest.raises(UsageError, match="rendered on auto, cpu or cuda, found"):
            on_demand(device=name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UsageError, match="torch finds no CUDA device here"):
            on_demand(device=name)


def test_change_does_not_count_what_the_preset_holds():
    """Most pairs would be one image twice."""
    with pytest.raises(UsageError, match=r"--unchanged rotation .* --unchanged hue"):
        RenderedPairs(conditional=Change(Normal(0.3), 1), preset="3dident-positions")
    still = PerFactor.by_name(
        {"position": Unchanged(), "rotation": Normal(1), "spotlight": Normal(1), "hue": Normal(1)}
    )
    with pytest.raises(UsageError, match="no factor changes: the preset holds phi"):
        RenderedPairs(conditional=still, preset="3dident-positions")
    free = PerFactor(((range(3), Change(Normal(0.3), 1)), (range(3, 10), Unchanged())))
    RenderedPairs(conditional=free, preset="3dident-positions").close()
    RenderedPairs(conditional=Change(Normal(0.3), 1)).close()
