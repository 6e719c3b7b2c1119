"""What goes wrong below HTTP: typed errors, no secrets in them, and no hang after a fork."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.net.servers import in_thread, tls_server
from tinkex.config import Config
from tinkex.errors import APIConnectionError, APITimeoutError, InvalidArgumentError
from tinkex.net.aiohttp_transport import AiohttpTransport
from tinkex.net.http1_transport import Http1Transport
from tinkex.net.lanes import make_transport
from tinkex.net.pyqwest_transport import PyqwestTransport
from tinkex.net.transport import Request, Response

ALL = [Http1Transport, AiohttpTransport, PyqwestTransport]
SECURE = [AiohttpTransport, PyqwestTransport]
QUERY = "signature=hush-hush"


def exchange(transport: Any, answer: bytes, make: Callable[[int], Request], count: int = 1) -> Any:
    """Send requests to a server that answers each connection's first head with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if answer:
                await asyncio.sleep(0.02)
            else:
                await reader.read()  # nothing is said until the client goes
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def main() -> list[Response]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        request = make(server.sockets[0].getsockname()[1])
        try:
            return [await transport.send(request) for _ in range(count)]
        finally:
            await transport.close()
            server.close()

    return asyncio.run(main())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("value", ["tml-hush\nX-Evil: 1", "tml-hush\rX-Evil: 1", "tml-\0hush"])
def test_a_header_that_cannot_be_sent_is_named_but_not_quoted(kind: Any, value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="X-API-Key") as caught:
        exchange(
            kind(), b"", lambda port: Request("GET", f"http://127.0.0.1:{port}/", {"X-API-Key": value})
        )
    assert "hush" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_character_beyond_latin_1_is_refused_where_it_has_no_form() -> None:
    with pytest.raises(InvalidArgumentError, match="X-API-Key") as caught:
        exchange(
            Http1Transport(),
            b"",
            lambda port: Request("GET", f"http://127.0.0.1:{port}/", {"X-API-Key": "tml-hush…"}),
        )
    assert "hush" not in repr(caught.value)


@pytest.mark.parametrize("kind", ALL)
def test_the_query_of_an_address_is_in_no_error(kind: Any) -> None:
    def garbage(port: int) -> Request:
        return Request("GET", f"http://127.0.0.1:{port}/file?{QUERY}", timeout=5)

    with pytest.raises(APIConnectionError) as caught:
        exchange(kind(), b"\0\1 this is not HTTP\r\n\r\n", garbage)
    assert "hush" not in str(caught.value)
    with pytest.raises(APIConnectionError) as caught:
        exchange(kind(), b"", lambda _: Request("GET", f"http://127.0.0.1:9/file?{QUERY}", timeout=5))
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(vars(caught.value))


@pytest.mark.parametrize("kind", SECURE)
def test_a_proxys_password_is_in_no_error(kind: Any) -> None:
    refusal = b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n"
    made: list[Any] = []

    class Late:
        """The transport is made when the proxy's port is known."""

        async def send(self, request: Request) -> Response:
            made.append(kind(proxy=f"http://me:hush-hush@127.0.0.1:{request.url.rpartition('/')[2]}"))
            answer: Response = await made[-1].send(Request("GET", f"https://x.test/?{QUERY}", timeout=5))
            return answer

        async def close(self) -> None:
            await made[-1].close()

    with pytest.raises(APIConnectionError) as caught:
        exchange(Late(), refusal, lambda port: Request("GET", f"http://x.test/{port}"))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("kind", ALL)
