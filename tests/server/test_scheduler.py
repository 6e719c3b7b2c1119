"""Whose operation runs next: order within a model, joining, fairness, barriers, holes, duplicates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tinkex.engine.messages import CreateAdapter, OptimStep, SaveState, Train, Unload
from tinkex.server import scheduler
from tinkex.server.records import ModelRow, OperationRow, SamplerRow
from tinkex.server.store import Change, Put

from .client import datum
from .machine import OTHER, Machine, running


def trains(server: Machine) -> list[list[str]]:
    """The models of every joined pass the engine was told, in order."""
    return [[part.model for part in each.parts] for each in server.engine.seen if isinstance(each, Train)]


def told(server: Machine, model: str) -> list[str]:
    """What the engine was told about a model, by kind."""
    names = []
    for message in server.engine.seen:
        if isinstance(message, Train):
            names += ["pass" for part in message.parts if part.model == model]
        elif getattr(message, "model", None) == model:
            names.append({OptimStep: "step", SaveState: "save"}.get(type(message), type(message).__name__))
    return names


# ---- order


@running()
async def test_a_models_operations_run_in_the_order_of_their_numbers(server: Machine):
    ann = server.ann
    model = await ann.model()
    tickets = [
        await ann.train(model, 1),
        await ann.step(model, 2),
        await ann.save(model, 3, "a"),
        await ann.train(model, 4),
        await ann.step(model, 5),
    ]
    results = [await ann.done(each) for each in tickets]
    assert told(server, model) == ["CreateAdapter", "pass", "step", "save", "pass", "step"]
    assert [each["metrics"]["step:max"] for each in (results[1], results[4])] == [1.0, 2.0]


@running()
async def test_pieces_that_arrive_out_of_order_run_in_order(server: Machine):
    ann = server.ann
    one, other = await ann.model(), await ann.model()
    data = [datum([number, number + 1]) for number in (10, 20, 30)]
    for number in (1, 2, 3):
        await ann.train(one, number, data[number - 1])
    await ann.step(one, 4)
    await ann.step(other, 4)
    for number in (2, 3, 1):
        await ann.train(other, number, data[number - 1])
    await ann.done(f"{one}:4")
    await ann.done(f"{other}:4")
    assert server.engine.models[one].weights == server.engine.models[other].weights != ""


@running(hold=[CreateAdapter])
async def test_everything_sent_before_the_model_is_there_runs_when_it_is(server: Machine):
    ann = server.ann
    model = await ann.begin_model(await ann.session())
    tickets = [await ann.train(model, 1), await ann.step(model, 2), await ann.train(model, 3)]
    server.engine.release()
    for each in tickets:
        await ann.done(each)


@running()
async def test_steps_without_passes_run_too(server: Machine):
    ann = server.ann
    model = await ann.model()
    tickets = [await ann.step(model, number) for number in (1, 2, 3)]
    assert [(await ann.done(each))["metrics"]["step:max"] for each in tickets] == [1.0, 2.0, 3.0]


@running()
async def test_a_pass_behind_a_step_that_waited_is_not_forgotten(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.refuse_engines = "not now"
    server.kill_engine()
    tickets = [await ann.step(model, 1), await ann.train(model, 2), await ann.step(model, 3)]
    await server.settle()
    server.refuse_engines = ""
    await server.wait(60)
    for each in tickets:
        await ann.done(each)


# ---- joining and fairness


@running()
async def test_passes_of_different_models_are_joined(server: Machine):
    ann, bob = server.ann, server.bob
    first, second, third = await ann.model(), await ann.model(), await bob.model()
    server.engine.hold(Train)
    tickets = [await ann.train(first, 1)]
    await server.settle()
    tickets += [await ann.train(second, 1), await ann.train(first, 2)]
    theirs = await bob.train(third, 1)
    server.engine.release()
    for each in tickets:
        await ann.done(each)
    await bob.done(theirs)
    assert trains(server) == [[first], [second, first, third]]


@running()
async def test_a_joined_pass_stays_within_its_token_budget(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scheduler, "DEFAULT_JOINED_TOKENS", 10)
    ann = server.ann
    models = [await ann.model() for _ in range(4)]
    server.engine.hold(Train)
    await ann.train(models[0], 1)
    await server.settle()
    for model in models[1:]:
        await ann.train(model, 1, datum(range(1, 6)))
    await ann.train(models[0], 2, datum(range(1, 21)))
    server.engine.release()
    for model in models:
        await ann.done(f"{model}:1")
    await ann.done(f"{models[0]}:2")
    sizes = [
        sum(len(each.tokens) for part in message.parts for each in part.data)
        for message in server.engine.seen
        if isinstance(message, Train)
    ]
    assert sizes == [3, 10, 5, 20]  # one that is larger than the budget runs alone


@running()
async def test_a_long_queue_does_not_starve_another_model(server: Machine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler, "DEFAULT_JOINED_TOKENS", 6)
    ann, bob = server.ann, server.bob
    long, short = await ann.model(), await bob.model()
    server.engine.hold(Train)
    for number in range(1, 21):
        await ann.train(long, number)
    ticket = await bob.train(short, 1)
    server.engine.release()
    await bob.done(ticket)
    await ann.done(f"{long}:20")
    assert [short in each for each in trains(server)].index(True) <= 2
    assert sum(each.count(long) for each in trains(server)) == 20


@running()
async def test_a_pass_behind_a_step_is_not_joined_with_the_one_before_it(server: Machine):
    ann = server.ann
    one, other = await ann.model(), await ann.model()
    server.engine.hold(Train)
    await ann.train(other, 1)
    await server.settle()
    await ann.train(one, 1)
    await ann.step(one, 2)
    await ann.train(one, 3)
    await ann.train(other, 2)
    server.engine.release()
    for id in (f"{one}:3", f"{other}:2"):
        await ann.done(id)
    assert trains(server) == [[other], [one, other], [one]]
    assert told(server, one) == ["CreateAdapter", "pass", "step", "pass"]


@running()
async def test_one_part_of_a_joined_pass_fails_alone(server: Machine):
    ann = server.ann
    good, bad = await ann.model(), await ann.model()
    server.engine.hold(Train)
    await ann.train(good, 1)
    await server.settle()
    tickets = await ann.train(bad, 1), await ann.train(good, 2)
    del server.engine.models[bad]
    server.engine.release()
    failed = await ann.result(tickets[0])
    assert failed["category"] == "user"
    assert "no model" in failed["error"]
    await ann.done(tickets[1])


@running()
async def test_a_failed_operation_does_not_stop_those_after_it(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.fail_next(Train, "no memory left")
    server.engine.fail_next(OptimStep, "no gradient", "user")
    tickets = [await ann.train(model, 1), await ann.step(model, 2), await ann.train(model, 3)]
    results = [await ann.result(each) for each in tickets]
    assert results[0] == {"error": "no memory left", "category": "server"}
    assert results[1] == {"error": "no gradient", "category": "user"}
    assert results[2]["metrics"]["loss:sum"]


@running(bases=("tiny", OTHER))
async def test_models_of_two_bases_run_in_engines_of_their_own(server: Machine):
    ann = server.ann
    session = await ann.session()
    models = [await ann.model(session, 0), await ann.model(session, 1, base=OTHER)]
    for model in models:
        await ann.done(await ann.train(model, 1))
    assert [list(engine.models) for engine in server.engines] == [[models[0]], [models[1]]]
    server.links[0].die("killed")
    await server.settle()
    await ann.done(await ann.train(models[1], 2))
    await ann.done(await ann.train(models[0], 2))


# ---- unloading


@running()
async def test_unloading_waits_for_what_was_sent_before_and_ends_the_model(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    before = await ann.train(model, 1)
    unload = ann.ticket(await ann("unload_model", {"model_id": model}))
    behind = await ann.step(model, 3)
    server.engine.release()
    await ann.done(before)
    assert (await ann.done(unload))["model_id"] == model
    assert (await ann.result(behind))["category"] == "user"
    assert model not in server.engine.models
    assert sum(isinstance(each, Unload) for each in server.engine.seen) == 1
    text = await ann.refused("optim_step", {"model_id": model, "seq_id": 9, "adam_params": {}})
    assert "unloaded by its client" in text
    assert await ann.train(model, 1) == before
    assert ann.ticket(await ann("unload_model", {"model_id": model})) == unload


@running()
async def test_finishing_a_session_fails_what_its_models_have_in_line(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    server.engine.hold(Train)
    running_one = await ann.train(model, 1)
    await server.settle()
    waiting = await ann.train(model, 3)
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    failed = await ann.result(waiting)
    assert failed["category"] == "user"
    assert "session has ended" in failed["error"]
    server.engine.release()
    await ann.done(running_one)
    await server.settle()
    assert model not in server.engine.models
    assert server.service.queued["ann"] == [0, 0]
    row = await server.store.get(ModelRow, model)
    assert (row.state, row.note) == ("unloaded", "its session has ended")
    text = await ann.refused("optim_step", {"model_id": model, "seq_id": 4, "adam_params": {}})
    assert "session has ended" in text


@running()
async def test_work_of_an_ended_session_ends_though_its_engine_died(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    server.engine.hold(Train)
    ticket = await ann.train(model, 1)
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    await server.replace_engine()
    assert (await ann.result(ticket))["category"] == "server"
    assert server.service.queued["ann"] == [0, 0]


@running()
async def test_what_arrives_while_its_session_ends_is_refused_or_fails(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    gate, storage = asyncio.Event(), server.store.storage

    async def slow(*args: object) -> object:
        await gate.wait()
        return await storage(*args)

    monkeypatch.setattr(server.store, "storage", slow)
    saving = asyncio.ensure_future(ann("save_weights", {"model_id": model, "seq_id": 1, "path": "a"}))
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    gate.set()
    answer = await saving
    assert answer.status == 400
    assert "session has ended" in answer.detail
    assert await server.store.get(OperationRow, f"{model}:1") is None


@pytest.mark.parametrize("kind", ["create_model", "create_sampling_session"])
def test_what_is_made_in_a_session_while_it_ends_is_not_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        session = await ann.session()
        gate, write = asyncio.Event(), server.store.write

        async def slow(*changes: Change) -> None:
            if any(
                isinstance(each, Put) and isinstance(each.row, OperationRow | SamplerRow)
                for each in changes
            ):
                await gate.wait()
            await write(*changes)

        with monkeypatch.context() as patch:
            patch.setattr(server.store, "write", slow)
            number = {"model_seq_id": 0, "sampling_session_seq_id": 0}
            body = {"session_id": session, "base_model": "tiny", **number}
            making = asyncio.ensure_future(ann(kind, body))
            await server.settle()
            await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
            gate.set()
            answer = await making
        if kind == "create_model":
            failure = await ann.result(ann.ticket(answer))
            assert (failure["category"], "session has ended" in failure["error"]) == ("user", True)
            assert server.service.queued["ann"] == [0, 0]
        else:
            assert answer.status == 404
            assert server.service.world.samplers == {}

    scenario(tmp_path=tmp_path)
