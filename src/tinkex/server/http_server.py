"""uvicorn as this server runs it: a bound on headers, and a stop that lets running work end first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .listening import BACKLOG
from .options import ServerOptions

__all__ = ["HEAD_BYTES", "HttpServer", "Protocol", "configure"]

log = logging.getLogger(__name__)

HEAD_BYTES = 64 << 10
"""Most bytes of a request before its body: the path and all headers."""
KEEP_ALIVE = 75
"""Seconds a connection may idle: longer than clients keep theirs, so that they close first."""
LAST_ANSWERS = 5
"""Seconds a stopping server has to send its last answers, after running work had its time."""
HEAD_SECONDS = 30.0
"""Within so long a connection must have sent the whole head of its request."""
BODY_SECONDS = 60.0
"""Between two pieces of a body there may be so long."""
REST_SECONDS = 30.0
"""The rest of a body nobody reads any more is awaited so long."""
READ_SECONDS = 120.0
"""A client that takes nothing of its answer for so long has gone."""
LOOK_SECONDS = 5.0
"""Between two looks at a connection."""

_TOO_LARGE = b'{"detail":"the path and headers of a request may have %d bytes"}' % HEAD_BYTES
_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_TOO_LARGE), _TOO_LARGE)
)
_LATE = b'{"detail":"the path and headers of a request must arrive within %d seconds"}' % HEAD_SECONDS
_TIMEOUT = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_LATE), _LATE)
)


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 whose requests cannot fill the memory with headers, nor hold a connection by being slow."""

    _head: int | None = 0
    """Bytes of a head that has not ended; None while a body is read."""
    _turned = False
    """Whether a head or a request ended within the bytes at hand."""
    _began: float | None = None
    """Since when a head is being read."""
    _heard = 0.0
    """When a piece of a body last came."""
    _answered: float | None = None
    """Since when the rest of a body is awaited that nobody reads."""
    _stuck: float | None = None
    """Since when the client has room for nothing more of its answer."""
    _next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, and look at it now and then."""
        super().connection_made(transport)
        self._began = self._heard = self.loop.time()
        self._next_look = self.loop.call_later(LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone: look no more."""
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came, unless a request's head has grown too large."""
        self._turned = False
        super().data_received(data)
        if self._head is None or self._turned:
            self._heard = self.loop.time()
            return
        if self._began is None:
            self._began = self.loop.time()
        self._head += len(data)
        if self._head > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_REFUSAL)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The head has ended."""
        self._head, self._turned = None, True
        self._began = self._answered = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has ended: what comes next is a head."""
        self._head, self._turned = 0, True
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client has room for nothing more."""
        self._stuck = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has read some of what it was sent."""
        self._stuck = None
        super().resume_writing()

    def _look(self) -> None:
        """Let go of the connection if its client takes too long over what it sends or reads."""
        now = self.loop.time()
        if self.transport.is_closing() and self._stuck is None:
            self._stuck = now  # what was written last may never be read
        if self._stuck is not None and now - self._stuck >= READ_SECONDS:
            self.transport.abort()
            return
        self._next_look = self.loop.call_later(LOOK_SECONDS, self._look)
        if not self.transport.is_closing() and self._is_slow(now):
            if self._head:
                self.transport.write(_TIMEOUT)
            self.transport.close()

    def _is_slow(self, now: float) -> bool:
        if self._head is not None:
            return self._began is not None and now - self._began >= HEAD_SECONDS
        if self.cycle is not None and self.cycle.response_complete:
            self._answered = now if self._answered is None else self._answered
            return now - self._answered >= REST_SECONDS
        if self.flow.read_paused:
            self._heard = now  # it is the server that does not read
        return now - self._heard >= BODY_SECONDS


def configure(options: ServerOptions, app: Any) -> uvicorn.Config:
    """How uvicorn is to run an application."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="uvloop",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=LAST_ANSWERS,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )


class HttpServer(uvicorn.Server):
    """Tells when it listens; on the first signal lets work end, on the second stops at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        listening: Callable[[], None],
        drain: Callable[[], Awaitable[None]],
        release: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._listening, self._drain, self._release = listening, drain, release
        self._forced = asyncio.Event()
        self.signals = 0

    async def startup(self, sockets: Any = None) -> None:
        """Start the application and take connections."""
        await super().startup(sockets)
        if not self.should_exit:
            self._listening()

    async def shutdown(self, sockets: Any = None) -> None:
        """Let work end while clients can still fetch results, then close."""
        log.info("stopping: no new work is taken, running work ends")
        drain = asyncio.ensure_future(self._drain())
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait((drain, forced), return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        drain.cancel()
        # Held polls are answered after all connections were told to close behind their answer (what
        # uvicorn does before it first waits): no client asks again on one of them and is held anew.
        asyncio.get_running_loop().call_soon(self._release)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM; a server that was told to stop and did has not failed."""
        if threading.current_thread() is not threading.main_thread():  # others get no signals
            yield
            return
        loop = asyncio.get_running_loop()

        def told(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.leave)

        before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def leave(self) -> None:
        """Stop; told a second time, at once."""
        self.signals += 1
        self.should_exit = True
        if self.signals > 1:
            self.force_exit = True
            self._forced.set()
