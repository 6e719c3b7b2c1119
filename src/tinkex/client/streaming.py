"""Samples token by token: `for item in client.sample_stream(...)`, or `async for`.

A server without the route answers as usual; then all tokens of a sequence come as one item.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from .._lazy import np
from ..errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    ClientClosedError,
    InvalidArgumentError,
    RequestFailedError,
    ResponseInfo,
)
from ..net.sse import ServerEvent, SseDecoder
from ..net.transport import Response
from ..types.identifiers import StopReason
from ..types.sample_response import SampledSequence, SampleResponse
from ..wire.bodies import ErrorEvent, TokensEvent
from ..wire.headers import EVENT_STREAM, SAMPLING_BACKPRESSURE
from ..wire.jsonbody import convert, parse
from ..wire.paths import sample_id
from ..wire.results import read_samples
from ..wire.routes import route
from .channel import Channel, warn_if_in_loop
from .future import Future, Progress
from .reader import Reader
from .retry_config import RetryConfig
from .sample_runner import SampleRunner, check_answer

__all__ = ["SampleStream", "StreamedTokens"]

_STREAM = route("sample_stream")
_NO_SUCH_ROUTE = frozenset({404, 405, 501})
_HEADERS = {"Accept": EVENT_STREAM, SAMPLING_BACKPRESSURE: "1"}


@dataclass(frozen=True, slots=True)
class StreamedTokens:
    """New tokens of one sequence; `stop_reason` is set on its last item, and only there."""

    sequence: int
    tokens: list[int]
    logprobs: list[float] | None = None
    stop_reason: StopReason | None = None


class SampleStream(Reader):
    """The tokens of a sample as they come; afterwards `response` has the whole result.

    The sample starts when the stream is made.  A reader that falls behind stops the reading from
    the server.  Leaving early — `close()`, the end of a `with` block, dropping the object — drops the
    connection, and with it the sample.
    """

    def __init__(self, runner: SampleRunner, form: dict[str, Any], buffer: int) -> None:
        if not isinstance(buffer, int) or buffer < 1:
            raise InvalidArgumentError(f"buffer: must be 1 or more, got {buffer!r}")
        self.response: SampleResponse | None = None
        self._channel: Channel[StreamedTokens | SampleResponse] = Channel(buffer)
        work: Future[None] = Future()
        produced = _produce(runner, form, work.progress, self._channel)
        self._work = runner.session.start(produced, future=work)
        # The work must not hold the stream: a stream nobody reads is dropped with its last reference.
        self._stop = weakref.finalize(self, _stop, self._channel, self._work)
        self._stop.atexit = False

    def __repr__(self) -> str:
        state = "done" if self.response is not None else "open" if self._stop.alive else "closed"
        return f"SampleStream({state}, request_id={self.request_id!r})"

    @property
    def request_id(self) -> str | None:
        """The server's id of the sample, once it has one."""
        return self._work.request_id

    def __next__(self) -> StreamedTokens:
        if not self._channel.ready():
            warn_if_in_loop("`async for`")
        try:
            item = self._channel.get()
        except EOFError:
            raise StopIteration from None
        if isinstance(item, SampleResponse):
            self.response = item
            raise StopIteration
        return item

    async def __anext__(self) -> StreamedTokens:
        try:
            item = await self._channel.get_async()
        except EOFError:
            raise StopAsyncIteration from None
        if isinstance(item, SampleResponse):
            self.response = item
            raise StopAsyncIteration
        return item


def _stop(channel: Channel[Any], work: Future[None]) -> None:
    channel.close()
    work.cancel()


# ---- on the background loop


async def _produce(
    runner: SampleRunner,
    form: dict[str, Any],
    progress: Progress,
    channel: Channel[StreamedTokens | SampleResponse],
) -> None:
    try:
        response = await _Reading(runner, form, progress, channel).run()
        await channel.put(response)
        channel.end()
    except asyncio.CancelledError:
        channel.end(ClientClosedError("the stream was closed"))
        raise
    except BaseException as error:
        channel.end(error)
        raise


class _NotOffered(Exception):
    """The server has no stream of samples."""


