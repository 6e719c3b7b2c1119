"""A line per model: operations are sent in the order in which they were called.

A place is taken in the caller's thread at call time.  Whoever leaves — sent, failed, rejected,
cancelled, timed out — lets the next one go; a number on the wire is given only when sending begins,
so an operation that never gets that far leaves no hole.  One that got that far is sent to the end,
whatever becomes of its owner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..net.locks import new_lock
from .portal import portal

__all__ = ["Line", "Turn"]

T = TypeVar("T")


class Turn:
    """A place in a line."""

    __slots__ = ("_leaving", "_left", "_line", "_sending", "_waiter")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._left = self._leaving = self._sending = False

    async def come_up(self) -> None:
        """Wait until everyone before has left."""
        loop = asyncio.get_running_loop()
        with self._line._lock:
            if self._line._first() is self:
                return
            waiter = loop.create_future()
            self._waiter = (loop, waiter)
        await waiter

    async def unbroken(self, work: Coroutine[Any, Any, T], drop: Callable[[T], None]) -> T:
        """Send; if this wait is cancelled, sending goes on and `drop` gets what it brings."""
        task = asyncio.get_running_loop().create_task(work)
        self._sending = True
        task.add_done_callback(self._sent)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: None if _failed(done) else drop(done.result()))
            raise

    def _sent(self, _: object) -> None:
        with self._line._lock:
            self._sending = False
        if self._leaving:
            self.leave()

    def leave(self) -> None:
        """Give up the place, as soon as nothing is being sent from it; again is harmless."""
        with self._line._lock:
            self._leaving = True
            if self._left or self._sending:
                return
            self._left = True
            upcoming = self._line._first()
            woken = upcoming._waiter if upcoming is not None else None
        if woken is not None:
            loop, waiter = woken
            with contextlib.suppress(RuntimeError):  # the loop is gone, and the waiter with it
                loop.call_soon_threadsafe(_wake, waiter)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Line:
    """The places of one model's operations, in order."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._turns: deque[Turn] = deque()
        self._numbers = 0
        self._generation = portal().generation

    def enter(self) -> Turn:
        """Take the last place."""
        turn = Turn(self)
        with self._lock:
            if self._generation != portal().generation:
                self._generation = portal().generation
                self._turns.clear()  # after a fork: they are the parent's, and leave there
            self._turns.append(turn)
        return turn

    def numbers(self, count: int = 1) -> list[int]:
        """The next numbers on the wire, from 1; only whoever is first in line may ask."""
        first = self._numbers + 1
        self._numbers += count
        return list(range(first, first + count))

    def __len__(self) -> int:
        with self._lock:
            self._first()
            return len(self._turns)

    def _first(self) -> Turn | None:
        while self._turns and self._turns[0]._left:
            self._turns.popleft()
        return self._turns[0] if self._turns else None
