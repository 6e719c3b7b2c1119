"""Accepted work, those who wait for it, and results kept at hand."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Literal, TypeAlias

from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.sample_response import SampleResponse
from ..wire.passes import decode_output
from ..wire.results import output_to_json, samples_to_json
from ..wire.samples import encode_sample_response
from .clock import Clock

TICKET_BYTES = 512
"""What an ended ticket takes besides its result: failed work is not remembered for nothing."""
State: TypeAlias = Literal["pending", "done", "failed", "lost"]


class Bell:
    """Wakes everyone who waits for something; all on one loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[bool]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def ring(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(True)

    async def wait(self, clock: Clock, seconds: float) -> bool:
        """Wait for the bell from this moment on; False if it does not ring in time."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        call_off = clock.call_later(seconds, lambda: None if future.done() else future.set_result(False))
        try:
            return await future
        finally:
            call_off()
            if future in self._waiting:
                self._waiting.remove(future)


class Ticket:
    """One piece of accepted work and, once it has ended, its result."""

    __slots__ = (
        "bell",
        "category",
        "ended",
        "error",
        "form",
        "id",
        "kind",
        "owner",
        "result",
        "state",
    )

    def __init__(self, id: str, kind: str, owner: str) -> None:
        self.id, self.kind, self.owner = id, kind, owner
        self.state: State = "pending"
        self.result: bytes = b""
        self.form = "json"
        """How the result is written: json, pass, or sample (protobuf both)."""
        self.error = ""
        self.category = "server"
        self.ended = 0.0
        self.bell = Bell()

    def done(self, result: bytes, form: str, now: float) -> None:
        """The work succeeded."""
        self.result, self.form = result, form
        self._end("done", now)

    def failed(self, error: str, category: str, now: float) -> None:
        """The work failed."""
        self.error, self.category = error, category
        self._end("failed", now)

    def lost(self, now: float) -> None:
        """The result is gone."""
        self.result = b""
        self._end("lost", now)

    def _end(self, state: State, now: float) -> None:
        self.state, self.ended = state, now
        self.bell.ring()

    def written(self, binary: bool) -> bytes:
        """The result as bytes, in the form asked for."""
        if binary or self.form == "json":
            return self.result
        return as_json(self.result, self.form)


def as_json(result: bytes, form: str) -> bytes:
    """A protobuf result as JSON, as SDK 0.24 and older read it."""
    if form == "pass":
        output: ForwardBackwardOutput = decode_output(result)
        return output_to_json(output)
    from ..wire.samples import decode_sample_response

    return samples_to_json(decode_sample_response(result))


def sample_bytes(response: SampleResponse) -> bytes:
    """A sampling result as it is kept."""
    return encode_sample_response(response)


class Tickets:
    """Tickets by id: those that wait, and ended ones until they are told and old, or too many.

    Their age is counted by a clock that only goes forward: a date that jumps loses no result.
    """

    def __init__(
        self, keep_bytes: int = 256 << 20, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._pending: dict[str, Ticket] = {}
        self._ended: OrderedDict[str, Ticket] = OrderedDict()
        self._since: dict[str, float] = {}
        """When those came to their end, in that order."""
        self._told: dict[str, float] = {}
        """When the results of those were first sent, in that order."""
        self._bytes = 0
        self._keep_bytes, self._monotonic = keep_bytes, monotonic

    def __len__(self) -> int:
        return len(self._pending) + len(self._ended)

    @property
    def pending(self) -> int:
        """How many have not ended."""
        return len(self._pending)

    @property
    def waiting(self) -> int:
        """How many requests are held until one ends."""
        return sum(len(ticket.bell) for ticket in self._pending.values())

    def get(self, id: str) -> Ticket | None:
        """The ticket of that id, if it is at hand."""
        return self._pending.get(id) or self._ended.get(id)

    def wake(self) -> None:
        """Wake everyone who waits, though nothing has ended."""
        for ticket in self._pending.values():
            ticket.bell.ring()

    def open(self, id: str, kind: str, owner: str) -> Ticket:
        """A ticket for new work."""
        ticket = self._pending[id] = Ticket(id, kind, owner)
        return ticket

    def ended(self, ticket: Ticket) -> None:
        """Its work has ended: keep the result at hand while there is room."""
        self._pending.pop(ticket.id, None)
        self.drop(ticket.id)
        self._ended[ticket.id] = ticket
        self._since[ticket.id] = self._monotonic()
        self._bytes += TICKET_BYTES + len(ticket.result)
        while self._bytes > self._keep_bytes and len(self._ended) > 1:
            self._forget(next(iter(self._ended)))

    def told(self, ticket: Ticket) -> None:
        """Its result was sent; whether it has arrived is not known."""
        if ticket.id in self._ended:
            self._told.setdefault(ticket.id, self._monotonic())

    def drop(self, id: str) -> None:
        """Its client has the result."""
        if id in self._ended:
            self._forget(id)

    def drop_old(self, seconds: float, told: float) -> list[Ticket]:
        """Forget, and answer, what ended so long ago, or was first told so long ago."""
        now = self._monotonic()
        old = [
            *takewhile(lambda name: self._since[name] < now - seconds, self._since),
            *takewhile(lambda name: self._told[name] < now - told, self._told),
        ]
        return [self._forget(id) for id in dict.fromkeys(old)]

    def _forget(self, id: str) -> Ticket:
        ticket = self._ended.pop(id)
        del self._since[id]
        self._told.pop(id, None)
        self._bytes -= TICKET_BYTES + len(ticket.result)
        return ticket
