"""Redirects are followed, and a credential goes no further than the server it is for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tinkex.client.connection import Connection
from tinkex.config import Config
from tinkex.errors import APIConnectionError
from tinkex.net.redirects import redirected
from tinkex.net.transport import Request, Response
from tinkex.testing import FakeServer, FakeService, ScriptedTransport, reply
from tinkex.wire.routes import route

PRIVATE = {"X-API-Key": "tml-secret", "CF-Access-Client-Secret": "s", "Accept": "*/*", "User-Agent": "u"}


def onward(url: str, status: int, location: str, method: str = "GET") -> Request | None:
    request = Request(method, url, PRIVATE, b"{}" if method == "POST" else None)
    return redirected(request, Response(status, {"location": location}))


@pytest.mark.parametrize(
    ("here", "there", "kept"),
    [
        ("http://a.test/x", "/y", True),
        ("http://a.test/x", "http://A.test:80/y", True),
        ("http://a.test/x", "https://a.test/y", True),
        ("https://a.test/x", "https://a.test:443/y", True),
        ("http://a.test/x", "http://b.test/y", False),
        ("http://a.test/x", "http://sub.a.test/y", False),
        ("http://a.test/x", "http://a.test:81/y", False),
        ("http://a.test:81/x", "https://a.test/y", False),
        ("https://a.test/x", "//b.test/y", False),
        ("http://a.test/x", "http://a.test@b.test/y", False),
    ],
)
def test_private_headers_stay_with_their_server(here: str, there: str, kept: bool) -> None:
    request = onward(here, 302, there)
    assert request is not None
    assert dict(request.headers) == (PRIVATE if kept else {"Accept": "*/*", "User-Agent": "u"})


@pytest.mark.parametrize("location", ["ftp://a.test/x", "file:///etc/passwd", "http://a.test/x"])
def test_a_redirect_to_less_safety_is_refused(location: str) -> None:
    with pytest.raises(APIConnectionError, match="not followed"):
        onward("https://a.test/x", 302, location)


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "DELETE", "GET"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
        (302, "DELETE", "DELETE"),
    ],
)
def test_the_method_changes_as_it_does_in_browsers(status: int, method: str, becomes: str) -> None:
    request = onward("http://a.test/x", status, "/y", method)
    assert request is not None
    assert (request.method, request.url) == (becomes, "http://a.test/y")
    assert (request.body is None) == (becomes != "POST")


def test_other_answers_are_answers() -> None:
    assert onward("http://a.test/x", 200, "/y") is None
    assert redirected(Request("GET", "http://a.test/"), Response(302, {})) is None


def ask(lines: list[Any], **options: Any) -> tuple[Response, ScriptedTransport]:
    transport = ScriptedTransport(lines)
    config = Config.resolve(base_url="http://a.test", api_key="tml-secret", retry_seconds=0.0, environ={})
    connection = Connection(config, make_transport=lambda _: transport)

    async def call() -> Response:
        return await connection.caller.call(route("health"), **options)

    return asyncio.run(call()), transport


def to(url: str) -> Response:
    return reply(status=302, headers={"location": url})


def test_a_call_follows_and_drops_the_credential_for_good() -> None:
    response, transport = ask([to("http://b.test/1"), to("http://a.test/2"), reply({"status": "ok"})])
    assert response.status == 200
    assert [request.url for request in transport.requests] == [
        "http://a.test/api/v1/healthz",
        "http://b.test/1",
        "http://a.test/2",
    ]
    assert ["X-API-Key" in request.headers for request in transport.requests] == [True, False, False]


def test_redirects_in_a_circle_end() -> None:
    with pytest.raises(APIConnectionError, match="too many redirects"):
        ask([to("http://a.test/again")] * 20)


def test_a_redirect_can_be_the_answer() -> None:
    response, transport = ask([to("http://b.test/1")], follow_redirects=False)
    assert response.status == 302
    assert len(transport.requests) == 1


def test_over_http_the_other_server_sees_no_credential() -> None:
    with FakeServer(FakeService()) as here, FakeServer(FakeService()) as there:
        target = f"{there.base_url}/api/v1/healthz"
        here.service.faults.add("health", status=307, headers={"location": target}, body=b"")
        connection = Connection(Config.resolve(base_url=here.base_url, api_key="tml-secret", environ={}))

        async def call() -> Response:
            try:
                return await connection.caller.call(route("health"))
            finally:
                await connection.shared.lanes.close()

        assert asyncio.run(call()).status == 200
        (seen,) = there.service.calls
        assert "x-api-key" not in seen.headers
        assert here.service.calls[0].headers["x-api-key"] == "tml-secret"
