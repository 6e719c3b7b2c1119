"""Serves a `FakeService` over real HTTP/1.1 on 127.0.0.1.

In a test: `with FakeServer(FakeService()) as server: connect(server.base_url)`.  In a process of its
own: `python -m tinkex.testing.http_server --port 0 --config '{"hold": 20}'` prints its address.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Self, cast
from urllib.parse import quote

import msgspec

from ..types import ClientConfigResponse, ClientDynamicConfigResponse
from .exchange import CutShort, FakeRequest, FakeResponse, Problem, pieces_of, query_of
from .fake_service import FakeService
from .handlers import Reply
from .timers import pause

__all__ = ["FakeServer", "main"]

_HOST = "127.0.0.1"
_BACKLOG = 4096
_MOST_HEAD = 64 * 1024
_REASONS = {status.value: status.phrase for status in http.HTTPStatus}


class BadRequest(Exception):
    """Bytes that are no HTTP request."""


class RequestReader:
    """Takes bytes as they come and gives out whole requests."""

    __slots__ = ("_body", "_buffer", "_chunked", "_head", "_missing", "expects_continue")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: FakeRequest | None = None
        self._missing = 0
        self._chunked = False
        self._body: list[bytes] = []
        self.expects_continue: bool = False

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._buffer += data

    def next(self) -> FakeRequest | None:
        """The next whole request, or None if more bytes are needed."""
        if self._head is None and not self._read_head():
            return None
        whole = self._read_chunks() if self._chunked else self._read_body()
        if not whole:
            return None
        request, self._head = self._head, None
        assert request is not None
        return request

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MOST_HEAD:
                raise BadRequest("the head is too long")
            return False
        head = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 4]
        first, *lines = head.split("\r\n")
        try:
            method, target, version = first.split(" ")
            headers = {}
            for line in lines:
                name, value = line.split(":", 1)
                headers[name.lower()] = value.strip()
            self._missing = int(headers.get("content-length", "0"))
        except ValueError:
            raise BadRequest(f"not an HTTP request: {first[:80]!r}") from None
        if not version.startswith("HTTP/1."):
            raise BadRequest(f"{version} is not spoken here")
        if target.startswith("http"):
            target = "/" + target.split("/", 3)[-1]
        path, _, query = target.partition("?")
        self._head = FakeRequest(method, path, query_of(query), headers)
        self._chunked = "chunked" in headers.get("transfer-encoding", "")
        self._body = []
        self.expects_continue = "expect" in headers and headers["expect"].lower() == "100-continue"
        return True

    def _read_body(self) -> bool:
        if len(self._buffer) < self._missing:
            return False
        assert self._head is not None
        if self._missing:
            self._head.body = bytes(self._buffer[: self._missing])
            del self._buffer[: self._missing]
        return True

    def _read_chunks(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return False
            try:
                size = int(self._buffer[:end].partition(b";")[0], 16)
            except ValueError:
                raise BadRequest("not a chunk size") from None
            if len(self._buffer) < end + size + 4:
                return False
            self._body.append(bytes(self._buffer[end + 2 : end + 2 + size]))
            del self._buffer[: end + size + 4]
            if size == 0:
                assert self._head is not None
                self._head.body = b"".join(self._body)
                return True


def head_of(answer: FakeResponse, length: int | None) -> bytes:
    """The status line and headers of an answer; without a length it goes out in chunks."""
    lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if length is None:
        if "transfer-encoding" not in answer.headers:
            lines.append("transfer-encoding: chunked")
    else:
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Connection(asyncio.Protocol):
    """One client: its requests are answered one after another."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._reader = RequestReader()
        self._waiting: deque[FakeRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._room = asyncio.Event()  # the client takes what is sent
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        self._server.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """A client went; what it waited for is dropped."""
        self._server.connections.discard(self)
        self._transport = None
        self._room.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not take what is sent."""
        self._room.clear()

    def resume_writing(self) -> None:
        """The client goes on."""
        self._room.set()

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        reader = self._reader
        reader.feed(data)
        try:
            while (request := reader.next()) is not None:
                self._waiting.append(request)
        except BadRequest as problem:
            if self._transport is not None:
                refusal = Problem(400, str(problem)).response()
                self._transport.write(head_of(refusal, len(refusal.body)) + refusal.body)
                self._transport.close()
            return
        if reader.expects_continue and self._transport is not None and not self._waiting:
            reader.expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._task is None and self._transport is not None:
            request = self._waiting.popleft()
            try:
                answer = self._server.service.answer(request)
            except Exception as error:
                self._server.errors.append(error)
                answer = Problem(500, f"{type(error).__name__}: {error}").response()
            if isinstance(answer, FakeResponse) and answer.plain:
                self._write(request, answer)
            else:
                self._task = asyncio.ensure_future(self._later(request, answer))

    async def _later(self, request: FakeRequest, answer: Reply) -> None:
        try:
            made = answer if isinstance(answer, FakeResponse) else await answer
            if made.delay:
                await pause(self._server.service.clock, made.delay)
            if made.hang:
                await asyncio.Event().wait()
            if made.drop:
                self.close()
            elif made.cut is not None or made.chunks is not None:
                await self._write_pieces(request, made)
            else:
                self._write(request, made)
        except Exception as error:
            self._server.errors.append(error)
            self._write(request, Problem(500, f"{type(error).__name__}: {error}").response())
        finally:
            self._task = None
        self._go_on()

    def _write(self, request: FakeRequest, answer: FakeResponse) -> None:
        if self._transport is None:
            return
        if "transfer-encoding" in answer.headers:
            self._transport.write(head_of(answer, None) + chunk_of(answer.body) + b"0\r\n\r\n")
        else:
            self._transport.write(head_of(answer, len(answer.body)) + answer.body)
        self._keep_or_close(request, answer)

    async def _write_pieces(self, request: FakeRequest, answer: FakeResponse) -> None:
        if self._transport is None:
            return
        whole = answer.chunks is None
        self._transport.write(head_of(answer, len(answer.body) if whole else None))
        try:
            async for piece in pieces_of(answer, self._server.service.clock):
                await self._room.wait()
                if self._transport is None:
                    return
                self._transport.write(piece if whole else chunk_of(piece))
        except CutShort:
            if self._transport is not None:
                self._transport.close()
            return
        if self._transport is not None and not whole:
            self._transport.write(b"0\r\n\r\n")
        self._keep_or_close(request, answer)

    def _keep_or_close(self, request: FakeRequest, answer: FakeResponse) -> None:
        wishes = (request.headers.get("connection", ""), answer.headers.get("connection", ""))
        if self._transport is not None and any(wish.lower() == "close" for wish in wishes):
            self._transport.close()


def chunk_of(piece: bytes) -> bytes:
    """One chunk of a chunked body; an empty one would end it, so it is left out."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


class FakeServer:
    """Serves a `FakeService` from a thread of its own while used as a context manager."""

    def __init__(self, service: FakeService | None = None, *, port: int = 0, prefix: str = "") -> None:
        self.service: FakeService = service or FakeService()
        self.connections: set[Connection] = set()
        self.accepted = 0  # connections ever made
        self.errors: list[Exception] = []  # what went wrong inside the service itself
        self._port = port
        self._prefix = quote(prefix)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """Where clients should connect."""
        return f"http://{_HOST}:{self._port}{self._prefix}"

    async def listen(self) -> None:
        """Begin to answer, on the running loop."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self), _HOST, self._port, backlog=_BACKLOG
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Take no more clients and send away those who are there."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.drop_all()
        await asyncio.sleep(0)

    def drop_all(self) -> None:
        """Cut every connection; call it on the server's loop."""
        for connection in list(self.connections):
            connection.close()

    def __enter__(self) -> Self:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-server", daemon=True)
        self._thread.start()
        self._call(self.listen)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._call(self._finish)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self.errors and kind is None:
            raise self.errors[0]

    async def _finish(self) -> None:
        await self.stop()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def go_down(self) -> None:
        """Vanish: refuse new clients and cut those who are there, until `come_back`."""
        self._call(self.stop)

    def come_back(self) -> None:
        """Answer again at the same address, with everything still known."""
        self._call(self.listen)

    def cut_connections(self) -> None:
        """Cut every connection but go on listening."""

        async def cut() -> None:
            self.drop_all()

        self._call(cut)

    def _call(self, work: Callable[[], Any]) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work(), self._loop).result()


