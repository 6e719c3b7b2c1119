"""Requests made up from the API's description: what it allows is taken, the rest is refused by name."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core import NotSet

from tinkex.server.assembly import pages
from tinkex.server.openapi import describe
from tinkex.server.tokens import Tokens
from tinkex.wire.routes import ROUTES

from .client import Answer
from .live_requests import Live
from .machine import Machine

FEW, MANY = 6, 60
_HOLDS = 40.0  # seconds longer than any poll is held

Case = Any


class Description:
    """What a server says of itself."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        told = {**document, "security": []}  # keys are tried elsewhere; here everybody has one
        found = schemathesis.openapi.from_dict(told).get_all_operations()
        self.operations = {each.ok().definition.raw["operationId"]: each.ok() for each in found}
        self.names = {
            *(
                field
                for each in document["components"]["schemas"].values()
                for field in each.get("properties", ())
            ),
            *(
                each["name"]
                for one in self.operations.values()
                for each in one.definition.raw["parameters"]
            ),
        }
        self._validators: dict[str, Any] = {}

    def problems(self, name: str, answer: Answer) -> list[str]:
        """What an answer has that its description does not."""
        told = self.operations[name].definition.raw["responses"]
        if str(answer.status) not in told:
            return [f"{answer.status} is not described: {sorted(told)}"]
        content = told[str(answer.status)].get("content", {})
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if kind not in content:
            return [f"{kind} is not described: {sorted(content)}"]
        if kind != "application/json" or content[kind]["schema"].get("format") == "binary":
            return []
        found = self._validator(content[kind]["schema"]).iter_errors(answer.json)
        return [f"{error.instance_path}: {error.message}" for error in found]

    def body(self, name: str) -> Any:
        """The schema of a route's JSON body."""
        return self.operations[name].definition.raw["requestBody"]["content"]["application/json"]["schema"]

    def allows(self, name: str, body: Any) -> bool:
        """Whether a body is allowed."""
        return bool(self._validator(self.body(name)).is_valid(body))

    def _validator(self, schema: Any) -> Any:
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[key]


@functools.cache
def described(text: str) -> Description:
    """Servers of the same options describe themselves alike: reading it once will do."""
    return Description(json.loads(text))


@dataclass
class Place:
    """A running server, what it says of itself, and the loop it lives on."""

    runner: asyncio.Runner
    server: Machine
    told: Description

    def live(self) -> Live:
        return self.runner.run(Live.make(self.server))

    def send(
        self, name: str, live: Live, body: bytes, query: Any = None, path: Any = None, **headers: str
    ) -> Answer:
        route = ROUTES[name]
        values = {**live.path(name), **(path or {})}
        where = re.sub(
            r"\{(\w+)(?::path)?\}", lambda found: quote(values[found[1]], safe=":/"), route.full_path
        )
        key = (
            self.server.keys.add("short-lived", "ann")[1].reveal() if name == "delete_api_key" else live.key
        )
        sent = {
            "content-type": "application/json",
            "accept": "application/json",
            "x-api-key": key,
            **headers,
        }

        async def ask() -> Answer:
            asked = asyncio.ensure_future(self.server.send(route.method, where, body, sent, _query(query)))
            await self.server.turns(200)
            if not asked.done():
                self.server.clock.advance(_HOLDS)
            await self.server.until(asked.done)
            answer = asked.result()
            await self.server.ann(
                "finish_session", {"reason": {"type": "success"}}, session_id=live.session
            )
            return answer

        return self.runner.run(ask())


def _query(query: Any) -> str:
    return urlencode({name: _word(value) for name, value in (query or {}).items()}, errors="surrogatepass")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with asyncio.Runner() as runner:
        server = Machine(tmp_path, pages=dict(pages()), options={"server_losses": True})
        server.keys.tokens = Tokens(tmp_path / "secret", server.keys)
        runner.run(server.start())
        yield Place(runner, server, described(json.dumps(describe(server.service))))
        runner.run(server.stop())


def examples(count: int) -> Callable[[Any], Any]:
    # What fails is shown as it came: making it smaller takes minutes.
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        database=None,
        phases=[Phase.generate],
    )


def each_route(*without: str) -> Any:
    return pytest.mark.parametrize("name", sorted(ROUTES.keys() - {*without}))


def drawn_case(place: Place, name: str, data: st.DataObject, mode: GenerationMode) -> Case:
    return data.draw(place.told.operations[name].as_strategy(generation_mode=mode), label=name)


