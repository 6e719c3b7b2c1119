"""The ids of samples whose results clients still wait for, in a file that outlives the server's process.

Samples live in memory: after a restart all that is left of them is here, so that clients are told to ask
again. A line survives a killed process at once, and a power cut, where that is asked for, once it is on the
disk: that is waited for once for all samples that come meanwhile, while they are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ..engine.durable import sync

log = logging.getLogger(__name__)

MOST = 100_000
"""Ids kept; beyond it the oldest go."""
_SPARE = 10_000
"""Lines that are not needed any more before the file is written anew."""


class SampleJournal:
    """Ids that were added and not removed, in order."""

    def __init__(self, path: Path, most: int = MOST, *, sync: bool = False) -> None:
        self.path, self._most, self._sync = path, most, sync
        self._written = self._synced = 0
        self._syncing: asyncio.Task[None] | None = None
        self._ids: dict[str, None] = {}
        self._lines = 0
        self._file: int | None = None
        self._closed = True

    def __len__(self) -> int:
        return len(self._ids)

    def open(self) -> list[str]:
        """Begin to write; the ids that an earlier process left behind."""
        self._closed = False
        with contextlib.suppress(FileNotFoundError):
            # The last line may have been cut off in the middle.
            for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
                if line.startswith("+"):
                    self._ids[line[1:]] = None
                else:
                    self._ids.pop(line[1:], None)
        try:
            self._rewrite()
        except OSError as problem:
            log.error("the journal of samples cannot be written: %s; it is tried again", problem)
        return list(self._ids)

    def add(self, id: str) -> None:
        """Somebody waits for this sample."""
        self._ids[id] = None
        if len(self._ids) > self._most:
            self.remove([next(iter(self._ids))])
        self._write(f"+{id}\n", 1)

    def remove(self, ids: Iterable[str]) -> None:
        """Nobody waits for these any more."""
        known = [id for id in ids if id in self._ids]
        for id in known:
            del self._ids[id]
        if known:
            self._write("".join(f"-{id}\n" for id in known), len(known))

    async def on_disk(self) -> None:
        """Wait until a power cut leaves what has been written, if it is to leave it."""
        written = self._written
        while self._sync and self._synced < written and self._file is not None:
            if self._syncing is None:
                self._syncing = asyncio.get_running_loop().create_task(self._to_disk(os.dup(self._file)))
            # One who gives up must not take the sync away from the others.
            await asyncio.shield(self._syncing)

    async def _to_disk(self, file: int) -> None:
        written = self._written
        try:
            await asyncio.to_thread(os.fsync, file)
        except OSError as problem:
            log.error("the journal of samples cannot be synced: %s", problem)
        finally:
            os.close(file)
            self._synced, self._syncing = max(self._synced, written), None

    def close(self) -> None:
        """Write no more."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _write(self, text: str, lines: int) -> None:
        if self._closed:
            return
        self._lines += lines
        self._written += 1
        try:
            # After a line that was not written, or only in part, the file is written anew as a whole.
            if self._file is None or self._lines > 2 * len(self._ids) + _SPARE:
                self._rewrite()
            elif not _write_all(self._file, text):
                self._let_go()
                self._rewrite()
        except OSError as problem:
            log.error("the journal of samples cannot be written: %s", problem)
            self._let_go()

    def _rewrite(self) -> None:
        new = self.path.with_suffix(".new")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            if not _write_all(file, "".join(f"+{id}\n" for id in self._ids)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._sync:
                os.fsync(file)
            os.replace(new, self.path)
            if self._sync:
                sync(self.path.parent)
        except BaseException:
            os.close(file)
            raise
        self._let_go()
        self._file, self._lines = file, len(self._ids)


def _write_all(file: int, text: str) -> bool:
    """Write a text; whether all of it was taken."""
    data = text.encode("utf-8", "replace")
    return os.write(file, data) == len(data)
