"""Time and chance, injected so that tests need neither."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where seconds, dates, waits and random numbers come from."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""

    def now(self) -> datetime:
        """The date and time, in UTC."""

    def random(self) -> float:
        """A number from 0 up to 1, for jitter."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""


class SystemClock:
    """The real thing."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def now(self) -> datetime:
        """The date and time, in UTC."""
        return datetime.now(UTC)

    def random(self) -> float:
        """A number from 0 up to 1, for jitter."""
        return random.random()  # noqa: S311 - jitter needs no secrecy

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        await asyncio.sleep(seconds)
