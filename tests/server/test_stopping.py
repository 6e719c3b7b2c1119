"""Stopping: running work ends, waiting work is left to the next server, nothing holds it up for ever."""

from __future__ import annotations

import asyncio

from tinkex.engine.messages import OptimStep, SaveSampler, Train
from tinkex.server.records import OperationRow
from tinkex.testing import MemoryStore

from .machine import OTHER, Machine, running


@running()
async def test_work_under_way_ends_and_waiting_work_is_left_to_the_next_server(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    under_way = await ann.train(model, 1)
    await server.settle()
    waiting = [await ann.step(model, 2), await ann.train(model, 3)]
    kept = server.store
    stopping = asyncio.ensure_future(server.service.drain())
    await server.settle()
    server.engine.release()
    await server.until(stopping.done, each_turn=lambda: server.clock.advance(0.05))
    assert not server.service.busy
    await server.settle()
    assert (await kept.get(OperationRow, under_way)).state == "done"
    assert [(await kept.get(OperationRow, each)).state for each in waiting] == ["queued", "queued"]
    assert sum(isinstance(each, OptimStep) for each in server.engine.seen) == 0
    await server.reopen()
    for each in (under_way, *waiting):
        await ann.done(each)


@running()
async def test_work_that_does_not_end_holds_a_stop_up_for_so_long_and_no_longer(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    stuck = await ann.train(model, 1)
    await server.settle()
    stopping = asyncio.ensure_future(server.service.drain())
    await server.wait(29)
    assert not stopping.done()
    await server.until(stopping.done, each_turn=lambda: server.clock.advance(0.1))
    await server.restart()
    await ann.done(stuck)


@running()
async def test_a_store_that_cannot_write_does_not_keep_a_server_from_stopping(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    ticket = await ann.train(model, 1)
    store = server.store
    assert isinstance(store, MemoryStore)
    store.failing = "disk full"
    server.engine.release()
    await server.settle()
    await server.stop()
    store.failing = None
    server.store = store.copy()
    await server.start()
    await ann.done(ticket)  # what was not written is done again, on the state before it
    (state,) = server.engine.models.values()
    await ann.done(await ann.step(model, 2))
    assert state.gradient


@running()
async def test_a_store_that_cannot_be_read_for_a_while_holds_up_recovery_and_no_more(server: Machine):
    from tinkex.server.store import StoreFailed

    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    replay, failures = server.store.replay, [1, 2]

    async def failing(*args: object) -> object:
        if failures:
            failures.pop()
            raise StoreFailed("unreadable")
        return await replay(*args)

    server.store.replay = failing
    await server.replace_engine()
    ticket = await ann.step(model, 2)
    for _ in range(3):
        await server.wait(1.1)
    await ann.done(ticket)
    assert failures == []


@running()
async def test_weights_frozen_after_their_session_ended_are_let_go_of(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    server.engine.hold(SaveSampler)
    ticket = await ann.freeze(model, 1, number=0)
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    server.engine.release()
    await ann.done(ticket)
    await server.settle()
    assert server.service.world.samplers == {}
    assert server.engine.versions == {}


@running(bases=("tiny", OTHER))
async def test_a_model_whose_base_is_not_served_this_time_waits_for_the_next(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session, base=OTHER)
    await ann.done(await ann.train(model, 1))
    server.engines[1].hold(OptimStep)
    waiting = await ann.step(model, 2)
    await server.settle()
    server.bases = ("tiny",)
    await server.restart()
    text = await ann.refused("optim_step", {"model_id": model, "seq_id": 3, "adam_params": {}})
    assert OTHER in text
    assert "not served" in text
    await ann.done(f"{model}:1")
    poll = ann.begin_poll(waiting)
    await server.wait(36)
    assert poll.result().status == 408
    server.bases = ("tiny", OTHER)
    await server.restart()
    assert (await ann.done(waiting))["metrics"]["step:max"] == 1.0
