"""The API's description: true to the server, whole by itself, readable."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkex.server import api_examples
from tinkex.server.assembly import pages
from tinkex.server.openapi import describe
from tinkex.wire.jsonbody import decode
from tinkex.wire.routes import ROUTES

from .machine import Machine
from .rig import MODEL, Rig, open_rig, served
from .schemas import Schemas


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    async def made() -> dict[str, Any]:
        async with open_rig(tmp_path_factory.mktemp("docs")) as rig:
            return json.loads((await rig.get("/openapi.json", key=None)).body)

    return asyncio.run(made())


def operations(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {
        told["operationId"]: (method.upper(), path, told)
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    }


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from nodes(each)


# ---- the document


def test_every_route_is_described(document: dict[str, Any]):
    found = operations(document)
    assert found.keys() == ROUTES.keys()
    tags = {tag["name"] for tag in document["tags"]}
    for name, (method, path, told) in found.items():
        route = ROUTES[name]
        assert method == route.method
        assert path == re.sub(r":path\}", "}", route.full_path)
        assert set(told["tags"]) <= tags
        assert told["summary"]
        assert {each["name"] for each in told["parameters"] if each["in"] == "path"} == set(
            re.findall(r"\{(\w+)\}", path)
        )
        assert ("requestBody" in told) == (route.request is not None)
        assert "401" in told["responses"] or name == "health"
    assert {tag for _, _, told in found.values() for tag in told["tags"]} == tags
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": "http://127.0.0.1:8787"}]
    assert document["components"]["securitySchemes"]["ApiKey"]["name"] == "X-API-Key"


def test_every_reference_leads_somewhere(document: dict[str, Any]):
    references = [node["$ref"] for node in nodes(document) if "$ref" in node]
    assert len(references) > 100
    for each in references:
        assert each.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    used = {each.rpartition("/")[2] for each in references}
    assert used == set(document["components"]["schemas"])


def test_examples_fit_their_schemas(document: dict[str, Any]):
    schemas = Schemas(document)
    seen = 0
    for name, (_, _, told) in operations(document).items():
        contents = [told.get("requestBody", {}).get("content", {})]
        contents += [answer.get("content", {}) for answer in told["responses"].values()]
        for content in contents:
            for each in content.values():
                if "example" in each:
                    assert schemas.problems(each["schema"], each["example"], name) == []
                    seen += 1
        for parameter in told["parameters"]:
            if "example" in parameter:
                assert schemas.problems(parameter["schema"], parameter["example"], name) == []
        result = told["responses"].get("200", {}).get("x-result", {})
        if "schema" in result and "example" in result:
            assert schemas.problems(result["schema"], result["example"], name) == []
    assert seen > 300


def test_examples_are_read_as_what_they_are(document: dict[str, Any]):
    asked = {name for name, route in ROUTES.items() if route.request is not None}
    assert api_examples.REQUESTS.keys() == asked
    for name, body in api_examples.REQUESTS.items():
        decode(ROUTES[name].server_request, json.dumps(body).encode())
    for name, body in api_examples.RESPONSES.items():
        decode(ROUTES[name].response, json.dumps(body).encode())


def test_limits_are_this_servers(document: dict[str, Any]):
    schemas = document["components"]["schemas"]
    assert schemas["LoraConfig"]["properties"]["rank"] == {"type": "integer", "minimum": 1, "maximum": 512}
    assert schemas["CreateModelRequest"]["properties"]["base_model"]["enum"] == [MODEL]
    ttl = schemas["SetTtlRequest"]["properties"]["ttl_seconds"]
    assert {"type": "integer", "minimum": 60, "maximum": 316224000} in ttl["anyOf"]


# ---- the pages


@served(public_url="https://example.org/a%26b/prefix")
async def test_pages_for_people(rig: Rig):
    docs = await rig.get("/docs", key=None)
    assert docs.status == 200
    assert docs.headers["content-type"] == "text/html; charset=utf-8"
    assert len(docs.body) <= 30_000
    page = docs.body.decode()
    # Nothing from elsewhere, and nothing of the description read as HTML.
    assert set(re.findall(r"""(?:src|href)\s*[=:]\s*["']([^"']*)""", page)) == {"openapi.json"}
    assert not re.search(r"https?://|innerHTML|@import|url\(", page)
    assert "default-src 'none'" in docs.headers["content-security-policy"]
    front = await rig.get("/", key=None)
    assert front.status == 200
    assert MODEL in front.body.decode()
    assert "https://example.org/a%26b/prefix" in front.body.decode()
    again = await rig.get("/openapi.json", key=None)
    assert again.body == (await rig.get("/openapi.json", key=None)).body
    for path in ("/docs/x", "/docsx", "/openapi.json/y", "/nowhere"):
        assert (await rig.get(path, key=None)).status == 404
    head = await rig.ask("HEAD", "/docs", key=None)
    assert (head.status, head.body) == (200, b"")


# ---- what the description allows, the server takes

_SKIPPED = {
    "retrieve_future",  # held until the clock moves
    "retrieve_futures",
    "sample_stream",
    "delete_api_key",  # would end the key that asks
    "finish_session",
}


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[asyncio.Runner, Machine, dict[str, str]]]:
    with asyncio.Runner() as runner:
        server = Machine(tmp_path_factory.mktemp("described"), pages=dict(pages()))

        async def begin() -> dict[str, str]:
            await server.start()
            session = await server.ann.session()
            model = await server.ann.model(session)
            path = (await server.ann.done(await server.ann.save(model, 1, "ck")))["path"]
            sampler = await server.ann.sampler(session)
            return {
                "session_id": session, "model_id": model, "tinker_path": path, "source_path": path,
                "sampling_session_id": sampler, "training_run_id": model, "checkpoint_id": "weights/ck",
                "sampler_id": sampler, "base_model": "tiny", "model_name": "tiny", "file": "tokenizer.json",
            }  # fmt: skip

        known = runner.run(begin())
        yield runner, server, known
        runner.run(server.stop())


