"""`Latest`: work in a thread, one piece at a time, where the last request of a slot wins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import TypeVar

import anyio
import anyio.to_thread

from threedident.explore.renderers import Superseded

T = TypeVar("T")


class Latest:
    """A queue of work for one thread; what a newer request of its slot has overtaken is not done.

    It is used from one event loop; the work runs beside it.
    """

    def __init__(self) -> None:
        self._limit = anyio.CapacityLimiter(1)
        self._numbers = itertools.count()
        self._newest: dict[Hashable, int] = {}  # of the slots that wait or work

    async def run(self, work: Callable[[], T], slot: Hashable | None = None) -> T:
        """Do work in a thread, after all that was asked for before.

        Args:
            work: the work.
            slot: the place on the page that it is for; None: it is done in any case.

        Raises:
            Superseded: a newer request of the same slot has come before it began.
        """
        number = next(self._numbers)
        if slot is not None:
            self._newest[slot] = number
        try:
            async with self._limit:
                if slot is not None and self._newest.get(slot) != number:
                    raise Superseded("a newer request has taken its place")
                return await anyio.to_thread.run_sync(work)
        finally:
            if slot is not None and self._newest.get(slot) == number:
                del self._newest[slot]
