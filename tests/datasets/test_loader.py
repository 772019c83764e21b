"""Batches: threads and worker processes that give them, and buffers."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from helpers import fake_dataset as made
from helpers.fake_dataset import same
from helpers.pairs import both_ways, loader_threads
from torch.utils import data

from threedident.datasets import (
    Normal,
    PairLoader,
    PositivePairs,
    ThreeDIdent,
)
from threedident.datasets.loader import Buffers, check_sizes
from threedident.errors import DatasetError, RenderError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


# --- threads, worker processes and DataLoaders


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_give_the_same_batches(dataset, threads):
    for pairs in both_ways(dataset):
        assert len(pairs) == pairs.batches == 300 // 40
        loader = pairs.loader(threads=threads)
        for epoch in range(2):
            found = list(loader)
            assert len(found) == len(loader) == 7
            for number, batch in enumerate(found):
                assert same(batch, pairs.batch(epoch, number))


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_worker_processes_give_the_same_batches(dataset, context, workers, capfd):
    ways = both_ways(dataset, batches=3)
    ways.append(both_ways(dataset, batches=3, index="ivf")[0])
    kept = list(dataset.root.glob("matcher-*.faiss"))
    assert len(kept) == 1
    ways.append(PositivePairs(ThreeDIdent(dataset.root, cache="ram"), None, Normal(0.3), batches=3))
    expected = {epoch: [p.batch(epoch, n) for p in ways for n in range(3)] for epoch in (0, 2, 1)}
    loader = data.DataLoader(
        data.ConcatDataset(ways),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    for epoch, batches in expected.items():
        for pairs in ways:
            pairs.set_epoch(epoch)  # the workers are there already in the second epoch
        for found, batch in zip(loader, batches, strict=True):
            assert same(found, batch)
            assert found[1][0].is_contiguous(memory_format=torch.channels_last)
    assert "Error" not in capfd.readouterr().err


def test_the_epoch_of_items(dataset):
    pairs = both_ways(dataset)[0]
    assert same(pairs[1], pairs.batch(0, 1))
    pairs.set_epoch(5)
    assert same(pairs[-1], pairs.batch(5, 6))
    assert same(pickle.loads(pickle.dumps(pairs))[0], pairs.batch(5, 0))
    for wrong in (7, -8):
        with pytest.raises(IndexError):
            pairs[wrong]


def test_a_loader_that_would_make_batches_of_batches_is_refused(dataset):
    for pairs in both_ways(dataset):
        with pytest.raises(UsageError, match=r"of PositivePairs are whole .*batch_size=None"):
            next(iter(data.DataLoader(pairs, batch_size=32)))
        assert same(next(iter(data.DataLoader(pairs, batch_size=None))), pairs[0])


# --- the loader


class Numbers:
    """A source whose batches are their numbers, ready out of order."""

    def __init__(self, batches=None, broken=None, delay=0.002):
        self.batches, self.broken, self.delay, self.asked = batches, broken, delay, []

    def batch(self, epoch, number):
        self.asked.append(number)
        time.sleep(self.delay * (number % 3))
        if number == self.broken:
            raise RenderError(f"batch {number} is broken")
        return epoch, number


def test_the_loader_gives_batches_in_order_and_goes_on():
    loader = PairLoader(Numbers(9), threads=3, ahead=1)
    assert len(loader) == 9
    assert list(loader) == [(0, n) for n in range(9)]
    assert list(loader) == [(1, n) for n in range(9)]
    loader.epoch, loader.start = 7, 6
    assert list(loader) == [(7, 6), (7, 7), (7, 8)]
    assert list(loader) == [(8, n) for n in range(9)]
    loader.start = 9
    assert list(loader) == []
    assert loader.epoch == 10
    assert not loader_threads()


def test_a_source_without_end():
    loader = PairLoader(Numbers(), threads=2)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    assert list(itertools.islice(loader, 20)) == [(0, n) for n in range(20)]


def test_no_more_is_prepared_than_asked_for():
    source = Numbers(100, delay=0)
    for batch in PairLoader(source, threads=2, ahead=3):
        if batch == (0, 4):
            time.sleep(0.2)  # time for as many as there are
            break
    assert 4 < max(source.asked) <= 4 + 2 + 3


def test_breaking_off_leaves_no_thread():
    loader = PairLoader(Numbers(), threads=2, ahead=3)
    for batch in loader:
        if batch == (0, 4):
            break
    assert not loader_threads()
    assert next(iter(loader)) == (1, 0)
    iterator = iter(loader)
    next(iterator)
    assert loader_threads()
    del iterator
    assert not loader_threads()
    iter(loader)
    assert loader.epoch == 4
    assert not loader_threads()  # nothing starts before the first batch


def test_an_error_in_a_batch_surfaces_once():
    source = Numbers(20, broken=5)
    loader = PairLoader(source)
    iterator, found = iter(loader), []
    with pytest.raises(RenderError, match="batch 5 is broken"):
        for batch in iterator:
            found.append(batch)
    assert found == [(0, n) for n in range(5)]
    assert not loader_threads()
    assert list(iterator) == []
    source.broken = None
    assert len(list(loader)) == 20


def test_an_unreadable_image_surfaces(tmp_path):
    made.make(tmp_path / "d", 120)
    pairs = PositivePairs(tmp_path / "d", None, Normal(0.3), batch_size=50, batches=5)
    (tmp_path / "d/shard-00000100-00020.h5").unlink()
    with pytest.raises(DatasetError, match=r"shard-00000100-00020\.h5"):
        list(pairs.loader())
    assert not loader_threads()


@pytest.mark.parametrize("options", [{"threads": 0}, {"ahead": -1}])
def test_loader_options_that_do_not_fit(options):
    with pytest.raises(UsageError, match="threads >= 1 and ahead >= 0"):
        PairLoader(Numbers(), **options)


# --- buffers


HOLD = {
    "itself": lambda t: t,
    "slice": lambda t: t[1:2, 3:],
    "view": lambda t: t.view(-1),
    "permuted": lambda t: t.permute(0, 3, 1, 2)[2:],
    "detached": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "numpy slice": lambda t: t.numpy()[1:, ::2],
    "numpy view": lambda t: t.numpy().view(np.int8).reshape(-1)[5:],
    "memoryview": lambda t: memoryview(t.numpy()),
    "dlpack": np.from_dlpack,
    "through numpy": lambda t: torch.from_numpy(t.numpy()[2:]),
    "frombuffer": lambda t: torch.frombuffer(t.numpy(), dtype=torch.uint8),
    "storage": lambda t: t.untyped_storage(),
    "closure": lambda t: lambda: t,
}


@pytest.mark.parametrize("way", HOLD)
def test_a_buffer_is_not_used_again_while_somebody_holds_it(way):
    buffers = Buffers()
    shape = (4, 6, 6, 3)
    taken = buffers.take(shape)
    assert taken.shape == shape
    assert taken.dtype == torch.uint8
    assert taken.is_contiguous()
    before = taken.data_ptr()
    held = HOLD[way](taken)
    del taken
    others = [buffers.take(shape) for _ in range(3)]
    assert before not in [other.data_ptr() for other in others]
    del held
    gc.collect()
    assert buffers.take(shape).data_ptr() == before


def test_buffers_of_other_shapes_are_others():
    buffers = Buffers()
    first = buffers.take((2, 4))
    place = first.data_ptr()
    del first
    assert buffers.take((4, 2)).shape == (4, 2)
    assert buffers.take((2, 4)).data_ptr() == place


def test_what_is_kept_of_many_buffers():
    buffers = Buffers()
    many = [buffers.take((10,)) for _ in range(50)]
    del many
    assert sum(map(len, buffers._free.values())) == 8
    assert pickle.loads(pickle.dumps(buffers)).take((10,)).shape == (10,)


def test_a_batch_that_the_garbage_collector_lets_go_in_the_middle_of_taking_one():
    buffers = Buffers()
    held = [buffers.take((10,))]

    class Collecting(dict):
        def setdefault(self, key, default):
            held.clear()  # as a cycle through a batch is, at any allocation
            return super().setdefault(key, default)

    buffers._free = Collecting(buffers._free)
    thread = threading.Thread(target=buffers.take, args=((10,),), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_pinned_memory_needs_a_gpu(dataset):
    with pytest.raises(UsageError, match="pin_memory is for a GPU, and torch finds none"):
        both_ways(dataset, pin_memory=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_pinned_memory_is_not_used_again_before_it_is_copied(dataset):
    pairs = both_ways(dataset, pin_memory=True, batches=20)[0]
    copies = []
    for batch in pairs.loader():
        assert batch[1][0].is_pinned()
        torch.cuda._sleep(10**7)  # the copy waits for this
        copies.append((batch[0][0], batch[1][0].to("cuda", non_blocking=True)))
        del batch
    for z, x in copies:
        assert np.array_equal(x.cpu().permute(0, 2, 3, 1), dataset.truth.pixels[dataset.rows(z)])


def test_batches_that_are_held_stay_as_they_are(dataset):
    """And memory that nobody holds is used again."""
    for pairs in both_ways(dataset, batches=30):
        random = np.random.default_rng(0)
        held, places = [], set()
        for batch in pairs.loader(threads=3):
            places.add(batch[1][0].data_ptr())
            if random.random() < 0.3:  # now of x, now of x~, now a part
                which = int(random.integers(2))
                held.append((batch[0][which][5:], batch[1][which][5:]))
            if random.random() < 0.15 and held:
                held.pop(0)
            del batch
            for z, x in held:
                assert np.array_equal(x.permute(0, 2, 3, 1), dataset.truth.pixels[dataset.rows(z)])
        assert held
        pairs.batch(0, 0)
        del held
        places.clear()
        for batch in pairs.loader(threads=1, ahead=0):
            places.add(batch[1][0].data_ptr())
            del batch
        assert len(places) <= 8


# --- a batch


def test_a_batch_unpacks_and_has_names(dataset):
    batch = PositivePairs(dataset.root, conditional=Normal(0.3), batch_size=4).batch(0, 0)
    (z, _), (x, _) = batch
    assert z is batch.latents[0] is batch[0][0]
    assert x is batch.observations[0]
    assert pickle.loads(pickle.dumps(batch)).latents[0].equal(z)


@pytest.mark.parametrize("size", [64.0, "64", None, True])
def test_sizes_that_are_no_whole_numbers_are_refused(size):
    with pytest.raises(UsageError, match=f"batch_size must be a whole number, found {size!r}"):
        check_sizes(size, None)
    if size is not None:
        with pytest.raises(UsageError, match="batches must be a whole number"):
            check_sizes(4, size)
    check_sizes(np.int64(4), None)
