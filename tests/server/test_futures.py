"""Waiting for results: polls are held, woken at once, told to come again, and never see a 5xx."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tinker.proto.response_conv import deserialize_forward_backward_output

from tinkex.engine.messages import CreateAdapter, OptimStep, Sample, Train
from tinkex.server import handlers_futures
from tinkex.server.endings import LINGER
from tinkex.server.tickets import TICKET_BYTES, Ticket, Tickets
from tinkex.wire.headers import PROTOBUF

from .client import datum
from .machine import Machine, running

# ---- one result


@running()
async def test_a_poll_is_held_and_then_told_to_come_again(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    ticket = await ann.train(model, 1)
    poll = ann.begin_poll(ticket)
    await server.wait(34)
    assert not poll.done()
    await server.wait(2)
    again = await poll
    assert again.status == 408
    assert again.json == {"type": "try_again", "request_id": ticket, "queue_state": "active"}
    server.engine.release()
    await ann.done(ticket)


@running(times={"hole": 100.0})
async def test_a_poll_that_waits_for_a_missing_number_says_so(server: Machine):
    ann = server.ann
    model = await ann.model()
    poll = ann.begin_poll(await ann.step(model, 3))
    await server.wait(36)
    again = poll.result()
    assert again.status == 408
    assert again.json["queue_state"] == "paused_capacity"
    assert again.json["queue_state_reason"] == "operation 1 of this model has not arrived"


@running(hold=[CreateAdapter])
async def test_a_failed_operation_is_a_200_with_whose_fault_it_was(server: Machine):
    ann = server.ann
    server.engine.fail_next(CreateAdapter, "rank too large", "user")
    model = await ann.begin_model(await ann.session())
    poll = ann.begin_poll(f"{model}:0")
    await server.settle()
    server.engine.release()
    answer = await poll
    assert (answer.status, answer.json) == (200, {"error": "rank too large", "category": "user"})
    # What needs the model fails too, and does not wait for ever.
    assert (await ann.result(await ann.train(model, 1)))["category"] == "user"


@running()
async def test_unknown_ids_and_those_of_others_are_404(server: Machine):
    ann, bob = server.ann, server.bob
    session = await ann.session()
    model, sampler = await ann.model(session), await ann.sampler(session)
    server.engine.hold(Train, Sample)
    ids = [await ann.train(model, 1), await ann.sample(sampler, 0), f"{model}:0"]
    await server.settle()
    for id in ids:
        assert (await bob.poll(id)).status == 404
    for id in ("", "nobody", f"{model}:99", f"{session}:train:7:0", "x" * 5000, f"{model}:", "\N{SNOWMAN}"):
        assert (await ann.poll(id)).status == 404, id
    assert (
        await ann.poll(f"{sampler}:77")
    ).status == 410  # a sample that is not known may be asked for again
    assert (await bob.poll(f"{sampler}:77")).status == 404
    server.engine.release()


@running()
async def test_a_pass_is_protobuf_or_json_as_the_client_accepts(server: Machine):
    ann = server.ann
    model = await ann.model()
    ticket = await ann.train(model, 1, datum([1, 2, 3]), datum([4, 5]))
    as_json = await ann.done(ticket)
    binary = await ann.poll(ticket, binary=True)
    assert binary.headers["content-type"] == PROTOBUF
    read = deserialize_forward_backward_output(binary.body)
    assert read.metrics == as_json["metrics"] == {"loss:sum": 2.5, "tokens:sum": 5.0}
    assert [each["logprobs"].shape for each in read.loss_fn_outputs] == [[3], [2]]
    for one, other in zip(read.loss_fn_outputs, as_json["loss_fn_outputs"], strict=True):
        assert set(other["logprobs"]) == {"data", "dtype", "shape"}
        np.testing.assert_allclose(one["logprobs"].data, other["logprobs"]["data"])
    # What is JSON stays JSON, whatever is accepted.
    step = await ann.poll(await ann.step(model, 2), binary=True)
    assert step.headers["content-type"] == "application/json"
    assert step.json["metrics"]


@running()
async def test_a_large_result_is_announced_to_those_who_allow_it(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handlers_futures, "LARGE", 200)
    ann = server.ann
    model = await ann.model()
    ticket = await ann.train(model, 1, datum(range(1, 100)))
    whole = await ann.poll(ticket, binary=True)
    announced = await ann.poll(ticket, binary=True, allow_metadata_only=True)
    assert announced.json == {"status": "complete_metadata", "response_payload_size": len(whole.body)}
    assert (await ann.poll(ticket, binary=True, allow_metadata_only=False)).body == whole.body
    small = await ann.poll(await ann.step(model, 2), binary=True, allow_metadata_only=True)
    assert "metrics" in small.json


@running()
async def test_an_answer_leaves_in_the_turn_after_its_work_ended(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    ticket = await ann.train(model, 1)
    stream = server.open(
        "POST", "/api/v1/retrieve_future", b'{"request_id":"%b"}' % ticket.encode(), ann.headers()
    )
    await server.settle()
    held = server.service.tickets.get(ticket)
    held.done(b'{"metrics":{}}', "json", 0.0)
    await server.turns(2)
    assert stream.task.done()
    server.engine.release()


@running()
async def test_two_thousand_polls_are_held_and_all_are_woken(server: Machine):
    ann = server.ann
    session = await ann.session()
    model, sampler = await ann.model(session), await ann.sampler(session)
    server.engine.hold(Train, Sample)
    one = await ann.train(model, 1)
    many = [await ann.sample(sampler, number) for number in range(500)]
    polls = [ann.begin_poll(one) for _ in range(1500)] + [ann.begin_poll(each) for each in many]
    await server.settle()
    assert len(server.service.tickets.get(one).bell) == 1500
    server.engine.release()
    await server.until(lambda: all(poll.done() for poll in polls))
    assert {poll.result().status for poll in polls} == {200}
    assert len({poll.result().body for poll in polls[:1500]}) == 1


@running()
async def test_a_poll_whose_client_left_is_forgotten(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train)
    ticket = await ann.train(model, 1)
    polls = [ann.begin_poll(ticket) for _ in range(3)]
    await server.settle()
    polls[1].cancel()
    await asyncio.gather(polls[1], return_exceptions=True)
    streams = [each for each in asyncio.all_tasks() if "Stream" in repr(each.get_coro())]
    for each in streams[1:2]:
        each.cancel()
    await server.settle()
    assert len(server.service.tickets.get(ticket).bell) == 2
    server.engine.release()
    await server.until(lambda: polls[0].done() and polls[2].done())


@running()
async def test_a_stopping_server_lets_go_of_the_polls_it_holds(server: Machine):
    ann = server.ann
    session = await ann.session()
    model, sampler = await ann.model(session), await ann.sampler(session)
    server.engine.hold(Train)
    poll = ann.begin_poll(await ann.train(model, 1))
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}
    many = asyncio.ensure_future(ann("retrieve_futures", {"target": target, "prev_cursor": 0}))
    await server.settle()
    server.app.release()
    await server.settle()
    assert poll.result().status == 408
    assert many.result().json["completions"] == []
    server.engine.release()


@running()
async def test_work_is_refused_while_the_server_stops_and_known_work_is_not(server: Machine):
    ann = server.ann
    server.allowed_5xx.add(503)
    session = await ann.session()
    model, sampler = await ann.model(session), await ann.sampler(session)
    done = await ann.train(model, 1)
    await ann.done(done)
    server.service.draining = True
    for name, body in (
        ("optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}}),
        ("asample", ann.sample_body(sampler, 0)),
        ("create_session", {"tags": [], "sdk_version": "1"}),
        ("create_model", {"session_id": session, "model_seq_id": 1, "base_model": "tiny"}),
    ):
        answer = await ann(name, body)
        assert answer.status == 503, name
        assert answer.headers["retry-after"]
    assert await ann.train(model, 1) == done
    server.service.draining = False
    await ann.done(await ann.step(model, 2))  # the refused number was not used up


# ---- keeping results


def test_old_and_large_results_are_let_go_of():
    now = 0.0
    tickets = Tickets(keep_bytes=100 + 2 * TICKET_BYTES, monotonic=lambda: now)
    made = []
    for number in range(5):
        ticket = tickets.open(str(number), "asample", "ann")
        now = float(number)
        ticket.done(b"x" * 40, "json", now)
        tickets.ended(ticket)
        made.append(ticket)
    assert [tickets.get(str(number)) is not None for number in range(5)] == [False] * 3 + [True] * 2
    assert tickets.drop_old(0.5, 0.5) == [made[3]]
    assert [tickets.get(str(number)) is not None for number in range(5)] == [False] * 4 + [True]
    tickets.drop("4")
    assert len(tickets) == 0
    big = tickets.open("big", "asample", "ann")
    big.done(b"x" * 1000, "json", 9.0)
    tickets.ended(big)
    assert tickets.get("big") is big  # the newest is kept, however large


def test_a_tickets_json_is_made_once():
    ticket = Ticket("a", "optim_step", "ann")
    ticket.done(b"{}", "json", 1.0)
    assert ticket.written(True) is ticket.written(False)


# ---- many results


def asking(sampler: str, cursor: int = 0, clone: int = 0, **more):
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
    return {"target": target, "prev_cursor": cursor, **more}


@running()
async def test_completions_come_in_order_once_by_cursor(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    server.engine.fail_next(Sample, "broken")
    ids = [await ann.sample(sampler, number) for number in (3, 1, 2)]
    for id in ids:
        await ann.result(id)
    first = await ann.ok("retrieve_futures", asking(sampler))
    assert [(each["request_id"], each["state"]) for each in first["completions"]] == [
        (ids[0], "failed"),
        (ids[1], "finished"),
        (ids[2], "finished"),
    ]
    size = first["completions"][1]["response_payload_uncompressed_size"]
    assert size == len((await ann.poll(ids[1], binary=True)).body)
    # A lost answer is given again; what was seen is not.
    assert await ann.ok("retrieve_futures", asking(sampler)) == first
    waiting = asyncio.ensure_future(ann.ok("retrieve_futures", asking(sampler, first["cursor"])))
    await server.settle()
    assert not waiting.done()
    last = await ann.sample(sampler, 9)
    await server.until(waiting.done)
    assert [each["request_id"] for each in waiting.result()["completions"]] == [last]
    assert waiting.result()["cursor"] > first["cursor"]


@running()
async def test_an_empty_wait_is_held_and_keeps_the_cursor(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    await ann.result(await ann.sample(sampler, 0))
    cursor = (await ann.ok("retrieve_futures", asking(sampler)))["cursor"]
    waiting = asyncio.ensure_future(ann.ok("retrieve_futures", asking(sampler, cursor)))
    await server.wait(29)
    assert not waiting.done()
    await server.wait(2)
    assert waiting.result() == {"completions": [], "cursor": cursor}
    assert await ann.ok("retrieve_futures", asking(sampler, cursor + 5, timeout=0)) == {
        "completions": [],
        "cursor": cursor + 5,
    }


@running()
async def test_an_empty_wait_ends_with_its_session(server: Machine):
    ann = server.ann
    session = await ann.session()
    sampler = await ann.sampler(session)
    waiting = [asyncio.ensure_future(ann("retrieve_futures", asking(sampler, clone=i))) for i in range(2)]
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    await server.settle()
    # Not at once: a client that ends its session calls off its own polls in that moment.
    assert not any(each.done() for each in waiting)
    await server.wait(LINGER)
    assert [each.result().status for each in waiting] == [200, 200]
    assert (await ann("retrieve_futures", asking(sampler))).status == 404


@running()
async def test_clones_hear_of_their_own_samples_alone(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    assert (await ann.ok("join_sampling_session", {"sampling_session_id": sampler}))["client_counter"] == 1
    assert (await ann.ok("join_sampling_session", {"sampling_session_id": sampler}))["client_counter"] == 2
    ids = [await ann.sample(sampler, number) for number in (0, 1_000_000_000, 1_000_000_001, 10**18)]
    for id in ids:
        await ann.done(id)
    for clone, own in ((0, ids[:1]), (1, ids[1:3]), (10**9, ids[3:])):
        found = await ann.ok("retrieve_futures", asking(sampler, clone=clone))
        assert [each["request_id"] for each in found["completions"]] == own
    await server.restart()
    assert (await ann.ok("join_sampling_session", {"sampling_session_id": sampler}))["client_counter"] == 3


@running()
async def test_results_a_client_has_are_dropped_and_only_those(server: Machine):
    ann, bob = server.ann, server.bob
    session = await ann.session()
    one, other = await ann.sampler(session, 1), await ann.sampler(session, 10)
    ids = [await ann.sample(one, 0), await ann.sample(other, 0), await ann.sample(one, 1)]
    theirs = await bob.sample(await bob.sampler(await bob.session()), 0)
    for id in ids:
        await ann.done(id)
    await bob.done(theirs)
    gone = [ids[0], ids[1], theirs, "nonsense"]
    cursor = (await ann.ok("retrieve_futures", asking(one, retrieved_request_ids=gone)))["cursor"]
    assert (await ann.poll(ids[0])).status == 410
    await ann.done(ids[1])  # of another sampling session, though its name begins alike
    await ann.done(ids[2])
    await bob.done(theirs)
    # Their order and the cursor are as they were.
    assert (await ann.ok("retrieve_futures", asking(one, cursor, timeout=0)))["completions"] == []


@running()
async def test_samples_lost_in_a_restart_are_told_as_failed_and_answer_410(server: Machine):
    ann = server.ann
    session = await ann.session()
    sampler = await ann.sampler(session)
    fetched, finished = await ann.sample(sampler, 0), await ann.sample(sampler, 1)
    await ann.done(fetched)
    cursor = (await ann.ok("retrieve_futures", asking(sampler)))["cursor"]
    server.engine.hold(Sample)
    running_one = await ann.sample(sampler, 2)
    cloned = await ann.sample(sampler, 3_000_000_000)
    await server.restart()
    found = await ann.ok("retrieve_futures", asking(sampler, cursor))
    assert found["completions"] == [
        {"state": "failed", "request_id": each} for each in (finished, running_one)
    ]
    assert found["cursor"] > cursor
    theirs = await ann.ok("retrieve_futures", asking(sampler, clone=3))
    assert [each["request_id"] for each in theirs["completions"]] == [cloned]
    for each in (fetched, finished, running_one, cloned):
        assert (await ann.poll(each)).status == 410
    again = await ann.sample(sampler, 4)
    await ann.done(again)
    new = await ann.ok("retrieve_futures", asking(sampler, found["cursor"]))
    assert [each["request_id"] for each in new["completions"]] == [again]
    await server.restart()  # those that were asked about are not told again
    assert (await ann.ok("retrieve_futures", asking(sampler, new["cursor"], timeout=0)))[
        "completions"
    ] == []


@running()
async def test_only_ones_own_live_sampling_sessions_can_be_waited_for(server: Machine):
    ann, bob = server.ann, server.bob
    session = await ann.session()
    sampler = await ann.sampler(session)
    await bob.refused("retrieve_futures", asking(sampler), 404)
    await ann.refused("retrieve_futures", asking("nobody"), 404)


@running()
async def test_waiting_for_results_keeps_the_session_alive(server: Machine):
    ann = server.ann
    session = await ann.session()
    sampler = await ann.sampler(session)
    for _ in range(40):
        asked = asyncio.ensure_future(ann.ok("retrieve_futures", asking(sampler)))
        await server.wait(31)
        await asked
    assert session in server.service.world.sessions
    await ann.ok("session_heartbeat", {"session_id": session})


@running()
async def test_only_samples_can_be_cancelled(server: Machine):
    ann, bob = server.ann, server.bob
    model = await ann.model()
    server.engine.hold(OptimStep)
    ticket = await ann.step(model, 1)
    assert await ann.ok("cancel_future", {"request_id": ticket}) == {}
    await bob.refused("cancel_future", {"request_id": ticket}, 404)
    await ann.refused("cancel_future", {"request_id": "nobody"}, 404)
    server.engine.release()
    await ann.done(ticket)
