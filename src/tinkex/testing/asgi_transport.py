"""A transport that calls an ASGI application in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from ..errors import APIConnectionError, APITimeoutError
from ..net.clock import Clock, SystemClock
from ..net.transport import Request, Response
from .exchange import reply
from .timers import within

__all__ = ["AsgiTransport"]

Message: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[..., Awaitable[None]]


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
        return Response(first["status"], headers, body)

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
            "path": unquote(parts.path or "/"),
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
            body = bytes(self._request.body or b"")  # applications are promised bytes, not views of them
            return {"type": "http.request", "body": body, "more_body": False}
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
