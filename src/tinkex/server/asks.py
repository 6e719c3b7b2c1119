"""What a handler is given and what it may answer with; who answers which route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..wire.headers import JSON
from ..wire.jsonbody import encode
from ..wire.routes import ROUTES, Route

if TYPE_CHECKING:
    from .service import Service

JSON_TYPE = (b"content-type", JSON.encode())


@dataclass(slots=True)
class Ask:
    """One request, understood: its route, parameters, body as a record, and who asks."""

    service: Service
    route: Route
    headers: Mapping[bytes, bytes] = field(repr=False)
    params: Mapping[str, str]
    body: Any
    query: Any
    owner: str
    key_id: int
    raw: bytes = field(default=b"", repr=False)
    """The body as it came, unpacked: what is stored of an operation."""
    peer: str = ""
    """The address it came from."""

    def header(self, name: str) -> str | None:
        """A request header."""
        value = self.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")


@dataclass(slots=True)
class Reply:
    """An answer: a status, headers and a body, or a body that comes in pieces."""

    status: int = 200
    body: bytes = field(default=b"", repr=False)
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: [JSON_TYPE])
    pieces: AsyncIterator[bytes] | None = None


Answer: TypeAlias = Any
"""A record or JSON-ready data (a 200), or a `Reply`."""
Handler: TypeAlias = Callable[[Ask], Awaitable[Answer]]
H = TypeVar("H", bound=Handler)

HANDLERS: dict[str, Handler] = {}


def answers(*names: str) -> Callable[[H], H]:
    """Register a function as the one that answers these routes."""
    unknown = set(names) - ROUTES.keys()
    if unknown:
        raise ValueError(f"no such route: {', '.join(sorted(unknown))}")

    def register(handler: H) -> H:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def json_reply(value: Any, status: int = 200) -> Reply:
    """A record, or JSON-ready data, as an answer."""
    return Reply(status, encode(value))
