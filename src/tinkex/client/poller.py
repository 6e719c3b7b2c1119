"""One long poll for all samples of a sampling session, where the server offers it."""

from __future__ import annotations

import asyncio
import logging

from ..errors import APIStatusError, APITimeoutError, TinkerError
from ..net.caller import read_answer
from ..net.policy import backoff
from ..types.futures import (
    FutureFinished,
    FuturesRetrieveRequest,
    FuturesRetrieveResponse,
    SamplingSessionFuturesTarget,
)
from ..wire.jsonbody import encode
from ..wire.routes import route
from .connection import Connection

__all__ = ["Poller"]

logger = logging.getLogger(__name__)

_MANY = route("retrieve_futures")


class Poller:
    """Wakes waiting samples when the server says they are done.

    It runs while somebody waits and survives every failure; a server that turns out not to know the
    call makes everyone poll for themselves.
    """

    def __init__(self, connection: Connection, sampling_session_id: str, clone: int) -> None:
        self._connection = connection
        self._target = SamplingSessionFuturesTarget(
            sampling_session_id=sampling_session_id, cloned_sampler_id=clone
        )
        self._cursor = 0
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._early: dict[str, int] = {}  # done before anyone asked
        self._fetched: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.available = True

    async def wait(self, request_id: str) -> int:
        """Wait until a sample is done; returns its size in bytes, 0 if that is not known."""
        if request_id in self._early:
            return self._early.pop(request_id)
        if not self.available:
            return 0
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._waiting[request_id] = done
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        try:
            return await done
        finally:
            self._waiting.pop(request_id, None)

    def fetched(self, request_id: str) -> None:
        """The result is here; the server may forget it."""
        self._fetched.append(request_id)

    async def _run(self) -> None:
        failures = 0
        clock = self._connection.clock
        while self._waiting:
            asked = clock.monotonic()
            reported = list(self._fetched)
            try:
                answer = await self._ask(reported)
            except APITimeoutError:
                continue
            except TinkerError as error:
                if isinstance(error, APIStatusError) and error.status_code in (404, 405, 501):
                    self._give_up()
                    return
                wait = (
                    error.retry_after
                    if error.retry_after is not None
                    else backoff(failures, clock.random())
                )
                failures += 1
                self._connection.hooks.emit("poll", _MANY.name, error=error, delay=wait)
                logger.info("asking for finished samples failed (%s); again in %.1f s", error, wait)
                await clock.sleep(wait)
                continue
            self._fetched = self._fetched[len(reported) :]
            self._cursor = answer.cursor
            for each in answer.completions:
                size = each.response_payload_uncompressed_size if isinstance(each, FutureFinished) else 0
                self._wake(each.request_id, size or 0)
            if answer.completions or clock.monotonic() - asked > 1.0:
                failures = 0
            else:
                # A server that does not hold the question must not be asked without a pause.
                await clock.sleep(backoff(failures, clock.random(), 0.05))
                failures += 1

    async def _ask(self, reported: list[str]) -> FuturesRetrieveResponse:
        request = FuturesRetrieveRequest(
            target=self._target, prev_cursor=self._cursor, retrieved_request_ids=reported
        )
        response = await self._connection.caller.once(
            _MANY, encode(request), timeout=self._connection.config.poll_timeout, result=True
        )
        answer: FuturesRetrieveResponse = read_answer(FuturesRetrieveResponse, response)
        return answer

    def _wake(self, request_id: str, size: int) -> None:
        done = self._waiting.get(request_id)
        if done is None:
            self._early[request_id] = size
            while len(self._early) > 10_000:  # samples whose owners went away
                self._early.pop(next(iter(self._early)))
        elif not done.done():
            done.set_result(size)

    def _give_up(self) -> None:
        self.available = False
        for done in self._waiting.values():
            if not done.done():
                done.set_result(0)
