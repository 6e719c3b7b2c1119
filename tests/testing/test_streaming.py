from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any

import pytest

from tests.testing.asking import SAMPLE, Asker
from tinkex.errors import APIConnectionError
from tinkex.net.sse import ServerEvent, SseDecoder
from tinkex.net.transport import Request
from tinkex.testing import FakeClock, FakeServer, FakeService, HandlerTransport

KEY = {"X-API-Key": "tml-test", "Content-Type": "application/json"}


def ask_for(sampler: str, **more: Any) -> Request:
    body = json.dumps({**SAMPLE, "num_samples": 2, "sampling_session_id": sampler, "seq_id": 0, **more})
    return Request("POST", "http://fake/api/v1/asample_stream", KEY, body.encode(), stream=True)


async def events(transport: HandlerTransport, request: Request) -> list[ServerEvent]:
    answer = await transport.send(request)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.chunks is not None
    decoder, found = SseDecoder(), []
    async for piece in answer.chunks:
        found += decoder.feed(piece)
    return found


def test_tokens_come_one_by_one_and_are_the_same_as_in_one_answer() -> None:
    async def main() -> None:
        clock = FakeClock(auto=True)
        service = FakeService(clock=clock, latency={"asample": 75.0})
        service.stream_pace = 0.5
        ask = Asker(service)
        sampler = await ask.sampler(await ask.session())
        found = await events(HandlerTransport(service.handle, clock=clock), ask_for(sampler))
        assert [event.event for event in found] == ["tokens"] * 8 + ["done"]
        assert clock.elapsed == pytest.approx(75 + 0.5 * 9)
        pieces = [json.loads(event.data) for event in found]
        done = pieces.pop()
        for number, sequence in enumerate(done["sequences"]):
            own = [piece for piece in pieces if piece["sequence"] == number]
            assert [token for piece in own for token in piece["tokens"]] == sequence["tokens"]
            logprobs = [value for piece in own for value in piece["logprobs"]]
            assert logprobs == pytest.approx(sequence["logprobs"])
            assert [piece.get("stop_reason") for piece in own] == [None, None, None, "length"]
        ticket = await ask.sample(sampler, 0, num_samples=2)
        assert ticket["sample_sequence_ids"] == done["sample_sequence_ids"]
        assert (await ask.result(ticket))["sequences"] == done["sequences"]

    asyncio.run(main())


def test_a_stream_can_fail_be_cut_and_be_missing() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        sampler = await ask.sampler(await ask.session())
        transport = HandlerTransport(service.handle)
        service.faults.add("sample_stream", fail=("no luck", "user"), times=1)
        (failed,) = await events(transport, ask_for(sampler))
        assert failed.event == "error"
        assert json.loads(failed.data) == {"error": "no luck", "category": "user"}
        service.faults.add("sample_stream", cut=100, times=1)
        with pytest.raises(APIConnectionError, match="middle"):
            await events(transport, ask_for(sampler, seq_id=1))
        assert (await ask.sample(sampler, 1))["request_id"] == f"{sampler}:1"
        plain = Asker(FakeService(without=["sample_stream"]))
        assert (await plain("sample_stream", SAMPLE)).status == 404

    asyncio.run(main())


def test_streams_go_over_http_and_the_connection_lives_on() -> None:
    with FakeServer() as server:
        link = http.client.HTTPConnection(server.base_url.removeprefix("http://"), timeout=10)

        def post(path: str, body: Any) -> bytes:
            link.request("POST", f"/api/v1/{path}", json.dumps(body), KEY)
            return link.getresponse().read()

        post("create_session", {"sdk_version": "1"})
        opened = {"session_id": "sess-1", "sampling_session_seq_id": 0, "base_model": "x"}
        post("create_sampling_session", opened)
        body = {**SAMPLE, "sampling_session_id": "sess-1:sample:0"}
        for number in range(3):
            found = SseDecoder().feed(post("asample_stream", {**body, "seq_id": number}))
            assert [event.event for event in found] == ["tokens"] * 4 + ["done"]
        server.service.faults.add("sample_stream", cut=50, times=1)
        with pytest.raises(http.client.IncompleteRead):
            post("asample_stream", {**body, "seq_id": 3})
        link.close()
        assert server.accepted == 1
