"""Bytes on a connection, as a server's HTTP layer takes them: requests cut, mixed up and run together."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from tinkex.server.downloads import _range, _tags
from tinkex.server.http_server import Protocol, configure
from tinkex.server.options import ServerOptions

from .file_targets import place
from .mutation import changed, damaged
from .net_targets import loop
from .running import Target


async def _answers(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads what it is sent and tells how much it was."""
    assert scope["type"] == "http"
    assert isinstance(scope["path"], str)
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = json.dumps({"bytes": length}).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class _Wire(asyncio.Transport):
    """A connection's other end."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent, self.closed = bytearray(), False

    def write(self, data: Any) -> None:
        """Take what the server says."""
        if not self.closed:
            self.sent += data

    def is_closing(self) -> bool:
        """Whether the server has closed it."""
        return self.closed

    def close(self) -> None:
        """Close it."""
        self.closed = True

    def abort(self) -> None:
        """Drop it."""
        self.closed = True

    def pause_reading(self) -> None:
        """All has been read already."""

    def resume_reading(self) -> None:
        """All has been read already."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""


@functools.cache
def _config() -> Any:
    config = configure(ServerOptions((), place()), _answers)
    config.load()
    return config


def _read(data: bytes) -> object:
    from uvicorn.server import ServerState

    faults: list[Any] = []

    async def serve() -> bytes:
        here = asyncio.get_running_loop()
        here.set_exception_handler(lambda _, context: faults.append(context))
        protocol, wire = Protocol(_config(), ServerState(), {}, here), _Wire()
        protocol.connection_made(wire)
        cut, at = Random(len(data)), 0
        while at < len(data) and not wire.closed:
            size = cut.choice((1, 7, 64, 1 << 16))
            protocol.data_received(data[at : at + size])
            at += size
            await asyncio.sleep(0)
        for _ in range(6):
            await asyncio.sleep(0)
        protocol.eof_received()
        protocol.connection_lost(None)
        for task in list(protocol.tasks):
            task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        return bytes(wire.sent)

    said = loop().run_until_complete(serve())
    assert not faults, faults[0]
    assert not said or said.startswith(b"HTTP/1.1 "), said[:80]
    for line in said.split(b"\r\n"):
        assert not line.startswith(b"HTTP/1.1 5"), said[:200]
    return said


def _requests() -> list[bytes]:
    head = b"POST /api/v1/x?a=b HTTP/1.1\r\nHost: h\r\nX-API-Key: k\r\n"
    return [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        head + b"Content-Length: 5\r\n\r\nhello",
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /%2e%2e/%00\xff HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"HEAD http://h/x HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]


def _joined(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Requests one after the other, damaged."""
    several = b"".join(rng.choice(corpus) for _ in range(rng.randrange(1, 4)))
    return changed(rng, several, corpus)


# ---- parts of files

_TAG, _SIZE = '"tag"', 43


def _range_of(data: bytes) -> object:
    """What a client asks for is inside the file, beyond its end, or all of it."""
    name, _, value = data.partition(b": ")
    headers = {b"range": b"bytes=5-9", b"if-range": _TAG.encode(), name: value}
    found = _range(headers, _TAG, _SIZE)
    if found is not None:
        first, last = found
        assert first >= 0, found
        assert last < _SIZE, found
    _tags(headers.get(b"if-none-match"))
    return found


def _ranges() -> list[bytes]:
    asked = (b"bytes=0-3", b"bytes=-5", b"bytes=40-", b"bytes=0-0,5-6", b"bytes=7-3", b"bytes=-0")
    return [*(b"range: " + each for each in asked), b'if-range: "tag"', b'if-none-match: "a", W/"tag"']


TARGETS = [
    Target("http request", _requests, _read, (), _joined, 0.7),
    Target("range", _ranges, _range_of, (), damaged, 1),
]
