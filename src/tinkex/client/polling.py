"""Waiting for a result: long polls with a wait after everything that is not a result.

Which answers are waited out, and which end the wait:

    result                       the end
    {"error", "category"}        RequestFailedError
    408, try_again               asked again, at once if the server held the question for a while
    x-should-retry               the server's word goes before all that follows
    5xx, 429, no connection      asked again after a growing, jittered wait (or Retry-After)
    402                          a pause, told to the user, for as long as the server's settings allow
    400                          three more tries
    404                          asked again for a few seconds after the submit: it may not be known yet
    410                          PromiseExpiredError (a sample is submitted anew)
    other 4xx                    a ResultError
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from ..errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    RequestFailedError,
    ResponseInfo,
    ResultDecodeError,
)
from ..net.policy import BILLING_PAUSE, advised, backoff
from ..net.transport import Response
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.sample_response import SampleResponse
from ..wire import jsonbody
from ..wire.headers import (
    JSON,
    PROMISE_ROUNDTRIP,
    PROTOBUF,
    REQUEST_ITERATION,
    REQUEST_TYPE,
    should_retry,
)
from ..wire.passes import decode_output
from ..wire.results import read_output, read_samples
from ..wire.routes import Route, route
from ..wire.samples import decode_sample_response
from .connection import Connection
from .future import Progress
from .patience import Patience, Waiting

__all__ = ["wait_for_result"]

T = TypeVar("T")
Observe = Callable[[str, str | None], None]  # of a queue state and its reason
logger: Final = logging.getLogger(__name__)

_HELD_SECONDS = 1.0  # a question answered sooner than this was not held by the server
_GRACE_SECONDS = 10.0
_BAD_REQUESTS = 3
_WRONG = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged answer may raise."""
_LARGE = 256 * 1024  # results above this are decoded off the loop
_TELL_EVERY = 60.0
_BLIPS = 2  # failed polls in a row that are not worth a word


