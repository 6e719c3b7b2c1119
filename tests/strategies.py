"""Hypothesis strategies made from the types themselves: our field rules, and pydantic's annotations.

`TINKEX_FUZZ=1 pytest tests/contract` looks for new examples; without it the same ones run every time.
"""

from __future__ import annotations

import json
import math
import os
import types as pytypes
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pydantic
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tinkex import types
from tinkex.types import compounds, rules
from tinkex.types.chunks import UnknownChunk
from tinkex.types.losses import LOSS_NAMES, ForwardBackwardInput
from tinkex.types.sampling import StopRule

FUZZ = bool(os.environ.get("TINKEX_FUZZ"))


def examples(count: int) -> settings:
    """How many examples a property is tried on; never timed."""
    return settings(
        max_examples=count * (20 if FUZZ else 1),
        deadline=None,
        derandomize=not FUZZ,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=6)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
FLOAT32 = st.floats(width=32)
FINITE32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)


def moments(aware: bool = False) -> st.SearchStrategy[datetime]:
    """Dates with a zone of whole minutes, as RFC 3339 has it; naive ones too unless `aware`."""
    zones = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5, minutes=-30))])
    zone = zones if aware else st.none() | zones
    return st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=zone)  # noqa: DTZ001


# ---- from our own rules


def values(rule: rules.Rule) -> st.SearchStrategy[Any]:
    """Values a rule takes and that JSON can carry."""
    return _FROM_RULE[type(rule)](rule)


def _text(rule: rules.Text) -> st.SearchStrategy[str]:
    return st.text(min_size=rule.shortest or 0, max_size=rule.longest or (rule.shortest or 0) + 6)


def _integer(rule: rules.Integer) -> st.SearchStrategy[int]:
    low, high = rule.bounds.ge, rule.bounds.le
    return st.integers(-(2**63) if low is None else int(low), 2**64 - 1 if high is None else int(high))


def _number(rule: rules.Number) -> st.SearchStrategy[float]:
    bounds = rule.bounds
    return st.floats(
        min_value=bounds.ge,
        max_value=bounds.lt if bounds.lt is not None else bounds.le,
        exclude_max=bounds.lt is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def _tagged(rule: compounds.Tagged) -> st.SearchStrategy[Any]:
    arms = [records(kind, **_tag(rule, kind)) for kind in rule.kinds]
    return st.one_of(arms)


def _tag(rule: compounds.Tagged, kind: Any) -> dict[str, st.SearchStrategy[Any]]:
    key = rule.mark.key
    if kind is rule.mark.unknown:
        return {key: NAMES.filter(lambda tag: tag not in rule.arms)}
    return {key: st.just(kind.__tag__)} if key in getattr(kind, "model_fields", ()) else {}


def _stop(_rule: rules.Rule) -> st.SearchStrategy[Any]:
    return TEXT | st.lists(TEXT, max_size=2) | st.lists(INT32, max_size=3)


_FROM_RULE: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
    rules.Text: _text,
    rules.Integer: _integer,
    rules.Number: _number,
    rules.Flag: lambda rule: st.booleans(),
    rules.Moment: lambda rule: moments(rule.aware),
    rules.Blob: lambda rule: st.binary(max_size=8),
    rules.Choice: lambda rule: st.sampled_from(rule.options),
    rules.Member: lambda rule: st.sampled_from(list(rule.kind)),
    rules.Anything: lambda rule: JSON,
    compounds.Maybe: lambda rule: st.none() | values(rule.inner),
    compounds.Items: lambda rule: st.lists(
        values(rule.inner), min_size=rule.shortest or 0, max_size=min(rule.longest or 3, 3)
    ),
    compounds.Table: lambda rule: st.dictionaries(TEXT, values(rule.inner), max_size=3),
    compounds.Own: lambda rule: records(rule.kind),
    compounds.Tagged: _tagged,
    compounds.AnyOf: lambda rule: st.one_of([values(each) for each in rule.rules]),
    StopRule: _stop,
}


