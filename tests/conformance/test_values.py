"""Random field values for every record: the official SDK and ours accept and write them alike."""

from __future__ import annotations

import enum
import functools
import json
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
import pydantic
import pytest
import tinker.types
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from tinker.types._pydantic_types.tensor_data import TensorData as TensorModel
from tinker.types.generic_event import GenericEvent

import tinkex.types
from tinkex.errors import InvalidArgumentError, TinkerError, UnknownArgumentError
from tinkex.wire import jsonbody

from ..strategies import examples

MODELS = sorted(
    name
    for name, value in vars(tinker.types).items()
    if isinstance(value, type) and issubclass(value, pydantic.BaseModel)
)

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=8)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=OFFSETS)  # noqa: DTZ001


def _bounded(marks: Sequence[Any]) -> dict[str, Any]:
    """Constraints of an annotation, as hypothesis spells them."""
    found: dict[str, Any] = {}
    for mark in marks:
        if isinstance(mark, annotated_types.Ge):
            found["min_value"] = mark.ge
        elif isinstance(mark, annotated_types.Le):
            found["max_value"] = mark.le
        elif isinstance(mark, annotated_types.Lt):
            found |= {"max_value": mark.lt, "exclude_max": True}
        elif isinstance(mark, annotated_types.MinLen):
            found["min_size"] = mark.min_length
        elif isinstance(mark, annotated_types.MaxLen):
            found["max_size"] = mark.max_length
    return found


def _numeric(bounds: dict[str, Any]) -> dict[str, Any]:
    return {key: bound for key, bound in bounds.items() if not key.endswith("size")}


