"""The parts of gpu.py, each run in a process of its own; see there.

    python benchmarks/gpu_parts.py NAME ROWS SECONDS [--small]

Rows of figures are appended to the file ROWS as they are measured, a line of JSON each. A case
that fails leaves a row with its error, and the next one goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import itertools
import json
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from threedident.errors import MissingExtraError

CONVERGED = Path(__file__).resolve().parents[1] / "tests" / "data" / "converged"
MISSING = 3  # the exit code of a part whose packages are missing

#: Dense bfloat16 peaks, FLOP/s, of the vendor's data sheets, by what a GPU's name contains.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
}


class Run:
    """One run of a part.

    Attributes:
        device: cuda, or cpu in a rehearsal.
        small: whether it is a rehearsal.
        end: the time.monotonic() at which the part should have ended.
    """

    def __init__(self, rows: Path, seconds: float, small: bool) -> None:
        self.device = "cpu" if small else "cuda"
        self.small, self.end = small, time.monotonic() + seconds
        self._rows = rows
        self._measured, self._missing = 0, False

    @property
    def lacks_packages(self) -> bool:
        """Whether nothing was measured, and packages are missing."""
        return self._missing and not self._measured

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.end - time.monotonic()

    def record(self, case: str, **figures: Any) -> None:
        row = {"case": case, "figures": {k.replace("_", " "): v for k, v in figures.items()}}
        self._measured += 1
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        with self._rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)

    @contextlib.contextmanager
    def attempt(self, case: str) -> Iterator[None]:
        """Go on after a case that fails, with its error as its row."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self._missing |= isinstance(error, MissingExtraError | ModuleNotFoundError)
            lines = str(error).strip().splitlines() or [""]
            self._write({"case": case, "error": f"{type(error).__name__}: {lines[0]:.300}"})
        gc.collect()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


def repeat(work: Callable[[], object], wait: Callable[[], object], seconds: float) -> Any:
    """Time a call: seconds of each, and those until it returns, before its work is finished."""
    work()
    wait()
    calls, host = 0, 0.0
    start = time.perf_counter()
    while True:
        for _ in range(2):  # so that the second is prepared while the first is worked on
            before = time.perf_counter()
            work()
            host += time.perf_counter() - before
        calls += 2
        wait()
        spent = time.perf_counter() - start
        if spent >= seconds:
            return spent / calls, host / calls


def compared(images: Any, on_the_cpu: Callable[[], Any]) -> dict[str, Any]:
    """Compare images with those of a CPU, where one can render them: it needs a compiler, too."""
    try:
        return apart(images, on_the_cpu())
    except Exception as error:
        traceback.print_exc()
        reason = f"no CPU: {type(error).__name__}"
        return {"dB": reason, "apart_at_most": None, "values_apart_%": None}


def apart(images: Any, others: Any) -> dict[str, Any]:
    """Compare images: PSNR in dB if they are of 8 bits, the largest difference, its share."""
    from threedident.render.color import psnr

    difference = np.abs(images.astype(float) - others.astype(float))
    decibel = psnr(images, others) if images.dtype == np.uint8 else math.nan
    return {
        "dB": "equal" if math.isinf(decibel) else decibel,
        "apart_at_most": float(difference.max()),
        "values_apart_%": 100 * float((difference > 0).mean()),
    }


# The direct engine


