"""Numbers that never come, come late, come twice or are refused: the line goes on, nothing runs twice."""

from __future__ import annotations

import asyncio

import pytest

from tinkex.engine.messages import OptimStep, Train
from tinkex.server.records import ModelRow, OperationRow

from .client import datum
from .machine import Machine, running
from .test_scheduler import told, trains


@running()
async def test_a_missing_number_is_given_up_after_a_while_and_noted(server: Machine):
    ann = server.ann
    model = await ann.model()
    first, later = await ann.train(model, 1), await ann.step(model, 4)
    await ann.done(first)
    poll = ann.begin_poll(later)
    await server.wait(9)
    assert not poll.done()
    await server.wait(2)
    assert (await poll).json["metrics"]
    assert server.service.world.models[model].row.skipped == [2, 3]
    row = await server.store.get(ModelRow, model)
    assert row.skipped == [2, 3]


@running()
async def test_numbers_given_up_long_ago_are_not_kept(server: Machine):
    ann = server.ann
    model = await ann.model()
    for seq in (3, 6):
        ticket = await ann.step(model, seq)
        await server.wait(11)
        await ann.done(ticket)
    row = await server.store.get(ModelRow, model)
    assert (row.watermark, row.skipped) == (6, [4, 5])


@running()
async def test_a_number_missing_behind_work_that_waits_is_given_up_too(server: Machine):
    ann = server.ann
    model, other = await ann.model(), await ann.model()
    server.engine.hold(Train)
    await ann.train(other, 1)
    await server.settle()
    first, later = await ann.train(model, 1), await ann.step(model, 3)
    server.engine.release()
    await ann.done(first)
    poll = ann.begin_poll(later)
    await server.wait(11)
    await server.until(poll.done)
    assert poll.result().status == 200


