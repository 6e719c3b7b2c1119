from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from tinkex.errors import APIConnectionError, APITimeoutError
from tinkex.net.transport import Request, Response, Transport
from tinkex.testing import (
    AsgiTransport,
    FakeClock,
    FakeRequest,
    FakeResponse,
    HandlerTransport,
    ScriptedTransport,
    reply,
)
from tinkex.wire import zstd

ASK = Request("POST", "http://host:1/base/api/v1/x%20y?limit=2&b=", {"X-API-Key": "k"}, b"hello")
STREAM = Request("GET", "http://host/", stream=True)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def answering(response: FakeResponse) -> HandlerTransport:
    async def handler(_: FakeRequest) -> FakeResponse:
        return response

    return HandlerTransport(handler, clock=FakeClock(auto=True))


async def pieces(response: Response) -> list[bytes]:
    assert response.chunks is not None
    return [piece async for piece in response.chunks]


# ---- a handler


def test_a_handler_sees_the_request_taken_apart() -> None:
    seen: list[FakeRequest] = []

    async def handler(request: FakeRequest) -> FakeResponse:
        seen.append(request)
        return FakeResponse(201, {"X-Thing": "1"}, b"made")

    async def main() -> None:
        transport: Transport = HandlerTransport(handler)
        answer = await transport.send(ASK)
        assert (answer.status, answer.body) == (201, b"made")
        assert answer.headers == {"x-thing": "1", "content-length": "4"}
        (request,) = seen
        assert (request.method, request.path) == ("POST", "/base/api/v1/x%20y")
        assert request.query == {"limit": "2", "b": ""}
        assert request.headers == {"host": "host:1", "x-api-key": "k"}
        assert request.body == b"hello"
        await transport.close()
        with pytest.raises(APIConnectionError):
            await transport.send(ASK)

    run(main())


def test_delays_and_timeouts_pass_on_the_clock() -> None:
    async def main() -> None:
        transport = answering(FakeResponse(200, {}, b"late", delay=50))
        assert isinstance(transport.clock, FakeClock)
        assert (await transport.send(ASK)).body == b"late"
        assert transport.clock.elapsed == 50
        short = Request("GET", "http://host/", timeout=10)
        with pytest.raises(APITimeoutError):
            await transport.send(short)
        assert transport.clock.elapsed == 60
        with pytest.raises(APITimeoutError):
            await answering(FakeResponse(hang=True)).send(ASK)
        assert transport.clock.sleeps == []  # timeouts are not the client's own waits
        assert transport.requests == 2

    run(main())


def test_a_dropped_answer_and_a_server_gone_are_connection_errors() -> None:
    async def main() -> None:
        with pytest.raises(APIConnectionError) as dropped:
            await answering(FakeResponse(drop=True)).send(ASK)
        assert not isinstance(dropped.value, APITimeoutError)
        transport = answering(FakeResponse())
        transport.online = False
        with pytest.raises(APIConnectionError):
            await transport.send(ASK)
        transport.online = True
        assert (await transport.send(ASK)).status == 200

    run(main())


def test_cancelling_a_request_drops_it() -> None:
    async def main() -> None:
        ended: list[str] = []
        begun = asyncio.Event()

        async def handler(_: FakeRequest) -> FakeResponse:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("dropped")
            return FakeResponse()

        task = asyncio.ensure_future(HandlerTransport(handler).send(ASK))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["dropped"]

    run(main())


@pytest.mark.parametrize(
    ("name", "packed"), [("gzip", gzip.compress(b"text", mtime=0)), ("zstd", zstd.compress(b"text"))]
)
def test_a_content_encoding_is_undone(name: str, packed: bytes) -> None:
    async def main() -> None:
        answer = await answering(FakeResponse(200, {"Content-Encoding": name}, packed)).send(ASK)
        assert answer.body == b"text"
        assert "content-encoding" not in answer.headers

    run(main())


def test_a_stream_comes_in_pieces_and_can_be_cut() -> None:
    async def main() -> None:
        parts = [b"one", b"two", b"", b"three"]
        transport = answering(FakeResponse(200, {}, chunks=parts, pace=3))
        assert await pieces(await transport.send(STREAM)) == [b"one", b"two", b"three"]
        assert isinstance(transport.clock, FakeClock)
        assert transport.clock.elapsed == 9
        assert (await transport.send(ASK)).body == b"onetwothree"
        cut = answering(FakeResponse(200, {}, b"0123456789", cut=4))
        with pytest.raises(APIConnectionError):
            await cut.send(ASK)
        chunks = (await cut.send(STREAM)).chunks
        assert chunks is not None
        assert await anext(chunks) == b"0123"
        with pytest.raises(APIConnectionError):
            await anext(chunks)

    run(main())


def test_redirects_are_followed_without_leaking_the_key() -> None:
    seen: list[tuple[str, str, str | None, str]] = []

    async def handler(request: FakeRequest) -> FakeResponse:
        headers = request.headers
        seen.append((request.method, request.path, headers.get("x-api-key"), headers["host"]))
        if request.path == "/a":
            return FakeResponse(302, {"Location": "/b"})
        if request.path == "/b":
            return FakeResponse(307, {"Location": "http://elsewhere/c"})
        return (
            FakeResponse(200, {}, b"end") if request.path == "/c" else FakeResponse(302, {"location": "/d"})
        )

    async def main() -> None:
        transport = HandlerTransport(handler)
        ask = Request("POST", "http://host/a", {"X-API-Key": "k"}, b"x")
        assert (await transport.send(ask)).body == b"end"
        assert seen == [
            ("POST", "/a", "k", "host"),
            ("GET", "/b", "k", "host"),
            ("GET", "/c", None, "elsewhere"),
        ]
        stay = Request("GET", "http://host/a", follow_redirects=False)
        assert (await transport.send(stay)).status == 302
        with pytest.raises(APIConnectionError, match="redirects"):
            await transport.send(Request("GET", "http://host/d"))

    run(main())


