"""What is done once, in which order, and how pieces add up, over plain HTTP."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from .comparing import differences
from .gaps import Gap
from .raw_client import EXAMPLES, PROTOBUF, STEP, Wire, logprobs_of, pass_message, read_output
from .serving import HOLD, HOLE, Served


def node(op: str, name: str, *args: Any) -> dict[str, Any]:
    return {
        "op": op,
        "name": name,
        "target": "sum" if op == "call_method" else name,
        "args": [*args],
        "kwargs": {},
    }


LOSS_GRAPH = {
    "format": 1,
    "nodes": [
        node("placeholder", "logprobs"),
        node("call_method", "total", {"ref": "logprobs"}),
        node("output", "output", {"tuple": [{"ref": "total"}, {"dict": {}}]}),
    ],
}

# ---- 6.2: what is asked for twice is done once

OPERATIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # path, body, and how a repeated body may differ
    "optim_step": ("/optim_step", {"adam_params": STEP}, {}),
    "save_weights": ("/save_weights", {"path": "w"}, {}),
    "named sampler": ("/save_weights_for_sampler", {"path": "s"}, {}),
    "unnamed sampler": (
        "/save_weights_for_sampler",
        {"sampling_session_seq_id": 3},
        {"sampling_session_seq_id": 4},
    ),
    "save_weights_external": ("/save_weights_external", {"path": "e"}, {}),
    "load_weights": ("/load_weights", {"path": "", "optimizer": True}, {}),
    "unsaid optimizer": ("/load_weights", {"path": ""}, {}),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_6_2_an_operation_is_known_by_model_and_number(wire: Wire, name: str) -> None:
    path, body, change = OPERATIONS[name]
    model = wire.model()
    request = {**body, "model_id": model, "seq_id": 2}
    if path == "/load_weights":
        request["path"] = wire.done("/save_weights", {"model_id": model, "seq_id": 1, "path": "w"})["path"]
    else:
        wire.submit_pass(model, 1)
    first = wire.ticket(path, request)
    assert wire.ticket(path, {**request, **change}) == first
    result = wire.result(first)
    # Also when it has long been done.
    assert wire.ticket(path, {**request, **change}) == first
    assert wire.result(first) == result
    if name == "unnamed sampler":
        drawn = wire.result(wire.submit_sample(result["sampling_session_id"]))
        assert len(drawn["sequences"]) == 1


def test_6_2_a_pass_is_known_by_model_and_number(wire: Wire) -> None:
    model, once = wire.model(), wire.model()
    first = wire.submit_pass(model, 1)
    assert wire.submit_pass(model, 1) == first
    result = wire.result(first)
    assert wire.submit_pass(model, 1) == first
    assert wire.result(first) == result
    for each in (model, once):
        if each is once:
            wire.submit_pass(once, 1)
        wire.submit_step(each, 2)
    assert differences(wire.look(once, 3), wire.look(model, 3), tolerance=1e-4) == []


def test_6_2_a_model_is_known_by_session_and_number(wire: Wire) -> None:
    session = wire.session()
    first = wire.ticket("/create_model", wire.model_request(session))
    assert wire.ticket("/create_model", wire.model_request(session)) == first
    model = wire.result(first)["model_id"]
    assert model == f"{session}:train:0"
    assert wire.ticket("/create_model", wire.model_request(session)) == first
    assert wire.model(session, 1) == f"{session}:train:1"
    known = wire.call("GET", f"/sessions/{session}").json
    assert sorted(known["training_run_ids"]) == [model, f"{session}:train:1"]


def test_6_2_a_model_made_by_loading_is_known_the_same_way(wire: Wire) -> None:
    session = wire.session()
    model = wire.model(session)
    path = wire.done("/save_weights", {"model_id": model, "seq_id": 1, "path": "w"})["path"]
    body = {
        "session_id": session,
        "model_seq_id": 1,
        "path": path,
        "optimizer": True,
        "type": "load_weights",
    }
    first = wire.ticket("/load_weights", body)
    assert wire.ticket("/load_weights", body) == first
    assert wire.result(first).get("model_id") in (None, f"{session}:train:1")
    assert wire.ticket("/load_weights", body) == first
    assert differences(wire.look(model, 2), wire.look(f"{session}:train:1", 1), tolerance=1e-4) == []


def test_6_2_a_sampling_session_is_known_by_session_and_number(wire: Wire) -> None:
    session = wire.session()
    first = wire.sampler(session, 4)
    assert wire.sampler(session, 4) == first
    assert wire.sampler(session, 9) != first  # numbers may be left out
    assert len(wire.call("GET", f"/sessions/{session}").json["sampler_ids"]) == 2


def test_6_2_a_sample_is_known_by_sampler_and_number(wire: Wire) -> None:
    sampler = wire.sampler()
    body = {
        "prompt": {"chunks": [{"tokens": [5, 6]}]},
        "sampling_params": {"max_tokens": 4},
        "num_samples": 2,
    }
    request = {**body, "sampling_session_id": sampler, "seq_id": 12}
    first = wire.ok("/asample", request)
    assert wire.ok("/asample", request) == first
    result = wire.result(first["request_id"])
    assert wire.ok("/asample", request) == first
    assert wire.result(first["request_id"]) == result
    # Up to 0.20 a retry takes a new number: that is new work, and is done.
    other = wire.ok("/asample", {**request, "seq_id": 13})
    assert other["request_id"] != first["request_id"]
    assert set(other["sample_sequence_ids"]).isdisjoint(first["sample_sequence_ids"])
    assert len(wire.result(other["request_id"])["sequences"]) == 2


def test_6_2_a_custom_loss_is_known_by_session_and_number(wire: Wire) -> None:
    body = {
        "session_id": wire.session(),
        "custom_loss_seq_id": 0,
        "name": "mine",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": LOSS_GRAPH,
    }
    first = wire.ticket("/create_custom_loss", body)
    assert wire.ticket("/create_custom_loss", body) == first
    loss = wire.result(first)["loss_id"]
    assert isinstance(loss, str)
    assert wire.done("/create_custom_loss", {**body, "custom_loss_seq_id": 1})["loss_id"] != loss


def test_6_2_a_session_is_known_by_its_idempotency_key(wire: Wire) -> None:
    body = {"tags": [], "user_metadata": {}, "sdk_version": "0.36.0"}
    key = {"X-Idempotency-Key": f"session of {wire.session()}"}
    first = wire.ok("/create_session", body, headers=key)["session_id"]
    assert wire.ok("/create_session", body, headers=key)["session_id"] == first
    assert wire.ok("/create_session", body)["session_id"] != first


def test_6_2_a_copy_is_known_by_its_idempotency_key(wire: Wire) -> None:
    session = wire.session()
    model = wire.model(session)
    source = wire.done("/save_weights", {"model_id": model, "seq_id": 1, "path": "w"})["path"]
    body = {"source_path": source, "destination_project_id": "somewhere"}
    key = {"X-Idempotency-Key": f"copy of {source}"}
    first = wire.ok("/copy_weights", body, headers=key)["tinker_path"]
    assert first != source
    assert wire.ok("/copy_weights", body, headers=key)["tinker_path"] == first
    assert wire.ok("/copy_weights", body)["tinker_path"] != first


# ---- 6.3: the order


def work(wire: Wire, model: str, numbers: list[int]) -> dict[int, str]:
    """Three rounds of pass, step and look, submitted in the order of these numbers (1 to 9)."""
    tickets = {}
    for number in numbers:
        if number % 3 == 2:
            tickets[number] = wire.submit_step(model, number)
        else:
            tickets[number] = wire.submit_pass(model, number, forward_only=number % 3 == 0)
    return tickets


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what is never the same twice."""
    metrics = result.get("metrics") or {}
    return {**result, "metrics": {name: value for name, value in metrics.items() if name != "time_s:max"}}


