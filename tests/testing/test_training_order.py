from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.testing.asking import DATUM, TEXT, Asker
from tinkex.testing import FakeClock, FakeService
from tinkex.testing.training_line import TrainingLine
from tinkex.wire import passes


def test_operations_run_in_ascending_order_whatever_order_they_come_in() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        model = await ask.model(await ask.session())
        tickets = {}
        for number in (3, 2, 4):
            tickets[number] = await ask.step(model, number)
        assert service.executed(model) == []
        assert service.world.models[model].line.held == [2, 3, 4]
        tickets[1] = await ask.step(model, 1)
        assert service.executed(model) == [1, 2, 3, 4]
        assert service.seq_ids(model) == [3, 2, 4, 1]
        steps = [(await ask.result(tickets[number]))["metrics"]["step"] for number in (1, 2, 3, 4)]
        assert steps == [1, 2, 3, 4]

    asyncio.run(main())


def test_a_repeated_operation_is_done_once_and_keeps_its_ticket() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        model = await ask.model(await ask.session())
        first = await ask.step(model, 1)
        again = await ask.step(model, 1)
        assert first == again
        assert service.world.models[model].steps == 1
        body = {"model_id": model, "seq_id": 2, "sampling_session_seq_id": 0}
        saved = await ask.ok("save_weights_for_sampler", body)
        retried = await ask.ok("save_weights_for_sampler", {**body, "sampling_session_seq_id": 7})
        assert saved == retried
        assert (await ask.result(saved))["sampling_session_id"].endswith(":sample:0")
        assert service.seq_ids(model) == [1, 1, 2, 2]

    asyncio.run(main())


def test_creations_are_deduplicated_by_their_own_keys() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        body = {"sdk_version": "x", "tags": []}
        key = {"x-idempotency-key": "one"}
        first = await ask.ok("create_session", body, headers=key)
        assert await ask.ok("create_session", body, headers=key) == first
        other = await ask.ok("create_session", body, headers={"x-idempotency-key": "two"})
        assert other != first
        session = first["session_id"]
        assert await ask.model(session) == await ask.model(session) == f"{session}:train:0"
        assert await ask.sampler(session) == await ask.sampler(session) == f"{session}:sample:0"
        sampler = f"{session}:sample:0"
        assert await ask.sample(sampler, 3) == await ask.sample(sampler, 3)
        graph = {"format": 1, "nodes": []}
        loss = {"session_id": session, "custom_loss_seq_id": 0, "name": "l", "inputs": [], "graph": graph}
        assert await ask.ok("create_custom_loss", loss) == await ask.ok("create_custom_loss", loss)
        assert list(service.world.sessions) == [session, other["session_id"]]
        assert service.world.sessions[session].models == [f"{session}:train:0"]

    asyncio.run(main())


def test_a_number_never_sent_is_given_up_after_a_while() -> None:
    async def main() -> None:
        clock = FakeClock()
        service = FakeService(clock=clock, skip_after=60, hold=100)
        ask = Asker(service)
        model = await ask.model(await ask.session())
        await ask.step(model, 1)
        third = await ask.step(model, 3)
        await ask.step(model, 5)
        await clock.advance(59)
        assert service.executed(model) == [1]
        await clock.advance(1)
        assert service.executed(model) == [1, 3]
        assert (await ask.result(third))["metrics"]["step"] == 2
        await clock.advance(60)
        assert service.executed(model) == [1, 3, 5]
        assert service.world.models[model].line.skipped == [2, 4]
        late = await ask.poll(await ask.step(model, 2))
        assert json.loads(late.body)["category"] == "user"
        assert "too late" in json.loads(late.body)["error"]
        assert service.executed(model) == [1, 3, 5]
        await ask.step(model, 6)
        assert service.executed(model) == [1, 3, 5, 6]

    asyncio.run(main())


def test_a_refused_operation_uses_up_its_number() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        model = await ask.model(await ask.session())
        service.faults.add("forward_backward", when=lambda call: call.seq_id == 2, status=400)
        assert (await ask.train(model, 2)).status == 400
        assert (await ask.train(model, 3)).status == 200
        assert (await ask.train(model, 1)).status == 200
        assert service.executed(model) == [1, 3]
        body = {"model_id": model, "seq_id": 4, "forward_backward_input": {"data": [], "loss_fn": "nope"}}
        refused = await ask("forward_backward", body)
        assert refused.status == 400
        assert b"'nope' is not a loss" in refused.body
        await ask.step(model, 5)
        assert service.executed(model) == [1, 3, 5]

    asyncio.run(main())


