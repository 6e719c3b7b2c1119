"""The seam between this library and an HTTP library: one method, plain data on both sides."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import APIConnectionError, InvalidArgumentError, RequestInfo

__all__ = ["Request", "Response", "Transport", "unreachable", "unsendable"]

_ADDRESS = re.compile(r"\w+://[^\s'\")]+")
_NOT_IN_A_HEADER = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


@dataclass(frozen=True, slots=True)
class Request:
    """What to send: an absolute URL, headers, a body, and how long an answer may take."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a credential
    body: bytes | memoryview | None = field(default=None, repr=False)
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


def unreachable(request: Request, problem: Exception) -> APIConnectionError:
    """The error for an answer that did not come; addresses in it lose their query and login."""
    text = _ADDRESS.sub(lambda found: RequestInfo(url=found.group()).url, str(problem))
    return APIConnectionError(
        RequestInfo.of(request), f"Connection error: {type(problem).__name__}: {text}"
    )


def unsendable(request: Request) -> InvalidArgumentError:
    """The error for a request HTTP has no form for; the value, which may be secret, is not shown."""
    for name, value in request.headers.items():
        if _NOT_IN_A_HEADER.search(f"{name}{value}"):
            return InvalidArgumentError(
                f"header {name!r} cannot be sent: it holds a line break or another character HTTP "
                "does not allow"
            )
    return InvalidArgumentError(f"the address {RequestInfo.of(request).url!r} cannot be sent")
