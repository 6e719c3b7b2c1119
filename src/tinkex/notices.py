"""Warnings where users trip: each is given once per process, and each can be switched off.

`TINKEX_WARNINGS=0` or `warnings.filterwarnings("ignore", category=TinkexWarning)` silences them all.
"""

from __future__ import annotations

import os
import threading
import warnings

__all__ = ["TinkexWarning", "forget_notices", "notice", "silence"]


class TinkexWarning(UserWarning):
    """Something that works but is likely not what was meant."""


_OFF = frozenset({"0", "false", "no", "off"})
_given: set[str] = set()
_silenced: set[str] = set()
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def notice(name: str, text: str, *, stacklevel: int = 4) -> None:
    """Warn once about one kind of trap."""
    with _lock:
        switch = os.environ.get("TINKEX_WARNINGS", "").strip().lower()
        if name in _given or name in _silenced or switch in _OFF:
            return
        _given.add(name)
    warnings.warn(f"{text} [{name}]", TinkexWarning, stacklevel=stacklevel)


def silence(*names: str) -> None:
    """Never give these warnings."""
    with _lock:
        _silenced.update(names)


def forget_notices() -> None:
    """Give every warning once more."""
    with _lock:
        _given.clear()
        _silenced.clear()
