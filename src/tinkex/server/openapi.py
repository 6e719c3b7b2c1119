"""The API's description (OpenAPI 3.1), made from the route table, the records and this server's limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from .._version import __version__
from ..types import RequestFailedResponse, TryAgainResponse
from ..types.compounds import Own
from ..wire.bodies import CompleteMetadataResponse, ErrorBody
from ..wire.headers import (
    API_KEY,
    EVENT_STREAM,
    IDEMPOTENCY_KEY,
    JSON,
    PROTOBUF,
    WEIGHTS_ACCESS_TOKEN,
)
from ..wire.routes import ROUTES, Route
from . import api_examples as examples
from .api_limits import limits_of

if TYPE_CHECKING:
    from .service import Service

__all__ = ["describe"]

Schema: TypeAlias = dict[str, Any]

TAGS = {
    "config": ("Settings", "How a client should behave."),
    "auth": ("Credentials", "The key in use, and tokens that stand for it."),
    "session": ("Sessions", "Opening, keeping alive and ending sessions, and sampling sessions in them."),
    "train": ("Training", "Operations on a model, in the order of their `seq_id`. Each answers a ticket."),
    "sample": ("Sampling", "Samples; each answers a ticket, or a stream of events."),
    "poll": ("Results", "Waiting for what a ticket stands for."),
    "rest": ("Runs, checkpoints and books", "What there is, what was saved, what was used."),
    "telemetry": ("Telemetry", "Accepted and not kept."),
}
LARGEST_PAGE = 10**15
_BINARY = {"SampleResponse", "ForwardBackwardOutput"}
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")
_OPEN = frozenset({"health"})
_HEADERS = {
    "create_session": (IDEMPOTENCY_KEY,),
    "copy_weights": (IDEMPOTENCY_KEY, WEIGHTS_ACCESS_TOKEN),
}
_REFUSALS = {
    "400": "Something that cannot be done; the text names the field and what is allowed.",
    "401": "The key is missing or not known.",
    "404": "There is no such thing, or it is somebody else's.",
    "413": "The body is too large; the text has both sizes.",
    "422": "The body or the query cannot be read; the text names the field.",
    "429": "Too much at once; slow down.",
    "503": "The server or its engine cannot do it now; come again after `Retry-After`.",
}


_MORE_REFUSALS = {
    "auth_token": {"403": "This server gives no tokens; use the key itself."},
    "copy_weights": {"403": "The lent credential is not known."},
    "load_weights": {"403": "The lent credential is not known."},
    "delete_api_key": {"409": "This key cannot be revoked here."},
    "session_heartbeat": {"410": "The session has ended."},
}
"""What only some routes answer."""


def describe(service: Service) -> Schema:
    """The whole document for one server."""
    schemas: Schema = {}
    paths: dict[str, Schema] = {}
    for route in ROUTES.values():
        where = _PARAMETER.sub(r"{\1}", route.full_path)
        paths.setdefault(where, {})[route.method.lower()] = _operation(route, schemas)
    for kind in (ErrorBody, TryAgainResponse, RequestFailedResponse, CompleteMetadataResponse):
        _reference(kind, schemas)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Tinkex",
            "version": __version__,
            "summary": "Fine-tuning by a plain loop: the Tinker API, served here.",
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": service.url}],
        "security": [{"ApiKey": []}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.values()],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"ApiKey": {"type": "apiKey", "in": "header", "name": API_KEY}},
        },
    }
    for name, fields in limits_of(service).items():
        properties = schemas[name]["properties"]
        properties |= {field: _narrowed(properties[field], limit) for field, limit in fields.items()}
    described: Schema = _moved(document, next(iter(service.catalogue.by_name)))
    return described


_INTRODUCTION = """\
Send your key as `X-API-Key`. Work is accepted with a ticket (`request_id`); its result is fetched with
`POST /api/v1/retrieve_future`, which holds the request until there is one or answers 408 after a while.
Work that fails is a 200 with `error` and `category`. Unknown fields are ignored, null means absent."""


# ---- one operation


def _operation(route: Route, schemas: Schema) -> Schema:
    lane = "poll" if route.lane == "poll_many" else route.lane
    told: Schema = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [TAGS[lane][0]],
        "description": _since(route),
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas), *_headers(route)],
        "responses": {**_answers(route, schemas), **_refusals(route, schemas)},
    }
    if route.request is not None:
        told["requestBody"] = {"required": True, "content": _request(route, schemas)}
    if route.name in _OPEN:
        told["security"] = []
    return told


def _since(route: Route) -> str:
    if route.since == "tinkex":
        return "An addition of this server; official SDKs do not call it."
    upto = f" to {route.until}" if route.until else ""
    since = f"Called by SDK {route.since}{upto}" if upto else f"Called by SDKs since {route.since}"
    return f"{since}."


def _path_parameters(route: Route) -> list[Schema]:
    found = []
    for name, greedy in _PARAMETER.findall(route.path):
        told: Schema = {
            "name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
            "example": examples.PARAMETERS[name],
        }  # fmt: skip
        if greedy:
            told["description"] = "May hold slashes, as they are."
        found.append(told)
    return found


def _query_parameters(route: Route, schemas: Schema) -> list[Schema]:
    if route.query is None:
        return []
    record = route.query.__schema__(schemas)
    found = []
    for name, schema in record["properties"].items():
        # Null stands for an absent field: in a query there is only absence.
        kinds = [each for each in schema.get("anyOf", [schema]) if each != {"type": "null"}]
        told: Schema = {
            "name": name, "in": "query", "required": name in record.get("required", ()),
            "schema": kinds[0] if len(kinds) == 1 else {"anyOf": kinds},
        }  # fmt: skip
        if name in ("limit", "offset"):
            told["schema"] |= {"maximum": LARGEST_PAGE}
        if name == "day":
            told["schema"] |= {"format": "date"}
        if name in examples.PARAMETERS:
            told["example"] = examples.PARAMETERS[name]
        found.append(told)
    return found


def _headers(route: Route) -> list[Schema]:
    return [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}
        for name in _HEADERS.get(route.name, ())
    ]


def _request(route: Route, schemas: Schema) -> Schema:
    json_form = {
        "schema": _reference(route.server_request, schemas),
        "example": examples.REQUESTS[route.name],
    }
    if route.name != "forward_backward":
        return {JSON: json_form}
    described = (
        "A `ForwardBackwardRequest` of tinker_public.proto; may be one zstd frame (Content-Encoding)."
    )
    return {PROTOBUF: {"schema": _binary(described)}, JSON: json_form}


def _answers(route: Route, schemas: Schema) -> Schema:
    if route.kind == "poll" and route.response is None:
        return _poll_answers(schemas)
    if route.events is not None:
        kinds = ", ".join(f"`{name}`" for name in route.events)
        stream = {
            "schema": {"type": "string", "description": f"Events {kinds}; the last one is the result."}
        }
        return {
            "200": {"description": "A stream of server-sent events.", "content": {EVENT_STREAM: stream}}
        }
    if route.response is None:
        file = {kind: {"schema": _binary("The file.")} for kind in ("application/octet-stream", JSON)}
        return {"200": {"description": "The file.", "content": file}}
    content: Schema = {
        "schema": _reference(route.response, schemas),
        "example": examples.RESPONSES[route.name],
    }
    answer: Schema = {
        "description": "A ticket." if route.kind == "future" else "Done.",
        "content": {JSON: content},
    }
    if route.result is not None:
        answer["x-result"] = _result(route, schemas)
    if route.name == "checkpoint_archive":
        headers = {name: {"schema": {"type": "string"}} for name in ("Location", "Expires")}
        return {"302": {**answer, "description": "Where the archive is.", "headers": headers}}
    return {"200": answer}


def _result(route: Route, schemas: Schema) -> Schema:
    """What a poll for the ticket brings in the end."""
    name = route.result.__name__
    if name in _BINARY:
        told: Schema = {"protobuf": name, "json": "to clients that do not accept protobuf"}
    else:
        told = {"schema": _reference(route.result, schemas)}
    if route.name in examples.RESULTS:
        told["example"] = examples.RESULTS[route.name]
    return told


def _poll_answers(schemas: Schema) -> Schema:
    done = {
        "anyOf": [
            {"type": "object", "description": "The result, as the route that gave the ticket says."},
            _reference(RequestFailedResponse, schemas),
            _reference(CompleteMetadataResponse, schemas),
        ]
    }
    again = {"schema": _reference(TryAgainResponse, schemas)}
    content = {
        JSON: {"schema": done, "example": examples.RESULTS["optim_step"]},
        PROTOBUF: {"schema": _binary("The result of a pass or a sample, to clients that accept it.")},
    }
    return {
        "200": {"description": "The result, or how it failed.", "content": content},
        "408": {"description": "Not done yet: ask again at once.", "content": {JSON: again}},
        "410": _refusal("The result is gone; send the request again.", schemas),
    }


def _refusals(route: Route, schemas: Schema) -> Schema:
    left_out = {"401"} if route.name in _OPEN else set()
    if route.lane not in ("train", "sample"):
        left_out.add("429")
    if route.request is None:
        left_out.add("413")
    told = {status: text for status, text in _REFUSALS.items() if status not in left_out}
    told |= _MORE_REFUSALS.get(route.name, {})
    return {status: _refusal(text, schemas) for status, text in sorted(told.items())}


def _refusal(text: str, schemas: Schema) -> Schema:
    shape = {
        "schema": _reference(ErrorBody, schemas),
        "example": {"detail": "rank: 0 is not between 1 and 512"},
    }
    return {"description": text, "content": {JSON: shape}}


# ---- schemas


def _reference(kind: Any, schemas: Schema) -> Schema:
    if kind.__name__ in _BINARY:
        return _binary(kind.__name__)
    found: Schema = Own(kind).schema(schemas)
    return found


def _binary(text: str) -> Schema:
    return {"type": "string", "format": "binary", "description": text}


def _narrowed(schema: Schema, limit: Schema) -> Schema:
    """A field's schema with a limit of this server, beside the null it may be."""
    kinds = schema.get("anyOf", ())
    if {"type": "null"} in kinds or (kinds and "anyOf" not in limit):
        return {"anyOf": [each if each == {"type": "null"} else _narrowed(each, limit) for each in kinds]}
    return {**schema, **limit}


def _moved(value: Any, model: str) -> Any:
    """The same with schemas where OpenAPI wants them, and a model of this server in examples."""
    if isinstance(value, dict):
        return {
            key: each.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _moved(each, model)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_moved(each, model) for each in value]
    return model if value == examples.MODEL else value
