"""Messages to bytes and back: a small JSON header that describes the record, then the arrays' raw bytes.

    "TKX1" | header length u32 | total length u64 | header (JSON) | padding | array | padding | array …

Nothing is executed while reading: names come from a closed list of records, dtypes from a closed list,
every length is checked against the bytes at hand, and every field against its annotation. Arrays are read
in place (read-only views of the buffer given), so a received message costs no copy. `packed` and `Frames`
are the two ends of a stream of messages.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from . import messages

MAGIC = b"TKX1"
ALIGN = 8
MAX_DEPTH = 12
MAX_HEADER = 256 << 20
MAX_MESSAGE = 8 << 30
LARGE = 64 << 10
"""Bytes from which on a piece is sent, or a message received, without being copied."""
_PREFIX = struct.Struct("<4sIQ")
_DTYPES = {
    name: np.dtype(name)
    for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
}
_INT_LOW, _INT_HIGH = -(1 << 63), (1 << 64) - 1

_RECORDS: dict[str, type] = {
    name: value
    for name, value in vars(messages).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}


class CodecError(ValueError):
    """The value cannot be written, or the bytes are no message."""


def encode(message: messages.Message) -> bytes:
    """Write one message as bytes."""
    return b"".join(pieces(message))


def pieces(message: messages.Message) -> list[bytes | memoryview]:
    """Write one message as a list of buffers: a transport can send large arrays without joining them."""
    buffers: list[np.ndarray[Any, Any]] = []
    tree = _write(message, buffers, 0)
    header = json.dumps(tree, separators=(",", ":"), check_circular=False).encode()
    if len(header) > MAX_HEADER:
        raise CodecError(f"the header has {len(header)} bytes, the limit is {MAX_HEADER}")
    out: list[bytes | memoryview] = [b"", header]
    place = _PREFIX.size + len(header)
    for array in buffers:
        padding = -place % ALIGN
        if padding:
            out.append(bytes(padding))
        if array.nbytes:
            out.append(array.data.cast("B") if array.ndim else array.tobytes())
        place += padding + array.nbytes
    if place > MAX_MESSAGE:
        raise CodecError(f"the message has {place} bytes, the limit is {MAX_MESSAGE}")
    out[0] = _PREFIX.pack(MAGIC, len(header), place)
    return out


def packed(several: Iterable[messages.Message]) -> list[bytes | memoryview]:
    """Write messages as few buffers: small pieces are joined, large arrays stand alone, as they are."""
    out: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for message in several:
        for piece in pieces(message):
            if len(piece) < LARGE:
                small.append(piece)
                continue
            if small:
                out.append(b"".join(small))
                small = []
            out.append(piece)
    if small:
        out.append(b"".join(small))
    return out


class Frames:
    """Cuts a stream of bytes into messages: fill `space`, then take what `filled` has."""

    def __init__(self, size: int = 4 * LARGE, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        self._buffer = memoryview(bytearray(size))
        self._start = self._end = 0
        self._large: memoryview | None = None
        self._have = 0

    def space(self) -> memoryview:
        """Where the next bytes go; a large message is read straight into memory of its own."""
        if self._large is not None:
            return self._large[self._have :]
        if self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        return self._buffer[self._end :]

    def filled(self, count: int) -> Iterator[messages.Message]:
        """Take note of so many new bytes in `space`; the messages that are complete with them, in order."""
        if self._large is not None:
            self._have += count
            if self._have == len(self._large):
                whole, self._large = self._large, None
                yield decode(whole)
            return
        self._end += count
        while self._end - self._start >= _PREFIX.size:
            total = self._total()
            here = self._buffer[self._start : min(self._end, self._start + total)]
            if len(here) < total:
                if total > min(LARGE, len(self._buffer)):
                    self._large = np.empty(total, np.uint8).data
                    self._large[: len(here)] = here
                    self._have = len(here)
                    self._start = self._end = 0
                return
            self._start += total
            yield decode(bytes(here))

    def _total(self) -> int:
        magic, header_length, total = _PREFIX.unpack_from(self._buffer, self._start)
        if magic != MAGIC:
            raise CodecError("not a message: the first bytes are wrong")
        if header_length > MAX_HEADER or not _PREFIX.size + header_length <= total <= self.limit:
            raise CodecError(f"a message states {total} bytes and a header of {header_length}")
        return int(total)


def decode(data: bytes | bytearray | memoryview) -> messages.Message:
    """Read one message; arrays are views of `data`."""
    view = memoryview(data).cast("B").toreadonly()
    if len(view) < _PREFIX.size:
        raise CodecError(f"{len(view)} bytes are too few for a message")
    magic, header_length, total = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise CodecError("not a message: the first bytes are wrong")
    if total != len(view) or header_length > MAX_HEADER or _PREFIX.size + header_length > total:
        raise CodecError(
            f"the message states {total} bytes and a header of {header_length}; {len(view)} are here"
        )
    try:
        tree = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + header_length]))
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the header is not JSON: {error}") from None
    reader = _Reader(view, _PREFIX.size + header_length)
    message = reader.read(tree, 0)
    if type(message).__name__ not in _TOP_LEVEL:
        raise CodecError("the header is no message")
    if reader.place != total:
        raise CodecError(f"{total - reader.place} bytes follow the last array")
    return typing.cast("messages.Message", message)


def _write(value: Any, buffers: list[np.ndarray[Any, Any]], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise CodecError(f"nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        if not _INT_LOW <= value <= _INT_HIGH:
            raise CodecError(f"{value} does not fit in 64 bits")
        return value
    if isinstance(value, np.ndarray):
        little = value.dtype.newbyteorder("<")
        if little.str not in _DTYPES:
            raise CodecError(f"arrays of {value.dtype} cannot be sent")
        array = np.asarray(value, dtype=little, order="C")
        buffers.append(array)
        return ["a", little.str, *array.shape]
    if isinstance(value, tuple):
        return ["t", *(_write(item, buffers, depth + 1) for item in value)]
    if isinstance(value, dict):
        return ["d", {_key(key): _write(item, buffers, depth + 1) for key, item in value.items()}]
    record: Any = value
    name = type(record).__name__
    if _RECORDS.get(name) is not type(record):
        raise CodecError(f"{name} cannot be sent")
    _verify(record)
    fields = [getattr(record, field) for field, _ in _CHECKS[name]]
    return ["r", name, *(_write(item, buffers, depth + 1) for item in fields)]


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise CodecError(f"keys are text, not {type(key).__name__}")
    return key


class _Reader:
    """Walks the header's tree and hands out the arrays that lie behind it, in order."""

    def __init__(self, view: memoryview, place: int) -> None:
        self.view, self.place = view, place

    def read(self, tree: Any, depth: int) -> Any:
        """Rebuild one value."""
        if depth > MAX_DEPTH:
            raise CodecError(f"nested deeper than {MAX_DEPTH}")
        if not isinstance(tree, list):
            if isinstance(tree, dict) or (isinstance(tree, int) and not _INT_LOW <= tree <= _INT_HIGH):
                raise CodecError("a value is out of place")
            return tree
        match tree:
            case ["a", str(name), *shape]:
                return self._array(name, shape)
            case ["t", *items]:
                return tuple([self.read(item, depth + 1) for item in items])
            case ["d", dict(items)]:
                return {key: self.read(item, depth + 1) for key, item in items.items()}
            case ["r", str(name), *items] if name in _RECORDS:
                record = _RECORDS[name]
                if len(items) != len(_CHECKS[name]):
                    raise CodecError(f"{name} has {len(items)} fields here")
                value = record(*[self.read(item, depth + 1) for item in items])
                _verify(value)
                return value
        raise CodecError("a value is of no known kind")

    def _array(self, name: str, shape: list[Any]) -> np.ndarray[Any, Any]:
        dtype = _DTYPES.get(name)
        if dtype is None or len(shape) > 8 or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            raise CodecError("an array's dtype or shape is wrong")
        count = math.prod(shape)
        start = self.place + -self.place % ALIGN
        end = start + count * dtype.itemsize
        if end > len(self.view):
            raise CodecError("an array reaches past the end")
        self.place = end
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(self.view, dtype, count, start).reshape(shape)


