"""One change at a time for each owner, where a row is read and written back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

__all__ = ["Turns"]


class Turns:
    """A lock for each name, there for as long as somebody holds or wants it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: str) -> asyncio.Lock:
        """The lock of this name; `async with` it."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    @asynccontextmanager
    async def all_of(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of all these names; always in the same order, so that nobody waits in a circle."""
        async with AsyncExitStack() as held:
            for name in sorted(set(names)):
                await held.enter_async_context(self.of(name))
            yield