def _new_loop() -> asyncio.AbstractEventLoop:
    with contextlib.suppress(ImportError):
        import uvloop

        return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())
    return asyncio.new_event_loop()


# ---- a process of its own


def service_from(settings: dict[str, Any], *, record: bool) -> FakeService:
    """A service from JSON settings: `FakeService`'s arguments, and `rate_limits` by route."""
    known = dict(settings)
    limits = known.pop("rate_limits", {})
    for name, kind in (("config", ClientConfigResponse), ("dynamic", ClientDynamicConfigResponse)):
        if known.get(name) is not None:
            known[name] = kind.model_validate(known[name])
    service = FakeService(record=record, **known)
    for route, per_second in limits.items():
        service.rate_limit(route, per_second)
    return service


def allow_many_files() -> int | None:
    """Let this process open as many connections as the system allows; returns how many that is."""
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else None


def main(arguments: list[str] | None = None) -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m tinkex.testing.http_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--config", default="{}", help="settings of the service, as JSON")
    parser.add_argument("--no-record", action="store_true", help="do not remember calls")
    options = parser.parse_args(arguments)
    allow_many_files()
    service = service_from(msgspec.json.decode(options.config), record=not options.no_record)
    loop = _new_loop()
    server = FakeServer(service, port=options.port)
    loop.run_until_complete(server.listen())
    sys.stdout.write(server.base_url + "\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        loop.run_forever()
    loop.run_until_complete(server.stop())
    loop.close()


if __name__ == "__main__":
    main()
