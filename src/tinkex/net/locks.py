"""Locks that are free in the child of a fork, whichever thread of the parent held them."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["new_lock"]

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> AbstractContextManager[bool]:
    """A lock its own holder may take again, as finalizers do when they interrupt that very thread."""
    lock = threading.RLock()
    _made.add(lock)
    return lock


def _after_fork() -> None:
    for lock in list(_made):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