def engine(run: Run) -> None:
    """The direct engine: agreement with the CPU, images a second, memory, its kernels."""
    import warp as wp

    from threedident.presets import load_preset
    from threedident.render.direct.engine import DirectEngine, render
    from threedident.render.quality import get_quality

    preset = load_preset("3dident")
    raw = np.load(CONVERGED / "raw_latents.npy")

    def make(quality: str, side: int, device: str = run.device, material: str = "rubber") -> Any:
        its = dataclasses.replace(preset, material=material)
        return DirectEngine(its, get_quality(quality, "direct"), resolution=side, device=device)

    with run.attempt("first image"):
        start = time.perf_counter()
        make("draft", 16).render_batch(preset.to_scene(raw[:1]))
        run.record(
            "first image",
            seconds_with_compiling=time.perf_counter() - start,
            device=str(wp.get_device(run.device).name),
            Warp=str(wp.__version__),
        )
    side, count = (16, 2) if run.small else (224, 5)
    for material, quality in (
        *(("rubber", "standard"), ("rubber", "draft"), ("rubber", "reference")),
        ("metal", "standard"),
    ):
        case = f"{material}, {quality}, {count} scenes at {side}: as on the CPU"
        with run.attempt(case):
            _agreement(run, case, make, preset.to_scene(raw[:count]), (quality, side, material))
    with run.attempt("handed to torch"):
        import torch

        ours = make("draft", side).render_batch(preset.to_scene(raw[:3]))
        shared = torch.from_dlpack(
            render(raw[:3], preset, resolution=side, quality="draft", device=run.device)
        )
        run.record(
            "handed to torch",
            device=str(shared.device),
            equal=bool((shared.cpu().numpy() == ours).all()),
        )
    sides, sizes = ((16,), (1, 4)) if run.small else ((224, 64, 32), (64, 1, 16, 256, 1024))
    qualities = ("standard", "draft") if run.small else ("standard", "draft", "reference")
    for quality, side in itertools.product(qualities, sides):
        with run.attempt(f"{quality} at {side}"):
            _throughput(run, make(quality, side), f"{quality} at {side}", sizes)
        if side == sides[0] and quality == "standard":
            with run.attempt("kernels"):
                _kernels(run, make(quality, side), preset, 4 if run.small else 64)


def _agreement(run: Run, case: str, make: Any, latents: Any, how: tuple[str, int, str]) -> None:
    from PIL import Image

    quality, side, material = how
    here, there = (make(quality, side, device, material) for device in ("cpu", run.device))
    linear = there.render_linear(latents).numpy()
    images = there.render_batch(latents)
    again = np.concatenate([there.render_batch(row[None]) for row in latents])
    difference = compared(images, lambda: here.render_batch(latents))
    light = compared(linear, lambda: here.render_linear(latents).numpy())
    truth = None
    if side == 224 and material == "rubber":
        names = [CONVERGED / f"{number:02d}.png" for number in range(len(latents))]
        converged = np.stack([np.asarray(Image.open(name).convert("RGB")) for name in names])
        truth = apart(images, converged)["dB"]
    run.record(
        case,
        **difference,
        light_apart_at_most=light["apart_at_most"],
        dB_to_converged_Blender=truth,
        one_by_one_the_same=bool((images == again).all()),
    )


def _throughput(run: Run, engine: Any, case: str, sizes: tuple[int, ...]) -> None:
    """Images a second by the size of a launch; the first size is a usual one."""
    import warp as wp

    from threedident.latents import sample_raw_latents
    from threedident.presets import load_preset

    raw = sample_raw_latents(range(max(sizes)), seed=0, split="train")
    latents = load_preset("3dident").to_scene(raw)
    rate = 0.0
    for size in sizes:
        if run.left < 5 or (rate and size / rate > 3):  # the other cases want their turn
            continue

        def work(rows: Any = latents[:size]) -> None:
            engine.encode(engine.render_linear(rows))

        seconds, host = repeat(work, wp.synchronize, 0.0 if run.small else 0.5)
        rate = size / seconds
        memory = None
        with contextlib.suppress(RuntimeError, ValueError):  # the CPU has no pool
            memory = wp.get_mempool_used_mem_high(run.device) / 1e6
        run.record(
            f"{case}, {size} a launch",
            images_a_second=rate,
            ms_an_image=1e3 * seconds / size,
            of_it_ms_in_Python=1e3 * host / size,
            most_memory_so_far_MB=memory,
        )


