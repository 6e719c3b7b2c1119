"""Time, injected so that tests need not wait for it."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)
SMALL = 10.0
"""Seconds by which a date may be corrected at once."""
TRUSTED_AFTER = 900.0
"""Seconds a date that has jumped must stay before it is believed."""


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


def _since_boot() -> float:
    """Seconds since the machine started, those it slept among them where the system counts them."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SystemClock:
    """The real thing, but for a date that jumps: that is believed only when it has stayed.

    A date set wrong and put right again would else expire what has hours to live.
    """

    def __init__(
        self, date: Callable[[], float] = time.time, steady: Callable[[], float] = _since_boot
    ) -> None:
        self._date, self._steady = date, steady
        self._offset = date() - steady()
        """From the seconds since the machine's start to the date that is believed."""
        self._doubted: tuple[float, float] | None = None
        """Another offset that the system has, and since when."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        now = self._steady()
        offset = self._date() - now
        jump = offset - self._offset
        if abs(jump) <= SMALL:
            self._offset, self._doubted = offset, None
        elif self._doubted is None or abs(offset - self._doubted[0]) > SMALL:
            self._doubted = (offset, now)
            log.warning(
                "the system's date has jumped by %.0f s; it counts here if it stays for %.0f s",
                jump,
                TRUSTED_AFTER,
            )
        elif now - self._doubted[1] >= TRUSTED_AFTER:
            self._offset, self._doubted = offset, None
            log.warning("the system's date has jumped by %.0f s and stayed: it counts from now on", jump)
        return now + self._offset

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call back on the running loop after so long; the answer calls it off."""
        return asyncio.get_running_loop().call_later(seconds, action).cancel
