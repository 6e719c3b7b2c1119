"""The lock held by those who use a server that is there for them alone."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from .listening import CannotStart

__all__ = ["Users"]

EVERY = 0.25
"""Seconds between two looks."""


class Users:
    """A file that every user of the server holds locked, shared with the others.

    The system lets go of a lock with the process that holds it, however that ends. Once nobody holds it the
    server does, until the very end: whoever comes then waits, and starts the next one.
    """

    def __init__(self, path: Path) -> None:
        if sys.platform == "win32":
            raise CannotStart("--while-locked: this system has no locks that can be shared")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as problem:
            raise CannotStart(f"--while-locked {path}: {problem.strerror}") from None

    async def gone(self) -> None:
        """Wait until nobody holds the lock."""
        while not self._alone():  # noqa: ASYNC110 - the system tells nobody
            await asyncio.sleep(EVERY)

    def _alone(self) -> bool:
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
