"""The seam between this library and an HTTP library: one method, plain data on both sides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Request", "Response", "Transport"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to send: an absolute URL, headers, a body, and how long an answer may take."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a credential
    body: bytes | bytearray | None = field(default=None, repr=False)
    timeout: float = 60.0
    connect_timeout: float = 5.0
    stream: bool = False  # answer with `chunks` as they come instead of a whole `body`
    follow_redirects: bool = True


@dataclass(slots=True)
class Response:
    """What came back; header names are lower case, a content encoding is already undone."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    chunks: AsyncIterator[bytes] | None = None  # closing it (`aclose`) drops the connection


class Transport(Protocol):
    """Sends requests.

    `send` returns for every answer, whatever its status, and raises `APITimeoutError` or
    `APIConnectionError` when none came; it never retries.  Cancelling the call drops the request.
    """

    async def send(self, request: Request) -> Response:
        """Send one request and wait for its answer."""

    async def close(self) -> None:
        """Free every connection."""
