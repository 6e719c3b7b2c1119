"""What a server lets go of: results that were fetched, sessions that ended, weights that were deleted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tinkex.engine.messages import Cancel, DropSampler, Sample
from tinkex.server.housekeeping import TOLD, forget_loose_samplers, keep_less
from tinkex.server.operations import Operation
from tinkex.server.records import OperationRow
from tinkex.server.sampling import RunningSample
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import Finish, ForgetResults, Put
from tinkex.server.tickets import Ticket
from tinkex.server.world import LiveModel, LiveSampler, LiveSession

from .client import Client
from .machine import Machine, running

KINDS = (Operation, RunningSample, LiveModel, LiveSampler, LiveSession, Ticket)


def alive() -> Counter[str]:
    """How many of our objects there are in this process."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS))


async def later(server: Machine, seconds: float) -> None:
    """Let time pass, and the house be kept."""
    await server.wait(seconds)
    await keep_less(server.service)
    await forget_loose_samplers(server.service)


async def life(ann: Client) -> None:
    """A session in which something of everything is done and fetched."""
    session = await ann.session()
    model = await ann.model(session)
    for seq in (1, 3):
        await ann.done(await ann.train(model, seq))
        await ann.done(await ann.step(model, seq + 1))
    await ann.done(await ann.freeze(model, 5, number=1))
    sampler = await ann.sampler(session)
    for name in (sampler, f"{session}:sample:1"):
        for seq in range(3):
            await ann.done(await ann.sample(name, seq))
    await ann.done((await ann.ok("unload_model", {"model_id": model}))["request_id"])
    await ann.done(f"{await ann.begin_model(session, 1)}:0")
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)


@running()
async def test_sessions_that_ended_leave_nothing(server: Machine):
    await life(server.ann)
    await later(server, TOLD + 20)
    before = alive()
    for _ in range(5):
        await life(server.ann)
    await later(server, TOLD + 20)
    assert alive() == before
    (scheduler,), (desk,) = server.service.schedulers.values(), server.service.desks.values()
    assert not scheduler._under_way
    assert not desk._versions
    assert len(server.service.samples) == 0


@running()
async def test_an_operations_result_is_in_the_store_once_it_was_fetched(server: Machine):
    ann = server.ann
    model = await ann.model()
    ticket = await ann.train(model, 1)
    first = await ann.poll(ticket, binary=True)
    assert len(server.service.tickets) == 0
    again = await ann.poll(ticket, binary=True)
    assert (again.status, again.body) == (200, first.body)
    assert await ann.train(model, 1) == ticket


