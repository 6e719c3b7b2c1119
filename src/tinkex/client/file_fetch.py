"""One address to one file: streamed, resumed where it broke off, checked against what was announced."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

from .._version import __version__
from ..errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    DownloadError,
    RequestInfo,
    TinkerError,
)
from ..net.answers import error_from
from ..net.clock import Clock
from ..net.policy import Operation, decide
from ..net.transport import Request, Response, Transport

__all__ = ["FileFetcher", "Mark", "SignedUrls", "in_thread"]

logger: Final = logging.getLogger(__name__)

_BLOCK = 2**20  # bytes gathered before they are written
_ERROR_BYTES = 2**16
_RENEW_EARLY = timedelta(minutes=5)
_MOST_RENEWALS = 3
_REFUSALS = frozenset({400, 401, 403, 410})  # what stores answer when a signature has expired
_NO_SUCH_RANGE = frozenset({412, 416})
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)")

P = ParamSpec("P")
T = TypeVar("T")
Sign = Callable[[], Awaitable[tuple[Mapping[str, str], datetime]]]
Tell = Callable[[str, int, int | None], None]


class SignedUrls:
    """Addresses that expire: asked for when needed, and again in good time."""

    def __init__(self, sign: Sign, clock: Clock) -> None:
        self._sign, self._clock = sign, clock
        self._urls: Mapping[str, str] = {}
        self._renew_at: datetime | None = None
        self._lock = asyncio.Lock()

    async def names(self) -> list[str]:
        """The files there are."""
        async with self._lock:
            if self._renew_at is None:
                await self._renew()
        return list(self._urls)

    async def url(self, name: str, *, instead_of: str | None = None) -> str:
        """Where a file is now; `instead_of` is an address that no longer works."""
        async with self._lock:
            due = self._renew_at is None or self._clock.now() >= self._renew_at
            if due or (instead_of is not None and self._urls.get(name) == instead_of):
                await self._renew()
            if name not in self._urls:
                raise DownloadError(f"the checkpoint changed while it was read: {name} is gone")
            return self._urls[name]

    async def _renew(self) -> None:
        now = self._clock.now()
        self._urls, expires = await self._sign()
        self._renew_at = expires - min(_RENEW_EARLY, max((expires - now) / 4, timedelta(0)))


@dataclass(slots=True)
class Mark:
    """What the server said of a file: its length, and a tag that changes with its content."""

    size: int | None = None
    tag: str | None = None


class FileFetcher:
    """Fetches files of one download; `limit` bounds their sizes together."""

    def __init__(
        self,
        clock: Clock,
        make_transport: Callable[[str], Transport],
        limit: int,
        seconds: float,
        timeout: float,
        connect_timeout: float,
        tell: Tell,
    ) -> None:
        self._clock, self._make = clock, make_transport
        self._limit, self._seconds = limit, seconds
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._tell = tell
        self._transports: dict[str, Transport] = {}
        self._claimed: dict[str, int] = {}

    async def close(self) -> None:
        """Free the connections."""
        for transport in self._transports.values():
            await transport.close()

    async def fetch(
        self, name: str, urls: SignedUrls, part: Path, mark: Mark, save: Callable[[], None]
    ) -> int:
        """Bring a file to disk, going on from what is there; `save` is called when `mark` changes."""
        operation = Operation("download", seconds=self._seconds)
        started, attempt, renewals, refused = self._clock.monotonic(), 0, 0, None
        while True:
            before = _size(part)
            url = await urls.url(name, instead_of=refused)
            refused = None
            try:
                return await self._once(name, url, part, mark, save)
            except TinkerError as error:
                if _size(part) > before:  # it moved: the budget starts anew
                    started, attempt, renewals = self._clock.monotonic(), 0, 0
                status = error.status_code if isinstance(error, APIStatusError) else 0
                if status in _REFUSALS and renewals < _MOST_RENEWALS:
                    renewals, refused = renewals + 1, url
                    continue
                elapsed = self._clock.monotonic() - started
                decision = decide(error, operation, attempt, elapsed, self._clock.random())
                if not decision.retry:
                    raise
                logger.warning("%s: %s; trying again in %.1f s", name, decision.reason, decision.delay)
                await self._clock.sleep(decision.delay)
                attempt += 1

    async def _once(self, name: str, url: str, part: Path, mark: Mark, save: Callable[[], None]) -> int:
        begin = _resume_at(_size(part), mark)
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": f"tinkex/{__version__}"}
        if begin:
            assert mark.tag is not None
            headers |= {"Range": f"bytes={begin}-", "If-Range": mark.tag}
        request = Request("GET", url, headers, None, self._timeout, self._connect_timeout, stream=True)
        response = await self._transport(request).send(request)
        assert response.chunks is not None
        async with contextlib.aclosing(_timed(response.chunks, request)) as pieces:
            if response.status >= 400 and not (begin and response.status in _NO_SUCH_RANGE):
                response.body = await _first_bytes(pieces)
                raise error_from(request, response, self._clock.now())
            if response.status == 200:
                begin = 0  # all of it: there was nothing to go on from, or the file has changed
                mark.size, mark.tag = _announced(response)
                await in_thread(save)
            elif not begin or not _continues(response, begin, mark):
                mark.size = mark.tag = None
                raise APIConnectionError(
                    RequestInfo.of(request), f"{name}: status {response.status} was no use; asking anew"
                )
            self._claim(name, mark.size or 0)
            end = await self._write(name, pieces, part, begin, mark.size)
        if mark.size is not None and end < mark.size:
            raise APIConnectionError(
                RequestInfo.of(request), f"{name} broke off after {end} of {mark.size} bytes"
            )
        if not await in_thread(_is_whole, part, _sha256(response.headers)):
            if not begin:
                raise DownloadError(f"{name} is damaged: it does not have the SHA-256 the server announced")
            raise APIConnectionError(RequestInfo.of(request), f"{name} did not fit together; fetched anew")
        return end

    def _transport(self, request: Request) -> Transport:
        parts = urlsplit(request.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DownloadError(f"the server gave an address that is not http(s): {parts.scheme}://…")
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        known = self._transports.get(origin)
        if known is None:
            known = self._transports[origin] = self._make(origin)
        return known

    def _claim(self, name: str, size: int) -> None:
        self._claimed[name] = size
        if sum(self._claimed.values()) > self._limit:
            raise DownloadError(f"the checkpoint is larger than {self._limit} bytes; raise max_bytes")

    async def _write(
        self, name: str, pieces: AsyncIterator[bytes], part: Path, begin: int, size: int | None
    ) -> int:
        position, held, waiting = begin, [], 0
        file = await in_thread(_open, part, begin)
        try:
            try:
                async for piece in pieces:
                    held.append(piece)
                    waiting += len(piece)
                    if size is not None and position + waiting > size:
                        raise DownloadError(f"{name} is longer than the {size} bytes announced")
                    if waiting >= _BLOCK:
                        self._claim(name, max(position + waiting, size or 0))
                        await in_thread(_append, file, held)
                        position, held, waiting = position + waiting, [], 0
                        await in_thread(self._tell, name, position, size)
            except APIConnectionError:
                await in_thread(_append, file, held)  # what came is kept for the next try
                raise
            self._claim(name, max(position + waiting, size or 0))
            await in_thread(_append, file, held)
            await in_thread(os.fsync, file)
            await in_thread(self._tell, name, position + waiting, size)
        finally:
            os.close(file)
        return position + waiting


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work in a thread; a cancelled wait still waits for the thread, which holds a file."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _size(part: Path) -> int:
    try:
        return part.lstat().st_size
    except FileNotFoundError:
        return 0


def _resume_at(have: int, mark: Mark) -> int:
    """From which byte on to ask; of a whole file the last one, to see that the tag still stands."""
    if mark.tag is None or (mark.size is not None and have > mark.size):
        return 0
    return min(have, mark.size - 1) if mark.size else have


def _continues(response: Response, begin: int, mark: Mark) -> bool:
    """Whether an answer is the rest of the file we have the beginning of."""
    told = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if response.status != 206 or told is None or told[1] is None:
        return False
    total = None if told[3] == "*" else int(told[3])
    return int(told[1]) == begin and (total is None or mark.size is None or total == mark.size)


def _announced(response: Response) -> tuple[int | None, str | None]:
    headers = response.headers
    if headers.get("content-encoding", "identity") != "identity":
        return None, None  # lengths and ranges would speak of the encoded form
    length = headers.get("content-length", "")
    tag = headers.get("etag", "")
    strong = tag if tag.startswith('"') else None
    return int(length) if length.isdecimal() and len(length) <= 18 else None, strong


def _sha256(headers: Mapping[str, str]) -> bytes | None:
    """The checksum of the whole file, if the server tells it."""
    amazon = headers.get("x-amz-checksum-sha256", "")
    listed = f"{headers.get('repr-digest', '')}, {headers.get('digest', '')}"
    found = re.search(r"sha-256=:?([A-Za-z0-9+/]{43}=)", listed, re.IGNORECASE)
    text = found[1] if found else amazon
    with contextlib.suppress(ValueError):  # letters that are none of base64's, or none of ASCII's
        digest = base64.b64decode(text, validate=True)
        return digest if len(digest) == 32 else None
    return None


def _is_whole(part: Path, expected: bytes | None) -> bool:
    if expected is not None:
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").digest()
        if found != expected:
            part.unlink()
            return False
    return True


def _open(part: Path, begin: int) -> int:
    part.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    file = os.open(part, flags, 0o666)
    os.ftruncate(file, begin)
    os.lseek(file, begin, os.SEEK_SET)
    return file


def _append(file: int, pieces: list[bytes]) -> None:
    whole = memoryview(b"".join(pieces))
    while whole:
        whole = whole[os.write(file, whole) :]


async def _timed(pieces: AsyncIterator[bytes], request: Request) -> AsyncGenerator[bytes, None]:
    """The same pieces, or an error when none comes for as long as an answer may take."""
    try:
        while True:
            try:
                async with asyncio.timeout(request.timeout):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise APITimeoutError(RequestInfo.of(request)) from None
            yield piece
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()


async def _first_bytes(pieces: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for piece in pieces:
        body += piece
        if len(body) >= _ERROR_BYTES:
            break
    return body[:_ERROR_BYTES]
