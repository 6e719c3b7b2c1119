"""uvicorn as the server runs it: bounds, prompt polls, and a stop in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from tinkex.server.http_server import HEAD_BYTES, HttpServer, configure
from tinkex.server.listening import listen
from tinkex.server.options import ServerOptions


class Echo:
    """An application that writes down what happens to it; `/hold` waits until it is released."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.held, self.released = asyncio.Event(), asyncio.Event()
        self.draining, self.drained = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self.events.append("start")
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.events.append("stop")
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/hold":
            self.held.set()
            await self.released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % len(body)})

    async def drain(self) -> None:
        self.events.append("drain")
        self.draining.set()
        await self.drained.wait()
        self.events.append("drained")

    def release(self) -> None:
        self.events.append("release")
        self.released.set()


@asynccontextmanager
async def serving(app: Echo, tmp_path: Path) -> AsyncIterator[tuple[HttpServer, int, asyncio.Task[None]]]:
    listener = listen("127.0.0.1", 0)
    listening = asyncio.Event()
    config = configure(ServerOptions((), tmp_path), app)
    server = HttpServer(config, listening=listening.set, drain=app.drain, release=app.release)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await listening.wait()
    try:
        yield server, listener.getsockname()[1], task
    finally:
        app.drained.set()
        server.leave()
        await task


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))  # type: ignore[arg-type]


async def ask(port: int, data: bytes) -> bytes:
    """Send bytes and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    return answer


def head(path: str = "/", *headers: bytes, length: int = 0, last: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode(), b"host: x", b"content-length: %d" % length, *headers]
    if last:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def test_answers_say_nothing_about_the_server(tmp_path: Path):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            answer = await ask(port, head())
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"uvicorn" not in answer.lower()
            assert b"\r\nserver:" not in answer.lower()

    run(work)


def test_headers_have_a_bound(tmp_path: Path):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            most = b"x: " + b"y" * (HEAD_BYTES // 2)
            assert b" 200 OK" in await ask(port, head("/", most))
            for endless in (b"x: " + b"y" * (1 << 20), b"\r\n".join([b"a: b"] * 200_000)):
                answer = await ask(port, b"POST / HTTP/1.1\r\n" + endless)
                # The server may close before the client has sent all of it and has read the answer.
                assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES)
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 431 ")
            body = answer.partition(b"\r\n\r\n")[2]
            assert b"content-length: %d\r\n" % len(body) in answer
            assert b"65536 bytes" in body

    run(work)


def test_bodies_do_not_count_as_headers(tmp_path: Path):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            size = 4 * HEAD_BYTES
            first = head(length=size, last=False) + b"b" * size
            # The next head arrives in two pieces right behind a large body.
            second = head("/again", length=3)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first + second[:20])
            assert b" 200 OK" in await reader.readuntil(b"%d" % size)
            writer.write(second[20:] + b"abc")
            assert b" 200 OK" in await reader.read()
            writer.close()

    run(work)


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_lets_work_end_then_answers_held_polls_then_stops(tmp_path: Path, told: signal.Signals):
    async def work() -> None:
        app = Echo()
        async with serving(app, tmp_path) as (_, port, task):
            poll = asyncio.create_task(ask(port, head("/hold", last=False)))
            await app.held.wait()
            signal.raise_signal(told)
            await app.draining.wait()
            assert b" 200 OK" in await ask(port, head())  # results are handed out meanwhile
            app.drained.set()
            await task
            assert b" 200 OK" in await poll  # and the connection was closed behind it
        assert app.events == ["start", "drain", "drained", "release", "stop"]

    before = signal.getsignal(told)
    run(work)
    assert signal.getsignal(told) == before


def test_the_second_signal_stops_at_once(tmp_path: Path):
    async def work() -> None:
        app = Echo()
        async with serving(app, tmp_path) as (server, _, task):
            signal.raise_signal(signal.SIGINT)
            await app.draining.wait()
            assert not task.done()
            signal.raise_signal(signal.SIGINT)
            await task
            assert server.force_exit
        assert "drained" not in app.events

    run(work)