def values(annotation: Any, marks: Sequence[Any] = ()) -> st.SearchStrategy[Any]:
    """Values of one field in the plain form both SDKs take: nested records are dicts."""
    origin, arguments, bounds = get_origin(annotation), get_args(annotation), _bounded(marks)
    if origin is Annotated:
        return values(arguments[0], [*arguments[1:], *marks])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(arm, marks) for arm in arguments])
    if origin in (list, Sequence):
        sizes = {"max_size": 3} | {k: v for k, v in bounds.items() if k.endswith("size")}
        return st.lists(values(arguments[0]), **sizes)
    if origin in (dict, Mapping):
        return st.dictionaries(TEXT, values(arguments[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return st.deferred(lambda: record_values(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return st.sampled_from([member.value for member in annotation])
    simple = {
        str: st.text(max_size=8, min_size=bounds.get("min_size", 0)),
        int: st.integers(bounds.get("min_value", -(2**63)), bounds.get("max_value", 2**63 - 1)),
        float: st.floats(allow_nan=False, allow_infinity=False, **_numeric(bounds)),
        bool: st.booleans(),
        bytes: st.binary(max_size=8),
        datetime: MOMENTS,
        pydantic.AwareDatetime: MOMENTS,
        type(None): st.none(),
        Any: JSON,
        object: JSON,
    }
    return simple[annotation]


@st.composite
def tensors(draw: Any) -> dict[str, Any]:
    """A valid JSON tensor of 0 to 2 dimensions."""
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2))
    size = shape[0] * (shape[1] if len(shape) > 1 else 1)
    dtype = draw(st.sampled_from(["int64", "float32"]))
    element = INT64 if dtype == "int64" else st.floats(width=32, allow_nan=False, allow_infinity=False)
    return {
        "data": draw(st.lists(element, min_size=size, max_size=size)),
        "dtype": dtype,
        "shape": shape,
    }


# Fields whose type does not say all that a value must be.
_SPECIAL: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (tinker.types.EncodedTextChunk, "tokens"): st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    (tinker.types.SessionStartEvent, "event"): st.just("SESSION_START"),
    (tinker.types.SessionEndEvent, "event"): st.just("SESSION_END"),
    (tinker.types.UnhandledExceptionEvent, "event"): st.just("UNHANDLED_EXCEPTION"),
    (GenericEvent, "event"): st.just("GENERIC_EVENT"),
}


def _is_tag(field: Any) -> bool:
    """Whether a field only says which record this is; unions need it."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def record_values(model: type[pydantic.BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Keyword arguments for a record: all required fields and any of the others."""
    if model is TensorModel:
        return tensors()
    required, optional = {}, {}
    for name, field in model.model_fields.items():
        special = _SPECIAL.get((model, name))
        held = values(field.annotation, field.metadata) if special is None else special
        (required if field.is_required() or _is_tag(field) else optional)[name] = held
    fixed = st.fixed_dictionaries(required, optional=optional)
    if model.model_config.get("extra") != "allow":
        return fixed
    # An open record is told apart by its tag: a known tag would make it another type.
    return fixed.map(lambda made: {**made, "type": f"x-{made['type']}", "momentum": 0.5})


def pairs(name: str) -> tuple[type[pydantic.BaseModel], Any]:
    return getattr(tinker.types, name), getattr(tinkex.types, name)


_quick = examples(15)
_any = settings(_quick, phases=[Phase.generate])


@pytest.mark.parametrize("name", MODELS)
@_quick
@given(data=st.data())
def test_random_values_are_taken_and_written_alike(name: str, data: st.DataObject):
    official, own = pairs(name)
    given_values = data.draw(record_values(official))
    theirs, ours = official(**given_values), own(**given_values)
    text = theirs.model_dump_json()
    assert json.loads(ours.model_dump_json()) == json.loads(text)
    assert ours.model_dump(mode="json") == theirs.model_dump(mode="json")
    assert ours.model_dump() == theirs.model_dump()
    without = theirs.model_dump(mode="json", exclude_none=True)
    assert ours.model_dump(mode="json", exclude_none=True) == without
    # Each side reads what the other writes.
    assert _plain(own.model_validate_json(text)) == _plain(ours)
    assert official.model_validate_json(ours.model_dump_json()) == theirs
    assert _plain(jsonbody.decode(own, json.dumps(without).encode())) == _plain(ours)


@pytest.mark.parametrize("name", MODELS)
@_quick
@given(data=st.data())
def test_records_copy_and_compare_like_pydantics(name: str, data: st.DataObject):
    official, own = pairs(name)
    given_values = data.draw(record_values(official))
    theirs, ours = official(**given_values), own(**given_values)
    for twin in (own(**given_values), ours.model_copy(), ours.model_copy(deep=True)):
        assert _plain(twin) == _plain(ours)
        # Tensors compare by identity, as the official ones do.
        assert twin == ours or getattr(ours, "target_prompt_logprobs", None) is not None
    assert own.model_validate(ours) is ours
    for field in official.model_fields:
        if not hasattr(getattr(theirs, field), "model_dump"):
            mine, expected = getattr(ours, field), getattr(theirs, field)
            assert _plain(mine) == _plain(expected), field


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


@functools.cache
def valid(name: str) -> dict[str, Any]:
    """Some valid keyword arguments of a record."""
    return find(record_values(getattr(tinker.types, name)), lambda _: True, settings=_any)


FORBIDDING = [n for n in MODELS if getattr(tinker.types, n).model_config.get("extra") == "forbid"]


@pytest.mark.parametrize("name", [*FORBIDDING, "SamplingParams"])
def test_a_misspelt_keyword_is_refused(name: str):
    own = getattr(tinkex.types, name)
    field = next(iter(getattr(tinker.types, name).model_fields))
    typo = field[:-1] + "_x"
    with pytest.raises(UnknownArgumentError, match=f"{name} has no field '{typo}'.*{field}") as caught:
        own(**valid(name), **{typo: 1})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", MODELS)
def test_a_missing_field_is_refused_by_name(name: str):
    official, own = pairs(name)
    required = [field for field, info in official.model_fields.items() if info.is_required()]
    if not required:
        assert own().model_dump(mode="json") == official().model_dump(mode="json")
    for field in required:
        rest = {key: value for key, value in valid(name).items() if key != field}
        with pytest.raises((TypeError, ValueError), match=field):
            own(**rest)


class Alien:
    """A value no field wants."""


@pytest.mark.parametrize("name", MODELS)
def test_an_unfit_value_is_refused_by_name(name: str):
    official, own = pairs(name)
    for field, info in official.model_fields.items():
        values = {**valid(name), field: Alien()}
        if info.annotation in (Any, object):
            assert getattr(own(**values), field) is values[field]
            continue
        with pytest.raises(pydantic.ValidationError):
            official(**values)
        with pytest.raises(InvalidArgumentError, match=field) as caught:
            own(**values)
        assert isinstance(caught.value, TinkerError)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("DimuonParams", {"learning_rate": -0.1}),
        ("DimuonParams", {"learning_rate": float("nan")}),
        ("DimuonParams", {"learning_rate": float("inf")}),
        ("DimuonParams", {"learning_rate": 0.1, "beta1": 1.0}),
        ("SessionSearchRequest", {"limit": 0}),
        ("SessionSearchRequest", {"limit": 201}),
        ("SessionSearchRequest", {"display_name": ""}),
        ("SessionSearchRequest", {"statuses": []}),
        ("UserSearchOwner", {"owner_urns": []}),
        ("UserSearchOwner", {"owner_urns": ["u"] * 11}),
        ("ClientFinishedSessionStatusQuery", {"reasons": []}),
        ("SessionSearchCursor", {"last_created_at": "2026-01-01T00:00:00", "last_session_id": "s"}),
        ("ImageChunk", {"data": b"x", "format": "gif"}),
        ("SamplingParams", {"max_tokens": 1.5}),
        ("SamplingParams", {"stop": 3}),
    ],
)
def test_values_out_of_bounds_are_refused_by_both(name: str, values: dict[str, Any]):
    official, own = pairs(name)
    with pytest.raises(ValueError):
        official(**values)
    with pytest.raises(ValueError):
        own(**values)
