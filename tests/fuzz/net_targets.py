"""What a client reads from a server beyond bodies: HTTP itself, polls, downloads and their headers."""

from __future__ import annotations

import asyncio
import base64
import functools
import gzip
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.contract import captured
from tinkex.client.connection import Connection
from tinkex.client.file_fetch import FileFetcher, Mark, SignedUrls
from tinkex.client.future import Progress
from tinkex.client.polling import wait_for_result
from tinkex.config import Config, Secret
from tinkex.errors import APIConnectionError, InvalidArgumentError, TinkerError
from tinkex.net import http1_transport
from tinkex.net.http1_transport import Http1Transport, _Connection
from tinkex.net.transport import Request, Response
from tinkex.types import ClientConfigResponse
from tinkex.wire.headers import JSON, PROTOBUF
from tinkex.wire.routes import route

from .file_targets import written_to
from .mutation import changed, json_text, message
from .running import Target

URL = "http://127.0.0.1:1"
_UNPACKED = 1 << 20


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """One loop for all inputs."""
    return asyncio.new_event_loop()


def awaited(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of async work; what it left undone is ended."""
    here = loop()
    try:
        return here.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(here)
        for task in left:
            task.cancel()
        if left:
            here.run_until_complete(asyncio.gather(*left, return_exceptions=True))


class Haste:
    """A clock whose waits take no time."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        """Seconds that have passed."""
        return self.passed

    def now(self) -> datetime:
        """A moment of the year 2026."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=min(self.passed, 1e9))

    def random(self) -> float:
        """The middle of what may be drawn."""
        return 0.5

    async def sleep(self, seconds: float) -> None:
        """Go on at once, later."""
        assert 0 <= seconds < 3600
        self.passed += seconds
        await asyncio.sleep(0)

    def call_later(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call back at a moment that does not come."""
        return lambda: None


# ---- HTTP


class _Wire:
    """A connection's other end: answers a request with prepared bytes, in pieces, and then closes."""

    def __init__(self, protocol: _Connection, answer: bytes) -> None:
        self.protocol, self.answer = protocol, answer
        self.open = True

    def write(self, data: bytes) -> None:
        """Take a request, answer it."""
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        cut, at = Random(len(self.answer)), 0
        while at < len(self.answer) and self.open:
            size = cut.choice((1, 5, 64, 4096))
            self.protocol.data_received(self.answer[at : at + size])
            at += size
        if self.open:
            self.protocol.eof_received()
            self.abort()

    def abort(self) -> None:
        """The connection is gone."""
        if self.open:
            self.open = False
            self.protocol.connection_lost(None)


class _Prepared(Http1Transport):
    """The lean transport on connections that answer prepared bytes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer

    async def _connection(self, place: tuple[str, int], seconds: float) -> _Connection:
        made = _Connection()
        made.connection_made(_Wire(made, self.answer))
        return made


def _http(data: bytes) -> object:
    async def ask() -> Response:
        http1_transport._MOST_UNPACKED = _UNPACKED
        transport = _Prepared(data)
        request = Request("POST", f"{URL}/api/v1/x", {"x-api-key": "k"}, b"{}", 5.0, follow_redirects=False)
        try:
            return await transport.send(request)
        finally:
            await transport.close()

    answer = awaited(ask())
    assert 200 <= answer.status < 1000 or answer.status < 100, answer.status
    assert all(isinstance(value, str) for value in answer.headers.values())
    assert len(answer.body) <= 1 << 27
    return answer


def _responses() -> list[bytes]:
    body = b'{"request_id": "r"}'
    packed, raw = gzip.compress(body), zlib.compress(body)
    bomb = gzip.compress(bytes(1 << 24), 9)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    pieces = b"5\r\n" + body[:5] + b"\r\ne;x=1\r\n" + body[5:] + b"\r\n0\r\nT: 1\r\n\r\n"
    return [
        head + b"Content-Length: 19\r\n\r\n" + body,
        head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces,
        head + b"Connection: close\r\n\r\n" + body,
        head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed,
        head + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw,
        head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Many\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 307 Moved\r\nLocation: http://127.0.0.1:2/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nabc",
    ]  # fmt: skip


# ---- polls


class _Scripted:
    """Answers the first request as prepared, and refuses the rest for good."""

    def __init__(self) -> None:
        self.first: Response | None = None

    async def send(self, request: Request) -> Response:
        """The next answer."""
        first, self.first = self.first, None
        if first is None:
            return Response(404, {"content-type": JSON}, b'{"detail":"gone"}')
        return first

    async def close(self) -> None:
        """Nothing is open."""


@functools.cache
def _connection() -> tuple[Connection, _Scripted]:
    transport = _Scripted()
    config, clock = Config(URL, Secret("tml-k")), Haste()
    made = Connection(
        config,
        clock=clock,  # type: ignore[arg-type]
        make_transport=lambda config: transport,
        settings=ClientConfigResponse(),
    )
    return made, transport


def _poll(name: str, kind: str) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        async def ask() -> Any:
            connection, transport = _connection()
            transport.first = Response(200, {"content-type": kind}, data)
            return await wait_for_result(connection, route(name), "r:1", progress=Progress())

        return awaited(ask())

    return read


_OUTCOMES = [
    b'{"type":"try_again","queue_state":"paused_rate_limit","queue_state_reason":"busy"}',
    b'{"status":"complete_metadata","response_payload_size":12}',
    b'{"error":"no","category":"user"}',
    b'{"metrics":{"a":1.0}}',
    b'{"path":"tinker://a/weights/b","type":"save_weights"}',
    b'{"type":"sample","sequences":[{"tokens":[1],"logprobs":[-1.0],"stop_reason":"stop"}]}',
    b'{"loss_fn_output_type":"x","loss_fn_outputs":[{"a":{"data":[1.0],"dtype":"float32"}}],"metrics":{}}',
]


# ---- downloads

_FILE = b"some bytes of a file, long enough to be cut"
_DIGEST = base64.b64encode(hashlib.sha256(_FILE).digest()).decode()


def _downloads() -> list[bytes]:
    whole = {"content-length": str(len(_FILE)), "etag": '"a"', "repr-digest": f"sha-256=:{_DIGEST}:"}
    rest = {"content-range": f"bytes 10-{len(_FILE) - 1}/{len(_FILE)}", "digest": f"SHA-256={_DIGEST}"}
    return [
        json.dumps([200, whole, _FILE.decode(), 0, None]).encode(),
        json.dumps([206, rest, _FILE[10:].decode(), 10, len(_FILE)]).encode(),
        json.dumps([416, {"content-range": "bytes */43"}, "", 43, 43]).encode(),
        json.dumps([200, {"x-amz-checksum-sha256": _DIGEST}, _FILE.decode(), 0, None]).encode(),
        json.dumps([403, {"retry-after": "1"}, "<Error/>", 0, None]).encode(),
    ]


class _Once:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.left, self.answer = 4, (status, headers, body)

    async def send(self, request: Request) -> Response:
        """The answer, again and again until it is enough."""
        self.left -= 1
        if self.left < 0:
            raise APIConnectionError(message="enough")
        status, headers, body = self.answer
        return Response(status, headers, chunks=_pieces(body))

    async def close(self) -> None:
        """Nothing is open."""


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 16):
        yield body[at : at + 16]


class _Unusable(Exception):
    """The script of an exchange itself was damaged."""


def _fetch(data: bytes) -> object:
    try:
        status, headers, body, have, size = json.loads(data)
        pairs = {str(name).lower(): str(value) for name, value in headers.items()}
        status = 200 if type(status) is not int else 200 + (status - 200) % 400
        have = min(have, len(_FILE)) if type(have) is int and have > 0 else 0
        size = size if type(size) is int and size > 0 else None
        raw = str(body).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise _Unusable from None
    part = written_to("part", _FILE[:have])
    clock = Haste()

    async def sign() -> tuple[dict[str, str], datetime]:
        return {"f": f"{URL}/f"}, clock.now() + timedelta(hours=1)

    async def go() -> int:
        once = _Once(status, pairs, raw)
        fetcher = FileFetcher(clock, lambda origin: once, 1 << 20, 60.0, 5.0, 5.0, lambda *told: None)  # type: ignore[arg-type]
        urls = SignedUrls(sign, clock)  # type: ignore[arg-type]
        return await fetcher.fetch("f", urls, part, Mark(size, '"a"' if have else None), lambda: None)

    with suppress(asyncio.CancelledError):
        return awaited(go())
    return None


def _redone(rng: Random, corpus: Sequence[bytes]) -> bytes:
    return changed(rng, rng.choice(corpus), corpus)


TARGETS = [
    Target("http answer", _responses, _http, (APIConnectionError, InvalidArgumentError), _redone, 2),
    Target("poll json step", lambda: _OUTCOMES, _poll("optim_step", JSON), (TinkerError,), json_text, 0.5),
    Target("poll json sample", lambda: _OUTCOMES, _poll("asample", JSON), (TinkerError,), json_text, 0.5),
    Target("poll json pass", lambda: _OUTCOMES, _poll("forward", JSON), (TinkerError,), json_text, 0.5),
    Target(
        "poll protobuf", lambda: [base64.b64decode(captured.FORWARD_BACKWARD_OUTPUT)],
        _poll("forward_backward", PROTOBUF), (TinkerError,), message, 0.5,
    ),
    Target("download", _downloads, _fetch, (TinkerError, _Unusable), json_text, 0.3),
]  # fmt: skip