def _verify(record: Any) -> None:
    for name, fits in _CHECKS[type(record).__name__]:
        if not fits(getattr(record, name)):
            raise CodecError(
                f"{type(record).__name__}.{name} cannot be {type(getattr(record, name)).__name__}"
            )


def _check(hint: Any) -> Callable[[Any], bool]:
    """Build a test for one annotation of a record."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_check(option) for option in arguments]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            item = _check(arguments[0])
            return lambda value: isinstance(value, tuple) and all(map(item, value))
        items = [_check(argument) for argument in arguments]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(items)
            and all(fits(part) for fits, part in zip(items, value, strict=True))
        )
    if origin is dict:
        item = _check(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(item, value.values()))
    if origin is np.ndarray:
        return lambda value: isinstance(value, np.ndarray)
    if hint is float:
        return lambda value: type(value) in (float, int)
    return lambda value: type(value) is hint or (hint is type(None) and value is None)


_TOP_LEVEL = frozenset(kind.__name__ for kind in typing.get_args(messages.Message))
_CHECKS: dict[str, list[tuple[str, Callable[[Any], bool]]]] = {
    name: [
        (field.name, _check(hints[field.name]))
        for hints in [typing.get_type_hints(record, vars(messages))]
        for field in dataclasses.fields(record)
    ]
    for name, record in _RECORDS.items()
}
