"""A server that died or was stopped goes on where it was: queues, results, numbers, sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tinkex.engine.messages import OptimStep, SaveSampler, Train
from tinkex.server.boots import BOOT, this_boot
from tinkex.server.records import ModelRow, OperationRow
from tinkex.testing import MemoryStore

from .machine import Machine, running
from .test_recovery import state_of

STORES = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@STORES
def test_what_waited_when_the_server_died_runs_in_the_next(kind: str, tmp_path: Path):
    @running(kind=kind)
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await ann.model()
        done = await ann.done(await ann.train(model, 1))
        server.engine.hold(Train, OptimStep)
        tickets = [await ann.train(model, 2), await ann.step(model, 3), await ann.train(model, 4)]
        await server.restart()
        assert await ann.done(f"{model}:1") == done
        results = [await ann.done(each) for each in tickets]
        assert results[1]["metrics"]["step:max"] == 1.0
        assert state_of(server.engine).steps == 1
        assert server.service.queued["ann"] == [0, 0]

    scenario(tmp_path=tmp_path)


@STORES
def test_a_server_that_was_stopped_goes_on_too(kind: str, tmp_path: Path):
    @running(kind=kind)
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await ann.model()
        await ann.train(model, 1)
        await ann.done(await ann.step(model, 2))
        before = state_of(server.engine)
        await server.reopen()
        await ann.done(await ann.train(model, 3))
        assert state_of(server.engine).weights == before.weights
        assert state_of(server.engine).steps == 1

    scenario(tmp_path=tmp_path)


@running(kind="sqlite")
async def test_results_read_the_same_after_a_restart(server: Machine):
    ann = server.ann
    model = await ann.model()
    tickets = [await ann.train(model, 1), await ann.step(model, 2), await ann.save(model, 3, "a")]
    server.engine.fail_next(SaveSampler, "full")
    tickets.append(await ann.freeze(model, 4, name="b"))
    for each in tickets:
        await ann.result(each)
    before = [(await ann.poll(each, binary=b)).body for each in tickets for b in (True, False)]
    await server.restart()
    assert [(await ann.poll(each, binary=b)).body for each in tickets for b in (True, False)] == before


@running()
async def test_numbers_given_up_before_a_restart_are_not_waited_for_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(OptimStep)
    waiting = await ann.step(model, 2)
    await server.wait(11)
    assert server.service.world.models[model].row.skipped == [1]
    await server.restart()
    await ann.done(waiting)
    late = await ann.result(await ann.train(model, 1))
    assert "too late" in late["error"]


@running()
async def test_an_operation_that_can_no_longer_be_done_fails_after_a_restart(server: Machine):
    ann = server.ann
    model = await ann.model()
    saved = (await ann.done(await ann.save(model, 1, "a")))["path"]
    server.engine.hold(OptimStep)
    await ann.step(model, 2)
    load = await ann.load(model, 3, saved)
    after = await ann.step(model, 4)
    await ann.ok("delete_checkpoint", training_run_id=model, checkpoint_id="weights/a")
    await server.restart()
    failed = await ann.result(load)
    assert failed["category"] == "server"
    assert "not found" in failed["error"]
    await ann.done(after)


@running()
async def test_time_the_server_was_down_does_not_end_sessions(server: Machine):
    ann = server.ann
    model = await ann.model()
    await server.crash()
    server.clock.advance(7 * 24 * 3600)
    await server.start()
    await server.wait(15)
    await ann.done(await ann.train(model, 1))


@running()
async def test_an_idempotency_key_gives_the_same_session_after_a_restart(server: Machine):
    ann = server.ann
    body = {"sdk_version": "0.36.0", "tags": []}
    headers = {"X-Idempotency-Key": "k-1"}
    first = await ann.ok("create_session", body, headers=headers)
    assert await ann.ok("create_session", body, headers=headers) == first
    await server.restart()
    assert await ann.ok("create_session", body, headers=headers) == first
    assert (await server.bob.ok("create_session", body, headers=headers)) != first


@running()
async def test_a_store_that_cannot_write_for_a_while_loses_nothing(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    server.store.failing = "disk full"
    sending = asyncio.ensure_future(ann.train(model, 2))
    again = asyncio.ensure_future(ann.train(model, 2))
    await server.settle()
    assert not sending.done()
    assert not again.done()  # it is answered when it is written, and not before
    server.store.failing = None
    await server.wait(30)
    assert await sending == await again == f"{model}:2"
    await ann.done(f"{model}:2")
    await ann.done(await ann.step(model, 3))
    before = state_of(server.engine)
    await server.restart()
    assert (await server.store.get(OperationRow, f"{model}:2")).state == "done"
    assert state_of(server.engine) == before


@running()
async def test_work_of_an_ended_session_that_the_server_died_over_has_failed(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    server.engine.hold(Train)
    ticket = await ann.train(model, 1)
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    await server.restart()
    failed = await ann.result(ticket)
    assert failed["category"] == "server"
    assert "session has ended" in failed["error"]
    assert await ann.result(ticket) == failed
    assert (await server.store.get(OperationRow, ticket)).state == "failed"


@running(kind="sqlite")
async def test_a_session_asked_for_twice_at_once_is_one_session(server: Machine):
    ann = server.ann
    body, headers = {"sdk_version": "0.36.0", "tags": []}, {"X-Idempotency-Key": "k-1"}
    made = await asyncio.gather(*(ann.ok("create_session", body, headers=headers) for _ in range(5)))
    assert len({each["session_id"] for each in made}) == 1
    assert len(server.service.world.sessions) == 1
    other = await ann.ok("create_session", body, headers={"X-Idempotency-Key": "k-2"})
    assert other != made[0]


def another_boot(server: Machine) -> None:
    """What the server finds says that the machine was started since."""
    note = server.state / BOOT
    assert note.read_text() == f"{this_boot()} process\n"
    note.write_text("another process\n")


async def behind(server: Machine, model: str) -> None:
    """Start again on a store that lacks the last operation, which its client knows to be done."""
    ann = server.ann
    await ann.done(await ann.train(model, 1))
    assert isinstance(server.store, MemoryStore)
    older = server.store.copy()
    await ann.done(await ann.step(model, 2))
    await server.crash()
    server.store = older


@pytest.mark.parametrize("kills", [0, 1])
def test_a_model_that_lost_operations_when_the_machine_went_down_is_not_gone_on_with(
    kills: int, tmp_path: Path
):
    @running(kind="memory")
    async def scenario(server: Machine) -> None:
        model = await server.ann.model()
        await behind(server, model)
        another_boot(server)
        await server.start()
        for _ in range(kills):
            await server.restart()
        ticket = await server.ann.train(model, 3)
        await server.wait(30)
        assert "--durability power" in (await server.ann.result(ticket))["error"]
        row = await server.service.store.get(ModelRow, model)
        assert row is not None
        assert (row.state, "operation 2" in row.note) == ("corrupted", True)

    scenario(tmp_path=tmp_path)


@running(kind="memory")
async def test_numbers_that_never_came_are_skipped_where_nothing_can_be_lost(server: Machine):
    """The same without another boot: a client may have given the number up."""
    model = await server.ann.model()
    await behind(server, model)
    await server.start()
    ticket = await server.ann.train(model, 3)
    await server.wait(30)
    await server.ann.done(ticket)


@running(kind="memory")
async def test_a_model_that_lost_nothing_when_the_machine_went_down_is_as_before(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    waiting = await ann.train(model, 1)
    await server.crash()
    another_boot(server)
    await server.start()
    await ann.done(waiting)
    await ann.done(await ann.step(model, 2))
    ticket = await ann.train(model, 4)
    await server.wait(30)
    await ann.done(ticket)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_number_refused_before_the_machine_went_down_is_not_taken_for_lost(
    parallel: bool, tmp_path: Path
):
    """Unless clients send in parallel: then what came before it may have arrived after it."""

    @running(kind="memory", options={"parallel_chunks": parallel})
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await ann.model()
        server.engine.hold(Train)
        waiting = [await ann.train(model, 1)]
        await ann.refused("optim_step", {"model_id": model, "seq_id": 2, "adam_params": {"eps": -1}})
        waiting.append(await ann.train(model, 3))
        await server.crash()
        another_boot(server)
        await server.start()
        await ann.done(waiting[0])
        await server.wait(301)
        assert ("error" in await ann.result(waiting[1])) is parallel

    scenario(tmp_path=tmp_path)


@running(kind="memory")
async def test_a_server_that_was_stopped_has_nothing_to_doubt(server: Machine):
    await server.stop()
    assert not (server.state / BOOT).exists()
    await server.start()
    assert (server.state / BOOT).exists()