def _kernels(run: Run, engine: Any, preset: Any, count: int) -> None:
    """The time of each kernel; waiting for each costs some of it."""
    import warp as wp

    from threedident.latents import sample_raw_latents

    latents = preset.to_scene(sample_raw_latents(range(count), seed=0, split="train"))
    seconds: dict[str, float] = defaultdict(float)
    launch = wp.launch

    def timed(kernel: Any, *arguments: Any, **options: Any) -> Any:
        wp.synchronize()
        start = time.perf_counter()
        result = launch(kernel, *arguments, **options)
        wp.synchronize()
        seconds[kernel.key] += time.perf_counter() - start
        return result

    engine.render_batch(latents)
    try:
        wp.launch = timed
        start = time.perf_counter()
        engine.render_batch(latents)
        whole = time.perf_counter() - start
    finally:
        wp.launch = launch
    for name, spent in {**seconds, "all else": whole - sum(seconds.values())}.items():
        run.record(
            f"{name}, standard, {count} a launch",
            ms_an_image=1e3 * spent / count,
            share_of_the_time=spent / whole,
        )


# Pairs


def pairs(run: Run) -> None:
    """Pairs rendered on the device, pairs of images held by it, and pinned memory."""
    import torch

    cases = (
        [(16, "draft", 4)]
        if run.small
        else [(224, "standard", 256), (64, "standard", 512), (64, "draft", 512)]
    )
    for side, quality, size in cases:
        case = f"RenderedPairs, {size} pairs, {quality} at {side}"
        with run.attempt(case):
            _rendered(run, case, side, quality, size)
    with run.attempt("copies to the device"):
        _copies(run)
    with tempfile.TemporaryDirectory() as folder, run.attempt("stored images"):
        _stored(run, Path(folder) / "images", 16 if run.small else 64)
    del torch


def synchronize(run: Run) -> None:
    import torch

    if run.device == "cuda":
        torch.cuda.synchronize()


def _rendered(run: Run, case: str, side: int, quality: str, size: int) -> None:
    import torch

    from threedident.datasets import Normal, RenderedPairs
    from threedident.render.direct.engine import render

    options = {"workers": 1} if run.device == "cpu" else {}
    with RenderedPairs(
        conditional=Normal(0.1),
        resolution=side,
        device=run.device,
        quality=quality,
        batch_size=size,
        **options,
    ) as source:
        z, x = source.batch(0, 0)
        _, again = source.batch(0, 0)
        few = 4
        how = {"resolution": side, "quality": quality, "device": "cpu"}
        agreement = compared(
            x[0][:few].permute(0, 2, 3, 1).cpu().numpy(),
            lambda: render(z[0][:few].cpu().numpy(), source.preset, **how),
        )
        numbers = itertools.count(1)
        seconds, _ = repeat(
            lambda: source.batch(0, next(numbers)), lambda: synchronize(run), 0 if run.small else 3
        )
        batches = iter(source.loader())
        ahead, _ = repeat(lambda: next(batches), lambda: synchronize(run), 0 if run.small else 3)
        batches.close()  # type: ignore[attr-defined]
        run.record(
            case,
            device=str(x[0].device),
            pairs_a_second=size / seconds,
            images_a_second=2 * size / seconds,
            prepared_ahead_images_a_second=2 * size / ahead,
            dB_to_the_CPU=agreement["dB"],
            twice_the_same=bool(torch.equal(x[0], again[0])),
        )


def _copies(run: Run) -> None:
    """Copies of a batch of images from the host to the device, from plain and pinned memory."""
    import torch

    shape = (8, 16, 16, 3) if run.small else (512, 224, 224, 3)
    for pinned in (False, True):
        pin = pinned and run.device == "cuda"  # only a GPU has it
        source = torch.randint(0, 256, shape, dtype=torch.uint8)
        source = source.pin_memory() if pin else source
        target = torch.empty_like(source, device=run.device)
        seconds, host = repeat(
            lambda source=source, target=target: target.copy_(source, non_blocking=True),
            lambda: synchronize(run),
            0 if run.small else 1,
        )
        run.record(
            f"{source.numel() / 1e6:.0f} MB of images, {'pinned' if pinned else 'plain'} memory",
            pinned=source.is_pinned() if run.device == "cuda" else False,
            GB_a_second=source.numel() / seconds / 1e9,
            ms_until_the_call_returns=1e3 * host,
            equal=bool(torch.equal(target.cpu(), source)),
        )


