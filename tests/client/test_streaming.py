"""Samples token by token: as they come, no faster than they are read, whole in the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig
from tinkex import ModelInput, SamplingClient, SamplingParams, ServiceClient, types
from tinkex.client.portal import portal
from tinkex.client.streaming import SampleStream, StreamedTokens
from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    BadRequestError,
    ClientClosedError,
    InvalidArgumentError,
    NotFoundError,
    RequestFailedError,
    UnsupportedByServerError,
)
from tinkex.net.transport import Request, Response
from tinkex.notices import TinkexWarning, forget_notices
from tinkex.testing import FakeServer, FakeService
from tinkex.wire.jsonbody import encode

PROMPT = ModelInput.from_ints([1, 2, 3])
PARAMS = SamplingParams(max_tokens=12, seed=5)


def sampler(client: ServiceClient) -> SamplingClient:
    return client.create_sampling_client(base_model="Qwen/Qwen3-8B")


def joined(items: list[StreamedTokens], sequence: int = 0) -> list[int]:
    return [token for item in items if item.sequence == sequence for token in item.tokens]


def until(condition: Callable[[], bool]) -> None:
    """Let other threads go on until something is true."""
    reached = threading.Event()
    for _ in range(int(WAIT * 200)):
        if condition():
            return
        reached.wait(0.005)
    raise AssertionError("it never happened")


# ---- reading


def test_tokens_come_one_by_one_and_the_response_at_the_end():
    client = sampler(Rig().client())
    expected = client.sample(PROMPT, 1, PARAMS).result(WAIT)
    stream = client.sample_stream(PROMPT, PARAMS)
    items = []
    for item in stream:
        assert stream.response is None
        items.append(item)
    assert [len(item.tokens) for item in items] == [1] * 12
    assert [item.stop_reason for item in items] == [None] * 11 + ["length"]
    assert stream.response is not None
    (sequence,) = stream.response.sequences
    assert sequence.tokens == expected.sequences[0].tokens == joined(items)
    assert sequence.logprobs == [logprob for item in items for logprob in item.logprobs or []]
    assert sequence.sequence_id == f"{stream.request_id}:0"
    assert list(stream) == []


def test_reading_with_async_for():
    client = sampler(Rig().client())

    async def read() -> tuple[list[StreamedTokens], SampleStream]:
        stream = client.sample_stream(PROMPT, PARAMS)
        return [item async for item in stream], stream

    items, stream = asyncio.run(read())
    assert stream.response is not None
    assert joined(items) == stream.response.sequences[0].tokens
    assert len(items) == 12


def test_several_sequences_are_told_apart():
    client = sampler(Rig().client())
    stream = client.sample_stream(PROMPT, PARAMS, num_samples=3)
    items = list(stream)
    assert stream.response is not None
    assert {item.sequence for item in items} == {0, 1, 2}
    for index, sequence in enumerate(stream.response.sequences):
        assert joined(items, index) == sequence.tokens
        assert [item.stop_reason for item in items if item.sequence == index][-1] == "length"


def test_what_was_asked_about_the_prompt_is_in_the_response():
    client = sampler(Rig().client())
    options = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 3}
    expected = client.sample(PROMPT, 1, PARAMS, **options, prompt_alt_tokens_k=2).result(WAIT)
    stream = client.sample_stream(PROMPT, PARAMS, **options, prompt_alt_tokens_k=2)
    list(stream)
    response = stream.response
    assert response is not None
    assert response.prompt_logprobs == pytest.approx(expected.prompt_logprobs)
    assert response.topk_prompt_logprobs is not None
    assert response.sequences[0].topk_logprobs == expected.sequences[0].topk_logprobs is not None
    assert response.prompt_alt_tokens is not None
    assert expected.prompt_alt_tokens is not None
    assert response.prompt_alt_tokens.tokens.equals(expected.prompt_alt_tokens.tokens)


@pytest.mark.parametrize("change", [{"num_samples": 0}, {"buffer": 0}, {"prompt_logprobs_last_n": 2}])
def test_arguments_are_checked_at_call_time(change: dict[str, Any]):
    client = sampler(Rig().client())
    with pytest.raises(InvalidArgumentError):
        client.sample_stream(PROMPT, PARAMS, **change)


def test_blocking_iteration_inside_a_loop_is_pointed_out():
    rig = Rig()
    client = sampler(rig.client())
    rig.service.pause("sample_stream", "asample")
    forget_notices()

    async def wrong() -> None:
        stream = client.sample_stream(PROMPT, PARAMS)
        threading.Timer(0.05, rig.service.resume).start()
        next(stream)
        stream.close()

    with pytest.warns(TinkexWarning, match="async for"):
        asyncio.run(wrong())


# ---- servers without streams


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_the_route_gives_one_item(status: int):
    rig = Rig()
    client = sampler(rig.client())
    rig.service.faults.add("sample_stream", status=status)
    for _ in range(2):
        stream = client.sample_stream(PROMPT, PARAMS)
        (item,) = list(stream)
        assert item.stop_reason == "length"
        assert stream.response is not None
        assert item.tokens == stream.response.sequences[0].tokens
        assert item.logprobs == stream.response.sequences[0].logprobs
    assert len(rig.service.calls_to("sample_stream")) == 1  # and is not asked again
    assert [call.json["seq_id"] for call in rig.service.calls_to("asample")] == [0, 1]


def test_a_page_instead_of_events_counts_as_no_route():
    rig = Rig()
    client = sampler(rig.client())
    rig.service.faults.add(
        "sample_stream", body=b"<html>hello</html>", headers={"content-type": "text/html"}
    )
    (item,) = list(client.sample_stream(PROMPT, PARAMS))
    assert len(item.tokens) == 12


def test_404_about_the_sampler_is_not_taken_for_a_missing_route():
    rig = Rig()
    client = sampler(rig.client())
    with rig.service.faults.add(["sample_stream", "asample"], status=404):
        stream = client.sample_stream(PROMPT, PARAMS)
        with pytest.raises(NotFoundError):
            next(stream)
        assert list(stream) == []
    assert len(list(client.sample_stream(PROMPT, PARAMS))) == 12
    assert len(rig.service.calls_to("sample_stream")) == 2


# ---- failures


def test_a_refusal_is_raised_where_the_stream_is_read():
    rig = Rig()
    client = sampler(rig.client())
    rig.service.faults.add("sample_stream", status=400, body={"detail": "no"})
    stream = client.sample_stream(PROMPT, PARAMS)
    with pytest.raises(BadRequestError, match="no"):
        next(stream)
    assert stream.response is None


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_under_the_same_key(status: int):
    rig = Rig()
    client = sampler(rig.client())
    rig.service.faults.add("sample_stream", status=status, times=3)
    assert len(list(client.sample_stream(PROMPT, PARAMS))) == 12
    calls = rig.service.calls_to("sample_stream")
    assert len(calls) == 4
    assert len({call.headers["x-idempotency-key"] for call in calls}) == 1
    assert {call.json["seq_id"] for call in calls} == {0}


def test_failed_work_is_an_error_with_its_category():
    rig = Rig()
    client = sampler(rig.client())
    rig.service.faults.add("sample_stream", fail=("too hot", "user"))
    with pytest.raises(RequestFailedError, match="too hot") as caught:
        list(client.sample_stream(PROMPT, PARAMS))
    assert caught.value.category == "user"
    assert caught.value.request_id


def test_a_failure_of_the_server_before_the_first_token_is_asked_for_anew():
    rig = Rig()
    client = sampler(rig.client())
    rig.service.faults.add("sample_stream", fail=("lost a disk", "server"), times=1)
    stream = client.sample_stream(PROMPT, PARAMS)
    assert len(joined(list(stream))) == 12
    assert [call.json["seq_id"] for call in rig.service.calls_to("sample_stream", "asample")] == [0, 1]


def test_an_option_the_server_ignores_is_noticed():
    client = sampler(Scripted(done()).client())
    with pytest.raises(UnsupportedByServerError, match="prompt_alt_tokens_k"):
        list(client.sample_stream(PROMPT, PARAMS, prompt_alt_tokens_k=2))


@pytest.mark.parametrize("cut", range(0, 900, 45))
def test_a_stream_cut_anywhere_is_completed_by_the_ordinary_way(cut: int):
    rig = Rig()
    client = sampler(rig.client())
    rig.service.faults.add("sample_stream", cut=cut, times=1)
    stream = client.sample_stream(PROMPT, PARAMS)
    items = list(stream)
    assert stream.response is not None
    assert joined(items) == stream.response.sequences[0].tokens
    assert [item.stop_reason for item in items].count("length") == 1
    assert len(items) <= 13
    if rig.service.calls_to("asample"):
        assert [call.json["seq_id"] for call in rig.service.calls_to("asample")] == [0]


def test_a_continuation_that_does_not_fit_is_an_error():
    rig = Rig()
    client = sampler(rig.client())
    first = tokens_event([1, 2, 3])
    scripted = Scripted(first)
    stream = sampler(scripted.client()).sample_stream(PROMPT, PARAMS)
    assert next(stream).tokens == [1, 2, 3]
    with pytest.raises(APIConnectionError, match="cannot be continued"):
        next(stream)
    assert len(list(client.sample_stream(PROMPT, PARAMS))) == 12


@pytest.mark.parametrize(
    "event",
    [
        b"event: tokens\ndata: {\n\n",
        b'event: tokens\ndata: {"tokens": "x"}\n\n',
        b'event: tokens\ndata: {"sequence": 1, "tokens": [1]}\n\n',
        b'event: tokens\ndata: {"sequence": -1, "tokens": [1]}\n\n',
        b'event: tokens\ndata: {"tokens": [99999999999]}\n\n',
        b"event: done\ndata: {}\n\n",
        b"event: error\ndata: []\n\n",
    ],
)
def test_events_that_cannot_be_read_are_errors(event: bytes):
    stream = sampler(Scripted(event).client()).sample_stream(PROMPT, PARAMS)
    with pytest.raises(APIResponseValidationError, match="cannot be read"):
        next(stream)


def test_events_of_tomorrow_are_passed_over():
    stream = sampler(Scripted(b'event: thoughts\ndata: {"x": 1}\n\n', done()).client()).sample_stream(
        PROMPT, PARAMS
    )
    assert joined(list(stream)) == [7, 8]


def test_null_logprobs_are_none():
    event = b'event: tokens\ndata: {"sequence":0,"tokens":[7],"logprobs":null,"stop_reason":null}\n\n'
    first, last = sampler(Scripted(event, done()).client()).sample_stream(PROMPT, PARAMS)
    assert first == StreamedTokens(0, [7])
    assert last == StreamedTokens(0, [8], None, "stop")


# ---- incremental parsing, backpressure, leaving early


def done(tokens: tuple[int, ...] = (7, 8)) -> bytes:
    result = {"type": "sample", "sequences": [{"stop_reason": "stop", "tokens": list(tokens)}]}
    return b"event: done\ndata: " + encode(result) + b"\n\n"


def tokens_event(tokens: list[int]) -> bytes:
    return b"event: tokens\ndata: " + encode({"sequence": 0, "tokens": tokens}) + b"\n\n"


class Scripted(Rig):
    """A service whose streams send the given pieces; counts how many were asked for, and closed."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
        self.pieces: Any = pieces
        self.sent = 0
        self.closed = threading.Event()

    def transport(self, config: Any) -> Any:
        return Wrapped(self, super().transport(config))


