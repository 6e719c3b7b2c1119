from __future__ import annotations

import asyncio
import json
import threading

from tests.testing.asking import Asker
from tinkex.testing import FakeClock, FakeServer, FakeService
from tinkex.types import SamplingSessionFuturesTarget
from tinkex.wire.headers import PROTOBUF
from tinkex.wire.passes import decode_output
from tinkex.wire.samples import decode_sample_response


def test_a_poll_is_held_then_told_to_try_again() -> None:
    async def main() -> None:
        clock = FakeClock()
        service = FakeService(clock=clock, hold=30)
        ask = Asker(service)
        sampler = await ask.sampler(await ask.session())
        service.pause("asample")
        ticket = await ask.sample(sampler)
        service.queue_state = ("paused_capacity", "all busy")
        poll = asyncio.ensure_future(ask.poll(ticket))
        await clock.advance(29)
        assert not poll.done()
        await clock.advance(1)
        answer = await poll
        assert answer.status == 408
        assert json.loads(answer.body) == {
            "type": "try_again",
            "request_id": ticket["request_id"],
            "queue_state": "paused_capacity",
            "queue_state_reason": "all busy",
        }
        polls = [asyncio.ensure_future(ask.poll(ticket)) for _ in range(3)]
        await clock.advance(1)
        service.resume()
        assert [(await each).status for each in polls] == [200, 200, 200]
        assert (await ask.poll(ticket)).status == 200  # a result can be fetched again
        await clock.advance(0)
        assert clock.sleeping == 0

    asyncio.run(main())


def test_results_follow_what_the_client_accepts() -> None:
    async def main() -> None:
        for service, binary in ((FakeService(), True), (FakeService(json_only=True), False)):
            ask = Asker(service)
            session = await ask.session()
            ticket = await ask.sample(await ask.sampler(session), num_samples=2)
            wanted = await ask.poll(ticket, binary=True)
            plain = await ask.poll(ticket)
            assert plain.headers["content-type"] == "application/json"
            assert (wanted.headers["content-type"] == PROTOBUF) == binary
            if binary:
                decoded = decode_sample_response(wanted.body, ticket["sample_sequence_ids"])
                listed = json.loads(plain.body)["sequences"]
                assert [sequence.tokens for sequence in decoded.sequences] == [
                    each["tokens"] for each in listed
                ]
            else:
                assert wanted.body == plain.body

    asyncio.run(main())


def test_large_results_are_announced_first_if_allowed() -> None:
    async def main() -> None:
        ask = Asker(FakeService(large_result=100))
        model = await ask.model(await ask.session())
        ticket = json.loads((await ask.train(model, 1, 50)).body)
        announced = await ask.poll(ticket, binary=True, allow_metadata_only=True)
        size = json.loads(announced.body)["response_payload_size"]
        assert json.loads(announced.body)["status"] == "complete_metadata"
        full = await ask.poll(ticket, binary=True, allow_metadata_only=False)
        assert len(full.body) == size > 100
        assert len(decode_output(full.body).loss_fn_outputs) == 50
        small = await ask.step(model, 2)
        assert (await ask.poll(small, allow_metadata_only=True)).body.startswith(b'{"metrics"')

    asyncio.run(main())


def test_unknown_foreign_and_lost_results() -> None:
    async def main() -> None:
        service = FakeService()
        ask, stranger = Asker(service), Asker(service, "tml-other")
        ticket = await ask.sample(await ask.sampler(await ask.session()))
        assert (await ask.poll({"request_id": "nothing"})).status == 404
        assert (await stranger.poll(ticket)).status == 404
        assert (await ask.poll(ticket)).status == 200
        service.lose(ticket["request_id"])
        assert (await ask.poll(ticket)).status == 410

    asyncio.run(main())


def test_a_failed_or_lost_future_can_be_ordered() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        sampler = await ask.sampler(await ask.session())
        service.faults.add("asample", when=1, fail=("out of memory", "server"))
        service.faults.add("asample", when=2, lose=True)
        tickets = [await ask.sample(sampler, number) for number in range(3)]
        failed = await ask.result(tickets[0])
        assert failed == {"error": "out of memory", "category": "server"}
        assert (await ask.poll(tickets[1])).status == 410
        assert (await ask.poll(tickets[2])).status == 200
        many = await ask.ok("retrieve_futures", {"target": _target(sampler), "prev_cursor": 0})
        assert [(each["state"], each["request_id"]) for each in many["completions"]] == [
            ("failed", tickets[0]["request_id"]),
            ("failed", tickets[1]["request_id"]),
            ("finished", tickets[2]["request_id"]),
        ]

    asyncio.run(main())


