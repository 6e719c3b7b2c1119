"""Requests made to break the server, to fill it up, or to be told something."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.server.machine import Machine, running
from tests.server.rig import Rig, served
from tinkex.wire.routes import ROUTES

FINISH = {"reason": {"type": "success"}, "detail": None}
NUMBERS = ["--5", "%C2%B2", "%D9%A3", "1e3", "+1", "", "-", "9" * 30, "0x1", "1%00", "%F0%9D%9F%98"]
PATHS = [
    "*", "", "/..", "/%2e%2e", "/files", "/files/", "/files/a/../../keys.json", "/docs/../x", "/\x00",
    "/api/v1/../v1/healthz", "/api/v1//healthz", "/api/v1/training_runs/%252e%252e",
]  # fmt: skip


@running()
async def test_odd_numbers_in_a_query_are_refused(server: Machine):
    for name, route in ROUTES.items():
        if route.query is None or route.method != "GET" or "{" in route.path:
            continue
        for number in NUMBERS:
            answer = await server.ann(name, query=f"limit={number}&offset={number}")
            assert answer.status in (400, 422), (name, number, str(answer))


DATES = {
    "audit_log": ["day=9999-12-31", "day=0001-01-01", "day=0000-01-01", "day=9999999", "day=%00"],
    "billing_usage": [
        "starting_on=0001-01-01T00:00:00%2B23:59&ending_before=0001-01-02T00:00:00Z",
        "starting_on=9999-12-31T00:00:00Z&ending_before=9999-12-31T23:00:00-23:59",
        "starting_on=0001-01-01T00:00:00Z&ending_before=0001-01-02T00:00:00Z",
        "starting_on=99999999999999999999&ending_before=-1",
    ],
}


@running(kind="sqlite")
async def test_no_date_breaks_the_books(server: Machine):
    for name, queries in DATES.items():
        for query in queries:
            answer = await server.ann(name, query=f"event_type=all&{query}")
            assert answer.status in (200, 400, 422), (query, str(answer))


@running(kind="sqlite")
async def test_a_search_for_the_same_many_times_is_one_search(server: Machine):
    await server.ann.session()
    base = {"user_metadata": {}, "owner": {"type": "accessible"}, "limit": 50}
    many = [{"type": "active"}] * 10_000
    found = await server.ann.ok("search_sessions", {**base, "statuses": many})
    assert len(found["sessions"]) == 1
    for more in (
        {"project_ids": [str(number) for number in range(10_000)]},
        {"user_metadata": {str(number): "x" for number in range(10_000)}},
        {"display_name": "%_" * 10_000},
        {"display_name": "\0"},
    ):
        assert (await server.ann.ok("search_sessions", {**base, **more}))["sessions"] == []


@served
async def test_odd_paths_lead_nowhere(rig: Rig):
    for path in PATHS:
        for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE", "TRACE", "CONNECT"):
            assert await status_of(rig, method, path) in (401, 403, 404, 405), (method, path)


async def status_of(rig: Rig, method: str, path: str) -> int:
    """The status for a path as it is, with no key."""
    told: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            told.append(message["status"])  # type: ignore[arg-type]

    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "headers": [],
        "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await rig.app(scope, receive, send)
    return told[0]


@running()
async def test_long_names_are_not_sent_back(server: Machine):
    long = "x" * 1_000_000
    for answer in (
        await server.ann("session_heartbeat", {"session_id": long}),
        await server.ann("get_info", {"model_id": long}),
        await server.ann("retrieve_future", {"request_id": long}),
        await server.send("GET", f"/{long}", b"", server.ann.headers()),
        await server.send("POST", f"/api/v1/sessions/{long}/x", b"", server.ann.headers()),
    ):
        assert answer.status == 404
        assert len(answer.body) < 1000


@running()
async def test_the_last_of_two_equal_keys_counts_and_nothing_else_does(server: Machine):
    session = await server.ann.session()
    body = b'{"session_id":"%s","model_seq_id":1,"model_seq_id":2,"base_model":"tiny"}' % session.encode()
    answer = await server.ann("create_model", body)
    assert answer.json["model_id"] == f"{session}:train:2"
    assert list(server.service.world.models) == [f"{session}:train:2"]


# ---- what could be filled up


@running(limits={"metadata_bytes": 1000})
async def test_words_about_things_have_a_bound(server: Machine):
    ann, long = server.ann, {"k": "v" * 1000}
    base = {"sdk_version": "0.36.0", "tags": []}
    for more in ({"user_metadata": long}, {"tags": ["t" * 500] * 2}, {"display_name": "d" * 1000}):
        text = await ann.refused("create_session", {**base, **more}, 400)
        assert "1000" in text
    session = await ann.session(user_metadata={"fits": "well"})
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "user_metadata": long}
    await ann.refused("create_model", body, 400)
    model = await ann.model(session)
    await ann.refused(
        "save_weights", {"model_id": model, "seq_id": 1, "path": "a", "user_metadata": long}, 400
    )
    assert len(server.service.world.sessions) == 1


@running(limits={"samplers": 3})
async def test_sampling_sessions_have_a_bound(server: Machine):
    ann = server.ann
    session, other = await ann.session(), await ann.session()
    model = await ann.model(other)
    for number in range(2):
        await ann.sampler(session, number)
    await ann.done(await ann.freeze(model, 1, number=7))
    body = {"session_id": session, "sampling_session_seq_id": 9, "base_model": "tiny"}
    assert "limit is 3" in await ann.refused("create_sampling_session", body, 400)
    await ann.refused("save_weights_for_sampler", {"model_id": model, "seq_id": 2,
                                                    "sampling_session_seq_id": 8}, 400)  # fmt: skip
    await server.bob.sampler(await server.bob.session(), 0)
    # The same number again is the same session, at the limit too.
    again = await ann("create_sampling_session", {**body, "sampling_session_seq_id": 1})
    assert again.status == 200
    await ann.ok("finish_session", FINISH, session_id=other)
    await server.settle()
    await ann.sampler(session, 9)


@running()
async def test_polling_for_clones_that_never_were_keeps_nothing(server: Machine):
    from tinkex.server.world import MOST_CLONES

    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    held = server.service.world.samplers[sampler]
    first = await ann.sample(sampler, 0)
    await server.settle()

    async def poll(number: int) -> list[str]:
        target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": number}
        body = {"target": target, "prev_cursor": 0, "timeout": 0}
        answer = await ann("retrieve_futures", body)
        assert answer.status == 200, str(answer)
        return [each["request_id"] for each in answer.json["completions"]]

    for number in range(1, MOST_CLONES + 50):
        assert await poll(number) == []
    assert len(held.clones) <= MOST_CLONES
    # A clone that has something to tell is not forgotten for those.
    assert await poll(0) == [first]


@running(times={"results": 1e6, "samples": 1e6})
async def test_failed_work_is_not_remembered_without_bound(server: Machine):
    from tinkex.server.tickets import TICKET_BYTES, Ticket, Tickets

    tickets = Tickets(keep_bytes=100 * TICKET_BYTES)
    for number in range(1000):
        ticket: Ticket = tickets.open(f"x:{number}", "asample", "ann")
        ticket.failed("no", "user", float(number))
        tickets.ended(ticket)
    assert len(tickets) <= 100
    assert tickets.get("x:999") is not None


# ---- what is logged


@served
async def test_a_name_writes_no_line_of_its_own_in_the_log(rig: Rig, tmp_path: Path):
    import io

    from tinkex.server.logs import LineFormatter

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger("tinkex.server.app")
    logger.addHandler(handler)
    world, rig.service.world = rig.service.world, None  # type: ignore[assignment]  # a mistake in the server
    try:
        forged = "%0A2026-01-01T00:00:00.000Z%20info%20server:%20all%20is%20well%1B[2J%E2%80%A8%C2%85%09"
        path = unquote(f"/api/v1/sessions/a{forged}")
        assert (await rig.ask("GET", path)).status == 500
    finally:
        rig.service.world = world
        logger.removeHandler(handler)
    text = stream.getvalue()
    assert "all is well" in text
    assert len(text.splitlines()) == 1
    assert not any(ord(letter) < 32 for letter in text.rstrip("\n"))


# ---- browsers


@served
async def test_no_page_of_another_site_can_use_a_server(rig: Rig):
    """A browser asks first whether it may send a key elsewhere; nothing here says that it may."""
    asked = {
        "origin": "https://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-api-key",
    }
    for route in ROUTES.values():
        if "{" in route.path:
            continue
        answer = await rig.ask("OPTIONS", route.full_path, key=None, headers=asked)
        assert answer.status == 405
        got = await rig.ask(route.method, route.full_path, {}, headers={"origin": "https://evil.example"})
        for each in (answer, got):
            assert not [name for name in each.headers if name.startswith("access-control-")], route.name


@pytest.mark.parametrize(
    "text", ["null", "[]", "1", '"x"', "{", "[" * 100_000, '{"a":' * 100_000, "\ufeff{}"]
)
def test_no_json_breaks_a_route(text: str, tmp_path: Path):
    @running()
    async def scenario(server: Machine) -> None:
        for name, route in ROUTES.items():
            if route.request is None or "{" in route.path or route.lane == "telemetry":
                continue
            answer = await server.ann(name, text.encode())
            assert 400 <= answer.status < 500, (name, str(answer)[:200])
            json.loads(answer.body)

    scenario(tmp_path=tmp_path)


# ---- packed bodies


@running()
async def test_bombs_inside_bombs_stay_packed(server: Machine):
    import zstandard

    packed = zstandard.ZstdCompressor().compress
    inner = packed(bytes(64 << 20))
    frame = packed(b'{"session_id":"x"}')
    skippable = b"\x50\x2a\x4d\x18" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20)
    for body, encoding, status in (
        (packed(inner), "zstd", 422),  # unpacked once, and what is inside is no JSON
        (frame * 10_000, "zstd", 422),
        (skippable + frame, "zstd", 422),
        (frame + skippable, "zstd", 422),
        (packed(inner), "zstd, zstd", 415),
        (b"\x1f\x8b\x08\x00", "gzip", 415),
        (b"x", "deflate", 415),
        (b"x", "br", 415),
        (frame, "zstd", 404),
    ):
        answer = await server.ann("session_heartbeat", body, headers={"content-encoding": encoding})
        assert answer.status == status, (encoding, body[:10], str(answer)[:200])