def records(kind: Any, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Records of one class; optional fields are left out now and then."""
    special = SPECIAL.get(kind)
    if special is not None and not fixed:
        return special()
    fields = {name: fixed.get(name, values(info.rule)) for name, info in kind.model_fields.items()}
    required = {name: fields[name] for name, info in kind.model_fields.items() if info.is_required()}
    optional = {name: fields[name] for name in fields if name not in required}
    built = st.fixed_dictionaries(required, optional=optional)
    if kind.__open__:
        extra = st.dictionaries(NAMES.filter(lambda name: name not in fields), JSON, max_size=2)
        return st.tuples(built, extra).map(lambda parts: kind(**{**parts[1], **parts[0]}))
    return built.map(lambda given: kind(**given))


@st.composite
def tensors(
    draw: st.DrawFn,
    dtypes: Sequence[str] = ("int64", "float32"),
    finite: bool = True,
    sparse: bool = True,
) -> types.TensorData:
    """Tensors of rank 0 to 2, dense or sparse, with or without a shape."""
    dtype = draw(st.sampled_from(dtypes))
    element = INT64 if dtype == "int64" else (FINITE32 if finite else FLOAT32)
    rows, columns = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    form = draw(st.sampled_from(["flat", "vector", "matrix", "scalar", *(["csr"] if sparse else [])]))
    if form == "csr":
        return _csr(draw, dtype, element, rows, columns)
    size = {"flat": rows, "vector": rows, "matrix": rows * columns, "scalar": 1}[form]
    data = draw(st.lists(element, min_size=size, max_size=size))
    shape = {"flat": None, "vector": [rows], "matrix": [rows, columns], "scalar": []}[form]
    return types.TensorData(data=data, dtype=dtype, shape=shape)


def _csr(draw: st.DrawFn, dtype: str, element: Any, rows: int, columns: int) -> types.TensorData:
    cells = st.lists(st.integers(0, columns - 1), unique=True, max_size=columns).map(sorted)
    picked = [draw(cells) for _ in range(rows)]
    crow = np.cumsum([0, *map(len, picked)]).tolist()
    data = draw(st.lists(element, min_size=crow[-1], max_size=crow[-1]))
    return types.TensorData(
        data=data,
        dtype=dtype,
        shape=[rows, columns],
        sparse_crow_indices=crow,
        sparse_col_indices=[column for row in picked for column in row],
    )


def text_chunks() -> st.SearchStrategy[types.EncodedTextChunk]:
    """Runs of tokens, held as a list or as an array of some integer type."""
    lists = st.lists(INT32, max_size=5)
    small = st.lists(st.integers(0, 200), max_size=5)
    return st.one_of(
        lists.map(lambda ids: types.EncodedTextChunk(tokens=ids)),
        lists.map(lambda ids: types.EncodedTextChunk(tokens=np.array(ids, np.int64))),
        small.map(lambda ids: types.EncodedTextChunk(tokens=np.array(ids, np.uint8))),
    )


def chunks() -> st.SearchStrategy[Any]:
    """Every kind of chunk a request may hold."""
    return st.one_of(
        text_chunks(),
        records(types.ImageChunk, expected_tokens=st.none() | INT32),
        records(types.ImageAssetPointerChunk),
        records(types.DmelChunk),
    )


def trainable_chunks() -> st.SearchStrategy[Any]:
    """The kinds of chunk a training request may hold."""
    return st.one_of(
        text_chunks(),
        records(types.ImageChunk, expected_tokens=st.none() | INT32),
        records(types.DmelChunk),
    )


def model_inputs(inside: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[types.ModelInput]:
    """Inputs of a few chunks."""
    return st.lists(chunks() if inside is None else inside, max_size=3).map(
        lambda held: types.ModelInput(chunks=held)
    )


def spans() -> st.SearchStrategy[Any]:
    """Lists of provenance spans of both kinds."""
    parts = st.fixed_dictionaries(
        {"sequence_id": st.text(min_size=1, max_size=6), "length": st.integers(0, 2**40)},
        optional={"offset": st.integers(0, 2**40)},
    )
    kinds = st.sampled_from([types.PromptProvenanceSpan, types.SampledProvenanceSpan])
    return st.lists(st.tuples(kinds, parts).map(lambda pair: pair[0](**pair[1])), min_size=1, max_size=3)


def data(
    inside: st.SearchStrategy[Any] | None = None, provenance: bool = False, finite: bool = True
) -> st.SearchStrategy[types.Datum]:
    """Training examples."""
    inputs = st.dictionaries(TEXT, tensors(finite=finite), max_size=3)
    pairs = st.just((None, None)) | st.tuples(spans(), spans()) if provenance else st.just((None, None))
    return st.tuples(model_inputs(inside), inputs, pairs).map(
        lambda parts: types.Datum(parts[0], parts[1], *parts[2])
    )


def loss_configs() -> st.SearchStrategy[Any]:
    """Settings of a loss: numbers and text, or none."""
    return st.none() | st.dictionaries(TEXT, FLOAT | INT32 | TEXT, max_size=3)


def passes() -> st.SearchStrategy[ForwardBackwardInput]:
    """What goes into a pass, in its JSON form."""
    return st.builds(
        ForwardBackwardInput,
        st.lists(data(), max_size=2),
        st.sampled_from(LOSS_NAMES),
        st.none() | st.dictionaries(TEXT, FLOAT | TEXT, max_size=2),
    )


SPECIAL: Mapping[Any, Callable[[], st.SearchStrategy[Any]]] = {
    types.TensorData: lambda: tensors(),
    types.ModelInput: lambda: model_inputs(),
    types.EncodedTextChunk: text_chunks,
    types.Datum: lambda: data(),
    ForwardBackwardInput: passes,
}


def unknown_chunks() -> st.SearchStrategy[UnknownChunk]:
    """Chunks of a kind that does not exist yet."""
    return st.dictionaries(NAMES.filter(lambda name: name != "type"), JSON, max_size=2).map(
        lambda extra: UnknownChunk(type="hologram", **extra)
    )


# ---- from pydantic models


def official(model: type[pydantic.BaseModel]) -> st.SearchStrategy[Any]:
    """Instances of a pydantic model; fields with a default are left unset now and then."""
    hints = typing.get_type_hints(model, include_extras=True)
    required, optional = {}, {}
    for name, info in model.model_fields.items():
        fixed = _OFFICIAL_FIELDS.get((model.__name__, name))
        strategy = fixed() if fixed else _annotated(hints[name], info.metadata)
        (required if info.is_required() else optional)[name] = strategy
    built = st.fixed_dictionaries(required, optional=optional)
    if model.__name__ == "TensorData":
        return tensors().map(lambda tensor: model(**tensor.model_dump()))
    if model.model_config.get("extra") == "allow":
        extra = st.dictionaries(NAMES.filter(lambda name: name not in hints), JSON, max_size=2)
        return st.tuples(built, extra).map(lambda parts: model(**{**parts[1], **parts[0]}))
    return built.map(lambda given: model(**given))


_EVENTS = {
    "SessionStartEvent": "SESSION_START",
    "SessionEndEvent": "SESSION_END",
    "UnhandledExceptionEvent": "UNHANDLED_EXCEPTION",
    "GenericEvent": "GENERIC_EVENT",
}
# What an annotation alone does not say: token ids are int32, names of families are not each other's.
_OFFICIAL_FIELDS: dict[tuple[str, str], Callable[[], st.SearchStrategy[Any]]] = {
    ("EncodedTextChunk", "tokens"): lambda: st.lists(INT32, max_size=5),
    ("SamplingParams", "stop"): lambda: st.none() | _stop(StopRule()),
    ("OptimizerConfigBase", "type"): lambda: NAMES.map("x".__add__),
    ("OptimParamsBase", "type"): lambda: NAMES.map("x".__add__),
    **{(name, "event"): lambda tag=tag: st.just(tag) for name, tag in _EVENTS.items()},
}


def _annotated(annotation: Any, marks: Sequence[Any] = ()) -> st.SearchStrategy[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *own = get_args(annotation)
        return _annotated(inner, [*own, *marks])
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin in (Union, pytypes.UnionType):
        return st.one_of([_annotated(arm, marks) for arm in get_args(annotation)])
    limits = _limits(marks)
    if origin in (list, Sequence):
        low = limits.get("min_length", 0)
        return st.lists(_annotated(get_args(annotation)[0]), min_size=low, max_size=max(low, 3))
    if origin in (dict, Mapping):
        return st.dictionaries(TEXT, _annotated(get_args(annotation)[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return official(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    if annotation is int:
        return st.integers(limits.get("ge", -(2**63)), limits.get("le", 2**63 - 1))
    if annotation is float:
        high = limits.get("lt", limits.get("le"))
        return st.floats(
            limits.get("ge"), high, exclude_max="lt" in limits, allow_nan=False, allow_infinity=False
        )
    if annotation is str:
        low = limits.get("min_length", 0)
        return st.text(min_size=low, max_size=low + 6)
    return _PLAIN[annotation]()


def _limits(marks: Sequence[Any]) -> dict[str, Any]:
    names = ("ge", "le", "lt", "min_length", "max_length")
    found = {name: getattr(mark, name, None) for mark in marks for name in names if hasattr(mark, name)}
    return {name: limit for name, limit in found.items() if limit is not None}


_PLAIN: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
    bool: st.booleans,
    datetime: moments,
    pydantic.AwareDatetime: lambda: moments(aware=True),
    bytes: lambda: st.binary(max_size=8),
    type(None): st.none,
    Any: lambda: JSON,
    object: lambda: JSON,
}


# ---- comparing


def plain(value: Any) -> Any:
    """JSON data with dates in one spelling and NaN equal to itself."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, str) and len(value) > 18 and value[4:5] == "-":
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        return moment.astimezone(UTC).isoformat() if moment.tzinfo else moment.isoformat()
    return value


def plain_json(body: bytes) -> Any:
    """JSON bytes, decoded by the standard library and made comparable."""
    return plain(json.loads(body))
