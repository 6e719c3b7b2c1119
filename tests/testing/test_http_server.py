from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import subprocess
import sys
from typing import Any

import aiohttp
import pytest

from tests.testing.asking import SAMPLE
from tinkex.testing import FakeClock, FakeServer, FakeService
from tinkex.testing.http_server import allow_many_files

KEY = {"X-API-Key": "tml-test", "Content-Type": "application/json"}


def ask(server: FakeServer, raw: bytes) -> bytes:
    """What comes back for bytes sent, until the server closes."""
    host, port = server.base_url.removeprefix("http://").split("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as plug:
        plug.sendall(raw)
        got = b""
        while piece := plug.recv(65536):
            got += piece
    return got


def connect(server: FakeServer, timeout: float = 10) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.base_url.removeprefix("http://"), timeout=timeout)


def post(link: http.client.HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    link.request("POST", f"/api/v1/{path}", json.dumps(body), KEY)
    answer = link.getresponse()
    return answer.status, json.loads(answer.read())


def test_one_connection_serves_many_requests() -> None:
    with FakeServer() as server:
        link = connect(server)
        assert post(link, "create_session", {"sdk_version": "1"}) == (
            200,
            {"type": "create_session", "session_id": "sess-1"},
        )
        assert post(link, "session_heartbeat", {"session_id": "sess-1"})[0] == 200
        assert post(link, "session_heartbeat", {"session_id": "none"})[0] == 404
        link.close()
        assert server.accepted == 1


def test_pipelined_chunked_and_expected_requests() -> None:
    with FakeServer(prefix="/some/base") as server:
        get = b"GET /some/base/api/v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        last = get.replace(b"Host: x", b"Host: x\r\nConnection: close")
        assert ask(server, get + get + last).count(b"200 OK") == 3
        head = b"POST /api/v1/create_session HTTP/1.1\r\nX-API-Key: k\r\nConnection: close\r\n"
        chunks = b'5\r\n{"sdk\r\n10;x=y\r\n_version":"1.2"}\r\n0\r\n\r\n'
        sent = ask(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert b"sess-1" in sent
        body = b'{"sdk_version":"1"}'
        for whole in (b"Expect: 100-continue\r\n", b""):
            sent = ask(server, head + whole + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert b"200 OK" in sent


def test_a_body_split_anywhere_is_one_request() -> None:
    from tinkex.testing.http_server import RequestReader

    body = b'{"a":1}'
    head = b"POST /p?q=a%20b HTTP/1.1\r\nX-Y: z\r\n"
    plain = head + b"Content-Length: 7\r\n\r\n" + body
    chunked = head + b'Transfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
    for raw in (plain, chunked):
        for cut in range(len(raw) + 1):
            reader = RequestReader()
            found = []
            for part in (raw[:cut], raw[cut:] + raw):
                reader.feed(part)
                while (request := reader.next()) is not None:
                    found.append(request)
            assert len(found) == 2
            for request in found:
                assert (request.method, request.path, request.query) == ("POST", "/p", {"q": "a b"})
                assert (request.headers["x-y"], request.body) == ("z", body)


@pytest.mark.parametrize(
    "raw",
    [b"nonsense\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"x" * 70000],
)
def test_nonsense_is_refused(raw: bytes) -> None:
    with FakeServer() as server:
        assert ask(server, raw).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_every_400_has_a_length_unless_asked_otherwise() -> None:
    with FakeServer() as server:
        link = connect(server)
        link.request("POST", "/api/v1/create_sampling_session", b"{}", KEY)
        answer = link.getresponse()
        body = answer.read()
        assert answer.status == 422
        assert answer.getheader("content-length") == str(len(body))
        server.service.faults.add("health", status=400, body=b"", times=1)
        link.request("GET", "/api/v1/healthz")
        answer = link.getresponse()
        assert (answer.status, answer.getheader("content-length"), answer.read()) == (400, "0", b"")
        chunked = {"transfer-encoding": "chunked"}
        server.service.faults.add("health", status=400, body=b"proxy", headers=chunked, times=1)
        link.request("GET", "/api/v1/healthz")
        answer = link.getresponse()
        assert (answer.status, answer.getheader("content-length"), answer.read()) == (400, None, b"proxy")
        link.close()


def test_connections_are_dropped_cut_and_left_hanging() -> None:
    with FakeServer() as server:
        faults = server.service.faults
        link = connect(server)
        faults.add("health", drop=True, times=1)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            _get(link)
        faults.add("health", cut=4, times=1)
        with pytest.raises(http.client.IncompleteRead):
            _get(link)
        faults.add("health", hang=True, times=1)
        hanging = connect(server, timeout=0.05)
        with pytest.raises(TimeoutError):
            _get(hanging)
        assert _get(link) == b'{"status":"ok"}'
        hanging.close()
        link.close()


def _get(link: http.client.HTTPConnection) -> bytes:
    link.close()
    link.request("GET", "/api/v1/healthz")
    return link.getresponse().read()


def test_delays_and_holds_pass_on_the_services_clock() -> None:
    clock = FakeClock()
    service = FakeService(clock=clock, hold=30)
    with FakeServer(service) as server:
        service.faults.add("health", delay=100, times=1)
        link = connect(server)
        link.request("GET", "/api/v1/healthz")
        clock.advance_until_from_thread(lambda: clock.elapsed == 100)
        assert link.getresponse().read() == b'{"status":"ok"}'
        post(link, "create_session", {"sdk_version": "1"})
        post(
            link,
            "create_sampling_session",
            {"session_id": "sess-1", "sampling_session_seq_id": 0, "base_model": "x"},
        )
        service.pause("asample")
        ticket = post(link, "asample", {**SAMPLE, "sampling_session_id": "sess-1:sample:0", "seq_id": 0})[1]
        body = json.dumps({"request_id": ticket["request_id"]})
        for _ in range(2):
            link.request("POST", "/api/v1/retrieve_future", body, KEY)
            clock.advance_until_from_thread(lambda: clock.sleeping)
            clock.advance_from_thread(30)
            answer = link.getresponse()
            assert (answer.status, json.loads(answer.read())["type"]) == (408, "try_again")
        link.request("POST", "/api/v1/retrieve_future", body, KEY)
        clock.advance_until_from_thread(lambda: clock.sleeping)
        service.resume()
        assert link.getresponse().status == 200
        link.close()


def test_a_server_can_go_away_and_come_back() -> None:
    with FakeServer() as server:
        link = connect(server)
        post(link, "create_session", {"sdk_version": "1"})
        url = server.base_url
        server.go_down()
        with pytest.raises(OSError, match="refused"):
            connect(server).connect()
        server.come_back()
        assert server.base_url == url
        link.close()
        assert post(link, "session_heartbeat", {"session_id": "sess-1"})[0] == 200
        server.cut_connections()
        with pytest.raises((http.client.RemoteDisconnected, OSError)):
            post(link, "session_heartbeat", {"session_id": "sess-1"})
        link.close()
        assert post(link, "session_heartbeat", {"session_id": "sess-1"})[0] == 200
        link.close()


def test_thousands_of_polls_are_held_at_once() -> None:
    allowed = allow_many_files() or 2**20
    count = min(2000, allowed // 2 - 200)  # both ends are in this process
    assert count >= 100
    service = FakeService()
    service.pause("asample")

    async def main(url: str) -> list[int]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(url, connector=connector, headers=KEY) as session:

            async def send(path: str, body: Any) -> tuple[int, Any]:
                async with session.post(f"/api/v1/{path}", data=json.dumps(body)) as answer:
                    return answer.status, await answer.read()

            await send("create_session", {"sdk_version": "1"})
            opened = {"session_id": "sess-1", "sampling_session_seq_id": 0, "base_model": "x"}
            await send("create_sampling_session", opened)
            for number in range(count):
                await send(
                    "asample", {**SAMPLE, "sampling_session_id": "sess-1:sample:0", "seq_id": number}
                )
            polls = [
                asyncio.ensure_future(send("retrieve_future", {"request_id": f"sess-1:sample:0:{number}"}))
                for number in range(count)
            ]
            await asyncio.to_thread(service.calls.wait_for, "retrieve_future", count)
            service.resume()
            return [status for status, _ in await asyncio.gather(*polls)]

    with FakeServer(service) as server:
        assert asyncio.run(main(server.base_url)) == [200] * count


def test_a_bug_in_a_test_shows_itself() -> None:
    def broken(_: object) -> bool:
        raise KeyError("my predicate")

    server = FakeServer()

    def use() -> None:
        with server:
            server.service.faults.add("health", when=broken, status=503)
            link = connect(server)
            assert b"KeyError" in _get(link)
            link.close()

    with pytest.raises(KeyError, match="my predicate"):
        use()


def test_it_runs_as_a_program() -> None:
    settings = {
        "config": {"parallel_fwdbwd_chunks": False},
        "models": ["only"],
        "hold": 1,
        "rate_limits": {"health": 1},
    }
    command = [
        sys.executable,
        "-m",
        "tinkex.testing.http_server",
        "--no-record",
        "--config",
        json.dumps(settings),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        link = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        assert post(link, "client/config", {"sdk_version": "1"})[1]["parallel_fwdbwd_chunks"] is False
        link.request("GET", "/api/v1/get_server_capabilities", headers=KEY)
        assert json.loads(link.getresponse().read())["supported_models"][0]["model_name"] == "only"
        statuses = []
        for _ in range(2):
            link.request("GET", "/api/v1/healthz")
            answer = link.getresponse()
            answer.read()
            statuses.append(answer.status)
        assert statuses == [200, 429]
        link.close()
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