@pytest.mark.parametrize(
    "numbers",
    [[2, 3, 4, 5, 6, 7, 8, 9, 1], [9, 8, 7, 6, 5, 4, 3, 2, 1], [3, 1, 2, 6, 4, 5, 9, 7, 8]],
    ids=["first last", "backwards", "turned"],
)
def test_6_3_operations_run_by_their_numbers_whatever_order_they_come_in(
    wire: Wire, numbers: list[int]
) -> None:
    straight = work(wire, wire.model(), sorted(numbers))
    expected = {number: timeless(wire.result(ticket)) for number, ticket in straight.items()}
    losses = [expected[number]["metrics"]["loss:sum"] for number in (3, 6, 9)]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3
    # Every submission is answered although the first operation is still to come.
    mixed = work(wire, wire.model(), numbers)
    for number, ticket in mixed.items():
        assert differences(expected[number], timeless(wire.result(ticket)), tolerance=1e-4) == [], number


def test_6_3_a_number_that_never_comes_is_given_up(gap: Gap) -> None:
    last = gap.polls[-1]
    assert last.status == 200
    assert "error" not in last.json
    assert len(gap.polls) > 1  # it was waited for


def test_6_3_what_comes_after_it_was_given_up_fails_and_never_runs(gap: Gap, server: Served) -> None:
    assert "error" in gap.late_outcome
    if server.fake is not None:
        assert server.fake.executed(gap.model) == [2, 3, 4, 5]
    else:
        # Without gradients a step changes nothing: the late pass has left none behind.
        assert differences(gap.before, gap.after) == []


