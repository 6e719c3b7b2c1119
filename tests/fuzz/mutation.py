"""Valid inputs made invalid: bytes at random, and JSON and protobuf along their structure.

Every change is drawn from the generator given, so the same generator makes the same input again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

Mutate: TypeAlias = Callable[[Random, Sequence[bytes]], bytes]
"""An input made from a corpus."""

NUMBERS = (
    0, 1, -1, 2, 3, 7, 63, 64, 127, 128, 255, 256, 4095, 32767, 32768, 65535, 65536, 2**24,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63),
    10**30,
)  # fmt: skip
WORDS = (
    b"\x00", b"\xff" * 4, b"\r\n", b"\n\n", b"\r", b":", b",", b"/", b"..", b"../", b"\\", b"%00", b"%",
    b"=", b"{", b"}", b"[", b"]", b'"', b"null", b"NaN", b"1e999", b"-", b"--1", b"\xc2\xb2",
    b"\xed\xa0\x80", b"\\ud800", b"\xf0\x9f\x98\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", "ſ".encode(),
    "ß".encode(),
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "a" * 300, "é", "é", "😀", "\ud800", "²", "--1", "1_0", "١", "NaN", "-inf", "null",
    "../..", "a/b", "tinker://", "custom", "0x10", "1e3", "true", "\u2028", "ﬁ", "9" * 5000, "%2e%2e",
    "\x7f", "{}",
)  # fmt: skip


# ---- bytes


def _flip(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    form = rng.choice(("<B", "<H", "<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(form)
    at = rng.randrange(len(data) + 1)
    data[at : at + size] = struct.pack(form, rng.choice(NUMBERS) & ((1 << 8 * size) - 1))


def _nudge(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        at = rng.randrange(len(data))
        data[at] = (data[at] + rng.choice((-2, -1, 1, 2))) & 0xFF


def _cut(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 1, 2, 4, 16, 1 << 20))]


def _repeat(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randrange(1, 64)]
    data[start:start] = piece * rng.choice((1, 1, 2, 8, 64))


def _insert(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(WORDS) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 9))


def _digits(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Another number where one is written in digits."""
    places = [at for at, byte in enumerate(data[:4096]) if 48 <= byte < 58]
    if places:
        at = rng.choice(places)
        end = at
        while end < len(data) and 48 <= data[end] < 58:
            end += 1
        data[at:end] = str(rng.choice(NUMBERS)).encode()


def _splice(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    start = rng.randrange(len(other) + 1)
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.choice((0, 8, 1 << 20))] = other[start : start + rng.randrange(1, 200)]


_CHANGES = (_flip, _flip, _byte, _number, _nudge, _cut, _repeat, _insert, _digits, _splice)


def changed(rng: Random, data: bytes, corpus: Sequence[bytes] = (b"",), most: int = 4) -> bytes:
    """The same bytes with a few changes."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, most + 1)):
        rng.choice(_CHANGES)(rng, made, corpus)
    return bytes(made)


def damaged(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Bytes of a corpus with a few changes; now and then as they are, or none of them."""
    drawn = rng.random()
    if drawn < 0.01:
        return rng.choice(corpus)
    if drawn < 0.02:
        return rng.randbytes(rng.randrange(64))
    return changed(rng, rng.choice(corpus), corpus)


# ---- JSON


def _value(rng: Random, depth: int = 0) -> Any:
    draw = rng.randrange(9 if depth < 3 else 6)
    if draw == 0:
        return rng.choice((None, True, False))
    if draw == 1:
        return rng.choice(NUMBERS)
    if draw == 2:
        return rng.choice((0.5, -0.0, 1e308, -1e-320, float("inf"), float("nan"), 2.0**64, 1e18))
    if draw in (3, 4):
        return rng.choice(TEXTS)
    if draw == 5:
        return rng.choice(([], {}))
    if draw == 6:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if draw == 7:
        return [_value(rng, 3)] * rng.choice((2, 300))
    return {rng.choice(TEXTS)[:20]: _value(rng, depth + 1) for _ in range(rng.randrange(3))}


def _places(tree: Any, found: list[tuple[Any, Any]]) -> None:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        if len(found) > 400:
            return
        found.append((tree, key))
        _places(value, found)


def change_tree(rng: Random, tree: Any, most: int = 3) -> Any:
    """JSON data, changed in place: a few values are others now, moved, dropped or doubled."""
    for _ in range(rng.randrange(1, most + 1)):
        found: list[tuple[Any, Any]] = []
        _places(tree, found)
        if not found or rng.random() < 0.02:
            tree = _value(rng)
            continue
        holder, key = rng.choice(found)
        draw = rng.random()
        if draw < 0.5:
            holder[key] = _value(rng)
        elif draw < 0.6:
            del holder[key]
        elif draw < 0.7:
            other, name = rng.choice(found)
            if not _within(holder[key], other):
                other[name] = holder[key]
        elif draw < 0.8 and isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 2, 200))
        elif draw < 0.9 and isinstance(holder, dict):
            holder[rng.choice((*TEXTS, *(name for _, name in found if isinstance(name, str))))] = (
                holder.pop(key)
            )
        else:
            holder[key] = rng.choice(([holder[key]], {"a": holder[key]}))
    return tree


