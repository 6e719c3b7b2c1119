"""Files behind signed addresses: whole or from a byte on, with a tag and a digest to check them by."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import TypeAlias

from .asks import Reply
from .checkpoint_files import files_in
from .file_pieces import Body, FilePieces, open_inside, tar_body
from .problems import Problem
from .service import Service
from .state_folder import is_inside

__all__ = ["ARCHIVE", "DIGESTS", "Digests", "file_reply", "file_tag", "files_page"]

ARCHIVE = "archive.tar"
"""The name under which a folder can be fetched as a whole."""
MARKER = "checkpoint_complete"
"""An empty file that says an archive is whole; SDKs up to 0.35 look for it."""
_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")
_Known: TypeAlias = tuple[int, int, int, int]


async def files_page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
    """A file of a checkpoint or a trace, by its signed address."""
    _, _, rest = path.partition("/files/")
    token, _, name = rest.partition("/")
    folder = service.options.state / service.downloads.folder_of(token, name)
    if not is_inside(service.options.state, folder):
        raise Problem(410, f"{name} is no longer here; ask for a new address")
    try:
        if name == ARCHIVE:
            body, tag, digest = *await asyncio.to_thread(_archive, folder), None
        else:
            file = await asyncio.to_thread(open_inside, folder, name)
            body, tag = Body(((file, os.fstat(file.fileno()).st_size),)), file_tag(file)
            digest = await DIGESTS.of(file)
    except FileNotFoundError:
        # Clients that renew their addresses on this find out whether the checkpoint is still there.
        raise Problem(410, f"{name} is no longer here; ask for a new address") from None
    kind = b"application/json" if name.endswith(".json") else b"application/octet-stream"
    return file_reply(body, tag, headers, kind, digest)


def file_reply(
    body: Body, tag: str, headers: Mapping[bytes, bytes], kind: bytes, digest: bytes | None
) -> Reply:
    """A body as an answer: all of it, the one range that was asked for, or nothing where nothing is new."""
    told = [
        (b"content-type", kind),
        (b"etag", tag.encode()),
        (b"accept-ranges", b"bytes"),
        (b"cache-control", b"private, no-transform"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if digest is not None:
        told.append((b"repr-digest", b"sha-256=:%b:" % base64.b64encode(digest)))
    size = body.size
    if tag in _tags(headers.get(b"if-none-match")):
        body.close()
        return Reply(304, b"", told)
    wanted = _range(headers, tag, size)
    if wanted is None:
        told.append((b"content-length", b"%d" % size))
        return Reply(200, b"", told, FilePieces(body, 0, size - 1))
    first, last = wanted
    if first > last:
        body.close()
        return Reply(416, b"", [*told, (b"content-range", b"bytes */%d" % size)])
    told += [
        (b"content-range", b"bytes %d-%d/%d" % (first, last, size)),
        (b"content-length", b"%d" % (last - first + 1)),
    ]
    return Reply(206, b"", told, FilePieces(body, first, last))


def _range(headers: Mapping[bytes, bytes], tag: str, size: int) -> tuple[int, int] | None:
    """The first and last byte of a single range, if one is asked for and the file is still the same."""
    found = _RANGE.fullmatch(headers.get(b"range", b"").decode("latin-1").strip())
    if found is None or headers.get(b"if-range", tag.encode()).decode("latin-1").strip() != tag:
        return None
    if found[3] is not None:
        count = int(found[3])
        return (max(size - count, 0), size - 1) if count else (size, size - 1)
    last = int(found[2]) if found[2] else size - 1
    if last < int(found[1]) and found[2]:
        return None
    return int(found[1]), min(last, size - 1)


def _tags(header: bytes | None) -> list[str]:
    return [each.strip() for each in (header or b"").decode("latin-1").split(",")]


# ---- tags and digests


def _identity(file: FileIO) -> _Known:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def file_tag(*files: FileIO) -> str:
    """A strong tag: files are put in place whole and never changed, so each has its content for ever."""
    text = repr([_identity(file) for file in files])
    return f'"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"'


class Digests:
    """SHA-256 of files, computed once for each."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._known: OrderedDict[_Known, bytes] = OrderedDict()

    async def of(self, file: FileIO) -> bytes:
        """The digest of an open file."""
        key = _identity(file)
        found = self._known.get(key)
        if found is None:
            found = await asyncio.to_thread(_sha256, file)
            self._known[key] = found
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found


DIGESTS = Digests()


def _sha256(file: FileIO) -> bytes:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").digest()


# ---- archives


def _archive(folder: Path) -> tuple[Body, str]:
    with contextlib.ExitStack() as opened:
        files: list[tuple[str, FileIO]] = []
        for name in files_in(folder):
            file = opened.enter_context(open_inside(folder, name))
            files.append((name, file))
        if not files:
            raise FileNotFoundError(folder.name)
        named = [(name, file) for name, file in files if name != MARKER]
        body = tar_body([*named, (MARKER, None)])
        tag = file_tag(*(file for _, file in named))
        opened.pop_all()
    return body, tag
