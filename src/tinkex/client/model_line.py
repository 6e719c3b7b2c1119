"""Sending one model's operations: in line, numbered when sent, each result waited for on its own.

This module knows nothing of what an operation means to the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import APIConnectionError
from ..types.datum import Datum
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.futures import UntypedAPIFuture
from ..types.record import Record
from ..wire.headers import PROTOBUF
from ..wire.jsonbody import encode
from ..wire.passes import PassBody, PassRequest
from ..wire.routes import Route, route
from ..wire.zstd import compress
from .future import Future, Progress
from .patience import Patience
from .polling import wait_for_result
from .session import Session
from .splitting import combine, split
from .turns import Line, Turn

__all__ = ["ModelLine"]

T = TypeVar("T")

_PASS = route("forward_backward")
_SLOW_LINE = 2**20  # bytes a second


class ModelLine:
    """One model's operations on their way to the server."""

    model_id: str
    session: Session

    def __init__(self, session: Session, model_id: str) -> None:
        self.session, self.model_id = session, model_id
        self._line = Line()
        self._loss_in: int | None = None  # the thread in which a custom loss runs, with its place in line
        connection = session.connection
        self._patience = Patience(connection.clock, model_id, connection.config.stuck_seconds)

    def enter(self) -> Turn:
        """Take a place in line."""
        return self._line.enter()

    @contextlib.contextmanager
    def running_loss(self) -> Iterator[None]:
        """While a custom loss runs in this thread; what it starts meanwhile is sent after it."""
        self._loss_in = threading.get_ident()
        try:
            yield
        finally:
            self._loss_in = None

    def _in_loss(self) -> bool:
        return self._loss_in == threading.get_ident()

    def _new_future(self) -> Future[T]:
        future: Future[T] = Future()
        if self._in_loss():
            future._held_up = self._in_loss
        return future

    def bodies(
        self,
        data: Sequence[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        forward_only: bool,
    ) -> list[PassBody]:
        """The requests of one pass, encoded; the arrays may change afterwards."""
        settings = self.session.connection.known_settings
        pieces = split(data, settings.fwdbwd_max_chunk_len, settings.fwdbwd_max_chunk_bytes_count)
        return [
            PassBody(PassRequest(self.model_id, 0, piece, loss_fn, config, forward_only))
            for piece in pieces
        ]

    def start_pass(
        self,
        bodies: list[PassBody],
        turn: Turn,
        finish: Callable[[ForwardBackwardOutput], ForwardBackwardOutput] = lambda output: output,
    ) -> Future[ForwardBackwardOutput]:
        """Send a pass when its turn has come; `finish` is applied to its result."""
        future: Future[ForwardBackwardOutput] = self._new_future()

        async def run() -> ForwardBackwardOutput:
            await turn.come_up()
            waits = await turn.unbroken(self._send_pass(bodies, future.progress), _drop)
            turn.leave()
            return finish(await self._collect(waits))

        return self.session.start(run(), future=future, cleanup=turn.leave)

    def start_in_turn(self, bodies: list[PassBody], turn: Turn) -> Future[ForwardBackwardOutput]:
        """Send a pass and keep the place in line, for what must follow it at once."""

        async def run() -> ForwardBackwardOutput:
            await turn.come_up()
            return await self._collect(await turn.unbroken(self._send_pass(bodies, Progress()), _drop))

        return self.session.start(run())

    async def _send_pass(
        self, bodies: list[PassBody], progress: Progress
    ) -> list[asyncio.Task[ForwardBackwardOutput]]:
        """Send the pieces of one pass; each one's result is waited for by a task of its own.

        In parallel, the first piece goes last, so that the server has them all when it starts.  A
        piece that is rejected does not keep the others from being sent: numbers without a piece
        would hold up everything after them.
        """
        settings = await self.session.connection.settings()
        numbers = self._line.numbers(len(bodies))
        progress.stage = "sending"
        pairs = list(zip(bodies, numbers, strict=True))
        sent: dict[int, asyncio.Task[ForwardBackwardOutput]] = {}
        failed: list[Exception] = []

        async def send(body: PassBody, number: int) -> None:
            if any(isinstance(error, APIConnectionError) for error in failed):
                return  # the server is out of reach: nothing more will arrive
            try:
                sent[number] = await self._send_piece(
                    body, number, progress, settings.proto_compress_fwdbwd
                )
            except Exception as error:
                failed.append(error)

        if settings.parallel_fwdbwd_chunks and len(pairs) > 1:
            await asyncio.gather(*(send(body, number) for body, number in pairs[1:]))
            await send(*pairs[0])
        else:
            for body, number in pairs:
                await send(body, number)
        if failed:
            _drop(sent.values())
            raise failed[0]
        return [sent[number] for number in numbers]

    async def _send_piece(
        self, body: PassBody, number: int, progress: Progress, squeeze: bool
    ) -> asyncio.Task[ForwardBackwardOutput]:
        connection = self.session.connection
        headers = {"Content-Type": PROTOBUF}
        payload: bytes | memoryview = body.numbered(number)
        async with connection.shared.training_bytes.hold(len(payload)):
            if squeeze:
                headers["Content-Encoding"] = "zstd"
                payload = await asyncio.to_thread(compress, payload)
            # What is under way shares the line to the server: a slow one needs its time for all of it.
            more = -(-connection.shared.training_bytes.inside // _SLOW_LINE)
            ticket, seconds = await self._submit(_PASS, payload, headers, connection.config.timeout + more)
        body.release()
        connection.hooks.emit("chunk", "forward_backward", seq_id=number, datums=body.datums)
        wait = wait_for_result(
            connection, _PASS, ticket.request_id,
            progress=progress, submit_seconds=seconds, patience=self._patience,
        )  # fmt: skip
        return asyncio.get_running_loop().create_task(wait)

    @staticmethod
    async def _collect(waits: list[asyncio.Task[ForwardBackwardOutput]]) -> ForwardBackwardOutput:
        try:
            return combine(await asyncio.gather(*waits))
        finally:
            _drop(waits)

    async def _submit(
        self,
        origin: Route,
        body: bytes | memoryview,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> tuple[UntypedAPIFuture, float]:
        connection = self.session.connection
        started = connection.clock.monotonic()
        ticket: UntypedAPIFuture = await connection.caller.read(
            UntypedAPIFuture, origin, body, headers=headers, timeout=timeout
        )
        return ticket, connection.clock.monotonic() - started

    def operate(self, origin: Route, request: Record, read: Callable[[Any], T]) -> Future[T]:
        """Send a small operation, numbered, when its turn has come; `read` is applied to its result."""
        turn = self._line.enter()
        future: Future[T] = self._new_future()

        async def send() -> tuple[UntypedAPIFuture, float]:
            (number,) = self._line.numbers()
            future.progress.stage = "sending"
            return await self._submit(origin, encode(request.model_copy(update={"seq_id": number})))

        async def run() -> T:
            await turn.come_up()
            ticket, seconds = await turn.unbroken(send(), lambda _: None)
            turn.leave()
            result = await wait_for_result(
                self.session.connection, origin, ticket.request_id,
                progress=future.progress, submit_seconds=seconds, patience=self._patience,
            )  # fmt: skip
            return read(result)

        return self.session.start(run(), future=future, cleanup=turn.leave)


def _drop(waits: Iterable[asyncio.Task[Any]]) -> None:
    for wait in waits:
        if not wait.cancel() and not wait.cancelled():
            wait.exception()  # seen: nobody will ask for it