def _within(tree: Any, holder: Any) -> bool:
    """Whether putting a tree into a holder would close a circle."""
    if tree is holder:
        return True
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return any(_within(each, holder) for each in inner)


def dumped(rng: Random, tree: Any) -> bytes:
    """JSON data as bytes, written in one of the ways there are."""
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def json_text(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """JSON of a corpus with its values changed, its text damaged, or nested very deep."""
    draw = rng.random()
    if draw < 0.2:
        return damaged(rng, corpus)
    text = rng.choice(corpus)
    if draw < 0.21:
        opened = rng.choice((b"[", b'{"a":', b'[{"chunks":'))
        at = max(text.find(b":"), 0) + 1
        return text[:at] + opened * rng.choice((50, 2000, 60_000)) + text[at:]
    made = dumped(rng, change_tree(rng, json.loads(text)))
    return changed(rng, made, corpus, 1) if draw < 0.3 else made


# ---- protobuf


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(data: bytes) -> list[tuple[int, int, Any]] | None:
    """A message as (number, kind, value) of its fields; None if it is none."""
    found, at = [], 0
    try:
        while at < len(data):
            key, at = _take(data, at)
            number, kind = key >> 3, key & 7
            value: Any
            if kind == 0:
                value, at = _take(data, at)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                value, at = data[at : at + size], at + size
            elif kind == 2:
                size, at = _take(data, at)
                value, at = data[at : at + size], at + size
                if len(value) < size:
                    return None
            else:
                return None
            if not 0 < number < 64:
                return None
            found.append((number, kind, value))
    except IndexError:
        return None
    return found if at == len(data) else None


def _take(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 128 or shift > 63:
            return value, at


def _joined(fields: list[tuple[int, int, Any]]) -> bytes:
    out = bytearray()
    for number, kind, value in fields:
        out += _varint(number << 3 | kind)
        if kind == 0:
            out += _varint(value)
        else:
            out += _varint(len(value)) + value if kind == 2 else value
    return bytes(out)


def change_message(rng: Random, data: bytes, depth: int = 0) -> bytes:
    """A protobuf message with a field changed somewhere inside, all lengths around it right."""
    fields = _fields(data)
    if not fields or depth > 6:
        return changed(rng, data, most=2)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    draw = rng.random()
    if draw < 0.55:
        if kind == 0:
            fields[at] = (number, 0, rng.choice(NUMBERS))
        elif kind == 2:
            fields[at] = (number, 2, change_message(rng, value, depth + 1))
        else:
            fields[at] = (
                number,
                kind,
                rng.choice((bytes(8), b"\xff" * 8, struct.pack("<d", float("nan"))))[: len(value)],
            )
    elif draw < 0.65:
        del fields[at]
    elif draw < 0.75:
        fields[at:at] = [fields[at]] * rng.choice((1, 2, 100))
    elif draw < 0.85:
        fields[at] = (rng.randrange(1, 12), kind, value)
    elif draw < 0.9:
        fields[at] = (number, 0, rng.choice(NUMBERS))
    elif draw < 0.97:
        fields[at] = (number, 2, b"" if rng.random() < 0.3 else rng.randbytes(rng.choice((1, 3, 4, 8, 12))))
    else:
        fields.append((rng.randrange(1, 12), 2, _deep(rng, number)))
    return _joined(fields)


def _deep(rng: Random, number: int) -> bytes:
    inner = b""
    for _ in range(rng.choice((5, 120, 300))):
        inner = _joined([(number, 2, inner)])
    return inner


def message(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """A protobuf message of a corpus with fields changed, its bytes damaged, or both."""
    draw = rng.random()
    if draw < 0.25:
        return damaged(rng, corpus)
    made = rng.choice(corpus)
    for _ in range(rng.randrange(1, 4)):
        made = change_message(rng, made)
    return changed(rng, made, corpus, 1) if draw < 0.3 else made


# ---- a JSON header before raw bytes


def headed(length: str, magic: bytes = b"", whole: str = "") -> Mutate:
    """Files of a magic, a header's length, the length of all (if told), the JSON header and raw bytes."""
    prefix = struct.Struct("<" + length + whole)

    def mutate(rng: Random, corpus: Sequence[bytes]) -> bytes:
        data = rng.choice(corpus)
        if rng.random() < 0.3:
            return damaged(rng, corpus)
        start = len(magic) + prefix.size
        size = prefix.unpack_from(data, len(magic))[0]
        tree, rest = json.loads(data[start : start + size]), data[start + size :]
        header = dumped(rng, change_tree(rng, tree))
        if rng.random() < 0.1:
            rest = changed(rng, rest, corpus, 2)
        if whole:  # arrays begin at multiples of eight bytes
            header += b" " * ((size - len(header)) % 8)
            lengths: tuple[int, ...] = (len(header), start + len(header) + len(rest))
        else:
            lengths = (len(header),)
        return magic + prefix.pack(*lengths) + header + rest

    return mutate
