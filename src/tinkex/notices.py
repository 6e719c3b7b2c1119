"""Warnings where users trip: each is given once per process, and each can be switched off.

`TINKEX_WARNINGS=0` or `warnings.filterwarnings("ignore", category=TinkexWarning)` silences them all.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from types import FrameType

__all__ = ["TinkexWarning", "called", "forget_notices", "notice", "silence"]


class TinkexWarning(UserWarning):
    """Something that works but is likely not what was meant."""


_PACKAGE = os.path.dirname(__file__) + os.sep
_OFF = frozenset({"0", "false", "no", "off"})
_given: set[str] = set()
_silenced: set[str] = set()
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def notice(name: str, text: str) -> None:
    """Warn once about one kind of trap, at the line of the program that led here."""
    with _lock:
        switch = os.environ.get("TINKEX_WARNINGS", "").strip().lower()
        if name in _given or name in _silenced or switch in _OFF:
            return
        _given.add(name)
    warnings.warn(f"{text} [{name}]", TinkexWarning, stacklevel=_way_in()[0])


def called() -> str:
    """The name of the function of this package that the program called on its way here."""
    return _way_in()[1]


def _way_in() -> tuple[int, str]:
    """How many callers of this function's caller are inside this package, and the outermost one's name."""
    frame: FrameType | None = sys._getframe(1)
    level, name = 0, ""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, name, frame = level + 1, frame.f_code.co_name, frame.f_back
    return level + 1, name


def silence(*names: str) -> None:
    """Never give these warnings."""
    with _lock:
        _silenced.update(names)


def forget_notices() -> None:
    """Give every warning once more."""
    with _lock:
        _given.clear()
        _silenced.clear()