# ---- a script


def test_a_script_answers_in_order_and_remembers() -> None:
    async def later(request: Request) -> Response:
        return reply({"url": request.url})

    async def main() -> None:
        script = ScriptedTransport(
            [
                reply({"a": 1}),
                503,
                204,
                APIConnectionError(None, "gone"),
                APITimeoutError,
                FakeResponse(200, {}, b"raw"),
                later,
                lambda request: 418,
            ],
            clock=FakeClock(auto=True),
        )
        first = await script.send(ASK)
        assert (first.status, first.body) == (200, b'{"a":1}')
        assert first.headers["content-type"] == "application/json"
        assert (await script.send(ASK)).status == 503
        assert (await script.send(ASK)).status == 204
        with pytest.raises(APIConnectionError, match="gone"):
            await script.send(ASK)
        with pytest.raises(APITimeoutError):
            await script.send(ASK)
        assert (await script.send(ASK)).body == b"raw"
        assert ASK.url.encode() in (await script.send(ASK)).body
        assert script.left == 1
        assert (await script.send(ASK)).status == 418
        with pytest.raises(AssertionError, match=r"POST http://host:1"):
            await script.send(ASK)
        script.add(FakeResponse(hang=True))
        with pytest.raises(APITimeoutError):
            await script.send(ASK)
        assert len(script.requests) == 10
        await script.close()
        assert script.closed

    run(main())


def test_the_last_line_may_repeat() -> None:
    async def main() -> None:
        script = ScriptedTransport([200, 500], repeat_last=True)
        assert [(await script.send(ASK)).status for _ in range(4)] == [200, 500, 500, 500]

    run(main())


# ---- an ASGI application


class App:
    """A small application: echoes, streams, fails, waits."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.scopes: list[Any] = []
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            scope["state"]["ready"] = True
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
            self.events.append("down")
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.scopes.append(scope)
        request = await receive()
        await getattr(self, scope["path"].strip("/").replace(" ", "_") or "echo")(request, receive, send)

    async def echo(self, request: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"X-Got", b"yes")]})
        await send({"type": "http.response.body", "body": request["body"]})

    async def stream(self, request: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            for number in range(1000):
                await send(
                    {"type": "http.response.body", "body": b"%d " % number, "more_body": number < 999}
                )
        except OSError:
            self.gone.set()

    async def wait(self, request: Any, receive: Any, send: Any) -> None:
        try:
            assert (await receive())["type"] == "http.disconnect"
            self.events.append("disconnected")
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise

    async def fail(self, request: Any, receive: Any, send: Any) -> None:
        raise KeyError("inside")

    async def half(self, request: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})


def test_an_application_is_called_as_a_server_would() -> None:
    async def main() -> None:
        app = App()
        transport: Transport = AsgiTransport(app)
        answer = await transport.send(Request("POST", "http://h:8/?q=1", {"X-A": "b"}, b"body"))
        assert (answer.status, answer.body, dict(answer.headers)) == (200, b"body", {"x-got": "yes"})
        (scope,) = app.scopes
        assert scope["query_string"] == b"q=1"
        assert (b"x-a", b"b") in scope["headers"]
        assert (b"content-length", b"4") in scope["headers"]
        assert scope["server"] == ("h", 8)
        assert scope["state"] == {"ready": True}
        await transport.close()
        assert app.events == ["down"]

    run(main())


def test_an_application_streams_and_notices_that_nobody_listens() -> None:
    async def main() -> None:
        app = App()
        transport = AsgiTransport(app)
        answer = await transport.send(Request("GET", "http://h/stream", stream=True))
        assert (await pieces(answer))[-1] == b"999 "
        answer = await transport.send(Request("GET", "http://h/stream", stream=True))
        chunks: AsyncIterator[bytes] | None = answer.chunks
        assert chunks is not None
        assert await anext(chunks) == b"0 "
        await chunks.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(app.gone.wait(), 5)

    run(main())


def test_an_application_that_fails_or_takes_too_long() -> None:
    async def main() -> None:
        app = App()
        transport = AsgiTransport(app, clock=FakeClock(auto=True))
        with pytest.raises(KeyError, match="inside"):
            await transport.send(Request("GET", "http://h/fail"))
        quiet = AsgiTransport(app, raise_errors=False)
        assert (await quiet.send(Request("GET", "http://h/fail"))).status == 500
        with pytest.raises(APIConnectionError, match="middle"):
            await transport.send(Request("GET", "http://h/half"))
        with pytest.raises(APITimeoutError):
            await transport.send(Request("GET", "http://h/wait", timeout=5))
        assert app.events == ["disconnected"] or app.events == ["cancelled"]
        await transport.close()
        await quiet.close()

    run(main())


def test_an_application_without_a_lifespan_is_fine_and_one_that_fails_to_start_is_not() -> None:
    async def plain(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no disk"})

    async def main() -> None:
        transport = AsgiTransport(plain)
        assert (await transport.send(ASK)).status == 204
        await transport.close()
        with pytest.raises(RuntimeError, match="no disk"):
            await AsgiTransport(broken).send(ASK)

    run(main())
