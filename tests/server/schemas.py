"""The part of JSON schema that our descriptions use: what fits it, and values that fit it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
KNOWN = {
    "$ref", "additionalProperties", "anyOf", "const", "contentEncoding", "description", "enum",
    "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maximum",
    "minItems", "minLength", "minimum", "pattern", "properties", "required", "title", "type",
}  # fmt: skip


class Schemas:
    """The schemas of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.named: dict[str, dict[str, Any]] = document["components"]["schemas"]

    def of(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema itself, where another one is referred to."""
        unknown = schema.keys() - KNOWN
        assert not unknown, unknown
        return self.of(self.named[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema

    # ---- what is wrong with a value

    def problems(self, schema: dict[str, Any], value: Any, at: str = "") -> list[str]:
        """Where a value does not fit."""
        schema = self.of(schema)
        if "anyOf" in schema:
            each = [self.problems(inner, value, at) for inner in schema["anyOf"]]
            if all(each):
                return [f"{at}: fits none: {each}"]
        if "const" in schema and value != schema["const"]:
            return [f"{at}: {value!r} is not {schema['const']!r}"]
        if "enum" in schema and value not in schema["enum"]:
            return [f"{at}: {value!r} is not in {schema['enum']}"]
        if "type" in schema:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            fits = any(
                isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
                for kind in kinds
            )
            if not fits:
                return [f"{at}: {value!r} is no {schema['type']}"]
        return [*self._bounds(schema, value, at), *self._inside(schema, value, at)]

    @staticmethod
    def _bounds(schema: dict[str, Any], value: Any, at: str) -> list[str]:
        wrong = []
        if isinstance(value, (int, float)):
            wrong = [
                not schema.get("minimum", value) <= value <= schema.get("maximum", value),
                value <= schema.get("exclusiveMinimum", float("-inf")),
                value >= schema.get("exclusiveMaximum", float("inf")),
            ]
        elif isinstance(value, str):
            wrong = [
                len(value) < schema.get("minLength", 0),
                not re.search(schema.get("pattern", ""), value),
            ]
        elif isinstance(value, list):
            wrong = [not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))]
        return [f"{at}: {value!r} is out of bounds"] if any(wrong) else []

    def _inside(self, schema: dict[str, Any], value: Any, at: str) -> list[str]:
        found = []
        if isinstance(value, list) and "items" in schema:
            for place, each in enumerate(value):
                found += self.problems(schema["items"], each, f"{at}[{place}]")
        if isinstance(value, dict):
            found += [f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value]
            rest = schema.get("additionalProperties", {})
            for name, each in value.items():
                inner = schema.get("properties", {}).get(name, rest if isinstance(rest, dict) else {})
                found += self.problems(inner, each, f"{at}.{name}")
        return found

    # ---- values that fit

    def values(self, schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
        """Values a schema allows, small ones."""
        schema = self.of(schema)
        if "anyOf" in schema and "properties" in schema:  # alternatives of what must be there
            rest = {name: each for name, each in schema.items() if name != "anyOf"}
            sets = [[*schema.get("required", ()), *each["required"]] for each in schema["anyOf"]]
            return st.one_of([self.values({**rest, "required": names}, depth) for names in sets])
        if "anyOf" in schema:
            return st.one_of([self.values(each, depth) for each in schema["anyOf"]])
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        kinds = schema.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return st.one_of([self._of_kind(kind, schema, depth) for kind in kinds]) if kinds else _anything()

    def _of_kind(self, kind: str, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        match kind:
            case "integer":
                return st.integers(schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1))
            case "number":
                low = schema.get("minimum", schema.get("exclusiveMinimum"))
                high = schema.get("maximum", schema.get("exclusiveMaximum"))
                return st.floats(
                    low,
                    high,
                    allow_nan=False,
                    allow_infinity=False,
                    exclude_min="exclusiveMinimum" in schema,
                    exclude_max="exclusiveMaximum" in schema,
                )
            case "string":
                return _texts(schema)
            case "boolean":
                return st.booleans()
            case "null":
                return st.none()
            case "array":
                most = 0 if depth > 5 else min(schema.get("maxItems", 3), 3)
                inner = self.values(schema.get("items", {}), depth + 1)
                return st.lists(
                    inner, min_size=schema.get("minItems", 0), max_size=max(most, schema.get("minItems", 0))
                )
        return self._objects(schema, depth)

    def _objects(self, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
        properties = schema.get("properties", {})
        required = {name: self.values(properties[name], depth + 1) for name in schema.get("required", ())}
        optional = {
            name: self.values(each, depth + 1)
            for name, each in properties.items()
            if name not in required and depth <= 5
        }
        fixed = st.fixed_dictionaries(required, optional=optional)
        rest = schema.get("additionalProperties")
        if not isinstance(rest, dict) or properties:
            return fixed
        return st.dictionaries(st.text(max_size=5), self.values(rest, depth + 1), max_size=2)


def _anything() -> st.SearchStrategy[Any]:
    return st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5)


def _texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if schema.get("format") == "date-time":
        moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1))  # noqa: DTZ001
        return moments.map(lambda at: at.replace(tzinfo=UTC).isoformat())
    if schema.get("contentEncoding") == "base64" or schema.get("format") in ("byte", "base64"):
        return st.sampled_from(["", "iVBORw=="])
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True).filter(lambda text: not text.endswith("\n"))
    return st.text(min_size=schema.get("minLength", 0), max_size=max(schema.get("minLength", 0), 8))
