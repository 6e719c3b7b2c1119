"""Records to JSON bytes and back.

Writing: a field that is None is left out, unless its record says that null means something there.
Reading: unknown keys are kept aside, null stands for an absent field, unknown tags are kept.
JSON has no NaN: it is written as text, which every SDK's number fields read back as the number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..errors import InvalidArgumentError
from ..types.chunks import EncodedTextChunk
from ..types.model_input import ModelInput
from ..types.record import Record, refusal
from ..types.rules import Mismatch
from ..types.tensor_data import TensorData

__all__ = ["decode", "encode", "numbers", "parse", "wire_form"]

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_PLAIN = frozenset({str, int, bool, type(None)})


def numbers(array: Any) -> msgspec.Raw:
    """A one-dimensional array as JSON text, without a Python list in between."""
    import orjson

    if not array.flags.c_contiguous:
        array = array.copy()
    return msgspec.Raw(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))


def wire_form(value: Any) -> Any:
    """A value as JSON-ready data: what is not set is left out, arrays become JSON text."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Record):
        nullable = value.writes_null
        return {
            name: wire_form(item) for name, item in value._items() if item is not None or name in nullable
        }
    if isinstance(value, ModelInput):
        return {"chunks": [wire_form(chunk) for chunk in value.chunks]}
    if isinstance(value, EncodedTextChunk):
        held = value.raw_tokens()
        tokens = held if isinstance(held, list) else numbers(held)
        return {"tokens": tokens, "type": "encoded_text"}
    if isinstance(value, TensorData):
        return tensor_form(value)
    if isinstance(value, (list, tuple)):
        return [wire_form(item) for item in value]
    if isinstance(value, Mapping):
        return {key: wire_form(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else _spelt(value)
    if hasattr(value, "model_dump"):
        return wire_form(value.model_dump(mode="json", exclude_none=True))
    return value


def _spelt(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def tensor_form(tensor: TensorData) -> dict[str, Any]:
    """A tensor's JSON form; keys that are not set are left out, as old clients insist."""
    form: dict[str, Any] = {"data": _values(tensor), "dtype": tensor.dtype}
    for name in ("shape", "sparse_crow_indices", "sparse_col_indices"):
        value = getattr(tensor, name)
        if value is not None:
            form[name] = value
    return form


def _values(tensor: TensorData) -> Any:
    flat = tensor._numpy.ravel()
    if tensor.dtype == "int64":
        return numbers(flat)
    return floats(flat)


def floats(array: Any) -> msgspec.Raw:
    """Floats as JSON text; NaN and infinities become words."""
    from .._lazy import np

    if np.isfinite(array).all():
        return numbers(array.astype(np.float64))
    return msgspec.Raw(_encode(wire_form(array.tolist())))


def encode(value: Any) -> bytes:
    """A record, or JSON-ready data with records in it, as bytes."""
    return _encode(wire_form(value))


def decode(kind: type[T], body: bytes | bytearray | memoryview) -> T:
    """Read a record tolerantly; what cannot be read raises with the field's name."""
    read: T = convert(kind, parse(body))
    return read


def parse(body: bytes | bytearray | memoryview) -> Any:
    """JSON bytes as plain data; a bare NaN or Infinity, as Python's json module writes it, is read too."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        try:
            return json.loads(bytes(body).decode())
        except (ValueError, RecursionError):
            raise InvalidArgumentError(f"the body is not JSON: {problem}") from None


def convert(kind: Any, data: Any) -> Any:
    """Read a record tolerantly from decoded JSON."""
    try:
        return kind.__take__(data, True)
    except Mismatch as problem:
        raise refusal(kind.__name__, problem) from None
