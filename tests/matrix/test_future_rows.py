"""Results: how they are polled for, one by one and many at once, over plain HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .gaps import Gap
from .raw_client import PROTOBUF, Wire, read_output
from .serving import HOLD, HOLE, Served

CLONE = 1_000_000_000


# ---- 5.1: the states of one future


def test_5_1_done_gives_the_result_as_often_as_it_is_asked_for(wire: Wire) -> None:
    ticket = wire.submit_pass(wire.model(), 1)
    first = wire.polls(ticket, binary=True)[-1]
    again = wire.poll(ticket, binary=True)
    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert int(again.headers["content-length"]) == len(again.body)


def test_5_1_failed_is_a_200_with_an_error_and_whose_fault_it_is(wire: Wire, gap: Gap) -> None:
    for answer in (wire.poll(gap.late), wire.poll(gap.late), wire.poll(gap.late, binary=True)):
        assert answer.status == 200
        assert not answer.binary
        assert isinstance(answer.json["error"], str)
        assert answer.json["error"]
        assert answer.json["category"] == "user"


def test_5_1_pending_is_a_408_that_says_try_again(gap: Gap) -> None:
    *pending, last = gap.polls
    assert last.status == 200
    assert pending
    for answer in pending:
        assert answer.status == 408
        assert answer.json["type"] == "try_again"
        assert answer.json["request_id"] == gap.step
        assert answer.json["queue_state"] in ("active", "paused_capacity", "paused_rate_limit")
        assert isinstance(answer.json.get("queue_state_reason", ""), str)
        assert int(answer.headers["content-length"]) == len(answer.body)


def test_0_6_a_poll_is_held(gap: Gap) -> None:
    # Official clients ask again at once: polls that are not held would come by the thousand.
    assert 1 < len(gap.polls) <= 4 * HOLE / HOLD


def test_5_1_a_large_result_is_announced_to_those_who_allow_it(wire: Wire) -> None:
    prompt = {"chunks": [{"tokens": [3, 4, 5, 6] * 1750, "type": "encoded_text"}]}
    ticket = wire.submit_sample(
        wire.sampler(), prompt=prompt, prompt_logprobs=True, topk_prompt_logprobs=20
    )
    whole = wire.polls(ticket, binary=True)[-1]  # a client that says nothing does not allow it
    assert whole.binary
    assert len(whole.body) > 1_000_000
    announced = wire.poll(ticket, binary=True, allow_metadata_only=True)
    assert (announced.status, announced.binary) == (200, False)
    assert announced.json == {"status": "complete_metadata", "response_payload_size": len(whole.body)}
    fetched = wire.poll(ticket, binary=True, allow_metadata_only=False)
    assert fetched.body == whole.body


def test_5_1_a_small_result_is_given_at_once(wire: Wire) -> None:
    ticket = wire.submit_pass(wire.model(), 1, [([3], [4], [1.0])])
    wire.polls(ticket)
    answer = wire.poll(ticket, binary=True, allow_metadata_only=True)
    assert answer.binary
    assert len(read_output(answer.body)[1]) == 1


def test_5_1_a_lost_promise_is_a_410(wire: Wire, server: Served) -> None:
    if server.fake is None:
        pytest.skip("only a fake can be made to lose a result at will")
    ticket = wire.submit_sample(wire.sampler())
    server.fake.lose(ticket)
    assert wire.poll(ticket).status == 410


def test_5_1_what_was_never_promised_is_a_404(wire: Wire) -> None:
    for name in ("nothing", "nobody:train:0:1", "", "a/b"):
        answer = wire.poll(name)
        assert answer.status == 404, (name, answer)
        assert answer.json["detail"]


def test_5_1_somebody_elses_result_is_not_there(wire: Wire, server: Served) -> None:
    ticket = wire.submit_sample(wire.sampler())
    assert wire.polls(ticket)[-1].status == 200
    assert Wire(server, server.other_key).poll(ticket).status == 404


@pytest.mark.parametrize("key", [None, "", "tml-nobody", "eyJ.not.one"])
def test_5_1_without_a_known_key_it_is_a_401(server: Served, key: str | None) -> None:
    answer = Wire(server, key).poll("nothing")
    assert answer.status == 401
    assert answer.json["detail"]


# ---- 5.1: what each kind of result looks like


def path_of(kind: str, name: str) -> Any:
    return lambda result, run: result["path"] == f"tinker://{run}/{kind}/{name}"


SHAPES: dict[str, Any] = {
    "CreateModel": lambda result, run: result["model_id"] == run,
    "ForwardBackward": lambda result, run: (
        {"loss_fn_output_type", "loss_fn_outputs", "metrics"} == set(result)
    ),
    "Forward": lambda result, run: {"loss_fn_output_type", "loss_fn_outputs", "metrics"} == set(result),
    "OptimStep": lambda result, run: all(
        isinstance(value, (int, float)) for value in (result.get("metrics") or {}).values()
    ),
    "SaveWeights": path_of("weights", "w"),
    "SaveWeightsForSampler": path_of("sampler_weights", "s"),
    "unnamed SaveWeightsForSampler": lambda result, run: (
        result.get("path") is None and isinstance(result["sampling_session_id"], str)
    ),
    "SaveWeightsExternal": path_of("external_weights", "e"),
    "LoadWeights": lambda result, run: result.get("model_id", run) == run,
    "Sample": lambda result, run: [len(each["tokens"]) for each in result["sequences"]] == [4],
    "UnloadModel": lambda result, run: result["model_id"] == run,
}


@pytest.mark.parametrize("kind", SHAPES)
def test_5_1_every_result_has_its_shape(results: dict[str, Any], kind: str) -> None:
    result = results[kind]
    assert SHAPES[kind](result, results["CreateModel"]["model_id"]), result


# ---- 5.2: the futures of a sampling session, many at once


def ask_many(wire: Wire, sampler: str, cursor: int = 0, clone: int = 0, **more: Any) -> Any:
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
    body = {"target": target, "prev_cursor": cursor, "retrieved_request_ids": [], **more}
    return wire.post("/retrieve_futures", body)


def gather(wire: Wire, sampler: str, count: int, clone: int = 0) -> tuple[dict[str, Any], int]:
    """Events by request id until so many have come, each exactly once, and the cursor behind them."""
    seen: dict[str, Any] = {}
    cursor = 0
    for _ in range(100):
        answer = ask_many(wire, sampler, cursor, clone)
        assert answer.status == 200, answer.body
        made = answer.json
        assert isinstance(made["cursor"], int)
        assert made["cursor"] >= cursor
        cursor = made["cursor"]
        for event in made["completions"]:
            assert event["request_id"] not in seen
            seen[event["request_id"]] = event
        if len(seen) >= count:
            return seen, cursor
    raise AssertionError(f"{len(seen)} of {count} came")


def test_5_2_each_end_is_told_once_and_the_cursor_moves_on(wire: Wire) -> None:
    sampler = wire.sampler()
    tickets = [wire.submit_sample(sampler, number) for number in range(3)]
    seen, cursor = gather(wire, sampler, 3)
    assert set(seen) == set(tickets)
    later = wire.submit_sample(sampler, 3)
    made: list[str] = []
    while not made:
        answer = ask_many(wire, sampler, cursor).json
        made, cursor = [event["request_id"] for event in answer["completions"]], answer["cursor"]
    assert made == [later]


def test_5_2_a_finished_one_says_how_large_it_is(wire: Wire) -> None:
    sampler = wire.sampler()
    ticket = wire.submit_sample(sampler)
    seen, _ = gather(wire, sampler, 1)
    assert seen[ticket]["state"] == "finished"
    size = seen[ticket].get("response_payload_uncompressed_size")
    answer = wire.poll(ticket, binary=True, allow_metadata_only=False)
    assert (answer.status, answer.binary) == (200, True)
    assert size in (None, len(answer.body))


def test_5_2_with_nothing_new_the_poll_is_held_and_then_empty(wire: Wire) -> None:
    sampler = wire.sampler()
    wire.submit_sample(sampler)
    _, cursor = gather(wire, sampler, 1)
    answer = ask_many(wire, sampler, cursor)
    assert answer.status == 200
    assert answer.json["completions"] == []
    assert answer.json["cursor"] >= cursor


def test_5_2_clones_hear_of_their_own_samples_only(wire: Wire) -> None:
    sampler = wire.sampler()
    own = wire.submit_sample(sampler, 0)
    cloned = [wire.submit_sample(sampler, 7 * CLONE + number) for number in (0, 5)]
    far = wire.submit_sample(sampler, 999_999_999 * CLONE + 1)
    assert set(gather(wire, sampler, 1)[0]) == {own}
    assert set(gather(wire, sampler, 2, clone=7)[0]) == set(cloned)
    assert set(gather(wire, sampler, 1, clone=999_999_999)[0]) == {far}


@contextmanager
def slow_samples(server: Served) -> Iterator[dict[str, Any]]:
    """What to ask for so that a sample can be cancelled before it ends."""
    if server.fake is None:
        yield {"num_samples": 32, "sampling_params": {"max_tokens": 400, "stop": []}}
        return
    server.fake.pause("asample")
    try:
        yield {}
    finally:
        server.fake.resume()


def test_5_2_a_failed_one_is_told_and_its_error_is_fetched(wire: Wire, server: Served) -> None:
    sampler = wire.sampler()
    with slow_samples(server) as asked:
        ticket = wire.submit_sample(sampler, 0, **asked)
        assert wire.post("/cancel_future", {"request_id": ticket}).status == 200
        seen, _ = gather(wire, sampler, 1)
    assert seen[ticket]["state"] == "failed"
    failure = wire.outcome(ticket)
    assert failure["error"]
    assert failure["category"] == "user"


def test_5_2_results_a_client_has_may_be_named(wire: Wire) -> None:
    sampler = wire.sampler()
    first, second = wire.submit_sample(sampler, 0), wire.submit_sample(sampler, 1)
    _, cursor = gather(wire, sampler, 2)
    answer = ask_many(wire, sampler, cursor, retrieved_request_ids=[first])
    assert answer.status == 200
    # Named twice, or unknown: a client repeats itself until a poll succeeds.
    answer = ask_many(wire, sampler, cursor, retrieved_request_ids=[first, "nothing"])
    assert answer.status == 200
    assert wire.poll(first).status in (200, 404, 410)
    assert wire.poll(second).status == 200


def test_5_2_an_unknown_sampling_session_is_a_404(wire: Wire, server: Served) -> None:
    assert ask_many(wire, "nobody:sample:0").status == 404
    assert ask_many(Wire(server, server.other_key), wire.sampler()).status == 404


def test_5_2_single_polls_go_on_working_beside_it(wire: Wire) -> None:
    sampler = wire.sampler()
    ticket = wire.submit_sample(sampler)
    assert wire.polls(ticket, binary=True)[-1].headers["content-type"].startswith(PROTOBUF)
    assert set(gather(wire, sampler, 1)[0]) == {ticket}
