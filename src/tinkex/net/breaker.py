"""A circuit breaker per route, for those who want failing calls refused early."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import APIConnectionError
from .clock import Clock

__all__ = ["Breaker", "CircuitOpenError"]


class CircuitOpenError(APIConnectionError):
    """A route failed so often that it is left alone for a while."""

    retryable = False


@dataclass(slots=True)
class Breaker:
    """Opens after `failures` in a row; after `rest` seconds lets one probe through at a time."""

    clock: Clock
    name: str
    failures: int = 5
    rest: float = 30.0
    _failed: int = 0
    _opened_at: float | None = None
    _probing: bool = False

    def before(self) -> None:
        """Refuse the call while the circuit is open; a probe is counted before it is sent."""
        if self._opened_at is None:
            return
        waited = self.clock.monotonic() - self._opened_at
        if waited < self.rest or self._probing:
            raise CircuitOpenError(
                message=f"{self.name} failed {self._failed} times in a row; "
                f"it is tried again in {max(self.rest - waited, 0.0):.0f} s"
            )
        self._probing = True

    def after(self, ok: bool | None) -> None:
        """Note how a call ended; None if nothing was learnt from it."""
        self._probing = False
        if ok is None:
            return
        if ok:
            self._failed, self._opened_at = 0, None
            return
        self._failed += 1
        if self._failed >= self.failures:
            self._opened_at = self.clock.monotonic()
