"""Memory for large bodies, used again and again.

A fresh buffer of megabytes costs more in page faults than in copying, so buffers that are no longer
needed are kept for the next body.
"""

from __future__ import annotations

import os
import threading

__all__ = ["BufferPool"]

_SMALLEST = 64 * 1024


class BufferPool:
    """Buffers of sizes rounded up to powers of two; at most `most_bytes` are kept idle."""

    def __init__(self, most_bytes: int = 64 * 2**20) -> None:
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):  # a thread of the parent may hold it
            os.register_at_fork(after_in_child=self._lock._at_fork_reinit)  # type: ignore[attr-defined]
        self._idle: dict[int, list[bytearray]] = {}
        self._left = most_bytes

    def take(self, size: int) -> bytearray:
        """A buffer of at least this size; what is in it is not cleared."""
        room = max(1 << max(size - 1, 0).bit_length(), _SMALLEST)
        with self._lock:
            idle = self._idle.get(room)
            if idle:
                self._left += room
                return idle.pop()
        return bytearray(room)

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back that nobody reads any more."""
        with self._lock:
            if len(buffer) <= self._left:
                self._left -= len(buffer)
                self._idle.setdefault(len(buffer), []).append(buffer)
