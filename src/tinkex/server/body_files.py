"""Bodies and results too large for a database row, each a file of its own.

A file is written whole before the row that names it and removed after the row is gone, so a crash leaves
at most files that no row names.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from collections.abc import Iterable
from pathlib import Path

from ..engine.durable import make_folders, sync

LARGEST_INSIDE = 128 << 10
"""Bytes up to which a body stays inside its row."""


class BodyFiles:
    """The folder of large bodies."""

    def __init__(self, folder: Path, *, sync: bool, largest_inside: int = LARGEST_INSIDE) -> None:
        self.folder, self.sync, self.largest_inside = folder, sync, largest_inside
        self._names = f"{secrets.token_hex(6)}-"
        self._count = 0
        make_folders(folder, 0o700)

    def new_name(self, data: bytes) -> str:
        """A name no other file has had or will have, with a checksum of what is to be in it."""
        self._count += 1
        return f"{self._names}{self._count:x}-{zlib.crc32(data):08x}"

    def write(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write files that must outlive what the store promises to outlive; all of them or none."""
        written = []
        try:
            for name, data in files:
                written.append(name)
                self._write(name, data)
            if self.sync:
                sync(self.folder)
        except BaseException:
            self.remove(written)
            raise

    def _write(self, name: str, data: bytes) -> None:
        opened = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(opened, rest) :]
            if self.sync:
                os.fsync(opened)
        finally:
            os.close(opened)

    def read(self, name: str) -> bytes:
        """What is in a file; raises ValueError if that is not what was written there."""
        return read_body(self.folder / name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; one that cannot be removed goes when the store is opened next."""
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(self.folder / name)

    def keep_only(self, names: set[str]) -> int:
        """Remove every file not named here, and answer how many there were."""
        extra = [entry.name for entry in os.scandir(self.folder) if entry.name not in names]
        self.remove(extra)
        return len(extra)


def read_body(path: Path) -> bytes:
    """What is in the file of a body; raises ValueError if that is not what was written there."""
    data = path.read_bytes()
    _, _, checksum = path.name.partition("-")[2].partition("-")
    if checksum and f"{zlib.crc32(data):08x}" != checksum:
        raise ValueError(f"the file {path.name} is damaged")
    return data


_BINARY = getattr(os, "O_BINARY", 0)
