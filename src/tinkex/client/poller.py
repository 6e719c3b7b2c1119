"""One long poll for all samples of a sampling session, where the server offers it."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

from ..errors import APIResponseValidationError, APIStatusError, APITimeoutError, StuckError, TinkerError
from ..net.caller import read_answer
from ..net.policy import advised, backoff
from ..types.futures import (
    FutureFinished,
    FuturesRetrieveRequest,
    FuturesRetrieveResponse,
    SamplingSessionFuturesTarget,
)
from ..wire.jsonbody import encode
from ..wire.routes import route
from .connection import Connection
from .patience import Patience, Waiting

__all__ = ["Poller"]

logger: Final = logging.getLogger(__name__)

_MANY = route("retrieve_futures")
_HELD_SECONDS = 1.0  # a question answered sooner than this was not held by the server


class Poller:
    """Wakes waiting samples when the server says they are done.

    It runs while somebody waits and survives every failure; a server that turns out not to know the
    call makes everyone poll for themselves.
    """

    def __init__(
        self,
        connection: Connection,
        sampling_session_id: str,
        clone: int,
        patience: Patience,
    ) -> None:
        self._connection = connection
        self._target = SamplingSessionFuturesTarget(
            sampling_session_id=sampling_session_id, cloned_sampler_id=clone
        )
        self._patience = patience
        self._cursor = 0
        self._waiting: dict[str, tuple[asyncio.Future[int], Waiting]] = {}
        self._early: dict[str, int] = {}  # done before anyone asked
        self._fetched: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.available: bool = True

    async def wait(self, request_id: str, waiting: Waiting) -> int:
        """Wait until a sample is done; returns its size in bytes, 0 if that is not known."""
        if request_id in self._early:
            return self._early.pop(request_id)
        if not self.available:
            return 0
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._waiting[request_id] = (done, waiting)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        try:
            return await done
        finally:
            self._waiting.pop(request_id, None)

    def fetched(self, request_id: str) -> None:
        """The result is here; the server may forget it."""
        if self.available:
            self._fetched.append(request_id)

    async def _run(self) -> None:
        try:
            await self._poll()
        finally:
            self._release()  # however this ended, nobody is left waiting for it

    async def _poll(self) -> None:
        failures = 0
        clock = self._connection.clock
        while self._waiting:
            asked = clock.monotonic()
            reported = list(self._fetched)
            try:
                answer = await self._ask(reported)
            except Exception as error:
                if self._hopeless(error):
                    return
                failures = await self._pause(error, failures, asked)
                continue
            self._fetched = self._fetched[len(reported) :]
            self._cursor = answer.cursor
            for each in answer.completions:
                size = each.response_payload_uncompressed_size if isinstance(each, FutureFinished) else 0
                self._wake(each.request_id, size or 0)
            if answer.completions:
                failures = 0
            elif clock.monotonic() - asked > _HELD_SECONDS:
                self._patience.heard("no sample is done")
                failures = 0
            else:
                # A server that does not hold the question must not be asked without a pause.
                self._patience.heard("no sample is done")
                await clock.sleep(backoff(failures, clock.random(), 0.05))
                failures += 1
            self._look()

    def _hopeless(self, error: Exception) -> bool:
        """Whether the server does not know this call, or answers something else."""
        status = error.status_code if isinstance(error, APIStatusError) else None
        if status in (404, 405, 501) or isinstance(error, APIResponseValidationError):
            self.available = False
            self._fetched.clear()
            return True
        if isinstance(error, APIStatusError) and not error.retryable:
            self._release()  # each asks for itself and learns what is wrong
        return False

    async def _pause(self, error: Exception, failures: int, asked: float) -> int:
        clock = self._connection.clock
        if isinstance(error, APITimeoutError) and clock.monotonic() - asked > _HELD_SECONDS:
            self._look()
            return 0
        self._patience.heard(str(error))
        wait = backoff(failures, clock.random())
        advice = error.retry_after if isinstance(error, TinkerError) else None
        if advice is not None:
            wait = advised(advice, failures, clock.random())
        self._connection.hooks.emit("poll", _MANY.name, error=error, delay=wait)
        logger.info("asking for finished samples failed (%s); again in %.1f s", error, wait)
        await clock.sleep(min(wait, self._left()))
        self._look()
        return failures + 1

    def _left(self) -> float:
        """Seconds until whoever waits longest is stuck."""
        oldest = next((waiting for done, waiting in self._waiting.values() if not done.done()), None)
        return math.inf if oldest is None else max(oldest.remaining(), 0.0)

    def _look(self) -> None:
        for done, waiting in self._waiting.values():
            if not done.done():
                try:
                    waiting.left()
                except StuckError as stuck:
                    done.set_exception(stuck)
                else:
                    return  # those who came later have more patience left

    async def _ask(self, reported: list[str]) -> FuturesRetrieveResponse:
        request = FuturesRetrieveRequest(
            target=self._target, prev_cursor=self._cursor, retrieved_request_ids=reported
        )
        seconds = min(self._connection.config.poll_timeout, self._left())
        response = await self._connection.caller.once(_MANY, encode(request), timeout=seconds, result=True)
        answer: FuturesRetrieveResponse = read_answer(FuturesRetrieveResponse, response)
        return answer

    def _wake(self, request_id: str, size: int) -> None:
        done, _ = self._waiting.get(request_id, (None, None))
        if done is None:
            self._early[request_id] = size
            while len(self._early) > 10_000:  # samples whose owners went away
                self._early.pop(next(iter(self._early)))
        elif not done.done():
            done.set_result(size)

    def _release(self) -> None:
        for done, _ in self._waiting.values():
            if not done.done():
                done.set_result(0)
