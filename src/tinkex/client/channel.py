"""Items from the background loop to whoever reads them: a thread that blocks or a task that waits.

It holds a bounded number of items; when they are not read, the writer waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Generic, TypeVar

from ..errors import ClientClosedError
from ..notices import notice
from .loops import blocks_a_loop
from .portal import portal

__all__ = ["Channel", "warn_if_in_loop"]

T = TypeVar("T")


class Channel(Generic[T]):
    """A bounded line of items with one writer, on the background loop, and readers anywhere."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: deque[T] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._readers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._writer: asyncio.Future[None] | None = None
        self._generation = portal().generation

    # ---- the writer, on the background loop

    async def put(self, item: T) -> None:
        """Add an item; waits while there is no room."""
        while True:
            with self._changed:
                if self._ended:
                    return
                if len(self._items) < self._room:
                    self._items.append(item)
                    self._wake_readers()
                    return
                free = self._writer = asyncio.get_running_loop().create_future()
            await free

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more will come; readers get `error` after the last item."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._wake_readers()

    # ---- readers, in any thread

    def get(self) -> T:
        """Take the next item, blocking until there is one; `EOFError` after the last."""
        self._check_process()
        with self._changed:
            while not self._ready():
                self._changed.wait()
            return self._take()

    async def get_async(self) -> T:
        """Take the next item, waiting until there is one; `EOFError` after the last."""
        self._check_process()
        while True:
            with self._changed:
                if self._ready():
                    return self._take()
                loop = asyncio.get_running_loop()
                reader = (loop, loop.create_future())
                self._readers.append(reader)
            try:
                await reader[1]
            finally:
                with self._changed, contextlib.suppress(ValueError):
                    self._readers.remove(reader)

    def _check_process(self) -> None:
        if self._generation != portal().generation:
            raise ClientClosedError("this was begun before a fork; what comes is the parent's")

    def ready(self) -> bool:
        """Whether taking the next item would not block."""
        if self._generation != portal().generation:
            return True  # to an error
        with self._changed:
            return self._ready()

    def close(self) -> None:
        """Read no more: what is held is dropped, the writer's items too from now on."""
        if self._generation != portal().generation:
            return  # it is the parent's, one of whose threads may have held the lock at the fork
        with self._changed:
            self._items.clear()
            self._ended, self._error = True, None
            self._wake_readers()
            self._wake_writer()

    # ---- inside, with the lock held

    def _ready(self) -> bool:
        return bool(self._items) or self._ended

    def _take(self) -> T:
        if self._items:
            item = self._items.popleft()
            # Woken when half is free: one wake-up for many items.
            if self._writer is not None and len(self._items) <= self._room // 2:
                self._wake_writer()
            return item
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise EOFError

    def _wake_readers(self) -> None:
        self._changed.notify_all()
        readers, self._readers = self._readers, []
        for loop, reader in readers:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_set, reader)

    def _wake_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(ClientClosedError):
                portal().call(lambda: _set(writer))


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def warn_if_in_loop(instead: str) -> None:
    """Tell a user who is about to block a running event loop what to write instead."""
    if blocks_a_loop():
        notice(
            "blocking-call", f"this loop waits inside a running event loop and blocks it; use {instead}."
        )
