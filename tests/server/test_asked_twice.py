"""What is asked for twice is done once: sampling sessions of one number, unloading, saves, losses."""

from __future__ import annotations

import asyncio

from tinkex.engine.messages import OptimStep, SaveSampler, Unload
from tinkex.server.records import OperationRow, SamplerRow

from .client import datum
from .machine import Machine, running
from .test_recovery import told

# ---- sampling sessions


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
    before = await ann.done(await ann.sample(sampler, 0))
    # What memory knows and what a restart reads is the same.
    assert (await server.store.get(SamplerRow, sampler)).model_id == model
    await server.restart()
    after = await ann.done(await ann.sample(sampler, 1))
    assert [each["logprobs"] for each in after["sequences"]] == [
        each["logprobs"] for each in before["sequences"]
    ]


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