def raw(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if isinstance(body, NotSet) else json.dumps(body).encode()


# ---- what is allowed


def check_allowed(place: Place, name: str, data: st.DataObject) -> None:
    case = drawn_case(place, name, data, GenerationMode.POSITIVE)
    live = place.live()
    body = allowed_body(live, name, case)
    answer = place.send(name, live, raw(body), live.query(name, case.query))
    assert 200 <= answer.status < 300 or (answer.status, name) == (302, "checkpoint_archive"), str(answer)
    assert place.told.problems(name, answer) == []


def allowed_body(live: Live, name: str, case: Case) -> Any:
    return case.body if isinstance(case.body, NotSet) else live.body(name, case.body)


@pytest.mark.parametrize("name", [".", "..", "...", ".a", "..a", "a/b", "a\n", "a" * 200, "a" * 256])
def test_the_names_of_checkpoints_are_described_as_they_are_taken(place: Place, name: str):
    live = place.live()
    body = live.body("save_weights", {"model_id": "", "path": name, "seq_id": 1})
    taken = place.send("save_weights", live, raw(body)).status == 200
    assert place.told.allows("save_weights", body) == taken == (name in ("...", ".a", "..a", "a" * 200))


@each_route()
def test_what_the_description_allows_is_taken(place: Place, name: str):
    examples(FEW)(given(st.data())(lambda data: check_allowed(place, name, data)))()


@pytest.mark.slow
@each_route()
def test_what_the_description_allows_is_taken_at_length(place: Place, name: str):
    examples(MANY)(given(st.data())(lambda data: check_allowed(place, name, data)))()


# ---- what is not

SPOILABLE = sorted(
    name for name, route in ROUTES.items() if route.request is not None or route.query is not None
)
TOLERATED = {("create_session", "user_metadata"), ("create_session", "tags")}
"""What may be left out although every SDK sends it."""
ASKED = sorted(name for name, route in ROUTES.items() if route.request is not None and name != "telemetry")
WRONG = ({"neither": "nor"}, [["neither"]], "neither")


def fields(
    place: Place, schema: Any, value: Any, at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Every described field that a value has, and whether it must be there."""
    schema = resolved(place, schema)
    for name, inner in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            yield (*at, name), name in schema.get("required", ())
            if isinstance(value[name], dict):
                yield from fields(place, inner, value[name], (*at, name))


def resolved(place: Place, schema: Any) -> Any:
    kinds = [each for each in schema.get("anyOf", ()) if "$ref" in each]
    if len(kinds) == 1 and "properties" not in schema:
        schema = kinds[0]
    if "$ref" in schema:
        return place.told.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def changed(body: Any, at: tuple[str, ...], value: Any = None, *, remove: bool = False) -> Any:
    first, *rest = at
    if rest:
        return {**body, first: changed(body[first], tuple(rest), value, remove=remove)}
    return {name: each for name, each in body.items() if name != first} | ({} if remove else {first: value})


def check_forbidden(place: Place, name: str, data: st.DataObject) -> None:
    case = drawn_case(place, name, data, GenerationMode.POSITIVE)
    live = place.live()
    body = allowed_body(live, name, case)
    if not isinstance(body, dict):
        return
    known = list(fields(place, place.told.body(name), body))
    if not known:
        return
    at, required = data.draw(st.sampled_from(known), label="field")
    if required and data.draw(st.booleans(), label="left out"):
        spoilt = changed(body, at, remove=True)
    else:
        spoilt = changed(body, at, data.draw(st.sampled_from(WRONG), label="value"))
    if place.told.allows(name, spoilt) or (at[-1] not in spoilt and (name, at[-1]) in TOLERATED):
        return
    answer = place.send(name, live, raw(spoilt), live.query(name, case.query))
    assert answer.status in (400, 404, 422), f"{at}: {answer}"
    assert at[-1] in answer.detail, f"{at}: {answer}"
    assert place.told.problems(name, answer) == []


@pytest.mark.parametrize("name", ASKED)
def test_a_field_that_is_wrong_or_left_out_is_named(place: Place, name: str):
    examples(FEW)(given(st.data())(lambda data: check_forbidden(place, name, data)))()


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_a_field_that_is_wrong_or_left_out_is_named_at_length(place: Place, name: str):
    examples(MANY)(given(st.data())(lambda data: check_forbidden(place, name, data)))()


# ---- anything else


def check_anything(place: Place, name: str, data: st.DataObject) -> None:
    case = drawn_case(place, name, data, GenerationMode.NEGATIVE)
    live = place.live()
    made_up = case.path_parameters if data.draw(st.booleans(), label="made-up ids") else None
    answer = place.send(name, live, raw(case.body), case.query, made_up)
    if 200 <= answer.status < 400:
        return  # null is absence, unknown fields are ignored, whole numbers may be written as 1.0
    assert place.told.problems(name, answer) == []
    if answer.status in (400, 422):
        named = any(re.search(rf"\b{re.escape(each)}\b", answer.detail) for each in place.told.names)
        assert named or "the body" in answer.detail, str(answer)


@pytest.mark.parametrize("name", SPOILABLE)
def test_anything_else_is_answered_with_a_reason(place: Place, name: str):
    examples(FEW)(given(st.data())(lambda data: check_anything(place, name, data)))()


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOILABLE)
def test_anything_else_is_answered_with_a_reason_at_length(place: Place, name: str):
    examples(MANY)(given(st.data())(lambda data: check_anything(place, name, data)))()
