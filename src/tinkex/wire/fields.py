"""Writing protobuf fields straight from bytes and arrays, without building messages first.

A `Piece` is a run of bytes-like objects with a known length, so that a message can be put around
it without copying what is inside; the one copy is the final join.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

__all__ = ["Writer", "varint"]

_LENGTH_DELIMITED = 2
_SMALL_PIECE = 1024
_double = struct.Struct("<d").pack


@functools.lru_cache(4096)
def varint(value: int) -> bytes:
    """A whole number in base-128 form; negative ones take ten bytes, as int64 demands."""
    if 0 <= value < 128:
        return _SMALL[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [bytes([number]) for number in range(128)]


class Writer:
    """A message under construction."""

    __slots__ = ("length", "parts")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.length: int = 0

    def raw(self, data: bytes) -> None:
        """Append bytes as they are."""
        self.parts.append(data)
        self.length += len(data)

    def data(self, number: int, data: Any, size: int) -> None:
        """A bytes field of `size` bytes, from anything with a contiguous buffer."""
        head = _SMALL[number << 3 | _LENGTH_DELIMITED] + varint(size)
        self.parts.append(head)
        if size:
            self.parts.append(data)
        self.length += len(head) + size

    def text(self, number: int, text: str) -> None:
        """A string field."""
        raw = text.encode()
        self.data(number, raw, len(raw))

    def message(self, number: int, inner: Writer) -> None:
        """A message field."""
        head = _SMALL[number << 3 | _LENGTH_DELIMITED] + varint(inner.length)
        self.parts.append(head)
        self.parts += inner.parts
        self.length += len(head) + inner.length

    def integer(self, number: int, value: int) -> None:
        """An integer, enum or bool field; zero is the default and takes no bytes."""
        if value:
            self.raw(_SMALL[number << 3] + varint(int(value)))

    def double(self, number: int, value: float) -> None:
        """A double field, written even when zero (map values and oneofs keep presence)."""
        self.raw(_SMALL[number << 3 | 1] + _double(value))

    def bytes(self) -> bytes:
        """The message, joined."""
        return b"".join(self.parts)

    def write_into(self, target: memoryview) -> None:
        """The message, written to memory of its length; runs of small pieces go as one."""
        start = 0
        small: list[bytes] = []
        for part in [*self.parts, None]:
            if type(part) is bytes and len(part) < _SMALL_PIECE:
                small.append(part)
                continue
            if small:
                joined = b"".join(small)
                small.clear()
                target[start : start + len(joined)] = joined
                start += len(joined)
            if part is not None:
                piece = memoryview(part).cast("B")
                target[start : start + len(piece)] = piece
                start += len(piece)
