"""Moments at which a test can have a process killed: `reach` names one.

With TINKEX_KILL_AT unset, as it is outside tests, `reach` compares with None and returns. Set, it is the
path of a file; a process that reaches the moment whose name is in that file removes the file, so that it
happens once, and dies as by `kill -9`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "TINKEX_KILL_AT"
_ORDER = os.environ.get(VARIABLE)


def reach(name: str) -> None:
    """Die here if a test has ordered it."""
    if _ORDER is not None:
        _obey(Path(_ORDER), name)


def _obey(order: Path, name: str) -> None:
    try:
        if order.read_text() != name:
            return
        order.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
