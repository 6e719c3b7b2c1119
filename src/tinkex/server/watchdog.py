"""Sees that an engine at work goes on: one that shows no progress for too long is to be killed.

Progress is whatever the engine says that is new: an answer, or a pulse with more steps done, more messages
taken in or something else to do. An engine that waits for work may be silent for ever. Time is counted in
looks, not by the clock, so that time in which this process did not run itself (it was stopped, the machine
slept) is not held against the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from ..engine.messages import Pulse
from .clock import Clock

FIRST_STEPS = 20
"""Steps during which kernels may still be compiled: they are waited for as long as loading is."""
LOOKS = 10
"""How often an engine is looked at in the time it has."""


class Watchdog:
    """Watches one engine at a time; `hung` is called once, with the reason."""

    def __init__(self, clock: Clock, stall: float, loading: float, hung: Callable[[str], None]) -> None:
        self._clock, self._stall, self._loading, self._hung = clock, stall, loading, hung
        self._call_off: Callable[[], None] = lambda: None
        self._sent = 0
        self._quiet = 0.0
        self._pulse: Pulse | None = None

    def begin(self) -> None:
        """An engine is being started."""
        self.end()
        self._sent, self._pulse = 0, None
        self._look_later()

    def end(self) -> None:
        """It has been closed or has died."""
        self._call_off()
        self._quiet = 0.0

    def told(self) -> None:
        """It was sent a message."""
        self._sent += 1

    def answered(self) -> None:
        """It has answered something."""
        self._quiet = 0.0

    def beat(self, pulse: Pulse) -> None:
        """It said what it is at."""
        if pulse != self._pulse:
            self._pulse, self._quiet = pulse, 0.0

    @property
    def _at_work(self) -> bool:
        pulse = self._pulse
        return pulse is None or pulse.busy or self._sent > pulse.taken

    @property
    def _allowed(self) -> float:
        first = self._pulse is None or self._pulse.steps < FIRST_STEPS
        return max(self._stall, self._loading) if first else self._stall

    def _look_later(self) -> None:
        self._call_off = self._clock.call_later(self._stall / LOOKS, self._look)

    def _look(self) -> None:
        self._quiet = self._quiet + self._stall / LOOKS if self._at_work else 0.0
        if self._quiet < self._allowed:
            self._look_later()
            return
        doing = self._pulse.doing if self._pulse is not None else ""
        what = f" ({doing})" if doing else ""
        self._hung(f"it was at work{what} and made no progress for {self._quiet:.0f} s")
