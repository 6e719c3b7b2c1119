"""Waiting on an injected clock: callbacks after a while, and work that must end in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..net.clock import Clock, SystemClock

__all__ = ["Timer", "pause", "start_timer", "within"]

T = TypeVar("T")


class Timer:
    """Something that will happen, and can be called off."""

    __slots__ = ("_cancel",)

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Call it off."""
        self._cancel()


async def pause(clock: Clock, seconds: float) -> None:
    """Wait on a clock without leaving a trace in a fake clock's list of sleeps."""
    wait = getattr(clock, "wait", clock.sleep)
    await wait(seconds)


def start_timer(clock: Clock, seconds: float, action: Callable[[], object]) -> Timer:
    """Call `action` on the running loop after that many of the clock's seconds."""
    loop = asyncio.get_running_loop()
    if isinstance(clock, SystemClock):
        return Timer(loop.call_later(seconds, action).cancel)

    async def run() -> None:
        await pause(clock, seconds)
        action()

    return Timer(loop.create_task(run()).cancel)


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or `TimeoutError` if the clock runs out first; the work is then dropped."""
    task = asyncio.ensure_future(work)
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = start_timer(clock, seconds, expire)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if expired and not (current is not None and current.cancelling()):
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
