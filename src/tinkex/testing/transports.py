"""Transports without a network: a handler function or a script of answers."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import urljoin, urlsplit

from ..errors import APIConnectionError, APITimeoutError
from ..net.clock import Clock, SystemClock
from ..net.transport import Request, Response
from ..wire.zstd import decompress
from .asgi_transport import AsgiTransport
from .exchange import CutShort, FakeRequest, FakeResponse, pieces_of, reply
from .timers import pause, within

__all__ = ["AsgiTransport", "HandlerTransport", "ScriptedTransport", "reply"]

Handler: TypeAlias = Callable[[FakeRequest], Awaitable[FakeResponse]]

_MOST_REDIRECTS = 20
_MOST_UNPACKED = 2**30


class HandlerTransport:
    """Answers requests by calling an async function in process, a `FakeService.handle` say.

    Delays and timeouts pass on `clock`.  `online = False` makes every request fail as if the
    server were gone; `requests` counts what was sent.
    """

    def __init__(self, handler: Handler, *, clock: Clock | None = None) -> None:
        self.handler = handler
        self.clock: Clock = clock or SystemClock()
        self.online = True
        self.closed: bool = False
        self.requests: int = 0

    async def send(self, request: Request) -> Response:
        """Send one request and wait for its answer."""
        if self.closed:
            raise APIConnectionError(request, "The transport is closed.")
        self.requests += 1
        try:
            return await within(self.clock, request.timeout, self._follow(request))
        except TimeoutError:
            raise APITimeoutError(request) from None

    async def _follow(self, request: Request) -> Response:
        for _ in range(_MOST_REDIRECTS):
            answer = await self._answer(request)
            location = answer.headers.get("location")
            if not (request.follow_redirects and location and answer.status in (301, 302, 303, 307, 308)):
                return answer
            request = _redirected(request, answer.status, location)
        raise APIConnectionError(request, "Too many redirects.")

    async def _answer(self, request: Request) -> Response:
        if not self.online:
            await asyncio.sleep(0)
            raise APIConnectionError(request, "Connection refused.")
        answer = await self.handler(FakeRequest.of(request))
        if answer.delay:
            await pause(self.clock, answer.delay)
        if answer.hang:
            await asyncio.Event().wait()
        if answer.drop or not self.online:
            raise APIConnectionError(request, "Connection reset.")
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if "content-encoding" in headers:
            answer = replace(answer, body=_unpacked(headers, answer.body), chunks=None)
        if request.stream:
            return Response(answer.status, headers, b"", self._stream(request, answer))
        if "transfer-encoding" not in headers and answer.chunks is None:
            headers["content-length"] = str(len(answer.body))
        body = answer.body
        if not answer.plain:
            body = b"".join([piece async for piece in self._stream(request, answer)])
        return Response(answer.status, headers, body)

    async def _stream(self, request: Request, answer: FakeResponse) -> AsyncIterator[bytes]:
        try:
            async for piece in pieces_of(answer, self.clock):
                yield piece
        except CutShort:
            raise APIConnectionError(request, "Connection reset in the middle of the answer.") from None

    async def close(self) -> None:
        """Refuse everything from now on."""
        self.closed = True


def _redirected(request: Request, status: int, location: str) -> Request:
    url = urljoin(request.url, location)
    headers = dict(request.headers)
    if urlsplit(url).netloc != urlsplit(request.url).netloc:
        # A credential is for the host it was meant for.
        headers = {name: value for name, value in headers.items() if name.lower() != "x-api-key"}
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        return replace(request, url=url, headers=headers, method="GET", body=None)
    return replace(request, url=url, headers=headers)


def _unpacked(headers: MutableMapping[str, str], body: bytes) -> bytes:
    encoding = headers.pop("content-encoding", "")
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "zstd":
        return decompress(body, _MOST_UNPACKED)
    return body


Line: TypeAlias = (
    Response | FakeResponse | BaseException | type[BaseException] | Callable[[Request], object] | int
)


class ScriptedTransport:
    """Answers requests from a list, in order, and keeps them in `requests`.

    A line is a `Response` (see `reply`), a `FakeResponse`, a bare status, an exception to raise, or
    a function of the request that returns (or awaits) one of these.  After the last line an
    `AssertionError` names the request nobody foresaw, unless `repeat_last` is set.
    """

    def __init__(
        self, lines: Iterable[Line] = (), *, repeat_last: bool = False, clock: Clock | None = None
    ) -> None:
        self.requests: list[Request] = []
        self.closed: bool = False
        self._lines = list(lines)
        self._next = 0
        self._repeat_last = repeat_last
        self._clock: Clock = clock or SystemClock()

    @property
    def left(self) -> int:
        """How many lines were not used yet."""
        return len(self._lines) - self._next

    def add(self, *lines: Line) -> None:
        """Append to the script."""
        self._lines += lines

    async def send(self, request: Request) -> Response:
        """Answer with the next line."""
        self.requests.append(request)
        if self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
        elif self._repeat_last and self._lines:
            line = self._lines[-1]
        else:
            raise AssertionError(f"the script has no answer to {request.method} {request.url}")
        try:
            return await within(self._clock, request.timeout, self._play(line, request))
        except TimeoutError:
            raise APITimeoutError(request) from None

    async def _play(self, line: Any, request: Request) -> Response:
        if isinstance(line, BaseException) or (isinstance(line, type) and issubclass(line, BaseException)):
            raise line
        if isinstance(line, Response):
            return replace(line)
        if isinstance(line, int):
            return reply({"detail": f"status {line}"} if line >= 400 else {}, status=line)
        if isinstance(line, FakeResponse):

            async def answer(_: FakeRequest) -> FakeResponse:
                return line

            return await HandlerTransport(answer, clock=self._clock)._answer(request)
        result = line(request)
        if asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
            result = await result
        return await self._play(result, request)

    async def close(self) -> None:
        """Note that the transport was closed."""
        self.closed = True