def _stored(run: Run, folder: Path, side: int) -> None:
    import torch

    from threedident.datasets import Normal, PositivePairs, ThreeDIdent
    from threedident.datasets.latent_matcher import LatentMatcher
    from threedident.distributions.torch_sampler import seeded
    from threedident.render import render_dataset

    count, size = (24, 8) if run.small else (20_000, 512)
    start = time.perf_counter()
    render_dataset(
        folder,
        count,
        engine="direct",
        quality="draft",
        resolution=side,
        device=run.device,
        quiet=True,
        **({"workers": 1} if run.small else {}),
    )
    seconds = time.perf_counter() - start
    run.record(f"render_dataset, draft at {side}", images=count, images_a_second=count / seconds)
    options: dict[str, Any] = {"conditional": Normal(0.3), "batch_size": size}
    plain, held = ThreeDIdent(folder), ThreeDIdent(folder, cache=run.device)
    pin = run.device == "cuda"
    sources = {
        "from files": PositivePairs(plain, **options),
        "from files, pinned": PositivePairs(plain, pin_memory=pin, **options),
        f"held by {held.cache_device}": PositivePairs(held, **options),
    }
    expected = next(iter(sources.values())).batch(0, 0)
    for name, source in sources.items():
        batch = source.batch(0, 0)
        equal = all(
            torch.equal(a.cpu(), b)
            for views, others in zip(batch, expected, strict=True)
            for a, b in zip(views, others, strict=True)
        )
        endless = itertools.chain.from_iterable(iter(source.loader, None))

        def work(endless: Any = endless) -> None:
            _, x = next(endless)
            for view in x:
                view.to(run.device, non_blocking=True)

        seconds, _ = repeat(work, lambda: synchronize(run), 0 if run.small else 2)
        run.record(
            f"PositivePairs, {name}, {size} pairs at {side}, to the device",
            pairs_a_second=size / seconds,
            images_a_second=2 * size / seconds,
            equal_to_the_CPU=equal,
        )
    process = sources["from files"].process
    partners = []
    for device in ("cpu", run.device):
        matcher = LatentMatcher(plain.raw_latents, match="resample", device=device)
        start = time.perf_counter()
        _, partner = matcher.pairs(process, size, seeded(0))
        partners.append(partner)
        run.record(
            f"resampling on {device}, {size} pairs among {count}",
            ms=1e3 * (time.perf_counter() - start),
            partners_as_on_the_CPU=float((partner == partners[0]).double().mean()),
        )


# Training


def _experiment(run: Run, **training: Any) -> Any:
    """Table 4's first row with pairs."""
    from threedident.baselines.experiment import load_experiment

    base = load_experiment("table4-box")
    encoder = dataclasses.replace(base.encoder, width=8) if run.small else base.encoder
    steps = dataclasses.replace(base.training, **training)
    return dataclasses.replace(base, encoder=encoder, training=steps)