def _filled(value: Any, known: dict[str, str]) -> Any:
    """Names of things that are there, in place of made-up ones."""
    if isinstance(value, dict):
        return {
            key: known[key] if key in known and isinstance(each, str) else _filled(each, known)
            for key, each in value.items()
        }
    return [_filled(each, known) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted(ROUTES.keys() - _SKIPPED))
@settings(
    max_examples=25, deadline=None,
    suppress_health_check=[*HealthCheck],
)  # fmt: skip
@given(drawn=st.data())
def test_what_is_allowed_is_taken(
    name: str, drawn: st.DataObject, place: tuple[asyncio.Runner, Machine, dict[str, str]]
):
    runner, server, known = place
    document = described(server)
    schemas = Schemas(document)
    method, path, told = operations(document)[name]
    for each in told["parameters"]:
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", known[each["name"]])
    query = {
        each["name"]: drawn.draw(schemas.values(each["schema"]))
        for each in told["parameters"]
        if each["in"] == "query" and (each["required"] or drawn.draw(st.booleans()))
    }
    body = b""
    if "requestBody" in told:
        schema = told["requestBody"]["content"]["application/json"]["schema"]
        value = _filled(drawn.draw(schemas.values(schema)), known)
        assert schemas.problems(schema, value) == []
        body = json.dumps(value).encode()
    from urllib.parse import urlencode

    answer = runner.run(server.send(method, path, body, server.ann.headers(), urlencode(query)))
    assert answer.status < 500, str(answer)
    if answer.status in (400, 422):
        names = {key for node in nodes([json.loads(body or b"{}"), query]) for key in node}
        names |= {key for each in schemas.named.values() for key in each.get("properties", {})}
        assert any(each in answer.detail for each in names), answer.detail
    assert answer.status != 422 or any(each in answer.detail for each in _FINER), str(answer)


_FINER = ("TensorData",)
"""What JSON schema cannot say: the shape of a tensor must fit its values."""
_documents: dict[int, dict[str, Any]] = {}


def described(server: Machine) -> dict[str, Any]:
    if id(server) not in _documents:
        _documents[id(server)] = json.loads(json.dumps(describe(server.service)))
    return _documents[id(server)]


@served
async def test_any_report_is_accepted(rig: Rig):
    for body in ({}, {"events": [{"event": "SESSION_END"}]}, {"events": None, "session_id": 5}, []):
        assert (await rig.post("telemetry", body)).json == {"status": "accepted"}
