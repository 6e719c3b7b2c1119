"""Records as trees that JSON can hold, and back: one pair of functions made for each annotation.

A record is the list of its fields, an array the list of its dtype and shape (its bytes lie elsewhere), a
tuple a list, a dictionary an object. Where an annotation leaves a choice, a record's list begins with its
name. Both directions check every value against its annotation, so nothing passes that is not a record.
"""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np

from . import messages

ALIGN = 8
DTYPES = {
    name: np.dtype(name)
    for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_INT_LOW, _INT_HIGH = -(1 << 63), (1 << 64) - 1
_LONGEST = 1 << 40
_MOST_DIMENSIONS = 8

Buffers = list["np.ndarray[Any, Any]"]
Write = Callable[[Any, Buffers], Any]


class CodecError(ValueError):
    """The value cannot be written, or the bytes are no message."""


class Arrays:
    """Hands out the arrays that lie behind a header, in order, as read-only views."""

    __slots__ = ("data", "place")

    def __init__(self, data: bytes | memoryview, place: int) -> None:
        self.data, self.place = data, place

    def take(self, tree: Any) -> np.ndarray[Any, Any]:
        """The next array, of this dtype and shape."""
        if not isinstance(tree, list) or not 1 <= len(tree) <= 1 + _MOST_DIMENSIONS:
            raise CodecError("an array's dtype or shape is wrong")
        name, *shape = tree
        dtype = DTYPES.get(name) if type(name) is str else None
        count = 1
        for extent in shape:
            if type(extent) is not int or not 0 <= extent < _LONGEST:
                raise CodecError("an array's dtype or shape is wrong")
            count *= extent
        if dtype is None:
            raise CodecError("an array's dtype or shape is wrong")
        start = self.place + -self.place % ALIGN
        end = start + count * dtype.itemsize
        if end > len(self.data):
            raise CodecError("an array reaches past the end")
        self.place = end
        if not count:
            return np.empty(shape, dtype)
        flat = np.frombuffer(self.data, dtype, count, start)
        return flat if len(shape) == 1 else flat.reshape(shape)


Read = Callable[[Any, Arrays], Any]


def write(message: object) -> tuple[list[Any], Buffers]:
    """A message as a tree, and the arrays it refers to, in order."""
    name = type(message).__name__
    if name not in _TOP_LEVEL:
        raise CodecError(f"{name} cannot be sent")
    buffers: Buffers = []
    return [name, *_pair(_RECORDS[name])[0](message, buffers)], buffers


def read(tree: Any, arrays: Arrays) -> messages.Message:
    """The message a tree and its arrays describe."""
    if not isinstance(tree, list) or not tree or not isinstance(tree[0], str) or tree[0] not in _TOP_LEVEL:
        raise CodecError("the header is no message")
    return typing.cast("messages.Message", _pair(_RECORDS[tree[0]])[1](tree[1:], arrays))


def _write_array(value: Any, buffers: Buffers) -> Any:
    if not isinstance(value, np.ndarray):
        raise CodecError(f"an array cannot be {type(value).__name__}")
    name = _NAMES.get(value.dtype)
    if name is None:
        little = value.dtype.newbyteorder("<")
        name = _NAMES.get(little)
        if name is None:
            raise CodecError(f"arrays of {value.dtype} cannot be sent")
        value = value.astype(little)
    buffers.append(value if value.flags.c_contiguous else np.ascontiguousarray(value).reshape(value.shape))
    return [name, *value.shape]


def _read_array(tree: Any, arrays: Arrays) -> Any:
    return arrays.take(tree)


def _scalars(kinds: tuple[type, ...]) -> tuple[Write, Read]:
    """Values of these kinds as they are; ints are numbers where floats are asked for."""
    allowed = frozenset(kinds) | ({int} if float in kinds else set())
    named = " or ".join(kind.__name__ for kind in kinds)

    def same(value: Any, _: object) -> Any:
        kind = type(value)
        if kind not in allowed and not (float in allowed and isinstance(value, float)):
            raise CodecError(f"{named} cannot be {kind.__name__}")
        if kind is int and not _INT_LOW <= value <= _INT_HIGH:
            raise CodecError(f"{value} does not fit in 64 bits")
        return value

    return same, same


def _tuples(items: list[tuple[Write, Read]], *, repeated: bool) -> tuple[Write, Read]:
    writers, readers = [pair[0] for pair in items], [pair[1] for pair in items]

    def write_tuple(value: Any, buffers: Buffers) -> Any:
        if not isinstance(value, tuple):
            raise CodecError(f"a tuple cannot be {type(value).__name__}")
        if repeated:
            one = writers[0]
            return [one(item, buffers) for item in value]
        if len(value) != len(writers):
            raise CodecError(f"a tuple of {len(writers)} cannot have {len(value)} items")
        return [one(item, buffers) for one, item in zip(writers, value, strict=True)]

    def read_tuple(tree: Any, arrays: Arrays) -> Any:
        if not isinstance(tree, list):
            raise CodecError("a tuple is out of place")
        if repeated:
            one = readers[0]
            return tuple([one(item, arrays) for item in tree])
        if len(tree) != len(readers):
            raise CodecError(f"a tuple of {len(readers)} cannot have {len(tree)} items")
        return tuple([one(item, arrays) for one, item in zip(readers, tree, strict=True)])

    return write_tuple, read_tuple


def _dictionaries(item: tuple[Write, Read]) -> tuple[Write, Read]:
    write_item, read_item = item

    def write_dictionary(value: Any, buffers: Buffers) -> Any:
        if not isinstance(value, dict):
            raise CodecError(f"a dictionary cannot be {type(value).__name__}")
        for key in value:
            if not isinstance(key, str):
                raise CodecError(f"keys are text, not {type(key).__name__}")
        return {key: write_item(found, buffers) for key, found in value.items()}

    def read_dictionary(tree: Any, arrays: Arrays) -> Any:
        if not isinstance(tree, dict):
            raise CodecError("a dictionary is out of place")
        return {key: read_item(found, arrays) for key, found in tree.items()}

    return write_dictionary, read_dictionary


def _records(kind: type) -> tuple[Write, Read]:
    hints = typing.get_type_hints(kind, vars(messages))
    names = [field.name for field in dataclasses.fields(kind)]
    pairs = [_pair(hints[name]) for name in names]
    writers, readers = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    fields = operator.attrgetter(*names)

    def located(error: CodecError, values: Any, each: list[Any], where: Any) -> CodecError:
        for name, one, value in zip(names, each, values, strict=False):
            try:
                one(value, where)
            except CodecError as found:
                return CodecError(f"{kind.__name__}.{name}: {found}")
        return error

    def write_record(value: Any, buffers: Buffers) -> Any:
        if type(value) is not kind:
            raise CodecError(f"{kind.__name__} cannot be {type(value).__name__}")
        values = fields(value)
        try:
            return [one(item, buffers) for one, item in zip(writers, values, strict=True)]
        except CodecError as error:
            raise located(error, values, writers, []) from None

    def read_record(tree: Any, arrays: Arrays) -> Any:
        if not isinstance(tree, list) or len(tree) != len(readers):
            raise CodecError(f"{kind.__name__} does not have these fields")
        return kind(*[one(item, arrays) for one, item in zip(readers, tree, strict=True)])

    return write_record, read_record


def _choices(options: list[Any]) -> tuple[Write, Read]:
    """Arrays and records, told apart by what their lists begin with."""
    kinds = [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]
    records = {kind.__name__: _pair(kind) for kind in kinds}
    if len(records) + options.count(messages.Array) < len(options):
        raise TypeError(f"{options} cannot be told apart")

    def write_choice(value: Any, buffers: Buffers) -> Any:
        name = type(value).__name__
        if name in records:
            return [name, *records[name][0](value, buffers)]
        return _write_array(value, buffers)

    def read_choice(tree: Any, arrays: Arrays) -> Any:
        if isinstance(tree, list) and tree and isinstance(tree[0], str) and tree[0] in records:
            return records[tree[0]][1](tree[1:], arrays)
        return arrays.take(tree)

    return write_choice, read_choice


def _optional(pair: tuple[Write, Read]) -> tuple[Write, Read]:
    write_it, read_it = pair

    def write_optional(value: Any, buffers: Buffers) -> Any:
        return None if value is None else write_it(value, buffers)

    def read_optional(tree: Any, arrays: Arrays) -> Any:
        return None if tree is None else read_it(tree, arrays)

    return write_optional, read_optional


def _pair(hint: Any) -> tuple[Write, Read]:
    """The functions for an annotation."""
    if hint not in _PAIRS:
        _PAIRS[hint] = _make(hint)
    return _PAIRS[hint]


def _make(hint: Any) -> tuple[Write, Read]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [option for option in arguments if option in (bool, int, float, str, type(None))]
        others = [option for option in arguments if option not in kinds]
        if not others:
            return _scalars(tuple(kinds))
        pair = _pair(others[0]) if len(others) == 1 else _choices(others)
        return _optional(pair) if kinds else pair
    if origin is tuple:
        repeated = arguments[-1] is Ellipsis
        return _tuples([_pair(item) for item in arguments if item is not Ellipsis], repeated=repeated)
    if origin is dict:
        return _dictionaries(_pair(arguments[1]))
    if hint == messages.Array:
        return _write_array, _read_array
    if dataclasses.is_dataclass(hint):
        return _records(typing.cast("type", hint))
    return _scalars((hint,))


_PAIRS: dict[Any, tuple[Write, Read]] = {}
_RECORDS: dict[str, type] = {
    name: value
    for name, value in vars(messages).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}
_TOP_LEVEL = frozenset(kind.__name__ for kind in typing.get_args(messages.Message))