@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"status": 429}, {"status": 400, "body": b""}, {"drop": True}]
)
def test_a_number_that_will_be_sent_again_stays_free(fault: dict[str, Any]) -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        model = await ask.model(await ask.session())
        service.faults.add("optim_step", times=1, **fault)
        await ask("optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}})
        await ask.step(model, 2)
        assert service.executed(model) == []
        await ask.step(model, 1)
        assert service.executed(model) == [1, 2]

    asyncio.run(main())


def test_latency_keeps_the_order_and_one_model_does_not_wait_for_another() -> None:
    async def main() -> None:
        clock = FakeClock()
        service = FakeService(clock=clock, latency={"optim_step": 10.0})
        ask = Asker(service)
        session = await ask.session()
        models = [await ask.model(session, number) for number in (0, 1)]
        for model in models:
            for number in (1, 2):
                await ask.step(model, number)
        await clock.advance(10)
        assert [service.world.models[model].steps for model in models] == [1, 1]
        await clock.advance(10)
        assert [service.world.models[model].steps for model in models] == [2, 2]

    asyncio.run(main())


def test_a_model_created_by_loading_keeps_its_operations_until_it_exists() -> None:
    async def main() -> None:
        clock = FakeClock()
        service = FakeService(clock=clock, latency={"load_weights": 5.0})
        ask = Asker(service)
        session = await ask.session()
        model = await ask.model(session)
        await ask.step(model, 1)
        saved = await ask.result(
            await ask.ok("save_weights", {"model_id": model, "seq_id": 2, "path": "ck"})
        )
        body = {"session_id": session, "model_seq_id": 1, "path": saved["path"], "optimizer": True}
        ticket = await ask.ok("load_weights", body)
        assert await ask.ok("load_weights", body) == ticket
        other = f"{session}:train:1"
        await ask.step(other, 1)
        assert service.world.models[other].steps == 0
        await clock.advance(5)
        assert (await ask.result(ticket))["model_id"] == other
        assert service.world.models[other].steps == 2  # one loaded, one taken
        assert service.executed(other) == [1]

    asyncio.run(main())


def test_passes_travel_as_protobuf_packed_or_as_json() -> None:
    async def main() -> None:
        ask = Asker(FakeService())
        model = await ask.model(await ask.session())
        plain = json.loads((await ask.train(model, 1, 2)).body)
        packed = json.loads((await ask.train(model, 2, 2, packed=True)).body)
        old = await ask.ok(
            "forward_backward",
            {
                "model_id": model,
                "seq_id": 3,
                "forward_backward_input": {"data": [DATUM, DATUM], "loss_fn": "cross_entropy"},
            },
        )
        ahead = await ask.ok(
            "forward",
            {
                "model_id": model,
                "seq_id": 4,
                "forward_input": {"data": [DATUM, DATUM], "loss_fn": "cross_entropy"},
            },
        )
        results = [await ask.result(ticket) for ticket in (plain, packed, old, ahead)]
        assert all(result == results[0] for result in results)
        assert len(results[0]["loss_fn_outputs"]) == 2
        binary = passes.decode_output((await ask.poll(plain, binary=True)).body)
        assert binary.metrics == results[0]["metrics"]
        assert ask.service.world.models[model].passes == 3  # a forward pass leaves no gradients

    asyncio.run(main())


def test_bad_data_fails_the_work_as_the_users_fault() -> None:
    async def main() -> None:
        ask = Asker(FakeService())
        model = await ask.model(await ask.session())
        short = {"model_input": TEXT, "loss_fn_inputs": {"target_tokens": {"data": [1], "dtype": "int64"}}}
        body = {"model_id": model, "seq_id": 1, "forward_input": {"data": [short], "loss_fn": "ppo"}}
        failed = await ask.result(await ask.ok("forward", body))
        assert failed["category"] == "user"
        assert "do not fit" in failed["error"]
        missing = {"model_id": model, "seq_id": 2, "path": "tinker://x/weights/none", "optimizer": False}
        failed = await ask.result(await ask.ok("load_weights", missing))
        assert failed["category"] == "user"
        assert "not found" in failed["error"]
        for number, overwrite in ((3, False), (4, False), (5, True)):
            saved = await ask.result(
                await ask.ok(
                    "save_weights",
                    {"model_id": model, "seq_id": number, "path": "same", "overwrite": overwrite},
                )
            )
            assert ("error" in saved) == (number == 4)

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.sets(st.integers(1, 12)), st.sets(st.integers(1, 12)), st.randoms())
def test_any_order_with_any_holes_executes_each_number_once_ascending(
    count: int, refused: set[int], missing: set[int], chance: random.Random
) -> None:
    due: list[Any] = []
    line = TrainingLine(due.append)
    running: list[Any] = []
    line.enter(0, lambda ended: ended())
    arrivals = list(range(1, count + 1))
    chance.shuffle(arrivals)
    for number in arrivals:
        if number in refused:
            line.use_up(number)
        elif number not in missing:
            line.enter(number, running.append)
        if running and chance.random() < 0.5:
            running.pop()()
    while due or running:
        (running.pop() if running else due.pop(0))()
    expected = [number for number in range(1, count + 1) if number not in refused | missing]
    assert line.executed == [0, *expected]
    assert line.held == []
