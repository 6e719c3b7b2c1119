"""Whether a server's queue moves, under the names the official SDK has for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

__all__ = ["QueueState", "QueueStateObserver", "queue_state"]


class QueueState(Enum):
    """Whether work is being done, and if not, why."""

    ACTIVE = "active"
    PAUSED_RATE_LIMIT = "paused_rate_limit"
    PAUSED_CAPACITY = "paused_capacity"
    UNKNOWN = "unknown"


class QueueStateObserver(ABC):
    """Somebody who is told when a queue state changes."""

    @abstractmethod
    def on_queue_state_change(self, queue_state: QueueState, queue_state_reason: str | None) -> None:
        """The state is another one now; the reason is the server's, if it gave one."""


def queue_state(text: str) -> QueueState:
    """A server's word for a state; one of its own is unknown here."""
    return next((state for state in QueueState if state.value == text), QueueState.UNKNOWN)
