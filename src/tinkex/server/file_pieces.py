"""Bytes from files and from memory as one body: read piece by piece, from any place on.

Nothing here knows what is served or to whom.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

__all__ = ["Body", "FilePieces", "open_inside", "tar_body"]

PIECE = 1 << 20
"""Bytes read at once."""
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def open_inside(folder: Path, name: str) -> FileIO:
    """Open a file below a folder for reading; no name and no link leads out of it.

    Raises FileNotFoundError for everything that is not a plain file there.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise FileNotFoundError(name)
    try:
        if os.open in os.supports_dir_fd:
            opened = _open_step_by_step(folder, parts)
        else:
            path = folder.joinpath(*parts)
            if path.resolve() != folder.resolve().joinpath(*parts):
                raise FileNotFoundError(name)
            opened = os.open(path, os.O_RDONLY | _BINARY)
    except OSError:
        raise FileNotFoundError(name) from None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise FileNotFoundError(name)
    return FileIO(opened, "rb")


def _open_step_by_step(folder: Path, parts: Sequence[str]) -> int:
    place = os.open(folder, os.O_RDONLY | _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | _FOLDER | _NO_LINKS, dir_fd=place)
            os.close(place)
            place = inner
        # A pipe would wait for a writer.
        return os.open(parts[-1], os.O_RDONLY | _NO_LINKS | os.O_NONBLOCK, dir_fd=place)
    finally:
        os.close(place)


@dataclass(frozen=True, slots=True)
class Body:
    """A body made of open files and bytes, one after the other."""

    parts: tuple[tuple[bytes | FileIO, int], ...]
    """Each with its length."""

    @property
    def size(self) -> int:
        """The length of the whole."""
        return sum(length for _, length in self.parts)

    def close(self) -> None:
        """Let go of the files."""
        for source, _ in self.parts:
            if not isinstance(source, bytes):
                source.close()


class FilePieces:
    """A body from one place to another as an async iterator; files are read in threads."""

    def __init__(self, body: Body, first: int, last: int) -> None:
        self._body, self._place, self._end = body, first, last + 1

    def __aiter__(self) -> FilePieces:
        return self

    async def __anext__(self) -> bytes:
        if self._place >= self._end:
            await self.aclose()
            raise StopAsyncIteration
        piece = await asyncio.to_thread(self._read)
        self._place += len(piece)
        return piece

    async def aclose(self) -> None:
        """Let go of the files."""
        self._body.close()

    def _read(self) -> bytes:
        gathered = io.BytesIO()
        begin = 0
        for source, length in self._body.parts:
            inside = self._place + gathered.tell() - begin
            begin += length
            if inside >= length:
                continue
            count = min(length - inside, self._end - self._place - gathered.tell(), PIECE - gathered.tell())
            if count <= 0:
                break
            if isinstance(source, bytes):
                gathered.write(source[inside : inside + count])
            else:
                _copy(source, inside, count, gathered)
        return gathered.getvalue()


def _copy(source: FileIO, place: int, count: int, target: io.BytesIO) -> None:
    source.seek(place)
    while count:
        data = source.read(count)
        if not data:
            # What was promised cannot be sent: the connection breaks off, and the client notices.
            raise EOFError("a file became shorter while it was read")
        target.write(data)
        count -= len(data)


def tar_body(files: Sequence[tuple[str, FileIO | None]]) -> Body:
    """An archive of open files under their names (None: an empty file), never held as a whole."""
    parts: list[tuple[bytes | FileIO, int]] = []
    for name, file in files:
        info = tarfile.TarInfo(name)
        if file is not None:
            found = os.fstat(file.fileno())
            info.size, info.mtime = found.st_size, int(found.st_mtime)
        head = info.tobuf(tarfile.PAX_FORMAT)
        parts.append((head, len(head)))
        if file is not None:
            parts.append((file, info.size))
            padding = -info.size % tarfile.BLOCKSIZE
            parts.append((bytes(padding), padding))
    parts.append((bytes(2 * tarfile.BLOCKSIZE), 2 * tarfile.BLOCKSIZE))
    return Body(tuple(parts))
