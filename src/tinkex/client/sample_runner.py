"""Getting one sample: submitted under a number, throttled with everyone else, waited for, resubmitted
when its result is lost.  All of it runs on the background loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ..errors import (
    APIConnectionError,
    APIStatusError,
    ClientClosedError,
    PromiseExpiredError,
    RateLimitError,
    RequestFailedError,
    TinkerError,
    UnsupportedByServerError,
)
from ..net.caller import new_key, read_answer
from ..net.limits import Gate
from ..net.policy import BILLING_PAUSE, Operation, advised, backoff, decide
from ..net.transport import Response
from ..types.futures import UntypedAPIFuture
from ..types.sample_response import SampleResponse
from ..types.sampling import JoinSamplingSessionRequest, JoinSamplingSessionResponse
from ..types.service import ClientConfigResponse
from ..wire.bodies import CancelFutureRequest
from ..wire.headers import SAMPLING_BACKPRESSURE, should_retry
from ..wire.jsonbody import encode
from ..wire.paths import CLONE_BLOCK
from ..wire.routes import Route, route
from .future import Progress, run_user_code
from .patience import Patience, Waiting
from .poller import Poller
from .polling import wait_for_result
from .portal import portal
from .queue_state import QueueStateObserver, queue_state
from .retry_config import RetryConfig
from .session import Session, task_failed

__all__ = ["SampleRunner", "check_answer"]

logger: Final = logging.getLogger(__name__)

_SAMPLE = route("asample")
_BACKPRESSURE = {SAMPLING_BACKPRESSURE: "1"}
_encode = msgspec.json.Encoder().encode
_SMALL_PROMPT = 128 * 1024
_SAY_AFTER, _SAY_AGAIN = 2.0, 30.0
_RESUBMITS = Operation("asample", seconds=3600.0, attempts=10, resubmits=True)


class SampleRunner:
    """The samples of one sampling session in this process."""

    sampling_session_id: str
    session: Session

    def __init__(
        self, session: Session, sampling_session_id: str, retry_config: RetryConfig | None, shadow: bool
    ) -> None:
        self.session, self.sampling_session_id = session, sampling_session_id
        self.retry_config = retry_config
        self._shadow = shadow
        self._generation = portal().generation
        self._numbers = itertools.count()
        self._clone = 0
        self._joining: asyncio.Task[None] | None = None
        self._poller: Poller | None = None
        self._gate: Gate | None = None
        self.patience: Patience = self._new_patience()
        self.observer: weakref.ref[QueueStateObserver] | None = None  # of the queue states of samples
        self.streams = True  # until the server turns out not to know how

    async def ready(self) -> tuple[Gate, RetryConfig]:
        """Learn the server's settings, join the session; returns what limits and guides a sample."""
        settings = await self.session.connection.settings()
        await self._settle()
        if self._gate is None:
            limit = settings.sample_max_concurrent_requests
            if self.retry_config is not None and self.retry_config.max_connections is not None:
                limit = self.retry_config.max_connections
            self._gate = Gate(limit)
        config = self.retry_config or self._default_config(settings)
        self.patience.seconds = config.progress_timeout if config.enable_stuck_detection else None
        return self._gate, config

    def _default_config(self, settings: ClientConfigResponse) -> RetryConfig:
        seconds = self.session.connection.config.stuck_seconds
        retries = not settings.sample_no_retries
        if seconds is not None:
            return RetryConfig(progress_timeout=seconds, enable_retry_logic=retries)
        detects = settings.sample_enable_stuck_detection
        return RetryConfig(enable_stuck_detection=detects, enable_retry_logic=retries)

    def _new_patience(self) -> Patience:
        clock = self.session.connection.clock
        return Patience(clock, self.sampling_session_id, None, "progress_timeout")

    def next_number(self) -> int:
        """The number of the next sample; only after `ready`."""
        return next(self._numbers)

    async def run(
        self, form: dict[str, Any], progress: Progress, number: int | None = None
    ) -> SampleResponse:
        """Get one sample, however often it takes to ask; `number` is the first to ask under."""
        gate, config = await self.ready()
        connection = self.session.connection
        clock = connection.clock
        async with gate.hold():
            started = clock.monotonic()
            attempt = 0
            while True:
                form["seq_id"] = next(self._numbers) if number is None else number
                number = None
                try:
                    return await self._once(form, progress, config)
                except Exception as error:
                    delay = self._again_after(error, config, attempt, clock.monotonic() - started)
                    if delay is None:
                        raise
                    connection.hooks.emit("retry", _SAMPLE.name, attempt=attempt, error=error)
                    await clock.sleep(delay)
                    attempt += 1

    def _again_after(
        self, error: Exception, config: RetryConfig, attempt: int, elapsed: float
    ) -> float | None:
        """Seconds until a sample that failed is submitted anew; None if it has failed for good."""
        # Connections were tried again where they failed; a closed client stays closed.
        if not config.enable_retry_logic or isinstance(error, (APIConnectionError, ClientClosedError)):
            return None
        chance = self.session.connection.clock.random()
        delay = config.wait(attempt, chance)
        if isinstance(error, (PromiseExpiredError, RequestFailedError)):
            decision = decide(error, _RESUBMITS, attempt, elapsed, chance)
            if decision.retry:
                return delay if error.retry_after is None else decision.delay
        refused = isinstance(error, APIStatusError) and should_retry(error.response.headers) is False
        if refused or not isinstance(error, config.retryable_exceptions):
            return None
        over = attempt + 1 >= _RESUBMITS.attempts or elapsed + delay > _RESUBMITS.seconds
        return None if over else delay

    async def _settle(self) -> None:
        """A copy of a client in another process needs sample numbers of its own."""
        if self._generation != portal().generation:
            self._generation = portal().generation
            self._shadow, self._clone = True, 0
            self._poller = self._gate = self._joining = None
            self.patience = self._new_patience()
        if not self._shadow or self._clone:
            return
        await self.session.join()
        if self._joining is None or task_failed(self._joining):
            self._joining = asyncio.get_running_loop().create_task(self._join())
        await asyncio.shield(self._joining)

    async def _join(self) -> None:
        connection = self.session.connection
        clone = secrets.randbelow(CLONE_BLOCK - 1) + 1
        if connection.known_settings.sample_join_sampling_session:
            body = encode(JoinSamplingSessionRequest(sampling_session_id=self.sampling_session_id))
            answer: JoinSamplingSessionResponse = await connection.caller.read(
                JoinSamplingSessionResponse, route("join_sampling_session"), body
            )
            clone = answer.client_counter
        self._clone = clone
        self._numbers = itertools.count(clone * CLONE_BLOCK)

    async def _once(self, form: dict[str, Any], progress: Progress, config: RetryConfig) -> SampleResponse:
        """Submit once and wait for the result."""
        connection = self.session.connection
        progress.stage = "sending"
        ticket, seconds = await self._submit(form, config)
        request_id = ticket.request_id
        try:
            response = await self._result(ticket, progress, seconds)
        except asyncio.CancelledError:
            if connection.dynamic.sample_cancel_enabled:
                portal().spawn(self._cancel(request_id))
            raise
        check_answer(form, response)
        return response

    async def _submit(self, form: dict[str, Any], config: RetryConfig) -> tuple[UntypedAPIFuture, float]:
        response, seconds = await self.accepted(_SAMPLE, form, config)
        return read_answer(UntypedAPIFuture, response), seconds

    async def accepted(
        self,
        origin: Route,
        form: dict[str, Any],
        config: RetryConfig,
        *,
        headers: Mapping[str, str] = _BACKPRESSURE,
        stream: bool = False,
        final: frozenset[int] = frozenset(),
    ) -> tuple[Response, float]:
        """Get the request accepted; refusals for load pause everyone with this key.

        Returns the answer and the seconds it took; a status in `final` is raised at once.
        """
        body = _encode(form)
        with self.patience.waiting(origin.name, Progress("sending")) as waiting:
            return await self._accepted(origin, body, config, headers, stream, final, waiting)

    async def _accepted(
        self,
        origin: Route,
        body: bytes,
        config: RetryConfig,
        headers: Mapping[str, str],
        stream: bool,
        final: frozenset[int],
        waiting: Waiting,
    ) -> tuple[Response, float]:
        connection = self.session.connection
        shared, clock = connection.shared, connection.clock
        operation = Operation(origin.name, seconds=config.progress_timeout, attempts=10_000)
        key = new_key()
        started = clock.monotonic()
        unpaid_since: float | None = None
        attempt = 0
        while True:
            await shared.sampling.enter(again=attempt > 0)
            accepted = False
            try:
                async with shared.sampling_bytes.hold(len(body)):
                    sent = clock.monotonic()
                    response = await connection.caller.once(
                        origin, body, headers=headers, key=key, attempt=attempt, stream=stream
                    )
                accepted = True
                return response, clock.monotonic() - sent
            except RateLimitError as error:
                if should_retry(error.response.headers) is False:
                    raise
                self._slow_down(origin, error, attempt, len(body))
                wait, unpaid_since = 0.0, None
            except TinkerError as error:
                if isinstance(error, APIStatusError) and error.status_code in final:
                    raise
                self.patience.heard(str(error))
                unpaid = isinstance(error, APIStatusError) and error.status_code == 402
                unpaid_since = (unpaid_since or clock.monotonic()) if unpaid else None
                since = started if unpaid_since is None else unpaid_since
                wait = await self._wait_after(error, operation, attempt, since, config)
            finally:
                shared.sampling.leave(accepted=accepted)
            attempt += 1
            left = waiting.left()
            if wait:
                await clock.sleep(min(wait, left))

    def _slow_down(self, origin: Route, error: RateLimitError, attempt: int, size: int) -> None:
        """Too much for the server: let everyone with this key send less, and later."""
        connection = self.session.connection
        throttle, chance = connection.shared.sampling, connection.clock.random()
        if error.retry_after is not None:
            delay = advised(error.retry_after, attempt, chance)
        else:
            delay = backoff(0, chance, 1.0 if size <= _SMALL_PROMPT else 5.0)
        self.patience.heard("HTTP 429")
        throttle.slow_down(delay)
        connection.metrics.count(f"throttled.{origin.name}")
        connection.hooks.emit("throttle", origin.name, delay=delay, limit=throttle.limit)

    async def _wait_after(
        self, error: TinkerError, operation: Operation, attempt: int, started: float, config: RetryConfig
    ) -> float:
        connection = self.session.connection
        clock = connection.clock
        elapsed = clock.monotonic() - started
        if isinstance(error, APIStatusError) and error.status_code == 402:
            window = connection.known_settings.billing_exception_max_pause_duration_sec
            if elapsed > window or should_retry(error.response.headers) is False:
                raise error
            connection.hooks.emit("pause", operation.name, delay=BILLING_PAUSE, error=error)
            connection.teller.say(
                logger, "402", _SAY_AGAIN,
                "sampling is paused: %s; trying again for up to %d s", error, window,
            )  # fmt: skip
            return BILLING_PAUSE
        decision = decide(error, operation, attempt, elapsed, clock.random())
        if not decision.retry:
            raise error
        delay = decision.delay if error.retry_after is not None else config.wait(attempt, clock.random())
        connection.hooks.emit("retry", operation.name, attempt=attempt, delay=delay, error=error)
        if elapsed + delay >= _SAY_AFTER:
            connection.teller.say(
                logger, f"{operation.name}:{type(error).__name__}", _SAY_AGAIN,
                "%s at %s: %s; trying again in %.1f s",
                operation.name, connection.config.base_url, decision.reason, delay,
            )  # fmt: skip
        return delay

    async def _result(self, ticket: UntypedAPIFuture, progress: Progress, seconds: float) -> SampleResponse:
        connection = self.session.connection
        request_id = ticket.request_id
        progress.stage, progress.request_id = "waiting", request_id
        observe = self._observe()

        async def fetch(whole: bool) -> SampleResponse:
            fetched: SampleResponse = await wait_for_result(
                connection, _SAMPLE, request_id,
                progress=progress, sequence_ids=ticket.sample_sequence_ids, submit_seconds=seconds,
                whole=whole, patience=self.patience, observe=observe,
            )  # fmt: skip
            return fetched

        if not connection.known_settings.sample_use_retrieve_futures:
            return await fetch(False)
        if self._poller is None:
            self._poller = Poller(connection, self.sampling_session_id, self._clone, self.patience)
        poller = self._poller
        with self.patience.waiting(_SAMPLE.name, progress, request_id) as waiting:
            size = await poller.wait(request_id, waiting)
        if size:
            async with connection.shared.result_bytes.hold(size):
                response = await fetch(True)
        else:
            response = await fetch(False)
        poller.fetched(request_id)
        return response

    def _observe(self) -> Callable[[str, str | None], None] | None:
        """How to tell the observer, in a thread where it may take its time."""
        observer = self.observer() if self.observer is not None else None
        if observer is None:
            return None
        return lambda state, reason: run_user_code(
            lambda told: told.on_queue_state_change(queue_state(state), reason), observer
        )

    async def _cancel(self, request_id: str) -> None:
        body = encode(CancelFutureRequest(request_id=request_id))
        try:
            await self.session.connection.caller.call(
                route("cancel_future"), body, timeout=30.0, operation=Operation("cancel_future", 60.0, 5)
            )
        except TinkerError as error:
            logger.info("the sample %s could not be cancelled: %s", request_id, error)


def check_answer(form: dict[str, Any], response: SampleResponse) -> None:
    """Raise if the server left out something it was asked for."""
    if form["prompt_alt_tokens_k"] and response.prompt_alt_tokens is None:
        raise UnsupportedByServerError("the server ignored prompt_alt_tokens_k: it does not know it")
    last_n = form.get("prompt_logprobs_last_n")
    if last_n is not None and response.prompt_logprobs is not None:
        scored = sum(value is not None for value in response.prompt_logprobs)
        if scored > last_n:
            raise UnsupportedByServerError(
                f"the server ignored prompt_logprobs_last_n={last_n} and scored {scored} tokens"
            )
