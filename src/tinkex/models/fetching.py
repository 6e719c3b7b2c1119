"""One large file from the network: goes on where it stopped, and is what it should be or is not there."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..errors import DownloadError
from .package_index import Indexes, opened

__all__ = ["Pinned", "Progress", "fetch"]

Progress: TypeAlias = Callable[[int, int], None]
"""Told the bytes that are there, and how many there will be."""
ATTEMPTS = 5
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file that is known byte by byte."""

    name: str
    size: int
    sha256: str


def fetch(address: str, file: Pinned, folder: Path, indexes: Indexes, progress: Progress) -> Path:
    """The file in a folder, downloaded unless it is there; what came before a break is kept and used.

    A file that is not the one that was meant is removed and told of.
    """
    done = folder / file.name
    if done.is_file() and _digest(done) == file.sha256:
        return done
    part = folder / f"{file.name}.part"
    problem: Exception | None = None
    for _ in range(ATTEMPTS):
        before = _size(part)
        if before >= file.size:
            break
        try:
            _go_on(address, file, part, indexes, progress)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 416:
                raise DownloadError(f"{file.name}: the server answered {error.code}") from None
            problem = error
            if isinstance(error, urllib.error.HTTPError) and error.code == 416:
                part.unlink(missing_ok=True)
    if _size(part) < file.size:
        raise DownloadError(
            f"{file.name}: {_size(part):,} of {file.size:,} bytes came"
            + (f" ({getattr(problem, 'reason', None) or problem})" if problem else "")
            + "; what came is kept: ask again to go on"
        )
    if _size(part) != file.size or _digest(part) != file.sha256:
        part.unlink()
        raise DownloadError(f"{file.name} is not the file that was meant: its checksum is another; removed")
    part.replace(done)
    return done


def _go_on(address: str, file: Pinned, part: Path, indexes: Indexes, progress: Progress) -> None:
    """Ask for what is missing, and write it as it comes."""
    have = _size(part)
    headers = {"Range": f"bytes={have}-"} if have else {}
    with opened(address, indexes, headers) as answer:
        # A server that does not know ranges sends the whole from its beginning.
        whole = getattr(answer, "status", None) != http.HTTPStatus.PARTIAL_CONTENT
        have = 0 if whole else have
        with part.open("wb" if whole else "ab") as writing:
            while piece := answer.read(_PIECE):
                writing.write(piece)
                have += len(piece)
                progress(have, file.size)
                if have > file.size:
                    return


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
