"""What is asked for twice is done once: sampling sessions of one number, unloading, saves, losses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tinkex.engine.messages import OptimStep, Sample, SaveSampler, SaveState, Unload
from tinkex.server.records import CheckpointRow, OperationRow, SamplerRow

from .client import Client, datum
from .machine import Machine, running
from .test_recovery import state_of, told

# ---- sampling sessions


def weights_of(server: Machine) -> str:
    """The weights the engine was last told to sample from."""
    return next(each.version for each in reversed(server.engine.seen) if isinstance(each, Sample))


@running()
async def test_a_number_of_a_sampler_on_its_way_is_in_use(server: Machine):
    ann = server.ann
    session = await ann.session()
    model, other = await ann.model(session, 0), await ann.model(session, 1)
    server.engine.hold(SaveSampler)
    first = await ann.freeze(model, 1, number=5)
    await ann.train(model, 2, datum([1, 2]))
    await ann.step(model, 3)
    body = {"model_id": model, "seq_id": 4, "sampling_session_seq_id": 5}
    assert "5 is in use" in await ann.refused("save_weights_for_sampler", body)
    assert "5 is in use" in await ann.refused(
        "save_weights_for_sampler", {**body, "model_id": other, "seq_id": 1}
    )
    asked = {"session_id": session, "sampling_session_seq_id": 5, "base_model": "tiny"}
    assert "5 is in use" in await ann.refused("create_sampling_session", asked)
    server.engine.release()
    sampler = (await ann.done(first))["sampling_session_id"]
    await ann.done(f"{model}:3")
    await ann.done(await ann.sample(sampler, 0))
    before = weights_of(server)
    # What memory knows and what a restart reads is the same.
    assert (await server.store.get(SamplerRow, sampler)).model_id == model
    await server.restart()
    await ann.done(await ann.sample(sampler, 1))
    assert weights_of(server) == before


@running()
async def test_a_number_whose_freezing_failed_is_free_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.fail_next(SaveSampler, "out of memory")
    assert "error" in await ann.result(await ann.freeze(model, 1, number=5))
    await ann.done(await ann.freeze(model, 2, number=5))


@running()
async def test_a_number_is_in_use_after_a_restart_too(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(SaveSampler)
    first = await ann.freeze(model, 1, number=5)
    await server.crash()
    server.hold = (SaveSampler,)
    await server.start()
    body = {"model_id": model, "seq_id": 2, "sampling_session_seq_id": 5}
    assert "5 is in use" in await ann.refused("save_weights_for_sampler", body)
    server.engine.release()
    await ann.done(first)


# ---- unloading


@running()
async def test_unloading_asked_for_again_is_the_same_unloading(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(OptimStep)
    await ann.step(model, 1)
    body = {"model_id": model}
    both = await asyncio.gather(ann("unload_model", body), ann("unload_model", body))
    tickets = [*map(ann.ticket, both), ann.ticket(await ann("unload_model", body))]
    server.engine.release()
    first = await ann.done(tickets[0])
    tickets.append(ann.ticket(await ann("unload_model", body)))
    await server.restart()
    tickets.append(ann.ticket(await ann("unload_model", body)))
    assert len(set(tickets)) == 1
    assert await ann.done(tickets[0]) == first
    assert told(server.engines[0], Unload) == 1
    rows = await server.store.history([model])
    assert [row.kind for row in rows].count("unload_model") == 1


@running()
async def test_unloading_that_waits_in_line_is_found_after_a_restart(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(OptimStep)
    await ann.step(model, 1)
    first = ann.ticket(await ann("unload_model", {"model_id": model}))
    await server.crash()
    server.hold = (OptimStep,)
    await server.start()
    assert ann.ticket(await ann("unload_model", {"model_id": model})) == first
    server.engine.release()
    await ann.done(first)


@running()
async def test_a_model_whose_session_ended_was_not_unloaded_by_its_client(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    assert "not loaded" in await ann.refused("unload_model", {"model_id": model})


@running()
async def test_an_unloading_that_failed_may_be_asked_for_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.fail_next(Unload, "busy")
    first = ann.ticket(await ann("unload_model", {"model_id": model}))
    assert "busy" in (await ann.result(first))["error"]
    second = ann.ticket(await ann("unload_model", {"model_id": model}))
    assert second != first
    await ann.done(second)
    assert (await server.store.get(OperationRow, second)).state == "done"


# ---- saves


async def saved_at(server: Machine, path: str) -> tuple[str, list[str]]:
    """The weights in a checkpoint, and the folders of all saves of its run and kind."""
    row = await server.store.get(CheckpointRow, path)
    folder = server.state / row.folder
    found = json.loads(await asyncio.to_thread((folder / "adapter.json").read_text))
    names = await asyncio.to_thread(lambda: sorted(each.name for each in folder.parent.iterdir()))
    return found["weights"], names


@running()
async def test_a_save_that_was_acknowledged_is_there_once_and_not_made_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.train(model, 1)
    await ann.done(await ann.step(model, 2))
    path = (await ann.done(await ann.save(model, 3, "a")))["path"]
    before = await saved_at(server, path)
    await ann.done(await ann.step(model, 4))
    await server.restart()
    assert await ann.save(model, 3, "a") == f"{model}:3"
    assert (await ann.done(f"{model}:3"))["path"] == path
    assert await saved_at(server, path) == before
    assert before[1] == ["a-3"]
    assert told(server.engine, SaveState) == 0
    found = await ann.ok("list_checkpoints", training_run_id=model)
    assert [each["tinker_path"] for each in found["checkpoints"]] == [path]


@running()
async def test_a_checkpoint_changed_while_it_is_saved_over_is_the_new_one(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    model = await ann.model()
    path = (await ann.done(await ann.save(model, 1, "a")))["path"]
    get, gate = server.store.get, asyncio.Event()

    async def slow(kind: type, id: str) -> object:
        found = await get(kind, id)
        if kind is CheckpointRow:
            await gate.wait()
        return found

    await ann.done(await ann.step(model, 2))
    server.engine.hold(SaveState)
    save = await ann.save(model, 3, "a", overwrite=True)
    monkeypatch.setattr(server.store, "get", slow)
    names = {"training_run_id": model, "checkpoint_id": "weights/a"}
    changing = asyncio.ensure_future(ann("publish_checkpoint", **names))
    await server.settle()
    server.engine.release()
    await server.settle()
    gate.set()
    assert (await changing).status == 200
    await ann.done(save)
    row = await server.store.get(CheckpointRow, path)
    saves = (server.state / row.folder).parent
    await server.until(lambda: [each.name for each in saves.iterdir()] == ["a-3"])  # a thread removes a-1
    assert await saved_at(server, path) == (state_of(server.engine).weights, ["a-3"])


@pytest.mark.parametrize("what", ["engine", "server"])
def test_a_path_saved_twice_holds_one_or_the_other_whole_whenever_somebody_dies(what: str, tmp_path: Path):
    async def work(ann: Client, session: str) -> list[str]:
        model = await ann.begin_model(session, lora_config={"rank": 8, "seed": 3})
        tickets = [await ann.train(model, 1, datum([1, 2])), await ann.step(model, 2)]
        tickets.append(await ann.save(model, 3, "a"))
        tickets += [await ann.train(model, 4, datum([3, 4])), await ann.step(model, 5)]
        tickets.append(await ann.save(model, 6, "a", overwrite=True))
        for each in tickets:
            await ann.done(each)
        return tickets

    async def main(turns: int) -> bool:
        async with Machine(tmp_path / str(turns)) as server:
            session = await server.ann.session()
            first = asyncio.ensure_future(work(server.ann, session))
            await server.turns(turns)
            over = first.done()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            path = f"tinker://{session}:train:0/weights/a"
            row = await server.store.get(CheckpointRow, path)
            if row is not None:  # what is on record can be read
                assert (await saved_at(server, path))[0]
            await (server.restart() if what == "server" else server.replace_engine())
            await work(server.ann, session)
            await server.until(lambda: len(server.service._tasks) <= 1)
            weights, names = await saved_at(server, path)
            assert weights == state_of(server.engine).weights
            assert names == ["a-6"]
            return over

    for turns in range(0, 600, 9):
        if asyncio.run(main(turns)):
            return
    raise AssertionError("the work never ended by itself")


# ---- custom losses


CUSTOM = {
    "name": "mine",
    "graph": {"format": 1, "nodes": [{"op": "placeholder", "name": "logprobs", "target": "logprobs"}]},
    "inputs": [{"name": "logprobs", "rank": 1}],
}


@running(kind="sqlite")
async def test_a_custom_loss_asked_for_again_is_the_first_after_a_restart_too(server: Machine):
    ann = server.ann
    session = await ann.session()
    body = {**CUSTOM, "session_id": session, "custom_loss_seq_id": 3}
    both = await asyncio.gather(ann("create_custom_loss", body), ann("create_custom_loss", body))
    names = {each.json["request_id"] for each in both}
    id = (await ann.done(names.pop()))["loss_id"]
    assert not names
    await server.restart()
    again = await ann.ok("create_custom_loss", {**body, "name": "another"})
    assert (await ann.done(again["request_id"]))["loss_id"] == id
    assert list(server.service.world.sessions[session].losses) == [id]
    (row,) = await server.store.losses_of([session])
    assert (row.id, row.name) == (id, CUSTOM["name"])
    model = await ann.model(session)
    await ann.done(await ann.train(model, 1, loss="custom", config={"loss_id": id}))
    await server.restart()
    await ann.done(await ann.train(model, 2, loss="custom", config={"loss_id": id}))


# ---- samplers


@pytest.mark.parametrize("steps", [1, 2, 16])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_samplers_of_a_model_that_went_on_give_the_same_samples(kind: str, steps: int, tmp_path: Path):
    @running(kind=kind, options={"snapshot_steps": steps})
    async def scenario(server: Machine) -> None:
        ann = server.ann
        session = await ann.session()
        model = await ann.model(session, lora_config={"rank": 8, "seed": 3})
        base = await ann.sampler(session, 100)
        samplers, before, number = [base], {}, 0
        for step in range(5):
            await ann.done(await ann.train(model, number + 1, datum([step, 2])))
            await ann.done(await ann.step(model, number + 2))
            frozen = await ann.done(await ann.freeze(model, number + 3, number=step))
            samplers.append(frozen["sampling_session_id"])
            number += 3
        saved = (await ann.done(await ann.freeze(model, number + 1, name="named")))["path"]
        samplers.append(await ann.sampler(session, 101, base=None, model_path=saved))
        await ann.done(await ann.train(model, number + 2))
        await ann.done(await ann.step(model, number + 3))

        async def draw(sampler: str, turn: int) -> str:
            """From which weights an engine that has them was told to sample."""
            await ann.done(await ann.sample(sampler, turn))
            return weights_of(server)

        for each in samplers:
            before[each] = await draw(each, 0)
        assert len({*before.values()}) == 6  # the named one is the last unnamed one
        for turn, kill in enumerate((server.restart, server.replace_engine, server.restart), 1):
            await kill()
            assert {each: await draw(each, turn) for each in samplers} == before

    scenario(tmp_path=tmp_path)
