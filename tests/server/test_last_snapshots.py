"""A server that is told to stop writes its models down: the next one has nothing to do again."""

from __future__ import annotations

import asyncio

from tinkex.engine.messages import LoadState, OptimStep, SaveState, Train

from .machine import Machine, running
from .test_recovery import state_of


async def stopped(server: Machine) -> None:
    """Stop as a signal does, with time going on meanwhile."""
    stopping = asyncio.ensure_future(server.service.drain())
    await server.until(stopping.done, each_turn=lambda: server.clock.advance(0.05))
    await server.reopen()


@running(kind="sqlite")
async def test_nothing_is_replayed_after_a_stop(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.train(model, 1)
    await ann.done(await ann.step(model, 2))
    await ann.done(await ann.train(model, 3))
    before = state_of(server.engine)
    await stopped(server)
    assert server.service.world.models[model].row.snapshot == 3
    await ann.done(await ann.step(model, 4))
    told = [type(each) for each in server.engine.seen if isinstance(each, (LoadState, Train, OptimStep))]
    assert told == [LoadState, OptimStep]
    assert state_of(server.engine).steps == before.steps + 1


@running(kind="sqlite")
async def test_a_model_that_has_not_changed_is_not_written_again(server: Machine):
    ann = server.ann
    await ann.done(await ann.train(await ann.model(), 1))
    await stopped(server)
    await server.settle()
    engine = server.engine
    await stopped(server)
    assert not any(isinstance(each, SaveState) for each in engine.seen)


@running(kind="sqlite", times={"drain": 1.0})
async def test_a_stop_does_not_wait_for_ever_for_a_snapshot(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    server.engine.hold(SaveState)
    stopping = asyncio.ensure_future(server.service.drain())
    await server.wait(0.9)
    assert not stopping.done()
    await server.until(stopping.done, each_turn=lambda: server.clock.advance(0.1))
    await server.restart()
    await ann.done(await ann.step(model, 2))
    assert state_of(server.engine).steps == 1


@running(kind="sqlite", times={"hole": 1e6})
async def test_work_in_line_is_left_to_the_next_server_after_the_snapshot(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    waiting = await ann.step(model, 3)  # for operation 2
    await stopped(server)
    assert server.service.world.models[model].row.snapshot == 1
    await ann.done(await ann.train(model, 2))
    await ann.done(waiting)
    assert state_of(server.engine).steps == 1


@running(kind="sqlite")
async def test_a_full_disk_does_not_keep_a_server_from_stopping(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    server.engine.fail_next(SaveState, "No space left on device", "server")
    await stopped(server)
    await ann.done(await ann.step(model, 2))
    assert state_of(server.engine).steps == 1
