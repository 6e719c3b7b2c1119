"""Whose operation runs next: order within a model, joining, fairness, barriers, holes, duplicates."""

from __future__ import annotations

import asyncio

import pytest

from tinkex.engine.messages import CreateAdapter, OptimStep, SaveState, Train, Unload
from tinkex.server import scheduler
from tinkex.server.records import ModelRow, OperationRow

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


# ---- numbers that do not come, come late, or come twice


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
    assert await ann.step(model, 1) == first  # nor the kind
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
    assert "not loaded" in await ann.refused("unload_model", {"model_id": model})


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
