"""How the parts of a fake service find each other: what is asked, and who answers which route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from ..wire.routes import Route
from .exchange import JSON_HEADERS, FakeRequest, FakeResponse
from .faults import Fate
from .routing import check_names
from .tickets import Ticket

if TYPE_CHECKING:
    from .fake_service import FakeService

__all__ = ["HANDLERS", "Answer", "Ask", "answers", "ticket_reply"]

Answer: TypeAlias = Any  # a record or JSON data (200), a FakeResponse, or an awaitable FakeResponse


@dataclass(slots=True)
class Ask:
    """One request, understood: route, parameters, body as a record, and who asks."""

    service: FakeService
    route: Route
    request: FakeRequest
    params: Mapping[str, str]
    body: Any
    query: Any
    owner: str
    fate: Fate | None = None

    def header(self, name: str) -> str | None:
        """A request header."""
        return self.request.headers.get(name.lower())


Handler: TypeAlias = Callable[[Ask], Answer]
HANDLERS: dict[str, Handler] = {}

H = TypeVar("H", bound=Handler)


def answers(*names: str) -> Callable[[H], H]:
    """Register a function as the one that answers these routes."""
    check_names(names)

    def register(handler: H) -> H:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def ticket_reply(ticket: Ticket) -> FakeResponse:
    """What a client gets for accepted work."""
    known: dict[str, Any] = {"request_id": ticket.id}
    if ticket.model_id is not None:
        known["model_id"] = ticket.model_id
    if ticket.sequence_ids is not None:
        known["sample_sequence_ids"] = ticket.sequence_ids
    return FakeResponse(200, JSON_HEADERS, msgspec.json.encode(known))


Reply: TypeAlias = FakeResponse | Awaitable[FakeResponse]
