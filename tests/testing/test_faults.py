from __future__ import annotations

import asyncio
import json

import pytest

from tests.testing.asking import Asker
from tinkex.net.transport import Request
from tinkex.testing import FakeClock, FakeRequest, FakeService, HandlerTransport


async def _statuses(ask: Asker, count: int, name: str = "health") -> list[int]:
    return [(await ask(name)).status for _ in range(count)]


def test_a_fault_strikes_as_often_as_asked_then_the_next_takes_over() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        fault = service.faults.add(
            "health", status=503, times=2, then={"status": 429, "headers": {"Retry-After": "3"}, "times": 1}
        )
        answers = [await ask("health") for _ in range(4)]
        assert [answer.status for answer in answers] == [503, 503, 429, 200]
        assert answers[2].headers["retry-after"] == "3"
        assert json.loads(answers[0].body) == {"detail": "injected 503"}
        assert fault.used == 2
        assert not service.faults
        assert [call.status for call in service.calls] == [503, 503, 429, 200]

    asyncio.run(main())


def test_a_fault_can_pick_its_calls() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        service.faults.add("health", when=2, status=500)
        assert await _statuses(ask, 3) == [200, 500, 200]
        service.faults.add("*", when=lambda call: call.headers["x-api-key"] == "tml-bad", status=402)
        assert await _statuses(ask, 1) == [200]
        assert await _statuses(Asker(service, "tml-bad"), 2) == [402, 402]
        service.faults.clear()
        assert await _statuses(Asker(service, "tml-bad"), 1) == [200]

    asyncio.run(main())


def test_a_fault_lasts_while_inside_its_block() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        with service.faults.add(["health", "get_server_capabilities"], status=503):
            assert await _statuses(ask, 3) == [503, 503, 503]
            assert await _statuses(ask, 1, "get_server_capabilities") == [503]
        assert await _statuses(ask, 1) == [200]
        with pytest.raises(ValueError, match="no such route: helth"):
            service.faults.add("helth", status=503)

    asyncio.run(main())


def test_what_a_fault_sends() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        add = service.faults.add
        add("health", status=400, body=b"", times=1)
        empty = await ask("health")
        assert (empty.status, empty.body) == (400, b"")
        add("health", body="{not json", times=1)
        garbage = await ask("health")
        assert (garbage.status, garbage.body) == (200, b"{not json")
        add("health", drop=True, times=1)
        assert (await ask("health")).drop
        add("health", hang=True, times=1)
        assert (await ask("health")).hang
        add("health", delay=5, times=1)
        slow = await ask("health")
        assert (slow.status, slow.delay, slow.body) == (200, 5, b'{"status":"ok"}')
        add("health", headers={"X-Deprecation-Note": "old"}, times=1)
        assert (await ask("health")).headers["x-deprecation-note"] == "old"
        add("health", cut=3, times=1)
        assert (await ask("health")).cut == 3

    asyncio.run(main())


def test_an_answer_can_be_lost_after_the_work_was_done() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        model = await ask.model(await ask.session())
        service.faults.add("optim_step", drop=True, after=True, times=1)
        lost = await ask("optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}})
        assert lost.drop
        assert service.executed(model) == [1]
        await ask.step(model, 1)
        assert service.world.models[model].steps == 1

        service.pause("optim_step")
        ticket = await ask.step(model, 2)
        service.faults.add("retrieve_future", status=503, after=True, times=1)
        poll = asyncio.ensure_future(ask.poll(ticket))
        await asyncio.sleep(0)
        assert not poll.done()
        service.resume()
        assert (await poll).status == 503
        assert (await ask.poll(ticket)).status == 200

    asyncio.run(main())


def test_a_rate_limit_refuses_what_is_above_it() -> None:
    async def main() -> None:
        clock = FakeClock()
        service = FakeService(clock=clock)
        service.rate_limit("health", 2, retry_after=0.5)
        ask = Asker(service)
        assert await _statuses(ask, 4) == [200, 200, 429, 429]
        assert (await ask("health")).headers["retry-after"] == "0.5"
        await clock.advance(0.5)
        assert await _statuses(ask, 2) == [200, 429]
        await clock.advance(100)
        assert await _statuses(ask, 3) == [200, 200, 429]

    asyncio.run(main())


def test_a_delay_passes_on_the_transports_clock() -> None:
    async def main() -> None:
        clock = FakeClock(auto=True)
        service = FakeService(clock=clock)
        service.faults.add("health", delay=20)
        transport = HandlerTransport(service.handle, clock=clock)
        answer = await transport.send(Request("GET", "http://fake/api/v1/healthz"))
        assert answer.status == 200
        assert clock.elapsed == 20

    asyncio.run(main())


def test_calls_are_kept_with_their_bodies() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        model = await ask.model(await ask.session())
        await ask.train(model, 1, packed=True)
        await ask("optim_step", b"{broken")
        await service.handle(FakeRequest("POST", "/api/v1/nowhere", {}, {}, b'{"a":1}'))
        passed, step, nowhere = service.calls[-3:]
        assert (passed.body.loss_fn, passed.seq_id, passed.model_id) == ("cross_entropy", 1, model)
        assert (step.status, step.body, step.json) == (422, None, None)
        assert (nowhere.route, nowhere.status, nowhere.body) == ("", 404, {"a": 1})
        assert [call.index for call in service.calls] == list(range(len(service.calls)))
        assert service.calls_to("create_model")[0].body.base_model == "Qwen/Qwen3-8B"
        with pytest.raises(ValueError, match="no such route"):
            service.calls_to("creat_model")

        quiet = FakeService(record=False)
        await Asker(quiet).session()
        assert quiet.calls == []

    asyncio.run(main())
