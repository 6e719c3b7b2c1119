"""Somebody on the network without a key: what is open, what it tells, what cannot be slipped through."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
from pathlib import Path

import pytest

from tests.server.rig import MODEL, Rig, served
from tests.server.test_http_server import Echo, ask, run, serving
from tinkex.server import logs
from tinkex.server.app import GUARDED_PAGES, OPEN_ROUTES
from tinkex.server.assembly import pages
from tinkex.server.listening import is_loopback, listen
from tinkex.server.options import ServerOptions
from tinkex.wire.routes import ROUTES

OPEN_PAGES = {"", "docs", "openapi.json", "readyz"}
SIGNED_PAGES = {"files"}


def test_a_server_listens_to_this_machine_alone_unless_told():
    assert ServerOptions((), Path("x")).host == "127.0.0.1"
    with contextlib.closing(listen(ServerOptions((), Path("x")).host, 0)) as here:
        assert is_loopback(here)
    with contextlib.closing(listen("0.0.0.0", 0)) as everywhere:
        assert not is_loopback(everywhere)


def test_what_is_open_is_written_down():
    """A page or a route that is added is added here, with a thought about who may see it."""
    assert {"health"} == OPEN_ROUTES
    assert set(pages()) == OPEN_PAGES | SIGNED_PAGES | GUARDED_PAGES
    assert "metrics" in GUARDED_PAGES


@served
async def test_guarded_pages_need_a_key(rig: Rig):
    for page in GUARDED_PAGES:
        for path in (f"/{page}", f"/{page}/", f"/{page}/x"):
            for key in (None, "tml-" + "x" * 32):
                for method in ("GET", "HEAD"):
                    got = await rig.ask(method, path, key=key)
                    assert got.status in (401, 404), (path, got.status)
                    assert b"tinkex_" not in got.body
        assert (await rig.ask("GET", f"/{page}")).status == 200


@served
async def test_open_pages_tell_nothing_of_owners_and_places(rig: Rig):
    await rig.session("s-abc", display_name="quartz falcon")
    await rig.run("s-abc:train:0")
    await rig.checkpoint(run="s-abc:train:0", public=True)
    for page in sorted(OPEN_PAGES):
        got = await rig.ask("GET", f"/{page}", key=None)
        assert got.status in (200, 503)
        text = got.body.decode()
        for word in ("quartz", "s-abc", str(rig.state), str(rig.state.parent), rig.keys["ann"]):
            assert word not in text, (page, word)
        # What it does tell: that this is Tinkex, its version, and the names of the models.
        assert page == "readyz" or "Tinkex" in text or MODEL in text


@served
async def test_why_it_is_not_ready_is_told_without_places(rig: Rig):
    (room,) = rig.service.rooms.values()
    room.state = "down"
    for place in ("/home/op/models/tiny/config.json", "C:\\\\Users\\\\op\\\\tiny", "/srv/a/b", "'/x/y z'"):
        room.reason = f"the engine cannot start: {place}: no such file, see {place}, or {place}"
        got = await rig.ask("GET", "/readyz", key=None)
        assert got.status == 503
        assert "the engine cannot start" in got.json["reason"]
        assert not re.search(r"home|Users|srv|/x/|op\b", got.body.decode()), got.body


@served
async def test_files_need_an_address_that_was_signed(rig: Rig):
    for path in ("/files", "/files/", "/files/x", "/files/x/archive.tar", "/files/a.b.c/keys.json",
                 "/files/ffffffff.Li4.AAAA/keys.json"):  # fmt: skip
        assert (await rig.ask("GET", path, key=None)).status == 403
        assert (await rig.ask("GET", path, key="ann")).status == 403


@served
async def test_health_is_all_a_stranger_gets_of_the_api(rig: Rig):
    assert (await rig.get("healthz", key=None)).json == {"status": "ok"}
    for route in ROUTES.values():
        if route.name not in OPEN_ROUTES:
            path = re.sub(r"\{\w+(:path)?\}", "x", route.full_path)
            got = await rig.ask(route.method, path, {}, key=None)
            assert (got.status, list(got.json)) == (401, ["detail"]), route.name


# ---- below the application

POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
SMUGGLED = {
    "two lengths": POST + b"content-length: 0\r\ncontent-length: 41\r\n\r\n",
    "a length and chunks": POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks under another name": POST
    + b"transfer-encoding: xchunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"content-length : 41\r\n\r\n",
    "a length with a sign": POST + b"content-length: +4\r\n\r\nabcd",
    "a length in hexadecimal": POST + b"content-length: 0x4\r\n\r\nabcd",
    "a length past all numbers": POST + b"content-length: 99999999999999999999\r\n\r\n",
    "a broken chunk": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "an endless chunk size": POST + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "a nul in a header": POST + b"x-a: b\0c\r\n\r\n",
    "a bare carriage return": POST + b"x-a: b\rx-b: c\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no path": b"GET http://elsewhere HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel": b"CONNECT example.com:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
}
SECOND = b"GET /smuggled HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("what", SMUGGLED)
def test_no_request_hides_in_another(what: str, tmp_path: Path):
    """What a proxy could read otherwise than we do is refused, and the connection with it."""

    class Listening(Echo):
        paths: list[str] = []

        async def __call__(self, scope, receive, send) -> None:
            if scope["type"] == "http":
                self.paths.append(scope["path"])
            await super().__call__(scope, receive, send)

    async def work() -> None:
        app = Listening()
        app.paths = []
        async with serving(app, tmp_path) as (_, port, _task):
            answer = await asyncio.wait_for(ask(port, SMUGGLED[what] + SECOND), 10)
            assert "/smuggled" not in app.paths, app.paths
            assert answer.count(b"HTTP/1.1 ") <= 1
            assert b" 400 " in answer.partition(b"\r\n")[0] or b" 200 OK" not in answer

    run(work)


def test_rubbish_on_the_port_does_not_fill_the_log(tmp_path: Path):
    written = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("uvicorn", "uvicorn.error", "asyncio")}

    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            for rubbish in (b"\x16\x03\x01", b"GET / HTTP/9.9\r\n\r\n", SMUGGLED["two lengths"]):
                await ask(port, rubbish + SECOND)
            await ask(
                port, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: x\r\n\r\n"
            )

    logs.set_up("info", stream=written)
    try:
        run(work)
    finally:
        root.handlers[:], root.level = before
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    # Clients that other tests left open in this process may write there too.
    ours = [line for line in written.getvalue().splitlines() if " client." not in line]
    assert [line for line in ours if "stopping" not in line] == []


def test_an_upgrade_to_something_else_is_not_followed(tmp_path: Path):
    async def work() -> None:
        async with serving(Echo(), tmp_path) as (_, port, _task):
            for wanted in (b"websocket", b"h2c"):
                head = (
                    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: %s\r\n" % wanted
                )
                more = b"sec-websocket-key: eA==\r\nsec-websocket-version: 13\r\n\r\n"
                answer = await ask(port, head + more)
                assert b"HTTP/1.1 101" not in answer

    run(work)


@served
async def test_no_header_is_made_of_what_a_request_says(rig: Rig):
    given = {"x-request-id": "a\r\nset-cookie: b", "host": "evil.example"}
    given |= {"x-forwarded-host": "evil.example", "forwarded": "host=evil.example"}
    for name, value in given.items():
        row = await rig.checkpoint(kind="external", name=f"c{len(name)}")
        path = f"training_runs/{row.run_id}/checkpoints/external_weights/{row.name}"
        for where in ("archive", "external_weights_urls"):
            got = await rig.get(f"{path}/{where}", headers={name: value})
            assert got.status in (200, 302)
            assert "evil" not in str(got.headers) + got.body.decode()
            assert not any("\n" in each or "set-cookie" in each for each in got.headers.values())