class _Reading:
    """One streamed sample: what was handed on so far, and how to get the rest."""

    def __init__(
        self,
        runner: SampleRunner,
        form: dict[str, Any],
        progress: Progress,
        channel: Channel[StreamedTokens | SampleResponse],
    ) -> None:
        self._runner, self._form, self._progress, self._channel = runner, form, progress, channel
        self._given = [_Given() for _ in range(form["num_samples"])]
        self._begun = False

    async def run(self) -> SampleResponse:
        runner = self._runner
        gate, config = await runner.ready()
        number = runner.next_number()
        try:
            if not runner.streams:
                raise _NotOffered
            async with gate.hold():
                response = await self._streamed(number, config)
        except _NotOffered:
            response = await self._plainly(number)
            runner.streams = False  # a 404 may have been about something else; now it is known
        except APIConnectionError:
            if not self._begun:
                raise
            # Cut off in the middle: the server has the whole under the same number.
            response = await self._plainly(number)
        except RequestFailedError as error:
            if not (error.retryable and config.enable_retry_logic) or any(self._given):
                raise
            response = await self._plainly(None)
        await self._rest(response)
        return response

    async def _plainly(self, number: int | None) -> SampleResponse:
        return await self._runner.run(self._form, self._progress, number)

    async def _streamed(self, number: int, config: RetryConfig) -> SampleResponse:
        self._form["seq_id"] = number
        self._progress.stage = "sending"
        try:
            response, _ = await self._runner.accepted(
                _STREAM, self._form, config, headers=_HEADERS, stream=True, final=_NO_SUCH_ROUTE
            )
        except APIStatusError as error:
            if error.status_code in _NO_SUCH_ROUTE:
                raise _NotOffered from error
            raise
        assert response.chunks is not None
        pieces = cast("AsyncGenerator[bytes]", response.chunks)
        async with contextlib.aclosing(pieces):
            if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
                await anext(pieces, None)  # what was never begun would not be closed
                raise _NotOffered
            self._begun, self._progress.stage = True, "waiting"
            self._progress.request_id = sample_id(self._runner.sampling_session_id, number)
            decoder = SseDecoder()
            async for piece in pieces:
                try:
                    events = decoder.feed(piece)
                except ValueError as problem:
                    raise _unreadable(response, str(problem), "") from None
                for event in events:
                    done = await self._take(event, response)
                    if done is not None:
                        return done
        raise APIConnectionError(message="Connection error: the stream ended before its result.")

    async def _take(self, event: ServerEvent, response: Response) -> SampleResponse | None:
        self._runner.patience.moved()
        try:
            if event.event == "tokens":
                tokens: TokensEvent = convert(TokensEvent, parse(event.data.encode()))
                await self._give(
                    tokens.sequence, tokens.tokens, tokens.logprobs, cast("Any", tokens.stop_reason)
                )
            elif event.event == "done":
                return self._result(parse(event.data.encode()))
            elif event.event == "error":
                failed: ErrorEvent = convert(ErrorEvent, parse(event.data.encode()))
                raise RequestFailedError(failed.error, self._progress.request_id or "", failed.category)
        except (InvalidArgumentError, OverflowError) as problem:
            raise _unreadable(response, str(problem), event.data) from None
        return None

    def _result(self, data: Any) -> SampleResponse:
        named = data.get("sample_sequence_ids") if isinstance(data, dict) else None
        made = [f"{self._progress.request_id}:{index}" for index in range(self._form["num_samples"])]
        response = read_samples(data, named or made)
        check_answer(self._form, response)
        return response

    # ---- to the reader

    async def _give(
        self, index: int, tokens: list[int], logprobs: list[float] | None, stop: StopReason | None
    ) -> None:
        if not 0 <= index < len(self._given):
            raise InvalidArgumentError(f"sequence: there are {len(self._given)}, and no number {index}")
        self._given[index].add(tokens, stop)
        await self._channel.put(StreamedTokens(index, tokens, logprobs, stop))

    async def _rest(self, response: SampleResponse) -> None:
        """Hand on what the events left out: all of it, if there were none."""
        for index, (given, sequence) in enumerate(zip(self._given, response.sequences, strict=False)):
            if not given.begins(sequence):
                raise APIConnectionError(
                    message=f"The stream was cut off after {given.count} tokens of sequence {index}, and "
                    "the server's result does not begin with these: the sample cannot be continued."
                )
            if not given.ended:
                logprobs = sequence.logprobs
                await self._give(
                    index,
                    sequence.tokens[given.count :],
                    None if logprobs is None else logprobs[given.count :],
                    sequence.stop_reason,
                )


class _Given:
    """What was handed on of one sequence, as a count and a checksum."""

    __slots__ = ("_sum", "count", "ended")

    def __init__(self) -> None:
        self.count, self._sum, self.ended = 0, 0, False

    def __bool__(self) -> bool:
        return self.count > 0 or self.ended

    def add(self, tokens: list[int], stop: StopReason | None) -> None:
        self._sum = zlib.crc32(np.asarray(tokens, "<i4").tobytes(), self._sum)
        self.count += len(tokens)
        self.ended = self.ended or stop is not None

    def begins(self, sequence: SampledSequence) -> bool:
        """Whether the sequence starts with what was handed on."""
        same = zlib.crc32(np.asarray(sequence.tokens[: self.count], "<i4").tobytes()) == self._sum
        return same and len(sequence.tokens) >= self.count


def _unreadable(response: Response, why: str, data: str) -> APIResponseValidationError:
    return APIResponseValidationError(
        ResponseInfo(response.status, response.headers),
        data[:2000],
        f"An event of the stream cannot be read: {why}",
    )