class Wrapped:
    def __init__(self, rig: Scripted, inner: Any) -> None:
        self._rig, self._inner = rig, inner

    async def send(self, request: Request) -> Response:
        if not request.url.endswith("/asample_stream"):
            return await self._inner.send(request)
        return Response(200, {"content-type": "text/event-stream"}, chunks=self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        try:
            for piece in self._rig.pieces:
                await asyncio.sleep(0)
                self._rig.sent += 1
                yield piece
        finally:
            self._rig.closed.set()

    async def close(self) -> None:
        await self._inner.close()


def test_the_same_items_however_the_bytes_are_cut():
    whole = b"".join([tokens_event([1]), b": keep alive\n\n", tokens_event([2, 3]), done((1, 2, 3, 4))])
    expected = [([1], None), ([2, 3], None), ([4], "stop")]
    for size in (1, 2, 3, 7, 50):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        stream = sampler(Scripted(*pieces).client()).sample_stream(PROMPT, PARAMS)
        assert [(item.tokens, item.stop_reason) for item in stream] == expected


def test_a_slow_reader_stops_the_reads():
    rig = Scripted()
    rig.pieces = (tokens_event([number]) for number in range(10_000))
    stream = sampler(rig.client()).sample_stream(PROMPT, PARAMS, buffer=16)
    until(lambda: rig.sent >= 17)  # the buffer is full, and one more is in the writer's hand
    for _ in range(20):
        portal().run(asyncio.sleep(0))
    assert rig.sent == 17
    assert [next(stream).tokens for _ in range(8)] == [[number] for number in range(8)]
    until(lambda: rig.sent >= 25)
    for _ in range(20):
        portal().run(asyncio.sleep(0))
    assert rig.sent == 25
    stream.close()


def _held_by_streams() -> int:
    """Bytes allocated by the modules a stream goes through."""
    files = ("*/client/streaming.py", "*/client/channel.py", "*/net/sse.py")
    filters = [tracemalloc.Filter(True, pattern) for pattern in files]
    return sum(
        each.size for each in tracemalloc.take_snapshot().filter_traces(filters).statistics("filename")
    )


def test_a_long_stream_takes_no_more_memory_than_a_short_one():
    count = 10_000
    gc.collect()  # the clients of other tests, whose heartbeats never end
    rig = Scripted()
    rig.pieces = (
        tokens_event([number % 4096]) if number < count else done(tuple(n % 4096 for n in range(count)))
        for number in range(count + 1)
    )
    stream = sampler(rig.client()).sample_stream(PROMPT, PARAMS, buffer=32)
    sizes = []
    tracemalloc.start()
    try:
        for index, item in enumerate(stream):
            if index in (500, count - 500):
                sizes.append(_held_by_streams())
            assert item.tokens == ([index % 4096] if index < count else [])
            assert rig.sent <= index + 34  # the first was read long before the last was sent
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 10_000
    assert stream.response is not None
    assert len(stream.response.sequences[0].tokens) == count


@pytest.mark.parametrize("how", ["close", "with", "drop", "async"])
def test_leaving_early_drops_the_connection(how: str):
    rig = Scripted()
    rig.pieces = (tokens_event([number % 100]) for number in range(10**9))
    client = sampler(rig.client())
    stream = client.sample_stream(PROMPT, PARAMS, buffer=4)
    next(stream)
    assert not rig.closed.is_set()
    if how == "close":
        stream.close()
        stream.close()
        assert list(stream) == []
    elif how == "with":
        with stream:
            next(stream)
    elif how == "async":

        async def leave() -> None:
            async with stream:
                await anext(stream)

        asyncio.run(leave())
    else:
        del stream
        gc.collect()
    assert rig.closed.wait(WAIT)
    until(lambda: client._runner._gate is not None and client._runner._gate.inside == 0)


def test_closing_wakes_a_reader_in_another_thread():
    rig = Rig()
    client = sampler(rig.client())
    rig.service.pause("asample", "sample_stream")
    stream = client.sample_stream(PROMPT, PARAMS)
    read: list[Any] = []
    reader = threading.Thread(target=lambda: read.append(list(stream)))
    reader.start()
    until(lambda: bool(rig.service.calls_to("sample_stream")))
    stream.close()
    reader.join(WAIT)
    assert read == [[]]


def test_a_cancelled_reader_loses_no_item():
    rig = Rig()
    client = sampler(rig.client())
    rig.service.pause("asample", "sample_stream")

    async def read() -> list[int]:
        stream = client.sample_stream(PROMPT, PARAMS)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
        rig.service.resume()
        return [token async for item in stream for token in item.tokens]

    tokens = asyncio.run(read())
    assert tokens == client.sample(PROMPT, 1, PARAMS).result(WAIT).sequences[0].tokens


def test_a_closed_service_client_is_an_error_not_a_hang():
    service_client = Rig().client()
    client = sampler(service_client)
    service_client.close().result(WAIT)
    with pytest.raises(ClientClosedError):
        list(client.sample_stream(PROMPT, PARAMS))


# ---- over a socket


def test_over_http_with_a_reader_that_waits():
    service = FakeService(config=types.ClientConfigResponse())
    with FakeServer(service) as server:
        client = ServiceClient(base_url=server.base_url, api_key="tml-x", telemetry=False)
        made = sampler(client)
        params = SamplingParams(max_tokens=10_000, seed=1)
        stream = made.sample_stream(PROMPT, params, buffer=8)
        first = next(stream)
        items = [first, *stream]
        assert stream.response is not None
        assert joined(items) == stream.response.sequences[0].tokens
        assert len(items) == 10_000
        with made.sample_stream(PROMPT, params) as another:
            next(another)
        until(lambda: len(server.connections) <= 2)
        client.close().result(WAIT)


def test_the_request_says_that_events_are_wanted():
    rig = Rig()
    list(sampler(rig.client()).sample_stream(PROMPT, PARAMS))
    (call,) = rig.service.calls_to("sample_stream")
    assert call.headers["accept"] == "text/event-stream"
    assert call.json["type"] == "sample"
