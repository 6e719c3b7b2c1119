"""What is wrong is refused at once, with both numbers or what is allowed, and leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
import zstandard

from tinkex.server.records import CheckpointRow, LossRow, OperationRow, SamplerRow, SessionRow
from tinkex.wire.headers import PROTOBUF

from .client import Client
from .machine import Machine, running
from .wrong_requests import ALL


def trace(server: Machine) -> Any:
    """Everything a request could have left behind."""
    tables = server.store._tables
    service = server.service
    return (
        [sorted(tables[kind]) for kind in (CheckpointRow, LossRow, OperationRow, SamplerRow, SessionRow)],
        len(service.tickets),
        {id: len(model.line) for id, model in service.world.models.items()},
        sorted(service.world.samplers),
        {who: list(held) for who, held in service.queued.items()},
        {who: held for who, held in service.sampling_rows.items() if held},
        len(service.samples),
        [type(each) for each in server.engine.seen],
    )


async def made(server: Machine) -> tuple[str, str, str]:
    """A session with a model and a sampling session."""
    ann = server.ann
    session = await ann.session()
    return session, await ann.model(session), await ann.sampler(session)


@pytest.mark.parametrize("what", ALL)
def test_what_is_wrong_is_named_and_leaves_no_trace(what: str, tmp_path):
    route, make, texts = ALL[what]

    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        things = await made(server)
        before = trace(server)
        body = make(*things)
        headers = {"content-type": PROTOBUF} if isinstance(body, bytes) else {}
        answer = await ann(route, body, headers=headers)
        assert 400 <= answer.status < 500, str(answer)
        assert answer.status not in (408, 409, 429)
        assert int(answer.headers["content-length"]) == len(answer.body) > 0
        for text in texts:
            assert text in answer.detail, answer.detail
        await server.settle()
        assert trace(server) == before
        # The next operation does not wait for the one that was refused.
        number = body.get("seq_id") if isinstance(body, dict) else 1
        if "model" not in route and route not in ("asample",) and number == 1:
            await ann.done(await ann.step(things[1], 2))

    scenario(tmp_path=tmp_path)


# ---- bytes


def bomb(size: int, *, stated: bool) -> bytes:
    """Zeros that unpack to so many bytes."""
    if stated:
        return zstandard.ZstdCompressor(level=1).compress(bytes(size))
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    piece = bytes(1 << 20)
    pieces = [packer.compress(piece) for _ in range(size >> 20)]
    return b"".join([*pieces, packer.flush()])


@running(limits={"body_bytes": 100_000, "unpacked_bytes": 1_000_000})
async def test_bodies_that_are_not_what_they_say(server: Machine):
    ann = server.ann
    _, model, _ = await made(server)
    before = trace(server)
    good = ann.train_body(model, 1)[0]
    packed = zstandard.ZstdCompressor().compress(good)
    zstd = {"content-type": PROTOBUF, "content-encoding": "zstd"}
    proto = {"content-type": PROTOBUF}
    table: list[tuple[str, Any, dict[str, str], int, list[str]]] = [
        ("forward_backward", b"no zstd at all", zstd, 422, ["zstd"]),
        ("forward_backward", packed[:-3], zstd, 422, ["zstd"]),
        ("forward_backward", packed + b"more", zstd, 422, ["zstd"]),
        ("forward_backward", bomb(2 << 20, stated=True), zstd, 413, ["1000000"]),
        ("forward_backward", bomb(4 << 20, stated=False), zstd, 413, ["1000000"]),
        ("forward_backward", good, {**proto, "content-encoding": "gzip"}, 415, ["'gzip'", "zstd"]),
        ("forward_backward", good[:-3], proto, 422, []),
        ("forward_backward", b"\xff" * 50, proto, 422, []),
        ("forward_backward", good, {}, 422, ["JSON"]),
        ("forward_backward", b"", {}, 422, ["forward_backward_input"]),
        ("forward_backward", b"", proto, 404, ["model"]),
        ("optim_step", b"{", {}, 422, ["JSON"]),
        ("optim_step", b"", {}, 422, []),
        ("optim_step", b"null", {}, 422, []),
        ("optim_step", b"[1, 2]", {}, 422, []),
        ("optim_step", b'"text"', {}, 422, []),
        ("optim_step", good, proto, 422, ["JSON"]),
        ("optim_step", b'{"model_id": "\xff\xfe", "seq_id": 1}', {}, 422, ["JSON"]),
        ("optim_step", json.dumps({"model_id": model}).encode("utf-16"), {}, 422, ["JSON"]),
        ("optim_step", b'{"model_id":' + b"[" * 100_000, {}, 413, ["100012", "100000"]),
        ("optim_step", b'{"model_id":' + b"[" * 90_000 + b"]" * 5, {}, 422, []),
        ("create_session", b'{"user_metadata":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, {}, 422, []),
        ("create_session", b'{"tags":["\\ud800"],"sdk_version":"1"}', {}, 422, []),
        ("create_session", b'{"sdk_version":"1","user_metadata":{"a":1e999}}', {}, 0, []),
        ("create_session", b'{"sdk_version":"1","user_metadata":{"n":' + b"9" * 5000 + b"}}", {}, 422, []),
        ("asample", b"9" * 5000, {}, 422, []),
        ("telemetry", b"\x00" * 10, {}, 0, []),
        ("optim_step", [b"x" * 60_000, b"x" * 60_000, b"x"], {}, 413, ["100000"]),
    ]
    for number, (route, body, headers, status, texts) in enumerate(table):
        answer = await ann(route, body, headers=headers)
        assert answer.status < 500, (number, str(answer))
        if status:
            assert answer.status == status, (number, route, str(answer))
            for text in texts:
                assert text in answer.detail, (number, answer.detail)
            assert "content-length" in answer.headers
    await server.settle()
    after = trace(server)
    assert after[0][2] == before[0][2]
    assert after[1:] == before[1:]
    # Number 1 was refused for good above; the next goes through, packed as it is allowed.
    packed = zstandard.ZstdCompressor().compress(ann.train_body(model, 2)[0])
    await ann.done(ann.ticket(await ann("forward_backward", packed, headers=zstd)))


@running()
async def test_a_bomb_of_a_gigabyte_is_not_unpacked(server: Machine):
    ann = server.ann
    _, model, _ = await made(server)
    packed = bomb(1 << 30, stated=False)
    assert len(packed) < 1 << 20
    headers = {"content-type": PROTOBUF, "content-encoding": "zstd"}
    text = await ann.refused("forward_backward", packed, 413, headers=headers)
    assert str(256 << 20) in text
    stated = zstandard.ZstdCompressor(level=1, write_content_size=True).compressobj(size=1 << 30)
    header = stated.compress(bytes(1 << 20)) + stated.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    await ann.refused("forward_backward", header, 413, headers=headers)
    await ann.done(await ann.train(model, 1))


@running(limits={"body_bytes": 1000})
async def test_a_body_too_large_is_not_read_to_its_end(server: Machine):
    ann = server.ann
    pieces = [b"x" * 400 for _ in range(100)]
    stream = server.open("POST", "/api/v1/optim_step", pieces, ann.headers())
    answer = await stream.whole()
    assert answer.status == 413
    assert "1200" in answer.detail
    assert "1000" in answer.detail
    assert stream.taken == 3
    said = server.open("POST", "/api/v1/optim_step", pieces, ann.headers({"content-length": "40000"}))
    assert (await said.whole()).status == 413
    assert said.taken == 0


@running()
async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(server: Machine):
    ann = server.ann
    before = trace(server)
    coming = [
        {"type": "http.request", "body": b'{"tags": []', "more_body": True},
        {"type": "http.disconnect"},
    ]
    said: list[Any] = []

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        said.append(message)

    headers = [(name.encode(), value.encode()) for name, value in ann.headers().items()]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/create_session", "query_string": b""}
    await server.app({**scope, "headers": headers, "client": None}, receive, send)
    assert said == []
    assert trace(server) == before


# ---- paths and keys


@running()
async def test_paths_and_methods_that_are_not_served(server: Machine):
    ann = server.ann
    headers = ann.headers()
    wrong = await server.send("GET", "/api/v1/create_session", headers=headers)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert "POST" in wrong.detail
    wrong = await server.send("PATCH", "/api/v1/training_runs/a/checkpoints/weights/b", headers=headers)
    assert (wrong.status, wrong.headers["allow"]) == (405, "DELETE")
    gone = await server.send("POST", "/api/v1/create_sessions", b"{}", headers)
    assert gone.status == 404
    assert "/api/v1/create_sessions" in gone.detail
    for path in ("/", "/create_session", "/v1/chat/completions", "//", "/api", "/api/v1/../v1/healthz"):
        gone = await server.send("POST", path, b"{}", headers)
        assert gone.status == 404, path
    assert "/api/v1" in (await server.send("POST", "/create_session", b"{}", headers)).detail


@running(options={"public_url": "https://here.example/tinker/eu"})
async def test_a_path_prefix_works_with_and_without_it(server: Machine):
    for path in ("/tinker/eu/api/v1/healthz", "/api/v1/healthz"):
        assert (await server.send("GET", path)).json == {"status": "ok"}
    gone = await server.send("GET", "/tinker/euapi/v1/healthz")
    assert gone.status == 404


KEYS = {
    "no key": None,
    "an empty key": "",
    "another key": "tml-wrong",
    "part of a key": "half",
    "a key in other letters": "upper",
    "bytes": "tml-\xff\xfe",
    "a long key": "tml-" + "x" * 100_000,
}


@pytest.mark.parametrize("what", KEYS)
def test_without_a_right_key_there_is_nothing(what: str, tmp_path):
    @running()
    async def scenario(server: Machine) -> None:
        from tinkex.wire.routes import ROUTES

        key = KEYS[what]
        right = server.key["ann"]
        key = {"half": right[:-1], "upper": right.swapcase()}.get(key or "", key)
        before = trace(server)
        for route in ROUTES.values():
            if route.name == "health":
                continue
            names = {
                part.strip("{}").removesuffix(":path") for part in route.path.split("/") if "{" in part
            }
            path = route.url_path(**dict.fromkeys(names, "x"))
            headers = {} if key is None else {"x-api-key": key}
            answer = await server.send(route.method, path, b"{}", headers)
            assert answer.status == 401, (route.name, str(answer))
            assert "X-API-Key" in answer.detail
            assert not key or key not in answer.detail
        assert trace(server) == before

    scenario(tmp_path=tmp_path)


@running()
async def test_a_key_added_or_revoked_counts_from_the_next_request(server: Machine):
    info, secret = server.keys.add("new", "carol")
    carol = Client(server, secret.reveal())
    await carol.session()
    server.keys.revoke(info.id)
    await carol.refused("create_session", {"tags": [], "sdk_version": "1"}, 401)
    await server.ann.session()
