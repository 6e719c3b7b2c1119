"""Limits on what is under way: first come, first served, shared by everyone with the same key.

Objects here belong to one event loop's thread; waiting creates futures on the running loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .clock import Clock

__all__ = ["Gate", "Throttle"]


class _Line:
    """Waiters in order of arrival."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def __len__(self) -> int:
        # Other threads may ask: a copy is taken in one step.
        return sum(not future.done() for future, _ in list(self._waiting))

    def head(self) -> int | None:
        """What the first waiter needs."""
        while self._waiting and self._waiting[0][0].done():
            self._waiting.popleft()
        return self._waiting[0][1] if self._waiting else None

    def join(self, need: int, *, first: bool = False) -> asyncio.Future[None]:
        """Stand at the end, or before all others."""
        future = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft((future, need))
        else:
            self._waiting.append((future, need))
        return future

    def call(self) -> None:
        """Let the first waiter go."""
        self._waiting.popleft()[0].set_result(None)


class Gate:
    """At most `capacity` units inside at once; something larger goes in alone."""

    def __init__(self, capacity: int) -> None:
        self.capacity: int = max(capacity, 1)
        self.inside: int = 0
        self._line = _Line()

    @asynccontextmanager
    async def hold(self, units: int = 1) -> AsyncIterator[None]:
        """Wait for room, and give it back at the end."""
        units = min(max(units, 0), self.capacity)
        await self._enter(units)
        try:
            yield
        finally:
            self.inside -= units
            self._admit()

    async def _enter(self, units: int) -> None:
        if self._line.head() is None and self._fits(units):
            self.inside += units
            return
        ticket = self._line.join(units)
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                # The room was granted in the same moment: pass it on.
                self.inside -= units
            self._admit()
            raise

    def _fits(self, units: int) -> bool:
        # Alone in any case: the capacity may have shrunk since the units were counted.
        return self.inside == 0 or self.inside + units <= self.capacity

    def _admit(self) -> None:
        while (need := self._line.head()) is not None and self._fits(need):
            self.inside += need
            self._line.call()

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._line)

    def __repr__(self) -> str:
        return f"Gate(inside={self.inside}, capacity={self.capacity}, waiting={len(self._line)})"


class Throttle:
    """Concurrency that grows while all goes well and halves when the server says it is too much.

    After a refusal nobody starts before the delay the server asked for; a longer delay is never
    shortened by a later, shorter one, nor by a success elsewhere.
    """

    def __init__(self, clock: Clock, *, start: int = 64, most: int = 400) -> None:
        self._clock = clock
        self.limit: float = float(start)
        self.most = most
        self.inside: int = 0
        self.paused_until: float = 0.0
        self._halved_at = float("-inf")
        self._line = _Line()
        self._timer: asyncio.Task[None] | None = None

    async def enter(self, *, again: bool = False) -> None:
        """Wait for a place; whoever comes `again` goes before those who did not have one yet."""
        if (again or self._line.head() is None) and self._open():
            self.inside += 1
            return
        ticket = self._line.join(1, first=again)
        self._watch()
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self.inside -= 1
            self._admit()
            raise

    def leave(self, *, accepted: bool) -> None:
        """Give the place back; `accepted` means that the server took the request."""
        self.inside -= 1
        if accepted:
            self.limit = min(self.limit + 1.0 / max(self.limit, 1.0), float(self.most))
        self._admit()

    def slow_down(self, delay: float) -> None:
        """The server refused for load: halve the concurrency and pause everyone."""
        now = self._clock.monotonic()
        # Refusals of requests that were under way together count once.
        if now - self._halved_at > min(max(delay, 0.5), 1.0) * 0.5:
            self.limit = max(self.limit / 2.0, 1.0)
            self._halved_at = now
        self.paused_until = max(self.paused_until, now + delay)
        self._watch()

    def _open(self) -> bool:
        return self.inside < int(self.limit) and self._clock.monotonic() >= self.paused_until

    def _admit(self) -> None:
        while self._line.head() is not None and self._open():
            self.inside += 1
            self._line.call()
        self._watch()

    def _watch(self) -> None:
        """Make sure that someone wakes the line when the pause is over."""
        if self._line.head() is None or self._timer is not None:
            return
        if self._clock.monotonic() < self.paused_until:
            self._timer = asyncio.get_running_loop().create_task(self._wake())

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._line)

    async def _wake(self) -> None:
        try:
            while (left := self.paused_until - self._clock.monotonic()) > 0:
                await self._clock.sleep(left)
        finally:
            self._timer = None
        self._admit()

    def __repr__(self) -> str:
        return f"Throttle(inside={self.inside}, limit={self.limit:.1f}, waiting={len(self._line)})"
