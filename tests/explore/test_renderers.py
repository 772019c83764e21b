"""The page's render processes: the images of `render`, the last request first, no process lost."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

from threedident.errors import RenderError, UsageError
from threedident.explore import renderers as module
from threedident.explore.renderers import MOVING, WAITING, Busy, Renderers, Settings, Superseded
from threedident.latents import sample_raw_latents
from threedident.presets import load_preset
from threedident.render.images import render_images
from threedident.render.settings import EngineSettings

PRESET = load_preset("3dident")
RAW = sample_raw_latents(range(6), seed=3, split="test")
ROWS = PRESET.to_scene(RAW)


def settings(resolution=32, quality="draft"):
    engine = EngineSettings(PRESET, resolution, quality, "cpu", engine="direct")
    return Settings((resolution, quality), engine)


def run(test, processes=1):
    async def whole():
        async with Renderers(processes) as pool:
            return await test(pool)

    return asyncio.run(whole())


@pytest.mark.parametrize("quality", ["draft", "standard"])
def test_the_images_are_those_of_render(quality):
    images = run(lambda pool: pool.images(settings(quality=quality), ROWS), processes=2)
    expected = render_images(RAW, PRESET, resolution=32, quality=quality, engine="direct")
    np.testing.assert_array_equal(images, expected)


def test_several_settings_have_engines_of_their_own_and_many_are_let_go_of():
    async def test(pool):
        first = await pool.images(settings(16), ROWS[:1])
        for side in range(17, 17 + module._ENGINES):
            assert (await pool.images(settings(side), ROWS[:1])).shape == (1, side, side, 3)
        return first, await pool.images(settings(16), ROWS[:1])

    np.testing.assert_array_equal(*run(test))


def test_large_jobs_are_split_and_put_together_in_order(monkeypatch):
    monkeypatch.setattr(module, "_PIXELS", 2 * 32**2)
    images = run(lambda pool: pool.images(settings(), ROWS), processes=2)
    monkeypatch.undo()
    whole = run(lambda pool: pool.images(settings(), ROWS))
    np.testing.assert_array_equal(images, whole)


def test_a_newer_request_of_a_slot_takes_the_place_of_those_that_wait():
    async def test(pool):
        await pool.images(settings(), ROWS[:1])  # it is ready
        os.kill(pool.pids[0], signal.SIGSTOP)  # so that it ends no image before all have come
        tasks = []
        for number in range(20):
            row = ROWS[number % 6][None]
            tasks.append(asyncio.create_task(pool.images(settings(), row, slot="image")))
            await asyncio.sleep(0)
        other = asyncio.create_task(pool.images(settings(), ROWS[:1], slot="another"))
        await asyncio.sleep(0)
        os.kill(pool.pids[0], signal.SIGCONT)
        return await asyncio.gather(*tasks, return_exceptions=True), await other

    answers, other = run(test)
    assert isinstance(answers[-1], np.ndarray) and isinstance(other, np.ndarray)
    superseded = [isinstance(each, Superseded) for each in answers]
    # The first may have been begun before the second came.
    assert all(superseded[1:-1])
    np.testing.assert_array_equal(answers[-1], run(lambda p: p.images(settings(), ROWS[1:2])))


def test_a_newer_request_also_ends_what_waits_of_one_that_was_begun(monkeypatch):
    monkeypatch.setattr(module, "_PIXELS", 32**2)  # six pieces

    async def test(pool):
        await pool.images(settings(), ROWS[:1])  # it is ready
        older = asyncio.create_task(pool.images(settings(), ROWS, slot="strip"))
        while len(pool._waiting) != 5:  # the first is begun
            await asyncio.sleep(0)
        newer = asyncio.create_task(pool.images(settings(), ROWS[:2], slot="strip"))
        answers = await asyncio.gather(older, newer, return_exceptions=True)
        return *answers, dict(pool._slots)

    older, newer, left = run(test)
    assert isinstance(older, Superseded)
    np.testing.assert_array_equal(newer, run(lambda pool: pool.images(settings(), ROWS[:2])))
    assert left == {}


def test_a_moving_slider_comes_before_all_that_waits():
    async def test(pool):
        done = []

        async def one(name, priority):
            await pool.images(settings(), ROWS[:1], priority=priority)
            done.append(name)

        await one("first", WAITING)
        os.kill(pool.pids[0], signal.SIGSTOP)  # so that it ends no image before all have come
        waiting = [asyncio.create_task(one("waiting", WAITING)) for _ in range(4)]
        await asyncio.sleep(0)
        moving = asyncio.create_task(one("moving", MOVING))
        await asyncio.sleep(0)
        os.kill(pool.pids[0], signal.SIGCONT)
        await asyncio.gather(moving, *waiting)
        return done

    done = run(test)
    assert done.index("moving") <= 2, done  # one may have been in the process


def test_nobody_waits_for_more_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 3)

    async def test(pool):
        tasks = [asyncio.create_task(pool.images(settings(), ROWS[:1])) for _ in range(12)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = run(test)
    assert any(isinstance(each, Busy) for each in answers)
    assert any(isinstance(each, np.ndarray) for each in answers)


def test_a_process_that_dies_is_replaced_and_its_job_done():
    async def test(pool):
        await pool.images(settings(), ROWS[:1])
        (before,) = pool.pids
        os.kill(before, signal.SIGKILL)
        image = await pool.images(settings(), ROWS[:1])
        (after,) = pool.pids
        return image, before, after, pool.restarts

    image, before, after, restarts = run(test)
    assert image.shape == (1, 32, 32, 3) and before != after and restarts == 1


def test_a_job_whose_process_dies_each_time_is_given_up_and_the_next_is_done():
    async def test(pool):
        async def kill():
            for _ in range(2):
                (pid,) = pool.pids
                os.kill(pid, signal.SIGKILL)
                while pool.pids == (pid,):
                    await asyncio.sleep(0.005)

        killer = asyncio.create_task(kill())
        with pytest.raises(RenderError, match="ended 2 times at this image"):
            await pool.images(settings(), ROWS[:1])
        await killer
        return await pool.images(settings(), ROWS[:1])

    assert run(test).shape == (1, 32, 32, 3)


def test_a_process_that_hangs_is_replaced(monkeypatch):
    replace = module._replace

    def patiently(process):
        """Replace it; the next one, which has much to load, may take longer."""
        monkeypatch.setattr(module, "_TIMEOUT", 60.0)
        return replace(process)

    monkeypatch.setattr(module, "_replace", patiently)

    async def test(pool):
        await pool.images(settings(), ROWS[:1])
        monkeypatch.setattr(module, "_TIMEOUT", 0.2)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        return await pool.images(settings(), ROWS[:1]), pool.restarts

    image, restarts = run(test)
    assert image.shape == (1, 32, 32, 3) and restarts == 1


def test_an_error_of_the_engine_is_told_and_the_process_goes_on():
    async def test(pool):
        with pytest.raises(UsageError, match="columns"):
            await pool.images(settings(), ROWS[:1, :9])
        return await pool.images(settings(), ROWS[:1]), pool.restarts

    image, restarts = run(test)
    assert image.shape == (1, 32, 32, 3) and restarts == 0


def test_who_gives_up_leaves_no_job_behind():
    async def test(pool):
        await pool.images(settings(), ROWS[:1])
        task = asyncio.create_task(pool.images(settings(64, "standard"), np.tile(ROWS, (20, 1))))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.images(settings(), ROWS[:1], priority=WAITING)
        return len(pool._waiting), len(pool._slots)

    assert run(test) == (0, 0)


def test_the_end_takes_all_processes_with_it():
    async def test(pool):
        task = asyncio.create_task(pool.images(settings(64, "standard"), np.tile(ROWS, (20, 1))))
        await asyncio.sleep(0.05)
        return pool.pids, task

    async def whole():
        async with Renderers(2) as pool:
            pids, task = await test(pool)
        results = await asyncio.gather(task, return_exceptions=True)
        return pids, results

    pids, (result,) = asyncio.run(whole())
    assert isinstance(result, asyncio.CancelledError | RenderError)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
