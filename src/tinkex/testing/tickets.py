"""Accepted work: tickets, those who wait for them, and how results are handed out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Literal, TypeAlias

from ..net.clock import Clock
from ..types import FutureCompletion, FutureFailed, FutureFinished
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.sample_response import SampleResponse
from ..wire.jsonbody import encode
from ..wire.passes import encode_output
from ..wire.results import output_to_json, samples_to_json
from ..wire.samples import encode_sample_response
from .faults import Fate
from .timers import start_timer

__all__ = ["Bell", "Completions", "Ticket", "Tickets", "WorkFailed"]

State: TypeAlias = Literal["pending", "done", "failed", "lost"]


class WorkFailed(Exception):
    """Work that ran and did not succeed, and whose fault that was."""

    def __init__(self, error: str, category: str = "user") -> None:
        super().__init__(error)
        self.error = error
        self.category = category


class Bell:
    """Wakes everyone who waits for something, whichever loops they are on."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]] = []

    def ring(self) -> None:
        """Wake all who wait now; safe from any thread."""
        waiting, self._waiting = self._waiting, []
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop, future in waiting:
            if loop is here:
                _settle(future, True)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future, True)

    def listen(self, clock: Clock, seconds: float) -> Coroutine[Any, Any, bool]:
        """Wait for the bell from this very moment on; False if it does not ring in time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((loop, future))
        return self._heard(clock, seconds, (loop, future))

    async def _heard(
        self, clock: Clock, seconds: float, entry: tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]
    ) -> bool:
        future = entry[1]
        timer = start_timer(clock, seconds, lambda: _settle(future, False))
        try:
            return await future
        finally:
            timer.cancel()
            if entry in self._waiting:
                self._waiting.remove(entry)

    def __len__(self) -> int:
        return len(self._waiting)


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


class Completions:
    """What ended in one clone of a sampling session, in order; a cursor counts how far one has read."""

    __slots__ = ("_events", "_trimmed", "bell")

    def __init__(self) -> None:
        self._events: deque[FutureCompletion] = deque()
        self._trimmed = 0
        self.bell: Bell = Bell()

    def add(self, completion: FutureCompletion) -> None:
        """Something ended."""
        self._events.append(completion)
        self.bell.ring()

    def after(self, cursor: int) -> tuple[list[FutureCompletion], int]:
        """What ended since a cursor, and the new cursor; what lies before it is forgotten."""
        while self._trimmed < cursor and self._events:
            self._events.popleft()
            self._trimmed += 1
        return list(self._events), self._trimmed + len(self._events)


class Ticket:
    """One piece of accepted work."""

    category: str
    error: str

    __slots__ = (
        "_forms", "bell", "category", "completions", "delivered", "error", "fate", "id", "model_id",
        "owner", "result", "route", "sequence_ids", "state",
    )  # fmt: skip

    def __init__(self, id: str, route: str, owner: str, fate: Fate | None = None) -> None:
        self.id: str = id
        self.route: str = route
        self.owner: str = owner
        self.fate: Fate | None = fate
        self.state: State = "pending"
        self.result: Any = None
        self.error = ""
        self.category = "server"
        self.model_id: str | None = None
        self.sequence_ids: list[str] | None = None
        self.completions: Completions | None = None
        self.delivered: bool = False
        self.bell: Bell = Bell()
        self._forms: dict[bool, bytes] = {}

    def finish(self, result: Any) -> None:
        """The work is done."""
        self.result = result
        self._end("done")

    def fail(self, error: str, category: str) -> None:
        """The work failed."""
        self.error, self.category = error, category
        self._end("failed")

    def lose(self) -> None:
        """The result is gone, whether or not there was one."""
        self.result = None
        self._end("lost")

    def _end(self, state: State) -> None:
        self.state = state
        self._forms.clear()
        self.bell.ring()
        if self.completions is not None:
            if state == "done":
                size = len(self.form(True))
                end: FutureCompletion = FutureFinished.model_construct(
                    request_id=self.id, response_payload_uncompressed_size=size
                )
            else:
                end = FutureFailed.model_construct(request_id=self.id)
            self.completions.add(end)

    @property
    def binary(self) -> bool:
        """Whether the result has a protobuf form."""
        return isinstance(self.result, (SampleResponse, ForwardBackwardOutput))

    def form(self, binary: bool) -> bytes:
        """The result as bytes, protobuf or JSON."""
        held = self._forms.get(binary)
        if held is None:
            held = self._forms[binary] = _encoded(self.result, binary)
        return held


def _encoded(result: Any, binary: bool) -> bytes:
    if isinstance(result, SampleResponse):
        return encode_sample_response(result) if binary else samples_to_json(result)
    if isinstance(result, ForwardBackwardOutput):
        return encode_output(result) if binary else output_to_json(result)
    return encode(result)


class Tickets:
    """All tickets by id; of those whose result was fetched only the latest are kept."""

    def __init__(self, keep: int) -> None:
        self._by_id: dict[str, Ticket] = {}
        self._delivered: deque[str] = deque()
        self._keep = keep

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: str) -> Ticket | None:
        """The ticket of that id, if it is still known."""
        return self._by_id.get(id)

    def put(self, ticket: Ticket) -> None:
        """Remember a ticket."""
        self._by_id[ticket.id] = ticket

    def drop(self, id: str) -> None:
        """Forget a ticket whose result its owner has."""
        self._by_id.pop(id, None)

    def delivered(self, ticket: Ticket) -> None:
        """Its result was fetched; it may be forgotten when many more were."""
        if not ticket.delivered:
            ticket.delivered = True
            self._delivered.append(ticket.id)
            if len(self._delivered) > self._keep:
                self.drop(self._delivered.popleft())

    def pending(self, route: str | None = None) -> list[Ticket]:
        """The tickets whose work has not ended."""
        return [
            ticket
            for ticket in self._by_id.values()
            if ticket.state == "pending" and route in (None, ticket.route)
        ]
