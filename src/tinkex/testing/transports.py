"""Transports without a network: a handler function, a script of answers, an ASGI application."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import urljoin, urlsplit

from ..errors import APIConnectionError, APITimeoutError
from ..net.clock import Clock, SystemClock
from ..net.transport import Request, Response
from ..wire.jsonbody import encode
from ..wire.zstd import decompress
from .exchange import FakeRequest, FakeResponse
from .timers import pause, within

__all__ = ["AsgiTransport", "HandlerTransport", "ScriptedTransport", "reply"]

Handler: TypeAlias = Callable[[FakeRequest], Awaitable[FakeResponse]]
Message: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[..., Awaitable[None]]

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
        self.closed = False
        self.requests = 0

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
        return _response(answer, request.stream)

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


def _response(answer: FakeResponse, stream: bool) -> Response:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    body = answer.body if answer.chunks is None else b"".join(answer.chunks)
    encoding = headers.pop("content-encoding", "")
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding == "zstd":
        body = decompress(body, _MOST_UNPACKED)
    if not stream:
        if "transfer-encoding" not in headers and answer.chunks is None:
            headers["content-length"] = str(len(answer.body))
        return Response(answer.status, headers, body)
    pieces = [body] if encoding or answer.chunks is None else answer.chunks
    return Response(answer.status, headers, b"", _stream(pieces))


async def _stream(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


def reply(
    json: Any = None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Response:
    """An answer for a script: JSON-ready data (records too), or raw bytes."""
    known = {name.lower(): value for name, value in (headers or {}).items()}
    if body is None:
        body = encode({} if json is None else json)
        known.setdefault("content-type", "application/json")
    known.setdefault("content-length", str(len(body)))
    return Response(status, known, body)


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
        self.closed = False
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


class AsgiTransport:
    """Sends requests to an ASGI 3 application in process, streamed answers too.

    The application's start-up runs before the first request and its shutdown in `close`, if it has
    a lifespan.  What it raises before answering is raised here, unless `raise_errors` is False: then
    it is a 500, as a real server would make it.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        clock: Clock | None = None,
        raise_errors: bool = True,
        root_path: str = "",
        client: tuple[str, int] = ("127.0.0.1", 50000),
    ) -> None:
        self.app = app
        self.clock: Clock = clock or SystemClock()
        self.raise_errors = raise_errors
        self.root_path = root_path
        self.client = client
        self._state: dict[str, Any] = {}
        self._lifespan: _Lifespan | None = None
        self._starting: asyncio.Lock | None = None

    async def send(self, request: Request) -> Response:
        """Send one request and wait for its answer."""
        await self._start()
        exchange = _AsgiExchange(self, request)
        try:
            return await within(self.clock, request.timeout, exchange.answer())
        except TimeoutError:
            await exchange.stop()
            raise APITimeoutError(request) from None
        except BaseException:
            await exchange.stop()
            raise

    async def _start(self) -> None:
        if self._lifespan is None:
            self._starting = self._starting or asyncio.Lock()
            async with self._starting:
                if self._lifespan is None:
                    lifespan = _Lifespan(self.app, self._state)
                    await lifespan.start()
                    self._lifespan = lifespan

    async def close(self) -> None:
        """Run the application's shutdown."""
        if self._lifespan is not None:
            lifespan, self._lifespan = self._lifespan, None
            await lifespan.stop()


class _Lifespan:
    """The start-up and shutdown of an application, which may not have any."""

    def __init__(self, app: AsgiApp, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self._state,
        }

        async def run() -> None:
            try:
                await self._app(scope, self._inbox.get, self._outbox.put)
            finally:
                await self._outbox.put({"type": "lifespan.over"})

        self._task = asyncio.ensure_future(run())
        self._inbox.put_nowait({"type": "lifespan.startup"})
        message = await self._outbox.get()
        if message["type"] == "lifespan.startup.failed":
            raise RuntimeError(f"the application did not start: {message.get('message', '')}")
        if message["type"] == "lifespan.over":
            # An application that raises here has no lifespan; the specification wants it left alone.
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def stop(self) -> None:
        if self._task is not None:
            self._inbox.put_nowait({"type": "lifespan.shutdown"})
            message = await self._outbox.get()
            await asyncio.gather(self._task, return_exceptions=True)
            if message["type"] == "lifespan.shutdown.failed":
                raise RuntimeError(f"the application did not shut down: {message.get('message', '')}")


class _AsgiExchange:
    """One request on its way through an application."""

    def __init__(self, transport: AsgiTransport, request: Request) -> None:
        self._transport = transport
        self._request = request
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._sent = False
        self._task: asyncio.Task[None] | None = None

    async def answer(self) -> Response:
        self._task = asyncio.ensure_future(self._run())
        first = await self._messages.get()
        if first is None:
            return await self._failed()
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in first["headers"]
        }
        if self._request.stream:
            return Response(first["status"], headers, b"", self._pieces())
        body = b"".join([piece async for piece in self._pieces()])
        return _response(FakeResponse(first["status"], headers, body), stream=False)

    async def _failed(self) -> Response:
        assert self._task is not None
        error = (await asyncio.gather(self._task, return_exceptions=True))[0]
        if isinstance(error, BaseException) and self._transport.raise_errors:
            raise error
        return reply({"detail": "Internal Server Error"}, status=500)

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            while (message := await self._messages.get()) is not None:
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body"):
                    return
            raise APIConnectionError(self._request, "The application stopped in the middle of its answer.")
        finally:
            self._gone.set()

    async def _run(self) -> None:
        try:
            await self._transport.app(self._scope(), self._receive, self._send)
        finally:
            self._messages.put_nowait(None)

    def _scope(self) -> Message:
        parts = urlsplit(self._request.url)
        headers = {"host": parts.netloc.rpartition("@")[2], **self._request.headers}
        if self._request.body is not None:
            headers["content-length"] = str(len(self._request.body))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": parts.scheme or "http",
            "path": _unquoted(parts.path or "/"),
            "raw_path": (parts.path or "/").encode(),
            "query_string": parts.query.encode(),
            "root_path": self._transport.root_path,
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()],
            "client": self._transport.client,
            "server": (parts.hostname or "localhost", parts.port or 80),
            "state": dict(self._transport._state),
        }

    async def _receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._request.body or b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            raise OSError("the client is gone")
        self._messages.put_nowait(message)
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self._gone.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _unquoted(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)
