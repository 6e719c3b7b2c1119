"""HTTP/1.1 on cleartext connections with as little work per request as Python allows.

Parsing is httptools'; this module keeps connections, writes requests and watches the clock.  What is
rare — proxies, redirects, streamed answers — goes through aiohttp instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import APIConnectionError, APITimeoutError, RequestInfo
from .transport import Request, Response, unsendable

if TYPE_CHECKING:
    from .aiohttp_transport import AiohttpTransport

__all__ = ["Http1Transport"]

_IDLE_SECONDS = 60.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_JOIN_BELOW = 64 * 1024  # a small body is sent in one piece with its head
MOST_BYTES = 1 << 30  # of an answer: a bound against servers that mean harm
_MOST_UNPACKED = 256 << 20  # bytes a packed answer may unpack to


class _Connection(asyncio.Protocol):
    """One connection: at most one request at a time."""

    def __init__(self) -> None:
        import httptools

        self._make_parser = httptools.HttpResponseParser
        self.transport: Any = None
        self.waiter: asyncio.Future[None] | None = None
        self.free_since = 0.0
        self.closed = False
        self._start()

    def _start(self) -> None:
        self._parser = self._make_parser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self._length = 0
        self.complete = False
        self.keep_alive = False

    async def exchange(self, head: bytes, body: bytes | memoryview | None, seconds: float) -> bool:
        """Send a request and wait for the whole answer; True if the connection can be used again."""
        loop = asyncio.get_running_loop()
        self._start()
        waiter = self.waiter = loop.create_future()
        timer = loop.call_later(seconds, self._expire)
        try:
            if not body:
                self.transport.write(head)
            elif len(body) < _JOIN_BELOW:
                self.transport.write(head + body)
            else:
                self.transport.write(head)
                self.transport.write(body)
            await waiter
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
            self.waiter = None
        return self.keep_alive and not self.closed

    def _expire(self) -> None:
        self._fail(TimeoutError())

    def _fail(self, error: BaseException) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)

    def abort(self) -> None:
        """Drop the connection at once."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # ---- called by the event loop

    def connection_made(self, transport: Any) -> None:
        """The connection is open."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes came; bytes nobody asked for end the connection."""
        if self.waiter is None:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except Exception as problem:  # httptools has a family of its own
            self.keep_alive = False
            if not self.complete:
                self._fail(ConnectionError(f"the answer is not HTTP: {problem}"))
        if self.complete and self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def eof_received(self) -> None:
        """The server will send nothing more."""
        self.closed = True

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self.closed = True
        told = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self.status >= 200 and not self.complete and not told and not error:
            # Where the answer does not tell its own end, that of the connection is it.
            self.complete = True
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(None)
        self._fail(ConnectionError(str(error) if error else "the server closed the connection"))

    # ---- called by the parser

    def on_message_begin(self) -> None:
        """An answer begins; a second one nobody asked for must not get mixed up with the first."""
        if self.complete:
            raise ConnectionError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """All headers are there."""
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """A piece of the body; one without end breaks the connection off."""
        self._length += len(data)
        if self._length > MOST_BYTES:
            raise ConnectionError(f"it has more than {MOST_BYTES} bytes")
        self.body.append(data)

    def on_message_complete(self) -> None:
        """The answer is whole; an interim one is forgotten."""
        if 100 <= self.status < 200:
            self.status, self.headers, self.body = 0, {}, []
            return
        self.complete = True
        self.keep_alive = bool(self._parser.should_keep_alive())  # asked later, the parser has moved on


class Http1Transport:
    """Sends requests over kept connections to cleartext servers."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], deque[_Connection]] = {}
        self._other: AiohttpTransport | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def send(self, request: Request) -> Response:
        """Send one request and wait for its answer."""
        if request.stream or not request.url.startswith("http://"):
            return await self._rare().send(request)
        parts = urlsplit(request.url)
        place = (parts.hostname or "", parts.port or 80)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        head = _head(request, parts.netloc.rpartition("@")[2], target)
        try:
            connection = await self._connection(place, request.connect_timeout)
            reusable = await connection.exchange(head, request.body, request.timeout)
        except TimeoutError:
            raise APITimeoutError(RequestInfo.of(request)) from None
        except OSError as problem:
            raise APIConnectionError(
                RequestInfo.of(request), f"Connection error: {problem or type(problem).__name__}"
            ) from None
        try:
            response = Response(connection.status, connection.headers, _decoded(connection, request))
        except APIConnectionError:
            connection.abort()
            raise
        if reusable:
            self._keep(place, connection)
        else:
            connection.abort()
        if response.status in _REDIRECTS and request.follow_redirects and "location" in response.headers:
            return await self._rare().send(request)
        return response

    def _rare(self) -> AiohttpTransport:
        if self._other is None:
            from .aiohttp_transport import AiohttpTransport

            self._other = AiohttpTransport()
        return self._other

    async def _connection(self, place: tuple[str, int], seconds: float) -> _Connection:
        idle = self._idle.get(place)
        loop = asyncio.get_running_loop()
        while idle:
            known = idle.pop()
            if not known.closed and loop.time() - known.free_since < _IDLE_SECONDS:
                return known
            known.abort()
        async with asyncio.timeout(seconds):
            _, made = await loop.create_connection(_Connection, *place)
        return made

    def _keep(self, place: tuple[str, int], connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.free_since = loop.time()
        self._idle.setdefault(place, deque()).append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Let go of what was not used for long; the oldest are at the front."""
        loop = asyncio.get_running_loop()
        for idle in self._idle.values():
            while idle and (idle[0].closed or loop.time() - idle[0].free_since >= _IDLE_SECONDS):
                idle.popleft().abort()
        self._idle = {place: idle for place, idle in self._idle.items() if idle}
        first = min((idle[0].free_since for idle in self._idle.values()), default=None)
        wait = None if first is None else max(first + _IDLE_SECONDS - loop.time(), 0.001)
        self._sweeper = None if wait is None else loop.call_later(wait, self._sweep)

    async def close(self) -> None:
        """Free every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.abort()
        if self._other is not None:
            await self._other.close()


def _head(request: Request, host: str, target: str) -> bytes:
    given = {name.lower() for name in request.headers}
    lines = [f"{request.method} {target} HTTP/1.1"]
    if "host" not in given:
        lines.append(f"Host: {host}")
    if "accept-encoding" not in given:
        lines.append("Accept-Encoding: gzip, deflate")
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if request.body is not None or request.method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(request.body or b'')}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
        raise unsendable(request)
    try:
        return f"{text}\r\n\r\n".encode("latin-1")
    except UnicodeEncodeError:
        raise unsendable(request) from None


def _decoded(connection: _Connection, request: Request) -> bytes:
    body = connection.body[0] if len(connection.body) == 1 else b"".join(connection.body)
    coding = connection.headers.get("content-encoding", "").strip().lower()
    if not coding or coding == "identity" or not body:
        return body
    with contextlib.suppress(zlib.error):
        if coding in ("gzip", "x-gzip", "deflate"):
            return _unpacked(body, 47)  # gzip or zlib, by their headers
    if coding == "deflate":
        with contextlib.suppress(zlib.error):
            return _unpacked(body, -15)
    raise APIConnectionError(RequestInfo.of(request), f"Connection error: cannot undo encoding {coding!r}")


def _unpacked(body: bytes, wbits: int) -> bytes:
    unpacker = zlib.decompressobj(wbits)
    unpacked = unpacker.decompress(body, _MOST_UNPACKED)
    if not unpacker.eof:
        raise zlib.error("cut off, or larger than answers are")
    return unpacked