REFUSED = {
    "an unknown loss": lambda model: pass_message(model, 1, loss="no such loss").SerializeToString(),
    "no examples' tokens": lambda model: pass_message(model, 1, [([], [], [])]).SerializeToString(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_6_3_a_refused_number_is_used_up(wire: Wire, server: Served, name: str) -> None:
    if server.fake is not None and name != "an unknown loss":
        pytest.skip("the fake takes on examples without tokens")
    model = wire.model()
    answer = wire.post("/forward_backward", REFUSED[name](model), headers={"Content-Type": PROTOBUF})
    assert 400 <= answer.status < 500
    polls = wire.polls(wire.submit_step(model, 2))
    assert "error" not in polls[-1].json
    assert len(polls) < HOLE / HOLD  # nobody waited until it was given up


def test_6_3_refusing_a_later_number_leaves_the_earlier_ones_alone(wire: Wire) -> None:
    model = wire.model()
    body = pass_message(model, 2, loss="no such loss").SerializeToString()
    assert wire.post("/forward_backward", body, headers={"Content-Type": PROTOBUF}).status in range(
        400, 500
    )
    third = wire.submit_step(model, 3)
    first = wire.submit_pass(model, 1)
    assert len(logprobs_of(wire.result(first))) == len(EXAMPLES)
    assert "error" not in wire.result(third)


def test_6_3_one_model_does_not_wait_for_another(wire: Wire) -> None:
    session = wire.session()
    held, free = wire.model(session, 0), wire.model(session, 1)
    waiting = wire.submit_step(held, 2)
    assert wire.result(wire.submit_step(free, 1)) is not None
    assert wire.look(free, 2)
    wire.submit_pass(held, 1)
    wire.result(waiting)


def test_6_3_samples_need_no_order(wire: Wire) -> None:
    sampler = wire.sampler()
    tickets = [wire.submit_sample(sampler, number) for number in (5, 0, 3)]
    drawn = [wire.result(ticket)["sequences"][0]["tokens"] for ticket in tickets]
    assert drawn[0] == drawn[1] == drawn[2]  # one seed


# ---- 6.5: how pieces add up


def passes(wire: Wire, groups: list[list[Any]]) -> list[Any]:
    """The results of one pass for each group of examples, on one fresh model."""
    model = wire.model()
    tickets = [wire.submit_pass(model, number, group) for number, group in enumerate(groups, 1)]
    return [wire.result(ticket) for ticket in tickets]


GROUPS = [EXAMPLES[:2], EXAMPLES[2:3], EXAMPLES[3:]]


def test_6_5_outputs_of_pieces_are_those_of_the_whole(wire: Wire) -> None:
    (whole,) = passes(wire, [EXAMPLES])
    pieces = passes(wire, GROUPS)
    joined = list(itertools.chain.from_iterable(logprobs_of(piece) for piece in pieces))
    assert differences(logprobs_of(whole), joined, tolerance=1e-4) == []
    assert {piece["loss_fn_output_type"] for piece in pieces} == {whole["loss_fn_output_type"]}


def test_6_5_metrics_of_pieces_reduce_to_those_of_the_whole(wire: Wire) -> None:
    (whole,) = passes(wire, [EXAMPLES])
    pieces = passes(wire, GROUPS)
    counts = [len(piece["loss_fn_outputs"]) for piece in pieces]
    # A client drops every metric that one piece lacks.
    assert {tuple(sorted(piece["metrics"])) for piece in pieces} == {tuple(sorted(whole["metrics"]))}
    reduced = {}
    for name in whole["metrics"]:
        values = [piece["metrics"][name] for piece in pieces]
        mean = sum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)
        rules = {"sum": sum(values), "mean": mean}  # a maximum of parts need not be that of the whole
        if (rule := name.rpartition(":")[2]) in rules:
            reduced[name] = float(rules[rule])
    assert "loss:sum" in reduced
    expected = {name: float(whole["metrics"][name]) for name in reduced}
    assert differences(expected, reduced, tolerance=1e-4) == []


def test_6_5_losses_are_sums(wire: Wire) -> None:
    once, twice = passes(wire, [EXAMPLES, EXAMPLES * 2])
    assert twice["metrics"]["loss:sum"] == pytest.approx(2 * once["metrics"]["loss:sum"], rel=1e-4)
    by_hand = -sum(
        sum(weight * logprob for weight, logprob in zip(weights, row, strict=True))
        for (_, _, weights), row in zip(EXAMPLES, logprobs_of(once), strict=True)
    )
    assert once["metrics"]["loss:sum"] == pytest.approx(by_hand, rel=1e-4)


def test_6_5_gradients_of_pieces_add_up_until_the_step(wire: Wire) -> None:
    models = []
    for groups in ([EXAMPLES], GROUPS):
        model = wire.model()
        for number, group in enumerate(groups, 1):
            wire.submit_pass(model, number, group)
        wire.submit_step(model, len(groups) + 1)
        # A second round shows that the first step took all gradients with it.
        wire.submit_pass(model, len(groups) + 2)
        wire.submit_step(model, len(groups) + 3)
        models.append(wire.look(model, len(groups) + 4))
    assert differences(models[0], models[1], tolerance=1e-4) == []


def test_6_5_every_record_counts_its_datums(wire: Wire) -> None:
    model = wire.model()
    for number, group in enumerate(GROUPS, 1):
        answer = wire.polls(wire.submit_pass(model, number, group), binary=True)[-1]
        message, rows = read_output(answer.body)
        assert sum(record.num_datums for record in message.loss_fn_outputs) == len(group)
        assert [len(row) for row in rows] == [len(tokens) for tokens, _, _ in group]
