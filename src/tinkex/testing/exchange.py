"""Requests and answers as the fakes see them, whether they came in process or over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..net.clock import Clock
from ..net.transport import Request, Response
from ..wire.headers import JSON
from ..wire.jsonbody import encode
from .timers import pause

__all__ = [
    "JSON_HEADERS",
    "CutShort",
    "FakeRequest",
    "FakeResponse",
    "Problem",
    "json_response",
    "pieces_of",
    "query_of",
    "reply",
]


@dataclass(slots=True)
class FakeRequest:
    """One request; header names are lower case, the path has no query."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, request: Request) -> FakeRequest:
        """What a transport was asked to send, taken apart."""
        parts = urlsplit(request.url)
        headers = {"host": parts.netloc.rpartition("@")[2]}
        headers.update((name.lower(), value) for name, value in request.headers.items())
        return cls(
            request.method, parts.path or "/", query_of(parts.query), headers, bytes(request.body or b"")
        )


def query_of(text: str) -> dict[str, str]:
    """A query string as a dict; of a repeated name the last value counts."""
    return dict(parse_qsl(text, keep_blank_values=True)) if text else {}


@dataclass(slots=True)
class FakeResponse:
    """One answer, and how it travels: late, never, cut short, or in pieces."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    delay: float = 0.0  # seconds before it is sent
    hang: bool = False  # it is never sent, the connection stays open
    drop: bool = False  # the connection is closed instead
    cut: int | None = None  # the connection is closed after so many bytes of the body
    chunks: Iterable[bytes] | AsyncIterable[bytes] | None = field(
        default=None, repr=False
    )  # a streamed body
    pace: float = 0.0  # seconds between two pieces

    @property
    def plain(self) -> bool:
        """Whether it can simply be sent."""
        return not (self.delay or self.hang or self.drop or self.cut is not None or self.chunks is not None)


class CutShort(Exception):
    """The connection was closed in the middle of a body."""


async def pieces_of(answer: FakeResponse, clock: Clock) -> AsyncIterator[bytes]:
    """The body as it travels: piece by piece, at its pace, up to where it is cut."""
    left = answer.cut
    first = True
    async for piece in _each([answer.body] if answer.chunks is None else answer.chunks):
        if not first and answer.pace:
            await pause(clock, answer.pace)
        first = False
        if left is not None and len(piece) >= left:
            yield piece[:left]
            raise CutShort
        left = left if left is None else left - len(piece)
        if piece:
            yield piece
    if left is not None:
        raise CutShort


async def _each(pieces: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece


JSON_HEADERS: Mapping[str, str] = {"content-type": JSON}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> FakeResponse:
    """An answer with a record, or JSON-ready data, as its body."""
    known = {**JSON_HEADERS, **headers} if headers else JSON_HEADERS
    return FakeResponse(status, known, encode(value))


def reply(
    json: Any = None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Response:
    """What a transport returns, for a script: JSON-ready data (records too), or raw bytes."""
    known = {name.lower(): value for name, value in (headers or {}).items()}
    if body is None:
        body = encode({} if json is None else json)
        known.setdefault("content-type", JSON)
    known.setdefault("content-length", str(len(body)))
    return Response(status, known, body)


class Problem(Exception):
    """A refusal: an HTTP status and a text for a person."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    def response(self) -> FakeResponse:
        """The refusal as an answer."""
        return json_response({"detail": self.detail}, self.status)
