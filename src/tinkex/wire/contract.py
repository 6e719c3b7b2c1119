"""The whole contract as one JSON-schema document, made from the route table and the types.

python -m tinkex.wire.contract > docs/contract.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from ..types.compounds import Own
from .headers import JSON, PROTOBUF
from .routes import ROUTES, Route

__all__ = ["contract", "render"]

_BINARY = {"SampleResponse", "ForwardBackwardOutput"}


def contract() -> dict[str, Any]:
    """Routes, record schemas and the protobuf file."""
    definitions: dict[str, Any] = {}
    routes = [_describe(route, definitions) for route in ROUTES.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tinker wire contract",
        "description": "SDK 0.3.0 to 0.36.0.  Unknown keys are ignored, null means absent.",
        "routes": routes,
        "protobuf": (Path(__file__).parent / "tinker_public.proto").read_text(),
        "$defs": dict(sorted(definitions.items())),
    }


def _describe(route: Route, definitions: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": route.name,
        "method": route.method,
        "path": route.full_path,
        "kind": route.kind,
        "lane": route.lane,
        "summary": route.summary,
        "since": route.since,
    }
    if route.until:
        described["until"] = route.until
    parts = {
        "query": route.query,
        "request": route.server_request,
        "response": route.response,
        "result": route.result,
    }
    for part, kind in parts.items():
        if kind is None:
            continue
        if kind.__name__ in _BINARY:
            described[part] = {"protobuf": kind.__name__, "accepts": [PROTOBUF, JSON]}
        else:
            described[part] = Own(kind).schema(definitions)
    if route.events is not None:
        described["events"] = {
            name: {"json": kind.__name__} if kind.__name__ in _BINARY else Own(kind).schema(definitions)
            for name, kind in route.events.items()
        }
    if route.name == "forward_backward":
        described["request"] = {"protobuf": "ForwardBackwardRequest", "json": described["request"]}
    return described


def render() -> str:
    """The document as text, the same each time."""
    raw = msgspec.json.encode(contract(), order="deterministic")
    return msgspec.json.format(raw, indent=1).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