@running()
async def test_a_missing_number_is_given_up_though_the_engine_died_meanwhile(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    await ann.train(model, 1)
    later = await ann.step(model, 3)
    server.refuse_engines = "not now"
    server.kill_engine()
    await server.wait(11)
    server.refuse_engines = ""
    await server.wait(60)
    poll = ann.begin_poll(later)
    await server.wait(11)
    await server.until(poll.done)
    assert poll.result().status == 200


@running()
async def test_what_comes_after_it_was_given_up_fails_and_never_runs(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.step(model, 2)
    await server.wait(11)
    await ann.done(f"{model}:2")
    late = await ann.train(model, 1)
    failed = await ann.result(late)
    assert failed["category"] == "user"
    assert "too late" in failed["error"]
    assert trains(server) == []
    assert await ann.train(model, 1) == late
    await ann.done(await ann.train(model, 3))


@running()
async def test_a_refused_number_is_not_waited_for(server: Machine):
    ann = server.ann
    model = await ann.model()
    text = await ann.refused("forward_backward", *ann.train_body(model, 1, datum([1, 9999])),
                             headers={"content-type": "application/x-protobuf"})  # fmt: skip
    assert "9999" in text
    await ann.done(await ann.step(model, 2))
    body = {"model_id": model, "seq_id": 4, "path": f"tinker://{model}/weights/none", "optimizer": True}
    after = await ann.step(model, 5)
    await ann.refused("load_weights", body, 404)
    body = {"model_id": model, "seq_id": 3, "adam_params": {"beta1": 7}}
    await ann.refused("optim_step", body)
    await ann.done(after)
    assert server.service.world.models[model].row.skipped == []


@running()
async def test_a_number_whose_body_cannot_be_read_is_not_waited_for(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.refused("optim_step", {"model_id": model, "seq_id": 1, "adam_params": "fast"}, 422)
    await ann.refused("save_weights", {"model_id": model, "seq_id": 2, "path": ["a"]}, 422)
    await ann.done(await ann.step(model, 3))


@running(limits={"queued_operations": 3})
async def test_a_number_refused_for_lack_of_room_may_come_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    for number in (1, 2, 3):
        await ann.train(model, number)
    body = ann.train_body(model, 4)
    full = await ann("forward_backward", *body, headers={"content-type": "application/x-protobuf"})
    assert full.status == 429
    assert "3" in full.detail
    assert full.headers["retry-after"] == "1"
    assert await server.store.get(OperationRow, f"{model}:4") is None
    server.engine.release()
    await ann.done(f"{model}:3")
    await ann.done(await ann.train(model, 4))


@running(limits={"queued_bytes": 1000})
async def test_more_waiting_bytes_than_allowed_are_refused(server: Machine):
    ann, bob = server.ann, server.bob
    model, theirs = await ann.model(), await bob.model()
    server.engine.hold(Train)
    await ann.train(model, 1, datum(range(1, 31)))
    body = ann.train_body(model, 2, datum(range(1, 41)))
    text = await ann.refused(
        "forward_backward", *body, 429, headers={"content-type": "application/x-protobuf"}
    )
    assert "1000" in text
    await bob.train(theirs, 1, datum(range(1, 31)))  # what ann has waiting is not bob's
    server.engine.release()
    await ann.done(f"{model}:1")
    await ann.done(await ann.train(model, 2, datum(range(1, 31))))


@running()
async def test_a_number_far_ahead_is_refused_with_the_limit(server: Machine):
    ann = server.ann
    model = await ann.model()
    for number in (2**31 - 1, 2**31, 2**40):
        text = await ann.refused("optim_step", {"model_id": model, "seq_id": number, "adam_params": {}})
        assert str(number) in text
    await ann.done(await ann.step(model, 1))
    unloaded = ann.ticket(await ann("unload_model", {"model_id": model}))
    await ann.done(unloaded)


@running()
async def test_a_duplicate_gets_the_first_ticket_and_runs_once(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    first = await ann.train(model, 1)
    assert await ann.train(model, 1) == first
    assert await ann.train(model, 1, datum([7, 8, 9])) == first  # the body does not matter
    body = {"model_id": model, "seq_id": 1, "adam_params": {}}
    assert "is a forward_backward already" in await ann.refused("optim_step", body)  # the kind does
    server.engine.release()
    await ann.done(first)
    assert await ann.train(model, 1) == first
    await ann.done(await ann.step(model, 2))
    assert told(server, model) == ["CreateAdapter", "pass", "step"]


@running(kind="sqlite")
async def test_duplicates_sent_at_once_are_one_operation(server: Machine):
    ann = server.ann
    session = await ann.session()
    models = await asyncio.gather(*(ann.begin_model(session) for _ in range(5)))
    assert len(set(models)) == 1
    model = models[0]
    await ann.done(f"{model}:0")
    assert len(set(await asyncio.gather(*(ann.train(model, 1) for _ in range(5))))) == 1
    await asyncio.gather(*(ann.save(model, 2, "a") for _ in range(5)))
    await ann.done(await ann.step(model, 3))
    assert told(server, model) == ["CreateAdapter", "pass", "save", "step"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_duplicate_after_a_restart_gets_the_first_ticket(kind, tmp_path):
    @running(kind=kind)
    async def scenario(server: Machine) -> None:
        ann = server.ann
        model = await ann.model()
        first = await ann.done(await ann.train(model, 1))
        server.engine.hold(OptimStep)
        waiting = await ann.step(model, 2)
        await server.restart()
        assert await ann.train(model, 1) == f"{model}:1"
        assert await ann.done(f"{model}:1") == first
        assert await ann.step(model, 2) == waiting
        assert await ann.begin_model(model.partition(":")[0]) == model
        assert (await ann.done(waiting))["metrics"]["step:max"] == 1.0
        assert [each for each in told(server, model) if each == "step"] == ["step"]

    scenario(tmp_path=tmp_path)


@running()
async def test_what_arrives_while_it_is_given_up_is_too_late(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    model = await ann.model()
    gate, storage = asyncio.Event(), server.store.storage

    async def slow(*args: object) -> object:
        await gate.wait()
        return await storage(*args)

    monkeypatch.setattr(server.store, "storage", slow)
    saving = asyncio.ensure_future(ann.save(model, 1, "a"))
    await ann.step(model, 2)
    await server.wait(11)
    await ann.done(f"{model}:2")
    gate.set()
    assert "too late" in (await ann.result(await saving))["error"]
    assert told(server, model) == ["CreateAdapter", "step"]
