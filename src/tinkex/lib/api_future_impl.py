"""Queue states, under the official SDK's module path."""

from __future__ import annotations

from ..client.queue_state import QueueState, QueueStateObserver

__all__ = ["QueueState", "QueueStateObserver"]