@running()
async def test_a_samples_result_is_kept_for_a_while_after_it_was_fetched(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    id = await ann.sample(sampler, 0)
    announced = await ann.poll(id, binary=True)
    assert len(server.service.samples) == 0
    await later(server, TOLD - 20)
    again = await ann.poll(id, binary=True)  # the answer may have been lost on its way
    assert (again.status, again.body) == (200, announced.body)
    await later(server, 40)
    assert len(server.service.tickets) == 0
    assert (await ann.poll(id)).status == 410


@running(times={"session": 1e9})
async def test_samples_nobody_fetches_go_in_the_end_and_are_noted_no_more(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    id = await ann.sample(sampler, 0)
    await later(server, 3590)
    assert len(server.service.tickets) == len(server.service.samples) == 1
    await later(server, 30)
    assert len(server.service.tickets) == len(server.service.samples) == 0
    assert (await ann.poll(id)).status == 410


@running(times={"session": 1e9})
async def test_who_fetches_results_one_by_one_piles_up_no_news_for_those_who_ask_for_many(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    ids = [await ann.sample(sampler, seq) for seq in range(5)]
    for id in ids[:4]:
        await ann.done(id)
    await later(server, TOLD + 20)
    (completions,) = server.service.world.samplers[sampler].clones.values()
    assert [name for name, _ in completions.after(0)[0]] == ids[4:]


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
def test_a_jump_of_the_date_loses_no_result(jump: float, tmp_path_factory: pytest.TempPathFactory):
    @running(times={"session": 1e9})
    async def scenario(server: Machine) -> None:
        ann = server.ann
        sampler = await ann.sampler(await ann.session())
        id = await ann.sample(sampler, 0)
        await server.settle()
        right = server.clock.time
        server.clock.time = lambda: right() + jump  # type: ignore[method-assign]
        await keep_less(server.service)
        await ann.done(id)

    scenario(tmp_path=tmp_path_factory.mktemp("jump"))


@running()
async def test_samples_of_a_session_that_ended_are_called_off(server: Machine):
    ann = server.ann
    session = await ann.session()
    sampler = await ann.sampler(session)
    other = await ann.sampler(await ann.session())
    server.engine.hold(Sample)
    ids = [await ann.sample(sampler, seq) for seq in range(3)]
    kept = await ann.sample(other, 0)
    poll = ann.begin_poll(ids[0])
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    await server.until(poll.done)
    assert "session" in poll.result().json["error"]
    assert {each.request_id for each in server.engine.seen if isinstance(each, Cancel)} == set(ids)
    assert server.service.sampling_rows["ann"] == 1
    server.engine.release()
    await ann.done(kept)


@running(times={"session": 60.0})
async def test_samplers_that_nobody_named_go_when_they_are_not_used(server: Machine):
    ann = server.ann
    body = {**ann.sample_body("", 0), "base_model": "tiny"}
    del body["sampling_session_id"]
    id = ann.ticket(await ann("asample", body))
    await ann.done(id)
    assert len(server.service.world.samplers) == 1
    await later(server, 50)
    assert len(server.service.world.samplers) == 1
    await later(server, 30)
    assert len(server.service.world.samplers) == 0
    body["seq_id"] = 1
    await ann.done(ann.ticket(await ann("asample", body)))


@running()
async def test_deleted_sampler_weights_leave_the_engine(server: Machine):
    ann = server.ann
    model = await ann.model()
    saved = [(await ann.done(await ann.freeze(model, seq, name=f"w{seq}")))["path"] for seq in (1, 2)]
    session = await ann.session()
    sampler = await ann.sampler(session, base=None, model_path=saved[0])
    await ann.done(await ann.sample(sampler, 0))
    run = model
    for path in saved:
        name = path.partition(f"{run}/")[2]
        answer = await ann("delete_checkpoint", training_run_id=run, checkpoint_id=name)
        assert answer.status in (200, 204), str(answer)
    await server.settle()
    (desk,) = server.service.desks.values()
    assert len(desk._versions) <= 1  # somebody samples from the first
    await ann.done(await ann.sample(sampler, 1))
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    await server.settle()
    assert not desk._versions
    assert any(isinstance(each, DropSampler) for each in server.engine.seen)


def test_a_database_is_used_again_for_what_comes_next(tmp_path: Path):
    async def scenario() -> list[int]:
        store = await SqliteStore.open(tmp_path / "store")
        sizes = []
        for day in range(1, 7):
            for start in range(0, 400, 100):
                names = [f"{day}-{number}" for number in range(start, start + 100)]
                rows = [OperationRow(name, "m", 1, "optim_step", "ann", 1.0, b"x" * 900) for name in names]
                await store.write(*(Put(row) for row in rows))
                await store.write(*(Finish(name, "done", day, "m", 1, b"y" * 900) for name in names))
            await store.write(ForgetResults(day + 0.5))
            with contextlib.closing(sqlite3.connect(tmp_path / "store" / "store.db")) as database:
                sizes.append(database.execute("PRAGMA page_count").fetchone()[0])
        await store.close()
        return sizes

    sizes = asyncio.run(scenario())
    assert sizes[-1] <= 1.02 * sizes[1]


@running(options={"snapshot_steps": 1})
async def test_snapshots_go_with_a_model_that_is_unloaded(server: Machine):
    ann = server.ann
    session = await ann.session()
    gone, kept = await ann.model(session), await ann.model(session, 1)
    for model in (gone, kept):
        await ann.done(await ann.step(model, 1))
    await server.settle()
    places = {model: server.folders.snapshot(model, 0).parent for model in (gone, kept)}
    assert all(place.exists() for place in places.values())
    await ann.done((await ann.ok("unload_model", {"model_id": gone}))["request_id"])
    await server.until(lambda: not places[gone].exists())
    assert places[kept].exists()
