"""Nobody holds a connection by being slow: heads, bodies, and answers that are not read."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from tests.server.test_http_server import Echo, head, run, serving
from tinkex.server import http_server


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD", "BODY", "REST", "READ"):
        monkeypatch.setattr(http_server, f"{name}_SECONDS", 0.15)
    monkeypatch.setattr(http_server, "LOOK_SECONDS", 0.02)


class Refusing(Echo):
    """Answers before it has read anything."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class Endless(Echo):
    """Answers until it is released."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not self.released.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is closed, in whatever way."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "begun",
    [b"", b"P", b"POST / HTTP/1.1\r\nhost: x\r\nx-a", head("/")[:-2]],
    ids=["nothing", "a letter", "half", "all but the end"],
)
def test_a_head_that_never_ends(tmp_path: Path, begun: bytes):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            answer = await reader.read()
            # To a client that has said nothing, nothing is said: it may be about to begin.
            assert answer.startswith(b"HTTP/1.1 408 ") if begun else answer == b""
            writer.close()

    run(work)


def test_a_head_that_drips(tmp_path: Path):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\n")
            answer = asyncio.ensure_future(ended(reader))
            while not answer.done():
                writer.write(b"a: b\r\n")
                await asyncio.sleep(0.01)
            # What is still on its way when the server closes takes the answer with it.
            assert answer.result() == b"" or answer.result().startswith(b"HTTP/1.1 408 ")
            writer.close()

    run(work)


def test_the_second_head_of_a_connection_too(tmp_path: Path):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(last=False))
            assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"POST / HTTP")
            assert b"HTTP/1.1 408 " in await reader.read()
            writer.close()

    run(work)


def test_a_body_that_never_comes(tmp_path: Path):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(length=100) + b"some")
            assert await reader.read() == b""
            writer.close()

    run(work)


def test_the_rest_of_a_refused_body_is_not_awaited_for_ever(tmp_path: Path):
    async def work() -> None:
        async with serving(Refusing(), tmp_path) as (_, port, _task):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(length=10**9, last=False))
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
            rest = asyncio.ensure_future(ended(reader))
            while not rest.done():
                writer.write(b"drip")
                await asyncio.sleep(0.01)
            writer.close()

    run(work)


def test_a_request_that_is_held_is_not_slow(tmp_path: Path):
    async def work() -> None:
        app = Echo()
        async with serving(app, tmp_path) as (_, port, _task):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head("/hold"))
            await app.held.wait()
            await asyncio.sleep(4 * http_server.HEAD_SECONDS)  # as a poll is held, and much longer here
            app.released.set()
            assert b" 200 OK" in await reader.read()
            writer.close()

    run(work)


def test_an_answer_nobody_reads_is_broken_off(tmp_path: Path):
    async def work() -> None:
        app = Endless()
        async with serving(app, tmp_path) as (server, port, _task):
            with socket.create_connection(("127.0.0.1", port)) as quiet:
                quiet.sendall(head())
                open_ones = server.server_state.connections
                while not open_ones:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while open_ones:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            app.released.set()

    run(work)