def test_a_second_answer_nobody_asked_for_is_not_mixed_into_the_first(kind: Any) -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue"
    second = b"HTTP/1.1 500 No\r\nX-Evil: 1\r\nContent-Length: 5\r\n\r\nfalse"
    answers = exchange(kind(), first + second, lambda port: Request("GET", f"http://127.0.0.1:{port}/"), 2)
    for answer in answers:
        assert (answer.status, answer.body) == (200, b"true")
        assert "x-evil" not in answer.headers


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("end", [b"", b"4\r\nfa", b"0\r\n"], ids=["between", "within", "at the end"])
def test_an_answer_in_pieces_that_is_cut_off_is_no_answer(kind: Any, end: bytes) -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntrue\r\n"
    with pytest.raises(APIConnectionError):
        exchange(kind(), whole + end, lambda port: Request("GET", f"http://127.0.0.1:{port}/", timeout=5))


@pytest.mark.parametrize("kind", ALL)
def test_without_any_length_the_end_of_the_connection_is_the_end(kind: Any) -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\ntrue"
    (got,) = exchange(kind(), answer, lambda port: Request("GET", f"http://127.0.0.1:{port}/", timeout=5))
    assert got.body == b"true"


def test_a_connection_whose_answer_cannot_be_unpacked_is_closed() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 4\r\n\r\ntrue"

    async def main() -> None:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            with contextlib.suppress(OSError):
                await reader.read()
            gone.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        transport = Http1Transport()
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(APIConnectionError, match="br"):
            await transport.send(Request("GET", f"http://127.0.0.1:{port}/"))
        await asyncio.wait_for(gone.wait(), 10)  # without the transport being closed
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", SECURE)
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_authority_that_cannot_be_read_is_named(kind: Any, content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "authority.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidArgumentError, match=r"ca_file: .*authority\.pem"):
        exchange(kind(ca_file=str(file)), b"", lambda _: Request("GET", "https://127.0.0.1:9/"))


@pytest.mark.parametrize("kind", SECURE)
def test_a_server_that_does_not_greet_is_given_up_after_the_time_for_connecting(kind: Any) -> None:
    with pytest.raises(APIConnectionError) as caught:
        exchange(
            kind(),
            b"",
            lambda port: Request("GET", f"https://127.0.0.1:{port}/", timeout=600, connect_timeout=0.3),
        )
    assert kind is AiohttpTransport or isinstance(caught.value, APITimeoutError)


def test_socks_proxies_are_left_to_the_library_that_knows_them() -> None:
    config = Config.resolve(base_url="http://x.test", environ={"ALL_PROXY": "socks5://127.0.0.1:9"})
    assert isinstance(make_transport(config), PyqwestTransport)
    plain = Config.resolve(base_url="http://x.test", environ={"ALL_PROXY": "http://127.0.0.1:9"})
    assert isinstance(make_transport(plain), AiohttpTransport)


def test_tls_works_in_the_fork_of_a_process_that_used_it(tmp_path: Path) -> None:
    code = """
    import asyncio, os, signal, sys
    from tinkex.config import Config
    from tinkex.net.lanes import make_transport
    from tinkex.net.transport import Request

    url, authority = sys.argv[1:]
    config = Config.resolve(base_url=url, ca_file=authority)

    async def look():
        transport = make_transport(config)
        answer = await transport.send(Request("GET", f"{url}/hello", timeout=10))
        await transport.close()
        return type(transport).__name__, answer.status

    told = [asyncio.run(look())]
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if asyncio.run(look())[1] == 200 else 1)
    told.append(os.waitpid(child, 0)[1])
    told.append(asyncio.run(look()))
    print(told)
    """
    with in_thread(lambda: tls_server(tmp_path)) as (url, authority):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), url, authority],
            capture_output=True,
            text=True,
            timeout=60,
        )
    used = ("PyqwestTransport", 200)
    assert done.stdout.strip() == str([used, 0, used]), done.stderr[-500:]


def test_what_was_fine_stays_fine() -> None:
    body = json.dumps({"a": 1}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    for kind in ALL:
        (answer,) = exchange(
            kind(),
            head + body,
            lambda port: Request("GET", f"http://127.0.0.1:{port}/a?b=1", {"X-Tab": "a\tb", "X-High": "é"}),
        )
        assert json.loads(answer.body) == {"a": 1}
