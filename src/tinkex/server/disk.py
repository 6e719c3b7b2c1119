"""Room on the disk, and what happens while it cannot be written: work waits and says why.

New files are refused before there is no room left for what is under way.
"""

from __future__ import annotations

import errno
import shutil

from .options import ServerOptions
from .problems import Problem
from .store import StoreFailed

__all__ = ["DISK_ERRORS", "LEAST_FREE", "Trouble", "check_room", "disk_problem", "short_of_room"]

LEAST_FREE = 256 << 20
"""Bytes that are kept free, unless told otherwise; on larger disks a hundredth, up to `MOST_KEPT`."""
MOST_KEPT = 4 << 30
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG})
"""What a full, failing or locked disk says; all of them may pass."""


def short_of_room(options: ServerOptions) -> str:
    """Why nothing large may be written now, for people; empty: it may."""
    try:
        usage = shutil.disk_usage(options.state)
    except OSError as problem:
        return f"the server's disk does not answer: {problem.strerror}"
    least = options.min_free_bytes
    if least is None:
        least = max(LEAST_FREE, min(usage.total // 100, MOST_KEPT))
    if usage.free >= least:
        return ""
    return f"the server's disk is all but full: {usage.free} bytes are free, {least} are kept"


def check_room(options: ServerOptions) -> None:
    """Refuse to write more where the disk is all but full."""
    short = short_of_room(options)
    if short:
        text = f"{short}; delete checkpoints, or make room and try again"
        raise Problem(503, text, headers={"retry-after": "30"})


def disk_problem(error: Exception) -> Problem | None:
    """What to tell a client whose request the disk stood in the way of; None: it was not the disk."""
    if isinstance(error, StoreFailed) and error.again:
        return Problem(503, f"{error}; try again later", headers={"retry-after": "5"})
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        text = f"the server's disk cannot be used: {error.strerror}; try again later"
        return Problem(503, text, headers={"retry-after": "30"})
    return None


class Trouble:
    """What keeps a server from writing now, by place, for people."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def begins(self, place: str, text: str) -> None:
        """Something there cannot be written."""
        self._texts[place] = text

    def ends(self, place: str) -> None:
        """It can."""
        self._texts.pop(place, None)

    def at(self, place: str) -> str:
        """Why work waits there; empty: it does not."""
        return self._texts.get(place, "")

    @property
    def text(self) -> str:
        """Why work waits; empty: nothing is wrong."""
        return "; ".join(dict.fromkeys(self._texts.values()))