def step(run: Run) -> None:
    """A step of training as `3dident train` takes it, on images that lie on the device."""
    import torch

    if run.small:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # it takes a minute on a processor
    size = 8 if run.small else 512
    ways = [
        {"precision": "bf16-mixed"},
        {"precision": "bf16-mixed", "channels_last": False},
        {"precision": "32-true"},
        {"precision": "bf16-mixed", "compile": True},
    ]
    sides = (32,) if run.small else (224, 64)
    flops: dict[int, float] = {}
    todo = [(side, way) for way in ways for side in sides]
    for place, (side, way) in enumerate(todo):
        name = ", ".join(
            (
                f"{size} pairs at {side}",
                way["precision"],
                "channels last" if way.get("channels_last", True) else "channels first",
                *(["compiled"] if "compile" in way else []),
            )
        )
        with run.attempt(name), tempfile.TemporaryDirectory() as folder:
            share = run.left / (len(todo) - place)
            _step(run, name, _experiment(run, batch_size=size, **way), side, flops, share, folder)
            torch._dynamo.reset()


def _step(
    run: Run,
    name: str,
    experiment: Any,
    side: int,
    flops: dict[int, float],
    share: float,
    folder: str,
) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from threedident.baselines.data import Problem
    from threedident.baselines.training.distributed import make_fabric
    from threedident.baselines.training.networks import make_networks
    from threedident.baselines.training.trainer import Trainer

    training = experiment.training
    fabric = make_fabric(training.precision, 1, run.device)
    torch.backends.cudnn.benchmark = True  # as the training loop does
    normalization = ((0.5,) * 3, (0.25,) * 3)
    problem = Problem(10, None, None, None, experiment, normalization, {})  # type: ignore[arg-type]
    encoder, objective = make_networks(experiment, problem)
    trainer = Trainer(fabric, experiment, encoder, objective, Path(folder))
    size = training.batch_size
    images = torch.randint(0, 256, (2 * size, side, side, 3), dtype=torch.uint8)
    images = images.to(fabric.device).permute(0, 3, 1, 2)
    latents = torch.rand(2 * size, 10, device=fabric.device)
    views = (latents.split(size), images.split(size))
    batches = itertools.repeat(views)
    start = time.perf_counter()
    if side not in flops and not training.compile:
        with FlopCounterMode(display=False) as counter:
            trainer.advance(batches)
        flops[side] = counter.get_total_flops()
    for _ in range(3):
        loss, *_ = trainer.advance(batches)
    first = time.perf_counter() - start
    memory, peak = None, None
    if run.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        name_of_gpu = torch.cuda.get_device_name()
        peak = next((v for k, v in PEAKS.items() if k in name_of_gpu), None)
    seconds, _ = repeat(
        lambda: trainer.advance(batches),  # which waits for the loss
        lambda: synchronize(run),
        0 if run.small else min(4.0, max(1.0, share - first)),
    )
    if run.device == "cuda":
        memory = torch.cuda.max_memory_allocated() / 1e9
    rate = flops.get(side, math.nan) / seconds
    run.record(
        name,
        images_a_second=2 * size / seconds,
        ms_a_step=1e3 * seconds,
        TFLOPs_a_second=None if math.isnan(rate) else rate / 1e12,
        share_of_the_bf16_peak=None if peak is None or math.isnan(rate) else rate / peak,
        memory_GB=memory,
        seconds_of_the_first_steps=first,
        loss=loss,
    )


