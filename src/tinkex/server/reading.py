"""From the bytes of a request to what it asks for: sizes bounded, packing undone, fields named."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from ..errors import InvalidArgumentError
from ..types.rules import shown
from ..wire.headers import PROTOBUF
from ..wire.jsonbody import convert, decode
from ..wire.passes import decode_request
from ..wire.routes import Route
from ..wire.zstd import BodyTooLarge, decompress
from .options import Limits
from .problems import Problem

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

_CONTENT_TYPE, _CONTENT_ENCODING, _CONTENT_LENGTH = b"content-type", b"content-encoding", b"content-length"
_PROTOBUF = PROTOBUF.encode()
_WHOLE = frozenset({"limit", "offset"})
"""Query values that are numbers."""
_NUMBER = re.compile(r"-?[0-9]{1,17}")


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _Numbered(msgspec.Struct):
    model_id: str = ""
    seq_id: int = 0


class Gone(Exception):
    """The client closed the connection before its request was whole."""


async def read_all(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """The body, if it is not larger than allowed; what is too large is not read to its end."""
    stated = headers.get(_CONTENT_LENGTH)
    if stated is not None and stated.isdigit() and int(stated[:18]) > limit:
        raise _too_large(int(stated[:18]), limit)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > limit:
            raise _too_large(len(body), limit)
        return body
    pieces, length = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        piece = message.get("body", b"")
        pieces.append(piece)
        length += len(piece)
        if length > limit:
            raise _too_large(length, limit)
    return b"".join(pieces)


def _too_large(length: int, limit: int) -> Problem:
    return Problem(
        413, f"the body has {length} bytes, the limit is {limit}; send the data in smaller pieces"
    )


def understand(
    route: Route, headers: Mapping[bytes, bytes], body: bytes, limits: Limits
) -> tuple[Any, bytes]:
    """The body as a record (a `PassRequest` for protobuf), and its bytes unpacked."""
    encoding = headers.get(_CONTENT_ENCODING, b"").strip().lower()
    try:
        if encoding == b"zstd":
            body = decompress(body, limits.unpacked_bytes)
        elif encoding not in (b"", b"identity"):
            raise Problem(
                415, f"content-encoding {encoding.decode('latin-1')!r} is not read here; use zstd or none"
            )
        # A report is not looked at: an SDK sends one that is refused again every second, for ever.
        if route.request is None or route.lane == "telemetry":
            return None, body
        if route.name == "forward_backward" and _PROTOBUF in headers.get(_CONTENT_TYPE, b""):
            return decode_request(body), body
        if _SURROGATE.search(body):
            _check_text(body)
        return _read(route, body or b"{}"), body
    except BodyTooLarge as problem:
        raise Problem(413, str(problem)) from None
    except InvalidArgumentError as problem:
        raise Problem(422, str(problem)) from None


def _read(route: Route, body: bytes) -> Any:
    try:
        return decode(route.server_request, body)
    except InvalidArgumentError as problem:
        if body.lstrip()[:1] == b"{":
            raise
        # The record's name, which the problem begins with, means nothing to whoever sent this.
        raise Problem(422, f"the body is not a JSON object: {problem}") from None


def _check_text(body: bytes) -> None:
    """Refuse half of a surrogate pair: a text with it can be neither stored nor sent."""
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Problem(422, "the body is not JSON: a text in it holds half of a surrogate pair") from None
    except (ValueError, RecursionError):
        return  # whatever else is wrong with it is said by those who read it


def number_in(headers: Mapping[bytes, bytes], body: bytes) -> tuple[str, int]:
    """The model and number of an operation whose body cannot be understood, if these two can be."""
    from google.protobuf.message import DecodeError

    from ..wire import tinker_public_pb2 as pb

    try:
        if _PROTOBUF in headers.get(_CONTENT_TYPE, b""):
            message = pb.ForwardBackwardRequest.FromString(body)
            return message.model_id, message.seq_id
        found = msgspec.json.decode(body, type=_Numbered)
    except (DecodeError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return "", 0
    return found.model_id, found.seq_id


def read_query(route: Route, text: bytes) -> Any:
    """The query of a route as its record; unknown names are ignored."""
    if route.query is None:
        return None
    pairs: dict[str, Any] = dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))
    for name in _WHOLE & pairs.keys():
        number = pairs[name]
        if not _NUMBER.fullmatch(number):
            raise Problem(422, f"{name}: {shown(number)} is not a whole number")
        pairs[name] = int(number)
    try:
        return convert(route.query, pairs)
    except InvalidArgumentError as problem:
        raise Problem(422, str(problem)) from None
