"""Whole requests to the whole server, damaged anywhere: method, path, query, headers, body."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

from tests.contract.full_bodies import FULL
from tests.server.client import datum
from tests.server.live_requests import Live
from tests.server.machine import Machine
from tinkex.server.assembly import pages
from tinkex.wire.passes import PassRequest, encode_request
from tinkex.wire.routes import ROUTES, Route
from tinkex.wire.zstd import compress

from .file_targets import place
from .mutation import changed, json_text, message
from .net_targets import loop
from .running import Target

RENEWED, FRESH = 1500, 20
"""Requests after which there is a new server, and after which there is one more of everything on it."""
_LONG_MODEL = b"MODEL".ljust(26, b"_")
"""A model's id at its length: lengths around it stay right."""
_IDS = {
    _LONG_MODEL: "model", b"SESSION": "session", b"MODEL": "model", b"SAMPLER": "sampler",
    b"TICKET": "ticket", b"TRAINING": "training", b"FROZEN": "frozen", b"EXPORTED": "exported",
    b"LOSS": "loss", b"KEY": "key",
}  # fmt: skip
"""Words in inputs that stand for what is on the server."""
_NAMED = {
    "session_id": "SESSION",
    "model_id": "MODEL",
    "sampling_session_id": "SAMPLER",
    "request_id": "TICKET",
    "base_model": "tiny",
    "model_path": "FROZEN",
    "tinker_path": "TRAINING",
    "source_path": "TRAINING",
    "weights_access_token": "KEY",
    "seq_id": 4,
    "model_seq_id": 7,
    "sampling_session_seq_id": 7,
    "custom_loss_seq_id": 7,
}
_PARAMS = {
    "session_id": "SESSION",
    "training_run_id": "MODEL",
    "checkpoint_id": "weights/w",
    "sampler_id": "SAMPLER",
    "model_name": "tiny",
    "file": "tokenizer.json",
}


class Place:
    """A server with one of everything, and what there is to download."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="server-", dir=place()))
        self.machine = Machine(folder, pages=dict(pages()))
        self.used = 0

    async def open(self) -> None:
        """Start it and put things there."""
        await self.machine.start()
        await self.furnish()

    async def furnish(self) -> None:
        """One more of everything, for the next requests."""
        self.live = await Live.make(self.machine)
        where = {"training_run_id": self.live.model, "checkpoint_id": "external_weights/e"}
        urls = (await self.machine.ann.ok("external_weights_urls", **where))["urls"]
        self.download = next(iter(urls.values()), "").removeprefix("http://here").encode()

    def filled(self, data: bytes) -> bytes:
        """An input with its words replaced."""
        assert len(self.live.model) == len(_LONG_MODEL)
        for word, name in _IDS.items():
            data = data.replace(word, getattr(self.live, name).encode())
        return data.replace(b"DOWNLOAD", self.download)


_places: list[Place] = []


async def _place() -> Place:
    if _places and _places[0].used >= RENEWED:
        await _places.pop().machine.stop()
    if not _places:
        made = Place()
        await made.open()
        _places.append(made)
    here = _places[0]
    here.used += 1
    if here.used % FRESH == 0:
        await here.furnish()
    return here


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path}", "x-api-key: KEY", *headers]
    return "\n".join(lines).encode() + b"\n\n" + body


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _NAMED.get(key, _named(each)) for key, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list) else value


def _of(route: Route) -> bytes:
    path = route.full_path
    for name, value in _PARAMS.items():
        path = path.replace(f"{{{name}}}", value).replace(f"{{{name}:path}}", value)
    query = {
        "list_training_runs": "?limit=2&offset=0&access_scope=owned",
        "list_sessions": "?limit=2&offset=1",
        "list_user_checkpoints": "?limit=5&offset=0",
        "billing_usage": "?starting_on=2026-11-15T00:00:00Z&ending_before=2026-11-16T00:00:00Z",
        "audit_log": "?event_type=all&day=2026-11-15",
    }.get(route.name, "")
    body = json.dumps(_named(FULL[route.name])).encode() if route.name in FULL else b""
    return _request(route.method, path + query, body, "content-type: application/json")


def _corpus() -> list[bytes]:
    found = [_of(each) for each in ROUTES.values() if each.name != "delete_api_key"]
    proto = "content-type: application/x-protobuf"
    request = PassRequest(_LONG_MODEL.decode(), 4, [datum()], "cross_entropy")
    one = encode_request(request)
    found += [
        _request("POST", "/api/v1/forward_backward", one, proto),
        _request("POST", "/api/v1/forward_backward", compress(one), proto, "content-encoding: zstd"),
        _request("GET", "DOWNLOAD", b"", "range: bytes=0-5", 'if-range: "x"', 'if-none-match: "y"'),
        _request("HEAD", "DOWNLOAD", b"", "range: bytes=-5"),
        _request("GET", "/docs"),
        _request("GET", "/openapi.json"),
        _request("POST", "/api/v1/optim_step", b"{}", "content-length: 2", "x-idempotency-key: a"),
        _request("GET", "/api/v1/training_runs?limit=1&limit=2&offset=%31&x=%zz"),
    ]
    return found


def _requests(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """A request with its head, or its body, or both changed."""
    head, _, body = rng.choice(corpus).partition(b"\n\n")
    draw = rng.random()
    if draw < 0.5:
        first, *rest = head.split(b"\n")
        at = rng.randrange(len(rest) + 1)
        if at:
            rest[at - 1] = changed(rng, rest[at - 1], corpus, 2)
        else:
            first = changed(rng, first, corpus, 2)
        head = b"\n".join([first, *rest])
    if draw > 0.4 and body:
        if body[:1] == b"{":
            body = json_text(rng, [body])
        else:
            body = message(rng, [body]) if rng.random() < 0.5 else changed(rng, body, corpus)
    return head + b"\n\n" + body


def _scope(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A request as an HTTP server hands it on."""
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.partition(b"?")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    scope = {
        "type": "http",
        "method": method.decode("latin-1").upper() or "GET",
        "path": unquote(path.decode("latin-1")) or "/",
        "raw_path": path,
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 4321),
    }
    return scope, body


async def _answered(data: bytes) -> tuple[int, bytes]:
    here = await _place()
    machine = here.machine
    scope, body = _scope(here.filled(data))
    given, said = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive() -> Any:
        if given:
            return given.pop()
        return await asyncio.Event().wait()

    async def send(piece: Any) -> None:
        said.append(piece)

    work = asyncio.ensure_future(machine.app(scope, receive, send))
    for turn in range(400):
        if work.done():
            break
        await asyncio.sleep(0 if turn < 60 else 0.0005)
        if turn % 8 == 7:
            machine.clock.advance(1.0)
    if not work.done():
        work.cancel()
        raise AssertionError("no answer within 50 s")
    work.result()
    await machine.turns(5)
    if machine.keys.owner_of(here.live.key) is None:
        _places.clear()  # the key in use was revoked, as asked
    return said[0]["status"], b"".join(piece.get("body", b"") for piece in said[1:])


def _ask(data: bytes) -> object:
    status, body = loop().run_until_complete(_answered(data))
    assert status < 500, (status, body[:300])
    if 400 <= status < 500 and status != 416 and data[:4].upper() != b"HEAD":
        assert json.loads(body)["detail"], (status, body)
    return status


TARGETS = [Target("server request", _corpus, _ask, (), _requests, 0.5)]
