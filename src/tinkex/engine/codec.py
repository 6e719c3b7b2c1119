"""Messages to bytes and back: a small JSON header that describes the record, then the arrays' raw bytes.

    "TKX1" | header length u32 | total length u64 | header (JSON) | padding | array | padding | array …

Nothing is executed while reading: names come from a closed list of records, dtypes from a closed list,
every length is checked against the bytes at hand, and every field against its annotation. Arrays are read
in place (read-only views of the buffer given), so a received message costs no copy. `packed` and `Frames`
are the two ends of a stream of messages.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator

import numpy as np

from . import messages, record_trees
from .record_trees import ALIGN, CodecError

__all__ = [
    "LARGE",
    "MAX_HEADER",
    "MAX_MESSAGE",
    "CodecError",
    "Frames",
    "decode",
    "encode",
    "packed",
    "pieces",
]

MAGIC = b"TKX1"
MAX_HEADER = 256 << 20
MAX_MESSAGE = 8 << 30
LARGE = 64 << 10
"""Bytes from which on a piece is sent, or a message received, without being copied."""
_PREFIX = struct.Struct("<4sIQ")
_PADDING = [bytes(count) for count in range(ALIGN)]
_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode(message: messages.Message) -> bytes:
    """Write one message as bytes."""
    return b"".join(pieces(message))


def pieces(message: messages.Message) -> list[bytes | memoryview]:
    """Write one message as a list of buffers: a transport can send large arrays without joining them."""
    tree, arrays = record_trees.write(message)
    header = _dump(tree).encode()
    if len(header) > MAX_HEADER:
        raise CodecError(f"the header has {len(header)} bytes, the limit is {MAX_HEADER}")
    out: list[bytes | memoryview] = [b"", header]
    place = _PREFIX.size + len(header)
    for array in arrays:
        size, padding = array.nbytes, -place % ALIGN
        if padding:
            out.append(_PADDING[padding])
        if size:
            out.append(array.tobytes() if size < LARGE else array.data.cast("B"))
        place += padding + size
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
        tree = json.loads(str(view[_PREFIX.size : _PREFIX.size + header_length], "utf-8"))
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the header is not JSON: {error}") from None
    arrays = record_trees.Arrays(data if isinstance(data, bytes) else view, _PREFIX.size + header_length)
    message = record_trees.read(tree, arrays)
    if arrays.place != total:
        raise CodecError(f"{total - arrays.place} bytes follow the last array")
    return message
