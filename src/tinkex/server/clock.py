"""Time, injected so that tests need not wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where seconds, dates and waits come from."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""

    def time(self) -> float:
        """Seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call back on the running loop after so long; the answer calls it off."""


class SystemClock:
    """The real thing."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call back on the running loop after so long; the answer calls it off."""
        return asyncio.get_running_loop().call_later(seconds, action).cancel
