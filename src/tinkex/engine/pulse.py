"""Tells a server, from a thread of its own, what an engine is at and how far it has come.

A pulse is sent when it says something new: an engine that waits for work, or hangs, is silent. What silence
means is the server's to decide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .host import Loop
from .messages import Pulse


class Heart:
    """Sends pulses until it is stopped or nobody is there to hear them."""

    def __init__(self, epoch: int, seconds: float, send: Callable[[Pulse], None]) -> None:
        self._epoch, self._seconds, self._send = epoch, seconds, send
        self._loop: Loop | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tinkex-pulse", daemon=True)

    def start(self) -> None:
        """Begin: the engine is being loaded."""
        self._thread.start()

    def watch(self, loop: Loop) -> None:
        """The engine is loaded, and this loop works it."""
        self._loop = loop

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()

    def now(self) -> Pulse:
        """What the engine is at."""
        loop = self._loop
        if loop is None:
            return Pulse(self._epoch, "loading the model", 0, 0, True)
        return Pulse(self._epoch, loop.doing, loop.steps, loop.taken, loop.busy)

    def _beat(self) -> None:
        last: Pulse | None = None
        while not self._stopped.wait(self._seconds):
            pulse = self.now()
            if pulse != last:
                try:
                    self._send(pulse)
                except OSError:  # the server is gone, and the engine's own thread sees it too
                    return
                last = pulse
