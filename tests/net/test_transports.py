"""Every transport behaves alike: HTTP/1.1 and aiohttp on cleartext, HTTP/2 on TLS, through a proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.net.servers import connect_proxy, in_thread, tls_server
from tinkex.config import Config
from tinkex.errors import APIConnectionError, APITimeoutError, InvalidArgumentError
from tinkex.net.aiohttp_transport import AiohttpTransport
from tinkex.net.http1_transport import Http1Transport
from tinkex.net.lanes import Lanes, make_transport
from tinkex.net.pyqwest_transport import PyqwestTransport
from tinkex.net.transport import Request, Response
from tinkex.testing.fake_service import FakeService
from tinkex.testing.http_server import FakeServer


def send(transport: Any, *requests: Request) -> list[Response]:
    async def main() -> list[Response]:
        try:
            return [await transport.send(request) for request in requests]
        finally:
            await transport.close()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("tls")
    with in_thread(lambda: tls_server(folder)) as held:
        yield held


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(FakeService()) as running:
        yield running


CLEAR = [Http1Transport, AiohttpTransport, PyqwestTransport]
HEADERS = {"X-API-Key": "tml-x", "Content-Type": "application/json"}


@pytest.mark.parametrize("kind", CLEAR)
def test_answers_come_back_whatever_their_status(kind: Any, server: FakeServer) -> None:
    good = Request("GET", f"{server.base_url}/api/v1/healthz", HEADERS)
    bad = Request("POST", f"{server.base_url}/api/v1/create_session", HEADERS, b"not json")
    first, second, third = send(kind(), good, bad, good)
    assert (first.status, json.loads(first.body)) == (200, {"status": "ok"})
    assert second.status >= 400
    assert third.status == 200
    assert first.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("kind", CLEAR)
def test_a_connection_is_used_again(kind: Any, server: FakeServer) -> None:
    request = Request("GET", f"{server.base_url}/api/v1/healthz", HEADERS)
    send(kind(), *[request] * 20)
    assert server.accepted == 1


@pytest.mark.parametrize("kind", CLEAR)
@pytest.mark.parametrize("fault", [{"drop": True}, {"cut": 3}])
def test_a_broken_answer_is_a_connection_error(kind: Any, fault: Any, server: FakeServer) -> None:
    server.service.faults.add("health", **fault)
    with pytest.raises(APIConnectionError) as caught:
        send(kind(), Request("GET", f"{server.base_url}/api/v1/healthz", HEADERS))
    assert not isinstance(caught.value, APITimeoutError)
    assert "tml-x" not in repr(caught.value.__dict__)


@pytest.mark.parametrize("kind", CLEAR)
def test_an_answer_that_does_not_come_is_a_timeout(kind: Any, server: FakeServer) -> None:
    server.service.faults.add("health", hang=True)
    with pytest.raises(APITimeoutError):
        send(kind(), Request("GET", f"{server.base_url}/api/v1/healthz", HEADERS, timeout=0.2))


@pytest.mark.parametrize("kind", CLEAR)
def test_a_server_that_is_not_there_is_a_connection_error(kind: Any) -> None:
    with pytest.raises(APIConnectionError):
        send(kind(), Request("GET", "http://127.0.0.1:9/x", HEADERS, timeout=3, connect_timeout=2))


@pytest.mark.parametrize("kind", CLEAR)
def test_large_bodies_travel_whole(kind: Any, server: FakeServer) -> None:
    blob = json.dumps(
        {"events": [], "platform": "x" * 3_000_000, "sdk_version": "1", "session_id": "s"}
    ).encode()
    (answer,) = send(kind(), Request("POST", f"{server.base_url}/api/v1/telemetry", HEADERS, blob))
    assert answer.status == 200
    assert len(server.service.calls.to("telemetry")[0].raw) == len(blob)


def test_a_header_cannot_smuggle_another(server: FakeServer) -> None:
    evil = {"X-API-Key": "a\r\nX-Evil: 1"}
    with pytest.raises(InvalidArgumentError, match="line break"):
        send(Http1Transport(), Request("GET", f"{server.base_url}/api/v1/healthz", evil))


def test_tls_speaks_http2_and_trusts_only_the_given_authority(tls: tuple[str, str]) -> None:
    url, authority = tls
    requests = [
        Request("GET", f"{url}/hello?a=1%202", {"x-test": "v"}),
        Request("POST", f"{url}/post", {}, b"x" * 200_000),
        Request("GET", f"{url}/redirect"),
        Request("GET", f"{url}/redirect", follow_redirects=False),
        Request("GET", f"{url}/refuse"),
    ]
    hello, post, landed, redirect, refused = send(PyqwestTransport(ca_file=authority), *requests)
    told = json.loads(hello.body)
    assert (told["version"], told["query"], told["header"]) == ("2", "a=1%202", "v")
    assert json.loads(post.body)["size"] == 200_000
    assert json.loads(landed.body)["path"] == "/landed"
    assert redirect.status == 302
    assert (refused.status, refused.headers["x-request-id"]) == (429, "r1")
    with pytest.raises(APIConnectionError):
        send(PyqwestTransport(), requests[0])
    with pytest.raises(APITimeoutError):
        send(PyqwestTransport(ca_file=authority), Request("GET", f"{url}/slow", timeout=0.3))


@pytest.mark.parametrize("kind", [PyqwestTransport, AiohttpTransport])
def test_streams_come_in_pieces(kind: Any, tls: tuple[str, str]) -> None:
    url, authority = tls

    async def main() -> list[bytes]:
        transport = kind(ca_file=authority)
        answer = await transport.send(Request("GET", f"{url}/stream", stream=True))
        assert answer.chunks is not None
        pieces = [piece async for piece in answer.chunks]
        await transport.close()
        return pieces

    pieces = asyncio.run(main())
    assert b"".join(pieces) == b"piece0;piece1;piece2;piece3;piece4;end"
    assert len(pieces) > 1


def test_a_proxy_is_used_unless_the_host_is_exempt(tls: tuple[str, str], server: FakeServer) -> None:
    url, authority = tls
    with in_thread(connect_proxy) as (proxy, asked):
        environ = {"HTTPS_PROXY": proxy, "HTTP_PROXY": proxy, "SSL_CERT_FILE": authority}
        secure = make_transport(Config.resolve(base_url=url, environ=environ))
        assert json.loads(send(secure, Request("GET", f"{url}/a"))[0].body)["version"] == "2"
        assert asked == [f"CONNECT {url.removeprefix('https://')} HTTP/1.1"]
        clear = make_transport(Config.resolve(base_url=server.base_url, environ=environ))
        assert send(clear, Request("GET", f"{server.base_url}/api/v1/healthz", HEADERS))[0].status == 200
        assert len(asked) == 2
        exempt = {**environ, "NO_PROXY": "example.com, 127.0.0.1"}
        for address in (url, server.base_url):
            direct = make_transport(Config.resolve(base_url=address, environ=exempt))
            target = f"{address}/a" if address == url else f"{address}/api/v1/healthz"
            assert send(direct, Request("GET", target, HEADERS))[0].status == 200
        assert len(asked) == 2


def test_what_may_hang_has_connections_of_its_own_on_tls() -> None:
    made: list[Config] = []

    def make(config: Config) -> Any:
        made.append(config)
        return Http1Transport()

    lanes = Lanes(Config.resolve(base_url="https://x.test", environ={}), make)
    assert lanes.transport("poll") is lanes.transport("poll_many")
    assert lanes.transport("poll") is not lanes.transport("session")
    assert lanes.transport("sample") is not lanes.transport("train")
    clear = Lanes(Config.resolve(base_url="http://x.test", environ={}), make)
    assert clear.transport("poll") is clear.transport("session")