def _target(sampler: str, clone: int = 0) -> SamplingSessionFuturesTarget:
    return SamplingSessionFuturesTarget(sampling_session_id=sampler, cloned_sampler_id=clone)


def test_many_results_are_waited_for_at_once() -> None:
    async def main() -> None:
        clock = FakeClock()
        service = FakeService(clock=clock, hold=30, latency={"asample": 4.0})
        ask = Asker(service)
        sampler = await ask.sampler(await ask.session())
        wait = asyncio.ensure_future(ask.ok("retrieve_futures", {"target": _target(sampler)}))
        await clock.advance(30)
        assert await wait == {"completions": [], "cursor": 0}

        first = await ask.sample(sampler, 0)
        clone = await ask.sample(sampler, 2_000_000_000)
        wait = asyncio.ensure_future(ask.ok("retrieve_futures", {"target": _target(sampler)}))
        await clock.advance(4)
        got = await wait
        size = len((await ask.poll(first, binary=True)).body)
        assert got["completions"] == [
            {
                "state": "finished",
                "request_id": first["request_id"],
                "response_payload_uncompressed_size": size,
            }
        ]
        of_clone = await ask.ok("retrieve_futures", {"target": _target(sampler, 2)})
        assert [each["request_id"] for each in of_clone["completions"]] == [clone["request_id"]]

        second = await ask.sample(sampler, 1)
        body = {
            "target": _target(sampler),
            "prev_cursor": got["cursor"],
            "retrieved_request_ids": [first["request_id"]],
        }
        wait = asyncio.ensure_future(ask.ok("retrieve_futures", body))
        await clock.advance(4)
        more = await wait
        assert [each["request_id"] for each in more["completions"]] == [second["request_id"]]
        assert more["cursor"] > got["cursor"]
        assert (await ask.poll(first)).status == 404  # its owner said it has it
        assert (await ask("retrieve_futures", {"target": _target("none")})).status == 404

    asyncio.run(main())


def test_a_cancelled_sample_ends() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        sampler = await ask.sampler(await ask.session())
        service.pause("asample")
        ticket = await ask.sample(sampler)
        poll = asyncio.ensure_future(ask.poll(ticket))
        await asyncio.sleep(0)
        await ask.ok("cancel_future", {"request_id": ticket["request_id"]})
        assert json.loads((await poll).body)["category"] == "user"
        assert (await ask("cancel_future", {"request_id": "none"})).status == 404
        service.resume()
        assert "cancelled" in json.loads((await ask.poll(ticket)).body)["error"]

    asyncio.run(main())


def test_old_results_are_forgotten_when_many_were_fetched() -> None:
    async def main() -> None:
        ask = Asker(FakeService(keep_results=2))
        sampler = await ask.sampler(await ask.session())
        tickets = [await ask.sample(sampler, number) for number in range(4)]
        for ticket in tickets:
            await ask.result(ticket)
        assert [(await ask.poll(ticket)).status for ticket in tickets] == [404, 404, 200, 200]

    asyncio.run(main())


def test_work_can_be_released_and_lost_from_another_thread() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        sampler = await ask.sampler(await ask.session())
        service.pause("asample")
        tickets = [await ask.sample(sampler, number) for number in (0, 1)]
        polls = [asyncio.ensure_future(ask.poll(ticket)) for ticket in tickets]
        await asyncio.sleep(0)

        def elsewhere() -> None:
            service.lose(tickets[0]["request_id"])
            service.resume()

        thread = threading.Thread(target=elsewhere)
        thread.start()
        assert [(await asyncio.wait_for(each, 10)).status for each in polls] == [410, 200]
        thread.join()

    asyncio.run(main())


def test_a_thread_can_wait_for_calls() -> None:
    with FakeServer(FakeService()) as server:
        import urllib.request

        def ask() -> None:
            urllib.request.urlopen(f"{server.base_url}/api/v1/healthz").read()

        thread = threading.Thread(target=ask)
        thread.start()
        (call,) = server.service.calls.wait_for("health")
        assert (call.method, call.path) == ("GET", "/api/v1/healthz")
        thread.join()