class _Wait:
    """One wait for one ticket."""

    def __init__(
        self,
        connection: Connection,
        origin: Route,
        request_id: str,
        progress: Progress,
        sequence_ids: Sequence[str] | None,
        submit_seconds: float | None,
        patience: Patience,
        waiting: Waiting,
    ) -> None:
        self.connection, self.origin, self.request_id = connection, origin, request_id
        self.progress, self.sequence_ids = progress, sequence_ids
        self.patience, self.waiting = patience, waiting
        self.clock = connection.clock
        self.started = self.clock.monotonic()
        self.submit_seconds = submit_seconds
        self.iteration = 0
        self.quick = 0  # unsuccessful answers in a row that came without being held
        self.bad_requests = 0
        self.billing_since: float | None = None
        self.whole = False  # ask for the result itself, whatever its size
        self.observe: Observe | None = None

    async def result(self) -> Any:
        while True:
            asked = self.clock.monotonic()
            seconds = min(self.connection.config.poll_timeout, self.waiting.left())
            try:
                response = await self._ask(seconds)
            except APITimeoutError:
                self._tell("APITimeoutError", f"no answer within {seconds:.0f} s")
                await self._pause(asked)
                continue
            except APIError as error:
                await self._after(error, asked)
                continue
            if PROTOBUF in response.headers.get("content-type", ""):
                self.patience.moved()
                return await self._decoded(response)
            data = await self._json(response)
            if isinstance(data, dict) and data.get("type") == "try_again":
                self.patience.heard("try again")
                self.billing_since = None
                self._queue_state(data)
                await self._pause(asked)
                continue
            self.patience.moved()
            if isinstance(data, dict):
                if data.get("status") == "complete_metadata":
                    return await self._large(response, data.get("response_payload_size"))
                if "error" in data:
                    raise RequestFailedError(
                        str(data["error"]), self.request_id, str(data.get("category", "unknown"))
                    )
            return await self._off_the_loop(response, partial(self._from_json, data))

    async def _large(self, response: Response, size: object) -> Any:
        """Fetch a result that was announced, when there is room for it."""
        if self.whole:
            raise self._unreadable(response, "it was announced and then not sent")
        room = size if isinstance(size, int) else 0
        async with self.connection.shared.result_bytes.hold(room):
            self.whole = True
            return await self.result()

    async def _ask(self, seconds: float) -> Response:
        body = jsonbody._encode({"request_id": self.request_id, "allow_metadata_only": not self.whole})
        headers = {
            "Accept": PROTOBUF if self.origin.binary_result else JSON,
            REQUEST_ITERATION: str(self.iteration),
            REQUEST_TYPE: self.origin.request_type or "",
        }
        if self.iteration == 0 and self.submit_seconds is not None:
            headers[PROMISE_ROUNDTRIP] = str(self.submit_seconds)
        self.iteration += 1
        ask = partial(
            self.connection.caller.once, _RETRIEVE, body, headers=headers, result=True, timeout=seconds
        )
        if self.origin.result is not SampleResponse:
            return await ask()
        async with self.connection.shared.sample_polls.hold():
            return await ask()

    # ---- what is not a result

    async def _after(self, error: APIError, asked: float) -> None:
        """Wait as the error demands, or raise it."""
        status = error.status_code if isinstance(error, APIStatusError) else None
        word = should_retry(error.response.headers) if isinstance(error, APIStatusError) else None
        self.patience.heard("try again" if status == 408 else f"HTTP {status}" if status else str(error))
        if status is not None and status != 402:
            self.billing_since = None  # it is in order again
        if status == 408:  # no failure, whatever else it says
            self._queue_state(error.body)
            await self._pause(asked)
        elif word is False:
            raise error
        elif status == 402:
            await self._billing_pause(error)
        elif status == 400:
            self.bad_requests += 1
            if self.bad_requests > _BAD_REQUESTS:
                raise error
            await self._pause(asked, error)
        elif status == 404 and self.clock.monotonic() - self.started < _GRACE_SECONDS:
            await self._pause(asked, error)
        elif word or isinstance(error, APIConnectionError) or status == 429 or (status or 0) >= 500:
            if self.quick >= _BLIPS:
                self._tell(type(error).__name__, str(error))
            await self._pause(asked, error)
        else:
            raise error

    async def _pause(self, asked: float, error: APIError | None = None) -> None:
        held = self.clock.monotonic() - asked >= _HELD_SECONDS
        if error is None and held:
            self.quick = 0
            return
        wait = backoff(self.quick, self.clock.random(), 0.5 if error is not None else 0.05)
        if error is not None and error.retry_after is not None:
            wait = advised(error.retry_after, self.quick, self.clock.random())
        self.quick += 1
        self.connection.hooks.emit("poll", self.origin.name, request_id=self.request_id, delay=wait)
        await self.clock.sleep(min(wait, self.waiting.left()))

    async def _billing_pause(self, error: APIError) -> None:
        now = self.clock.monotonic()
        self.billing_since = now if self.billing_since is None else self.billing_since
        window = (await self.connection.settings()).billing_exception_max_pause_duration_sec
        if now - self.billing_since > window:
            raise error
        self._note_queue("paused_billing", f"{error}; waiting for up to {window} s")
        await self.clock.sleep(BILLING_PAUSE)

    def _queue_state(self, body: object) -> None:
        if isinstance(body, dict):
            self.bad_requests = 0
            state, reason = body.get("queue_state"), body.get("queue_state_reason")
            if isinstance(state, str):
                self._note_queue(state, reason if isinstance(reason, str) else None)

    def _note_queue(self, state: str, reason: str | None) -> None:
        changed = (state, reason) != (self.progress.queue_state, self.progress.queue_reason)
        self.progress.queue_state, self.progress.queue_reason = state, reason
        if changed:
            self.connection.hooks.emit(
                "queue_state", self.origin.name, state=state, reason=reason, request_id=self.request_id
            )
            if self.observe is not None:
                self.observe(state, reason)
        if state != "active" and self.observe is None:
            self._tell(state, reason or f"the server's queue is {state.replace('_', ' ')}")

    def _tell(self, topic: str, text: str) -> None:
        self.connection.teller.say(
            logger, f"{self.origin.name}:{topic}", _TELL_EVERY,
            "waiting for %s %s: %s", self.origin.name, self.request_id, text,
        )  # fmt: skip

    # ---- results

    async def _off_the_loop(self, response: Response, read: Callable[[], T]) -> T:
        """Read a result, a large one in a thread; whatever cannot be read becomes one kind of error."""
        try:
            return await asyncio.to_thread(read) if len(response.body) > _LARGE else read()
        except _WRONG as problem:
            raise self._unreadable(response, str(problem)) from None

    async def _json(self, response: Response) -> Any:
        try:
            return await self._off_the_loop(response, lambda: jsonbody.parse(response.body))
        except ResultDecodeError:
            raise self._unreadable(response, "it is neither protobuf nor JSON") from None

    def _from_json(self, data: Any) -> Any:
        kind = self.origin.result
        if kind is SampleResponse:
            return read_samples(data, self._names(data))
        if kind is ForwardBackwardOutput:
            return read_output(data)
        return jsonbody.convert(kind, data)

    def _names(self, data: Any) -> Sequence[str]:
        made = [f"{self.request_id}:{index}" for index in range(len(data.get("sequences") or ()))]
        return [*(self.sequence_ids or ()), *made[len(self.sequence_ids or ()) :]]

    async def _decoded(self, response: Response) -> Any:
        decode = decode_output if self.origin.result is ForwardBackwardOutput else self._samples
        return await self._off_the_loop(response, lambda: decode(response.body))

    def _samples(self, body: bytes) -> SampleResponse:
        return decode_sample_response(body, self.sequence_ids, self.request_id)

    def _unreadable(self, response: Response, why: str) -> ResultDecodeError:
        about = ResponseInfo(response.status, response.headers)
        error = ResultDecodeError(about, None, f"The result of {self.origin.name} cannot be read: {why}")
        error.request_id = self.request_id
        return error


_RETRIEVE = route("retrieve_future")


async def wait_for_result(
    connection: Connection,
    origin: Route,
    request_id: str,
    *,
    progress: Progress,
    sequence_ids: Sequence[str] | None = None,
    submit_seconds: float | None = None,
    whole: bool = False,
    patience: Patience | None = None,
    observe: Observe | None = None,
) -> Any:
    """Wait for the result of a ticket that `origin` gave out.

    `observe` is told of changes of the queue state, in place of the log; `patience` is that of the
    work the ticket belongs to.
    """
    progress.stage, progress.request_id = "waiting", request_id
    patience = patience or Patience(connection.clock, origin.name, connection.config.stuck_seconds)
    with patience.waiting(origin.name, progress, request_id) as waiting:
        wait = _Wait(
            connection, origin, request_id, progress, sequence_ids, submit_seconds, patience, waiting
        )
        wait.whole, wait.observe = whole, observe
        return await wait.result()