def curve(run: Run) -> None:
    """Table 4's first row with pairs, Normal(0.1) pairs and a box, on exact pairs that are
    rendered as they are needed, and scored on images that it never sees.
    """
    import torch

    from threedident.baselines.data import Problem
    from threedident.baselines.training.distributed import make_fabric
    from threedident.baselines.training.measurements import Measurements
    from threedident.baselines.training.networks import make_networks
    from threedident.baselines.training.trainer import Trainer
    from threedident.datasets import RenderedPairs, ThreeDIdent
    from threedident.render import render_dataset

    side, size, tested = (32, 8, 64) if run.small else (128, 512, 4096)
    quality = "draft"
    start = time.monotonic()
    experiment = _experiment(run, batch_size=size, precision="bf16-mixed", score_samples=tested)
    workers = {"workers": 1} if run.small else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        render_dataset(
            folder / "test",
            tested,
            split="test",
            engine="direct",
            quality=quality,
            resolution=side,
            device=run.device,
            quiet=True,
            **workers,
        )
        images = ThreeDIdent(folder / "test")
        data = experiment.data
        with RenderedPairs(
            data.space,
            data.conditional,
            resolution=side,
            device=run.device,
            marginal=data.marginal,
            batch_size=size,
            quality=quality,
            **workers,
        ) as source:
            problem = Problem(
                10,
                source,
                None,
                images,
                experiment,
                (images.mean, images.std),
                {"factors": list(images.factor_names)},
                experiment.processes,
            )
            fabric = make_fabric(experiment.training.precision, 1, run.device)
            torch.backends.cudnn.benchmark = True
            encoder, objective = make_networks(experiment, problem)
            trainer = Trainer(fabric, experiment, encoder, objective, folder)
            measurements = Measurements(trainer, problem)
            batches = problem.batches(0, 1, threads=2)
            began = time.monotonic()
            interval = max(0.0, run.left) / 12
            if run.small:
                interval = 0.0
            following = 0.0
            spent = 0.0  # on training alone, without scoring
            try:
                while run.left > interval / 2 and not (run.small and trainer.step == 3):
                    before = time.monotonic()
                    loss, codes, views = trainer.advance(batches)
                    spent += time.monotonic() - before
                    if time.monotonic() - began < following:
                        continue
                    row = measurements.row(loss, codes, views, scored=True)
                    run.record(
                        f"table4-box, {size} exact pairs at {side}, {quality}, step {trainer.step}",
                        seconds_of_training=spent,
                        seconds_in_all=time.monotonic() - start,
                        loss=loss,
                        R2=row["linear_r2"],
                        MCC=row["mcc"],
                        images_a_second=2 * size * trainer.step / spent,
                    )
                    following = time.monotonic() - began + interval
            finally:
                batches.close()  # type: ignore[attr-defined]


# Blender


def cycles(run: Run) -> None:
    """Blender's renderer on the device, by CUDA and by OptiX, against itself on the CPU."""
    from threedident.presets import load_preset
    from threedident.render.blender import available_devices, blender_version, import_bpy
    from threedident.render.engine import create_engine
    from threedident.render.settings import EngineSettings

    threads = len(os.sched_getaffinity(0))
    import_bpy(threads)
    found = available_devices()
    run.record("devices", Blender=blender_version(), devices=", ".join(found))
    preset = load_preset("3dident")
    side, quality, count = (32, "draft", 1) if run.small else (224, "standard", 5)
    latents = preset.to_scene(np.load(CONVERGED / "raw_latents.npy")[:count])

    def engine(device: str) -> Any:
        return create_engine(
            EngineSettings(preset, side, quality, device, "cycles"), threads=threads
        )

    own = engine("cpu")
    expected = own.render_batch(latents)
    own.close()
    kinds = ("cpu",) if run.small else ("cuda", "optix")
    for kind in kinds:
        case = f"{kind}, {quality} at {side}"
        with run.attempt(case):
            start = time.perf_counter()
            other = engine(kind)
            images = other.render_batch(latents)  # the first compiles, or loads, its kernels
            first = time.perf_counter() - start
            rows = itertools.cycle(latents)
            seconds, _ = repeat(
                lambda other=other, rows=rows: other.render_batch(next(rows)[None]),
                lambda: None,
                0 if run.small else 5,
            )
            other.close()
            run.record(
                case,
                images_a_second=1 / seconds,
                seconds_of_the_first_images=first,
                **apart(images, expected),
            )


PARTS = {"engine": engine, "pairs": pairs, "step": step, "cycles": cycles, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("rows", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    run = Run(arguments.rows, arguments.seconds, arguments.small)
    try:
        PARTS[arguments.part](run)
        if run.lacks_packages:
            sys.exit(MISSING)
    except (MissingExtraError, ModuleNotFoundError) as error:
        traceback.print_exc()
        print(error)
        sys.exit(MISSING)


if __name__ == "__main__":
    main()
