"""Noticing that nothing moves: how long nothing may come back before it is called stuck.

This module knows neither requests nor servers, only who waits since when, and what was heard last.
"""

from __future__ import annotations

import math
from typing import Self

from ..errors import StuckError
from ..net.clock import Clock
from .future import Progress

__all__ = ["Patience", "Waiting"]


class Patience:
    """The patience with one model's or one sampler's work; any result of it starts the count anew."""

    def __init__(
        self, clock: Clock, about: str, seconds: float | None, setting: str = "stuck_seconds"
    ) -> None:
        self.seconds = seconds  # None: without end
        self._clock, self._about, self._setting = clock, about, setting
        self._moved_at = 0.0
        self._heard: tuple[float, str] | None = None
        self._waiting: dict[int, Waiting] = {}  # the oldest first

    def waiting(self, name: str, progress: Progress, request_id: str | None = None) -> Waiting:
        """Somebody who waits, in a `with` block."""
        return Waiting(self, name, progress, request_id)

    def _begin(self, one: Waiting) -> None:
        one.since = self._clock.monotonic()
        if not self._waiting:
            self._moved_at = one.since
        self._waiting[id(one)] = one

    def _end(self, one: Waiting) -> None:
        del self._waiting[id(one)]

    def moved(self) -> None:
        """A result came back, or a part of one."""
        self._moved_at = self._clock.monotonic()

    def heard(self, answer: str) -> None:
        """The server said something that is no result."""
        self._heard = (self._clock.monotonic(), answer)

    def _left(self, one: Waiting) -> float:
        if self.seconds is None:
            return math.inf
        return max(self._moved_at, one.since) + self.seconds - self._clock.monotonic()

    def _error(self, one: Waiting) -> StuckError:
        now = self._clock.monotonic()
        quiet = now - max(self._moved_at, one.since)
        oldest = next(iter(self._waiting.values()), one)
        state = f"; queue {one.progress.queue_state}" if one.progress.queue_state else ""
        reason = f" ({one.progress.queue_reason})" if one.progress.queue_reason else ""
        last = "none" if self._heard is None else f"{self._heard[1]}, {now - self._heard[0]:.0f} s ago"
        error = StuckError(
            message=f"Nothing of {self._about} has come back for {quiet:.0f} s "
            f"({self._setting}={self.seconds:g}). Waiting for {one}{state}{reason}; "
            f"the oldest of {len(self._waiting)}: {oldest}, {now - oldest.since:.0f} s old; "
            f"last answer: {last}. Requests appear to be stuck."
        )
        error.request_id = one.request_id
        return error


class Waiting:
    """Somebody who waits for one result, inside a `with` block."""

    name: str
    progress: Progress
    request_id: str | None
    since: float

    __slots__ = ("_patience", "name", "progress", "request_id", "since")

    def __init__(self, patience: Patience, name: str, progress: Progress, request_id: str | None) -> None:
        self._patience, self.name, self.progress = patience, name, progress
        self.request_id, self.since = request_id, 0.0

    def __enter__(self) -> Self:
        self._patience._begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._patience._end(self)

    def __str__(self) -> str:
        return f"{self.name} {self.request_id or '(not accepted yet)'}"

    def remaining(self) -> float:
        """Seconds of patience left, or less than none."""
        return self._patience._left(self)

    def left(self) -> float:
        """Seconds of patience left; raises when it is over."""
        left = self.remaining()
        if left <= 0:
            raise self._patience._error(self)
        return left
