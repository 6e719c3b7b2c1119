"""What ended in one clone of a sampling session, in order, for clients that ask for many at once."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from .tickets import Bell

KEPT = 100_000


class Completions:
    """Events with growing numbers; a cursor is the number of the last event its holder has seen.

    Numbers begin at `start`, which grows with every start of the server, so that a cursor from before a
    restart never lies ahead of what is to come.
    """

    __slots__ = ("_events", "_last", "bell")

    def __init__(self, start: int) -> None:
        self._events: OrderedDict[str, tuple[int, int | None]] = OrderedDict()
        """By id: number and size, in order of their numbers."""
        self._last = start
        self.bell = Bell()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to tell and nobody to tell it to."""
        return not self._events and not len(self.bell)

    def add(self, id: str, size: int | None) -> None:
        """A sample ended; `size` is that of its result, None if it failed."""
        self._last += 1
        self._events.pop(id, None)
        self._events[id] = (self._last, size)
        if len(self._events) > KEPT:
            self._events.popitem(last=False)
        self.bell.ring()

    def forget(self, id: str) -> None:
        """Its result is gone; most likely somebody has asked for it alone and has it."""
        self._events.pop(id, None)

    def after(self, cursor: int) -> tuple[list[tuple[str, int | None]], int]:
        """(id, size) of what ended since a cursor, and the new cursor; what lies before it is forgotten."""
        events = self._events
        for id in [*takewhile(lambda name: events[name][0] <= cursor, events)]:
            del events[id]
        return [(id, size) for id, (_, size) in events.items()], max(self._last, cursor)
