"""Samples: once each, bounded, cancelled, streamed, and the same after their engine died."""

from __future__ import annotations

import asyncio
import json

import pytest
from tinker.proto.response_conv import deserialize_sample_response

from tinkex.engine.messages import Cancel, DropSampler, LoadSampler, Sample, SaveSampler
from tinkex.server.store import Change, Finish

from .client import Client
from .machine import OTHER, Machine, events_of, running

PROMPT = [5, 6, 7]


async def sampling(client: Client) -> str:
    """A sampling session on the base model."""
    return await client.sampler(await client.session())


def told(server: Machine, kind: type) -> list[object]:
    return [each for each in server.engine.seen if isinstance(each, kind)]


async def read(client: Client, id: str):
    """A result as the official SDK reads it."""
    await client.done(id)
    return deserialize_sample_response((await client.poll(id, binary=True)).body)


# ---- one sample


@running()
async def test_a_sample_has_a_sequence_id_for_every_sequence(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    ticket = await ann.ok("asample", ann.sample_body(sampler, 0, num_samples=3))
    assert ticket["request_id"] == f"{sampler}:0"
    assert len(set(ticket["sample_sequence_ids"])) == 3
    result = await read(ann, ticket["request_id"])
    assert [len(each.tokens) for each in result.sequences] == [3, 3, 3]
    assert [each.stop_reason for each in result.sequences] == ["length"] * 3
    as_json = await ann.done(ticket["request_id"])
    assert [each["tokens"] for each in as_json["sequences"]] == [list(s.tokens) for s in result.sequences]
    assert as_json["prompt_logprobs"] is None


@running()
async def test_the_same_number_is_the_same_sample(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    server.engine.hold(Sample)
    tickets = [await ann.ok("asample", ann.sample_body(sampler, 0, params={"seed": s})) for s in (1, 2, 3)]
    assert tickets[0] == tickets[1] == tickets[2]
    server.engine.release()
    done = await ann.done(tickets[0]["request_id"])
    assert await ann.sample(sampler, 0) == tickets[0]["request_id"]
    assert await ann.done(tickets[0]["request_id"]) == done
    assert len(told(server, Sample)) == 1
    assert server.service.sampling_rows["ann"] == 0


@running()
async def test_samples_without_a_seed_differ_and_with_one_do_not(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    seeds = [11, 11, None, None, 2**64 - 1, -5]
    ids = [await ann.sample(sampler, n, params={"seed": s}) for n, s in enumerate(seeds)]
    tokens = [(await ann.done(id))["sequences"][0]["tokens"] for id in ids]
    assert tokens[0] == tokens[1]
    assert tokens[2] != tokens[3]
    assert all(0 <= each.params.seed < 2**63 for each in told(server, Sample))


@running()
async def test_a_sample_may_name_its_model_instead_of_a_session(server: Machine):
    ann, bob = server.ann, server.bob
    model = await ann.model()
    path = (await ann.done(await ann.freeze(model, 1, name="a")))["path"]
    body = ann.sample_body("", 0)
    del body["sampling_session_id"]
    ids = [ann.ticket(await ann("asample", {**body, "base_model": "tiny"}))]
    ids.append(ann.ticket(await ann("asample", {**body, "model_path": path})))
    theirs = bob.ticket(await bob("asample", {**body, "base_model": "tiny"}))
    assert len({*ids, theirs}) == 3
    for id in ids:
        await ann.done(id)
    await bob.done(theirs)
    assert (await bob.poll(ids[0])).status == 404
    assert "base_model" in await ann.refused("asample", body)
    await bob.refused("asample", {**body, "model_path": path}, 404)
    server.engine.hold(Sample)
    lost = ann.ticket(await ann("asample", {**body, "base_model": "tiny", "seq_id": 7}))
    await server.restart()
    assert (await ann.poll(lost)).status == 410
    assert (await bob.poll(lost)).status == 404


# ---- how many


@running(limits={"samples": 4})
async def test_too_many_samples_are_429_at_once_and_go_on_when_others_end(server: Machine):
    ann, bob = server.ann, server.bob
    mine, theirs = await sampling(ann), await sampling(bob)
    server.engine.hold(Sample)
    first = await ann.sample(mine, 0, num_samples=3)
    text = await ann.refused("asample", ann.sample_body(mine, 1, num_samples=2), 429)
    assert "3" in text
    assert "4" in text
    assert (await ann.poll(f"{mine}:1")).status == 410  # no trace of it
    assert await ann.sample(mine, 0, num_samples=3) == first  # a known one is no new one
    await ann.sample(mine, 1)
    await bob.sample(theirs, 0, num_samples=4)
    server.engine.release()
    await ann.done(first)
    await ann.done(f"{mine}:1")
    await ann.done(await ann.sample(mine, 2, num_samples=4))


@running(limits={"samples": 4})
async def test_one_request_larger_than_the_limit_runs_alone(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    await ann.done(await ann.sample(sampler, 0, num_samples=9))


@running(limits={"samples": 2})
async def test_a_cancelled_sample_frees_its_place(server: Machine):
    ann, bob = server.ann, server.bob
    sampler = await sampling(ann)
    server.engine.hold(Sample)
    waiting = await ann.sample(sampler, 0, num_samples=2)
    await ann.refused("asample", ann.sample_body(sampler, 1), 429)
    await bob.refused("cancel_future", {"request_id": waiting}, 404)
    await ann.ok("cancel_future", {"request_id": waiting})
    await ann.ok("cancel_future", {"request_id": waiting})
    assert await ann.result(waiting) == {"error": "cancelled by its client", "category": "user"}
    assert len(told(server, Cancel)) == 1
    server.engine.release()
    await ann.done(await ann.sample(sampler, 1, num_samples=2))
    assert server.service.sampling_rows["ann"] == 0


@running()
async def test_cancelling_a_sample_that_waits_leaves_running_ones_alone(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    alone = await ann.done(await ann.sample(sampler, 100, params={"max_tokens": 20}))
    running_one = await ann.sample(sampler, 0, params={"max_tokens": 20})
    await server.turns(6)
    server.engine.hold(Sample)
    waiting = await ann.sample(sampler, 1, num_samples=8)
    await server.turns(2)
    await ann.ok("cancel_future", {"request_id": waiting})
    assert (await ann.done(running_one))["sequences"] == alone["sequences"]


@running()
async def test_a_sample_cancelled_while_its_engine_is_gone_stays_cancelled(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    server.engine.hold(Sample)
    waiting = await ann.sample(sampler, 0, num_samples=4)
    other = await ann.sample(sampler, 1, num_samples=4)
    await server.settle()
    server.refuse_engines = "not now"
    server.kill_engine()
    await ann.ok("cancel_future", {"request_id": waiting})
    server.refuse_engines = ""
    await server.wait(10)
    assert len((await ann.done(other))["sequences"]) == 4
    assert [each.request_id for each in told(server, Sample)] == [other]


@running()
async def test_cancelling_a_sample_of_a_lost_engine_leaves_those_of_the_next_alone(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    frozen = (await ann.done(await ann.freeze(model, 1, number=0)))["sampling_session_id"]
    base = await ann.sampler(session, 1)
    waiting = await ann.sample(frozen, 0, num_samples=8, params={"max_tokens": 100})
    running_one = await ann.sample(base, 0, params={"max_tokens": 20})
    await server.turns(6)
    server.hold = [LoadSampler]  # the next engine is slow to load what was frozen
    server.kill_engine()
    await server.turns(8)
    await ann.ok("cancel_future", {"request_id": waiting})
    found = await ann.done(running_one)
    alone = await ann.done(await ann.sample(base, 100, params={"max_tokens": 20}))
    assert found["sequences"] == alone["sequences"]


# ---- streams


def parts(events: list[tuple[str, bytes]]) -> tuple[dict[int, list[int]], dict]:
    """The tokens a stream brought by sequence, and its last event."""
    tokens: dict[int, list[int]] = {}
    for name, data in events[:-1]:
        assert name == "tokens"
        event = json.loads(data)
        assert len(event["tokens"]) == len(event["logprobs"]) > 0
        tokens.setdefault(event["sequence"], []).extend(event["tokens"])
    return tokens, json.loads(events[-1][1])


def open_stream(client: Client, body: dict) -> object:
    return client.machine.open(
        "POST", "/api/v1/asample_stream", json.dumps(body).encode(), client.headers()
    )


@running()
async def test_a_streams_events_are_the_whole_result(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    body = ann.sample_body(sampler, 0, num_samples=3, params={"max_tokens": 9}, prompt_logprobs=True)
    stream = open_stream(ann, body)
    events = await events_of(stream.pieces())
    assert events[-1][0] == "done"
    assert len(events) > 10
    tokens, whole = parts(events)
    assert {n: each["tokens"] for n, each in enumerate(whole["sequences"])} == tokens
    assert whole.pop("sample_sequence_ids") == [f"{sampler}:0:{n}" for n in range(3)]
    assert whole == await ann.done(f"{sampler}:0")
    # Asked for again, it comes at once.
    again = await events_of(open_stream(ann, body).pieces())
    assert [name for name, _ in again] == ["done"]


@running()
async def test_two_streams_of_one_sample_hear_the_same(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    body = ann.sample_body(sampler, 0, num_samples=2, params={"max_tokens": 12})
    first = open_stream(ann, body)
    await server.turns(8)
    second = open_stream(ann, {**body, "num_samples": 1})
    one, other = await asyncio.gather(events_of(first.pieces()), events_of(second.pieces()))
    assert parts(one)[0] == parts(other)[0]
    assert parts(one)[1]["sequences"] == parts(other)[1]["sequences"]
    assert len(told(server, Sample)) == 1


@pytest.mark.parametrize("turns", [3, 6, 9, 14, 25])
def test_an_engine_that_dies_within_a_stream_is_not_noticed(turns: int, tmp_path):
    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        sampler = await sampling(ann)
        wanted = await ann.done(await ann.sample(sampler, 9, num_samples=2, params={"max_tokens": 20}))
        stream = open_stream(ann, ann.sample_body(sampler, 0, num_samples=2, params={"max_tokens": 20}))
        await server.turns(turns)
        await server.replace_engine()
        events = await events_of(stream.pieces())
        tokens, whole = parts(events)
        assert whole["sequences"] == wanted["sequences"]
        assert tokens == {n: each["tokens"] for n, each in enumerate(wanted["sequences"])}

    scenario(tmp_path=tmp_path)


@running()
async def test_a_stream_that_waits_shows_that_it_lives_and_one_that_fails_says_why(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    server.engine.hold(Sample)
    stream = open_stream(ann, ann.sample_body(sampler, 0))
    pieces = stream.pieces()
    coming = asyncio.ensure_future(anext(pieces))
    await server.wait(16)
    assert await coming == b": waiting\n\n"
    server.engine.fail_next(Sample, "no blocks left")
    server.engine.release()
    events = await events_of(pieces)
    assert [(name, json.loads(data)) for name, data in events] == [
        ("error", {"error": "no blocks left", "category": "server"})
    ]


@running()
async def test_a_stream_its_client_left_ends_in_the_server_and_the_sample_goes_on(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    stream = open_stream(ann, ann.sample_body(sampler, 0, params={"max_tokens": 30}))
    await server.turns(10)
    stream.close()
    assert len((await ann.done(f"{sampler}:0"))["sequences"][0]["tokens"]) == 30


@running()
async def test_what_is_wrong_with_a_stream_is_refused_before_it_begins(server: Machine):
    ann = server.ann
    sampler = await sampling(ann)
    text = await ann.refused("sample_stream", ann.sample_body(sampler, 0, num_samples=0))
    assert "num_samples" in text


# ---- weights


@running()
async def test_frozen_weights_are_sampled_at_once_and_after_the_model_moved_on(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.train(model, 1)
    await ann.step(model, 2)
    unnamed = await ann.done(await ann.freeze(model, 3, number=4))
    assert unnamed.get("path") is None
    assert unnamed["sampling_session_id"] == f"{model.partition(':')[0]}:sample:4"
    named = await ann.done(await ann.freeze(model, 4, name="a"))
    assert named["path"] == f"tinker://{model}/sampler_weights/a"
    assert named.get("sampling_session_id") is None
    other = await ann.sampler(model.partition(":")[0], 5, base=None, model_path=named["path"])
    await ann.step(model, 5)
    for sampler in (unnamed["sampling_session_id"], other):
        await ann.done(await ann.sample(sampler, 0))
    versions = {each.version for each in told(server, Sample)}
    assert len(versions) == 1
    assert "" not in versions
    assert told(server, LoadSampler) == []
    assert (await ann.ok("get_sampler", sampler_id=other))["model_path"] == named["path"]


@pytest.mark.parametrize("what", ["engine", "server"])
def test_samplers_work_after_a_death(what: str, tmp_path):
    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        session = await ann.session()
        model = await ann.model(session)
        unnamed = (await ann.done(await ann.freeze(model, 1, number=0)))["sampling_session_id"]
        await ann.done(await ann.step(model, 2))
        path = (await ann.done(await ann.freeze(model, 3, name="a")))["path"]
        named = await ann.sampler(session, 7, base=None, model_path=path)
        base = await ann.sampler(session, 8)
        await (server.restart() if what == "server" else server.replace_engine())
        for sampler in (unnamed, named, base, unnamed, named):
            number = len(told(server, Sample))
            await ann.done(await ann.sample(sampler, number))
        assert len(told(server, LoadSampler)) == 2  # each once, however often it is sampled
        assert await ann.sampler(session, 7, base=None, model_path=path) == named

    scenario(tmp_path=tmp_path)


@running()
async def test_samples_under_way_are_drawn_again_with_their_weights(server: Machine):
    ann = server.ann
    model = await ann.model()
    sampler = (await ann.done(await ann.freeze(model, 1, number=0)))["sampling_session_id"]
    wanted = (await ann.done(await ann.sample(sampler, 50)))["sequences"]
    server.engine.hold(Sample)
    ids = [await ann.sample(sampler, number) for number in range(5)]
    await server.settle()
    await server.replace_engine()
    for id in ids:
        assert (await ann.done(id))["sequences"] == wanted
    assert len(told(server, LoadSampler)) == 1


@running()
async def test_weights_that_cannot_be_loaded_fail_the_samples_that_need_them(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    path = (await ann.done(await ann.freeze(model, 1, name="a")))["path"]
    sampler = await ann.sampler(session, 0, base=None, model_path=path)
    folder = server.folders.path / server.service.world.samplers[sampler].row.folder
    (folder / "adapter.json").unlink()
    await server.replace_engine()
    ids = [await ann.sample(sampler, number) for number in (0, 1)]
    for id in ids:
        assert "no checkpoint" in (await ann.result(id))["error"]
    base = await ann.sampler(session, 1)
    await ann.done(await ann.sample(base, 0))


@running()
async def test_a_sample_cancelled_while_its_weights_are_loaded_ends_once(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    path = (await ann.done(await ann.freeze(model, 1, name="a")))["path"]
    sampler = await ann.sampler(session, 0, base=None, model_path=path)
    await server.replace_engine()
    server.engine.hold(LoadSampler)
    server.engine.fail_next(LoadSampler, "unreadable")
    waiting = await ann.sample(sampler, 0)
    await server.settle()
    await ann.ok("cancel_future", {"request_id": waiting})
    server.engine.release()
    await server.settle()
    assert server.service.metrics.samples == {"user": 1}
    assert await ann.result(waiting) == {"error": "cancelled by its client", "category": "user"}


@running()
async def test_weights_whose_engine_died_before_they_were_known_are_loaded_by_the_next(
    server: Machine, monkeypatch: pytest.MonkeyPatch
):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    gate, write = asyncio.Event(), server.store.write

    async def slow(*changes: Change) -> None:
        if any(isinstance(each, Finish) for each in changes):
            await gate.wait()
        await write(*changes)

    monkeypatch.setattr(server.store, "write", slow)
    saving = await ann.freeze(model, 1, name="a")
    await server.settle()
    await server.replace_engine()
    gate.set()
    path = (await ann.done(saving))["path"]
    sampler = await ann.sampler(session, 0, base=None, model_path=path)
    await ann.done(await ann.sample(sampler, 0))


@running()
async def test_weights_frozen_for_a_session_that_has_ended_stay_where_another_has_the_same(server: Machine):
    ann = server.ann
    sessions = [await ann.session(), await ann.session()]
    first, second = [await ann.model(each, lora_config={"rank": 8, "seed": 3}) for each in sessions]
    sampler = (await ann.done(await ann.freeze(first, 1, number=0)))["sampling_session_id"]
    server.engine.hold(SaveSampler)
    await ann.freeze(second, 1, number=0)
    await server.settle()
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=sessions[1])
    server.engine.release()
    await server.settle()
    assert told(server, DropSampler) == []
    await ann.done(await ann.sample(sampler, 0))


@running()
async def test_a_retried_freeze_with_another_session_number_is_the_first(server: Machine):
    ann = server.ann
    model = await ann.model()
    first = await ann.freeze(model, 1, number=0)
    assert await ann.freeze(model, 1, number=1) == first
    assert (await ann.done(first))["sampling_session_id"].endswith(":sample:0")
    assert len(told(server, SaveSampler)) == 1


@running()
async def test_a_sampling_session_number_in_use_is_not_frozen_over(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    await ann.sampler(session, 3)
    body = {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 3}
    assert "3" in await ann.refused("save_weights_for_sampler", body)
    await ann.done(await ann.freeze(model, 2, number=4))
    body = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 4}
    assert "4" in await ann.refused("save_weights_for_sampler", body)
    await ann.done(await ann.step(model, 4))


@running()
async def test_a_finished_session_takes_its_unnamed_weights_out_of_the_engine(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    sampler = (await ann.done(await ann.freeze(model, 1, number=0)))["sampling_session_id"]
    assert len(server.engine.versions) == 1
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    await server.settle()
    assert len(told(server, DropSampler)) == 1
    assert server.engine.versions == {}
    await ann.refused("asample", ann.sample_body(sampler, 0), 404)


@running(bases=("tiny", OTHER))
async def test_weights_are_sampled_on_the_base_they_were_trained_from(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session, base=OTHER)
    path = (await ann.done(await ann.freeze(model, 1, name="a")))["path"]
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny", "model_path": path}
    text = await ann.refused("create_sampling_session", body)
    assert "tiny" in text
    assert OTHER in text
    sampler = await ann.sampler(session, 1, base=None, model_path=path)
    await ann.done(await ann.sample(sampler, 0))
    assert [each.version for each in server.engines[1].seen if isinstance(each, Sample)] != [""]
