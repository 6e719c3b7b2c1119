"""An engine or a server dies: what was accepted runs to its end, once, and results stay what they were."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tinkex.engine.messages import (
    CreateAdapter,
    LoadState,
    OptimStep,
    Sample,
    SaveState,
    Train,
)
from tinkex.server.records import ModelRow, OperationRow
from tinkex.testing import NoopEngine
from tinkex.testing.noop_operations import NoopModel

from .client import Client, datum
from .machine import BASE, Machine, base_folder, running


async def journey(client: Client, session: str) -> list[object]:
    """The same training whenever it is asked for: what was accepted before is not done again."""
    model = await client.begin_model(session, lora_config={"rank": 8, "seed": 3})
    tickets = [f"{model}:0"]
    tickets.append(await client.train(model, 1, datum([1, 2])))
    tickets.append(await client.train(model, 2, datum([3, 4])))
    tickets.append(await client.step(model, 3))
    tickets.append(await client.freeze(model, 4, number=0))
    tickets.append(await client.train(model, 5, datum([5, 6])))
    tickets.append(await client.step(model, 6))
    tickets.append(await client.save(model, 7, "end"))
    tickets.append(await client.train(model, 8, datum([7, 8]), forward_only=True))
    results = [await client.done(each) for each in tickets]
    return [json.loads(json.dumps(each).replace(session, "SESSION")) for each in results]


def state_of(engine: NoopEngine) -> NoopModel:
    """The one model an engine has."""
    (model,) = engine.models.values()
    return model


def told(engine: NoopEngine, kind: type) -> int:
    """How many messages of a kind an engine was sent."""
    return sum(isinstance(each, kind) for each in engine.seen)


def expected(folder: Path) -> tuple[list[object], NoopModel]:
    """What the journey gives when nothing goes wrong."""

    async def main() -> tuple[list[object], NoopModel]:
        async with Machine(folder) as server:
            results = await journey(server.ann, await server.ann.session())
            return results, state_of(server.engine)

    return asyncio.run(main())


@pytest.mark.parametrize("steps", [1, 2, 16])
@pytest.mark.parametrize("what", ["engine", "server"])
def test_a_death_at_any_moment_changes_no_result(what: str, steps: int, tmp_path: Path):
    wanted = expected(tmp_path / "undisturbed")

    async def main(turns: int) -> bool:
        async with Machine(tmp_path / str(turns), options={"snapshot_steps": steps}) as server:
            session = await server.ann.session()
            first = asyncio.ensure_future(journey(server.ann, session))
            await server.turns(turns)
            over = first.done()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await (server.restart() if what == "server" else server.replace_engine())
            assert (await journey(server.ann, session), state_of(server.engine)) == wanted
            return over

    moments = range(0, 400, 3)
    for turns in moments:
        if asyncio.run(main(turns)):
            return
    raise AssertionError("the journey never ended by itself")


# ---- the engine dies


@running()
async def test_unnamed_weights_that_were_not_written_yet_are_frozen_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1, datum([1, 2])))
    await ann.done(await ann.step(model, 2))
    sampler = (await ann.done(await ann.freeze(model, 3, number=0)))["sampling_session_id"]
    await ann.done(await ann.train(model, 4, datum([3, 4])))
    first = await ann.done(await ann.sample(sampler, 0))
    for kill, number in ((server.replace_engine, 1), (server.restart, 2)):
        server.engine.hold(Sample)
        under_way = await ann.sample(sampler, number)
        shutil.rmtree(server.folders.engine(base_folder(BASE)) / "sampler")
        await kill()
        if kill == server.restart:  # samples are for its client to ask again
            under_way = await ann.sample(sampler, number)
        again = await ann.done(under_way)
        assert again["sequences"][0]["tokens"] == first["sequences"][0]["tokens"]


@running()
async def test_work_under_way_runs_again_in_the_next_engine(server: Machine):
    ann = server.ann
    model = await ann.model()
    first = await ann.loss(await ann.train(model, 1))
    server.engine.hold(Train, OptimStep)
    tickets = [await ann.train(model, 2), await ann.step(model, 3), await ann.train(model, 4)]
    await server.settle()
    await server.replace_engine()
    for each in tickets:
        await ann.done(each)
    assert first == await ann.loss(f"{model}:1")
    assert told(server.engine, Train) == 3  # one done again, two for the first time
    assert told(server.engine, OptimStep) == 1
    assert state_of(server.engine).steps == 1


@running()
async def test_an_engine_that_dies_again_and_again_loses_nothing(server: Machine):
    ann = server.ann
    model = await ann.model()
    tickets = []
    for number in range(1, 13, 2):
        tickets += [await ann.train(model, number), await ann.step(model, number + 1)]
        await server.replace_engine()
        server.kill_engine("again")
        await server.turns(2)
    for each in tickets:
        await ann.done(each)
    assert state_of(server.engine).steps == 6
    assert len(server.engines) > 10


@running()
async def test_models_of_everybody_come_back(server: Machine):
    ann, bob = server.ann, server.bob
    models = [(each, await each.model()) for each in (ann, bob, ann)]
    for who, model in models:
        await who.done(await who.train(model, 1))
    await server.replace_engine()
    for who, model in models:
        await who.done(await who.step(model, 2))
    assert set(server.engine.models) == {model for _, model in models}


@running(options={"snapshot_steps": 2})
async def test_a_snapshot_is_taken_every_so_many_steps_and_older_bodies_go(server: Machine):
    ann = server.ann
    model = await ann.model()
    for number in range(1, 11, 2):
        await ann.train(model, number)
        await ann.done(await ann.step(model, number + 1))
    await server.settle()
    row = await server.store.get(ModelRow, model)
    assert row.snapshot == 8
    bodies = [bool((await server.store.get(OperationRow, f"{model}:{n}")).body) for n in range(11)]
    assert bodies == [False] * 5 + [True] * 6  # what came after the snapshot before is kept with it
    assert await asyncio.to_thread(_folders, server, model) == ["4", "8"]
    before = state_of(server.engine)
    await server.replace_engine()
    assert state_of(server.engine) == before
    assert [told(server.engine, each) for each in (LoadState, Train, OptimStep, CreateAdapter)] == [
        1,
        1,
        1,
        0,
    ]


@running(options={"snapshot_steps": 1, "snapshot_seconds": 5.0})
async def test_short_steps_are_not_each_snapshotted(server: Machine):
    ann = server.ann
    model = await ann.model()
    taken = []
    for number, pause in ((1, 0.0), (2, 3.0), (3, 3.0), (4, 1.0), (5, 10.0)):
        await server.wait(pause)
        await ann.done(await ann.step(model, number))
        await server.settle()
        taken.append((await server.store.get(ModelRow, model)).snapshot)
    assert taken == [1, 1, 3, 3, 5]


def _folders(server: Machine, model: str) -> list[str]:
    return sorted(each.name for each in server.folders.snapshot(model, 0).parent.iterdir())


@running(options={"snapshot_bytes": 2000})
async def test_a_snapshot_is_taken_when_bodies_grow_large(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.step(model, 1))
    assert told(server.engine, SaveState) == 0
    await ann.train(model, 2, datum(range(1, 200)))
    await ann.done(await ann.step(model, 3))
    await server.settle()
    assert server.service.world.models[model].row.snapshot == 3


@running(options={"snapshot_bytes": 2000})
async def test_a_snapshot_is_taken_of_passes_that_no_step_ends(server: Machine):
    ann = server.ann
    model = await ann.model()
    for number in range(1, 9):
        await ann.done(await ann.train(model, number, datum(range(1, 60))))
    await server.settle()
    assert server.service.world.models[model].row.snapshot >= 4
    before = state_of(server.engine)
    await server.replace_engine()
    assert state_of(server.engine) == before
    assert before.gradient


@running()
async def test_loaded_weights_are_snapshotted_at_once(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.train(model, 1)
    await ann.step(model, 2)
    saved = (await ann.done(await ann.save(model, 3, "a")))["path"]
    session = await ann.session()
    other = await ann.model(session)
    await ann.done(await ann.load(other, 1, saved))
    made = ann.ticket(
        await ann(
            "load_weights", {"session_id": session, "model_seq_id": 5, "path": saved, "optimizer": True}
        )
    )
    third = (await ann.done(made))["model_id"]
    await server.settle()
    # What was loaded may be deleted: a restart does not need it.
    await ann.ok("delete_checkpoint", training_run_id=model, checkpoint_id="weights/a")
    before = dict(server.engine.models)
    assert before[other].weights == before[third].weights == before[model].weights
    await server.replace_engine()
    assert server.engine.models == before


@running()
async def test_a_checkpoint_saved_over_does_not_stand_in_the_way_of_recovery(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.train(model, 1)
    await ann.save(model, 2, "a")
    await ann.step(model, 3)
    await ann.done(await ann.save(model, 4, "a", overwrite=True))
    await ann.done(await ann.freeze(model, 5, name="b"))
    await server.replace_engine()
    await ann.done(await ann.train(model, 6))


@running()
async def test_a_run_whose_replay_gives_other_losses_is_corrupted(server: Machine):
    ann = server.ann
    session = await ann.session()
    model, healthy = await ann.model(session, 0), await ann.model(session, 1)
    for number in (1, 3):
        await ann.train(model, number)
        await ann.done(await ann.step(model, number + 1))
    row = await server.store.get(OperationRow, f"{model}:2")
    row.body = row.body.replace(b"{}", b'{"learning_rate":7}')
    await server.store.write(_put(row))
    server.engine.hold(Train)
    waiting = await ann.train(model, 5)
    other = await ann.train(healthy, 1)
    await server.settle()
    await server.replace_engine()
    failed = await ann.result(waiting)
    assert failed["category"] == "server"
    assert "operation 3 gave a loss of" in failed["error"]
    await ann.done(other)
    for text in (
        await ann.refused("optim_step", {"model_id": model, "seq_id": 6, "adam_params": {}}),
        await ann.refused("save_weights", {"model_id": model, "seq_id": 7, "path": "x"}),
    ):
        assert "corrupted" in text
        assert "cannot be trusted" in text
    assert (await ann.done(f"{model}:1"))["metrics"]
    assert set(server.engine.models) == {healthy}
    # It stays so after the session and the server have ended.
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    await server.restart()
    assert (await server.store.get(ModelRow, model)).state == "corrupted"
    assert server.service.queued.get("ann", [0, 0]) == [0, 0]


def _put(row):
    from tinkex.server.store import Put

    return Put(row)


@running(options={"snapshot_steps": 1})
async def test_a_run_whose_snapshots_are_gone_is_corrupted_with_the_reason(server: Machine):
    ann = server.ann
    model = await ann.model()
    for number in (1, 2, 3):
        await ann.done(await ann.step(model, number))
        await server.settle()
    for number in (2, 3):
        folder = server.folders.snapshot(model, number)
        await asyncio.to_thread((folder / "adapter.json").unlink)
    await server.replace_engine()
    await server.until(lambda: model not in server.service.world.models)
    text = await ann.refused("optim_step", {"model_id": model, "seq_id": 4, "adam_params": {}})
    assert "could not be restored" in text
    assert "no checkpoint" in text


@running()
async def test_an_engine_that_cannot_start_is_tried_again_and_polls_say_why(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.refuse_engines = "out of memory"
    server.kill_engine("signal 9")
    ticket = await ann.train(model, 1)
    poll = ann.begin_poll(ticket)
    await server.wait(36)
    told_again = poll.result()
    assert told_again.status == 408
    assert told_again.json["queue_state"] == "paused_capacity"
    assert "out of memory" in told_again.json["queue_state_reason"]
    server.refuse_engines = ""
    await server.wait(31)
    await ann.done(ticket)


@running()
async def test_an_engine_that_dies_while_the_store_is_asked_what_to_replay(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    gate, replay = asyncio.Event(), server.store.replay

    async def slow(*args: object) -> object:
        await gate.wait()
        return await replay(*args)

    monkeypatch.setattr(server.store, "replay", slow)
    await server.replace_engine()
    ticket = await ann.step(model, 2)
    await server.replace_engine()
    gate.set()
    await ann.done(ticket)
    assert state_of(server.engine).steps == 1
    assert server.service.world.models[model].row.state == "live"


@running()
async def test_a_model_unloaded_while_it_is_restored_leaves_the_engine(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    gate, replay = asyncio.Event(), server.store.replay

    async def slow(*args: object) -> object:
        await gate.wait()
        return await replay(*args)

    monkeypatch.setattr(server.store, "replay", slow)
    await server.replace_engine()
    ticket = await ann.step(model, 1)
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    gate.set()
    assert (await ann.result(ticket))["category"] == "user"
    await server.settle()
    assert server.engine.models == {}
