"""The ten things that break a naive server, each over plain HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard

from tinkex.wire import tinker_public_pb2 as pb

from .comparing import differences
from .raw_client import EXAMPLES, JSON, PROTOBUF, SAMPLE, Wire, pass_json, pass_message, read_output
from .serving import MODEL, Served

REDUCTIONS = {"sum", "min", "max", "mean", "slack", "unique", "hash2"}


# ---- 1: bodies and results are negotiated, request by request


@pytest.mark.parametrize("form", ["protobuf", "zstd", "json", "forward", "forward_only"])
def test_0_1_a_pass_is_read_in_every_form_and_answered_as_asked(wire: Wire, form: str) -> None:
    model = wire.model()
    if form in ("json", "forward"):
        key = "forward_backward_input" if form == "json" else "forward_input"
        path = "/forward_backward" if form == "json" else "/forward"
        ticket = wire.ticket(path, {key: pass_json(), "model_id": model, "seq_id": 1})
    else:
        body = pass_message(model, 1, forward_only=form == "forward_only").SerializeToString()
        headers = {"Content-Type": PROTOBUF}
        if form == "zstd":
            body, headers["Content-Encoding"] = zstandard.compress(body), "zstd"
        ticket = wire.ticket("/forward_backward", body, headers=headers)
    plain = wire.polls(ticket)[-1]
    assert (plain.status, plain.binary) == (200, False)
    packed = wire.polls(ticket, binary=True)[-1]
    assert (packed.status, packed.binary) == (200, True)
    message, logprobs = read_output(packed.body)
    as_json = plain.json
    assert set(as_json) == {"loss_fn_output_type", "loss_fn_outputs", "metrics"}
    assert differences([row["logprobs"]["data"] for row in as_json["loss_fn_outputs"]], logprobs) == []
    assert differences(as_json["metrics"], dict(message.metrics)) == []
    assert [len(row) for row in logprobs] == [len(tokens) for tokens, _, _ in EXAMPLES]
    # Older SDKs refuse a tensor with any other key, even one that is null.
    assert {key for row in as_json["loss_fn_outputs"] for key in row["logprobs"]} <= {
        "data",
        "dtype",
        "shape",
    }


def test_0_1_a_sample_is_answered_as_asked(wire: Wire) -> None:
    ticket = wire.submit_sample(wire.sampler(), num_samples=2, prompt_logprobs=True)
    plain = wire.polls(ticket)[-1]
    packed = wire.polls(ticket, binary=True)[-1]
    assert (plain.binary, packed.binary) == (False, True)
    message = pb.SampleResponse.FromString(packed.body)
    tokens = [np.frombuffer(each.tokens, "<i4").tolist() for each in message.sequences]
    assert [each["tokens"] for each in plain.json["sequences"]] == tokens
    assert [len(each) for each in tokens] == [4, 4]
    logprobs = np.frombuffer(message.prompt_logprobs, "<f4").tolist()
    assert logprobs[0] != logprobs[0]  # not a number: the first token has none
    assert plain.json["prompt_logprobs"][0] is None
    assert differences(plain.json["prompt_logprobs"][1:], logprobs[1:]) == []


def test_0_1_what_is_no_result_stays_json(wire: Wire) -> None:
    model = wire.model()
    early = wire.submit_step(model, 2)
    pending = wire.poll(early, binary=True)
    assert (pending.status, pending.binary, pending.json["type"]) == (408, False, "try_again")
    wire.submit_step(model, 1)
    step = wire.polls(early, binary=True)[-1]
    assert (step.status, step.binary) == (200, False)


# ---- 2: a client asks how to behave before anything else


def test_0_2_the_config_is_there_without_nulls(wire: Wire, server: Served) -> None:
    made = wire.ok("/client/config", {"sdk_version": "0.36.0"})
    assert None not in made.values()
    assert made["parallel_fwdbwd_chunks"] is server.parallel
    assert all(
        isinstance(made.get(name, False), bool) for name in ("pjwt_auth_enabled", "proto_compress_fwdbwd")
    )
    # Bodies and polls that only one range of old versions knows must stay off.
    for name in ("proto_write_fwdbwd", "fwd_via_fwdbwd", "enable_grpc_retrieve_future"):
        assert not made.get(name, False)
    dynamic = wire.ok("/client/dynamic_config", {"sdk_version": "0.36.0"})
    assert None not in dynamic.values()


# ---- 3


@pytest.mark.parametrize("count", [1, 3])
def test_0_3_a_sample_names_each_of_its_sequences(wire: Wire, count: int) -> None:
    body = {**SAMPLE, "sampling_session_id": wire.sampler(), "seq_id": 0, "num_samples": count}
    made = wire.ok("/asample", body)
    names = made["sample_sequence_ids"]
    assert len(set(names)) == len(names) == count
    assert all(isinstance(name, str) for name in names)
    assert len(wire.result(made["request_id"])["sequences"]) == count


# ---- 4


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"])
@pytest.mark.parametrize("forward_only", [False, True])
def test_0_4_metric_names_say_how_they_are_reduced(wire: Wire, loss: str, forward_only: bool) -> None:
    ticket = wire.submit_pass(wire.model(), 1, loss=loss, forward_only=forward_only)
    metrics = wire.result(ticket)["metrics"]
    assert "loss:sum" in metrics
    for name, value in metrics.items():
        assert name.count(":") == 1
        assert name.rpartition(":")[2] in REDUCTIONS
        assert isinstance(value, (int, float))


# ---- 5: the order of arrival is also tried in test_order_rows.py


def test_0_5_pieces_may_come_last_first(wire: Wire) -> None:
    model, straight = wire.model(), wire.model()
    tickets = {number: wire.submit_pass(model, number, [EXAMPLES[number - 1]]) for number in (2, 4, 3, 1)}
    tickets[5] = wire.submit_step(model, 5)
    rows = [wire.result(tickets[number])["loss_fn_outputs"] for number in (1, 2, 3, 4)]
    assert [len(row[0]["logprobs"]["data"]) for row in rows] == [4, 3, 5, 4]
    wire.result(tickets[5])
    wire.submit_pass(straight, 1)
    wire.result(wire.submit_step(straight, 2))
    assert differences(wire.look(straight, 3), wire.look(model, 6), tolerance=1e-4) == []


# ---- 7: what a success must not look like (6 is in test_future_rows.py)


def test_0_7_a_success_is_never_taken_for_anything_else(results: dict[str, Any]) -> None:
    assert len(results) == 11
    for kind, result in results.items():
        assert "error" not in result, kind
        assert result.get("type") != "try_again", kind
        assert result.get("status") != "complete_metadata", kind


# ---- 8


def refused(wire: Wire) -> dict[str, tuple[str, Any, dict[str, str]]]:
    """Requests no server may accept: path, body, headers."""
    model, sampler = wire.model(), wire.sampler()
    binary = {"Content-Type": PROTOBUF}
    short = pass_message(model, 5, [([1, 2, 3], [2, 3, 4], [1.0, 1.0])])
    odd = pass_message(model, 5, loss="cross_entropy")
    odd.loss_fn = "no such loss"
    return {
        "not JSON": ("/optim_step", b"{", {}),
        "an empty body": ("/optim_step", b"", {}),
        "a field missing": ("/optim_step", {"seq_id": 1, "adam_params": {}}, {}),
        "a field of another kind": (
            "/optim_step",
            {"model_id": model, "seq_id": "one", "adam_params": {}},
            {},
        ),
        "not protobuf": ("/forward_backward", b"\xff\xff\xff", binary),
        "not zstd": ("/forward_backward", b"plain", {**binary, "Content-Encoding": "zstd"}),
        "an unknown loss": ("/forward_backward", odd.SerializeToString(), binary),
        "an unknown base model": (
            "/create_model",
            {**wire.model_request(wire.session()), "base_model": "x/y"},
            {},
        ),
        "an unknown model": (
            "/optim_step",
            {"model_id": "nobody:train:0", "seq_id": 1, "adam_params": {}},
            {},
        ),
        "an unknown session": ("/create_model", wire.model_request("nobody"), {}),
        "no samples": (
            "/asample",
            {**SAMPLE, "sampling_session_id": sampler, "seq_id": 0, "num_samples": 0},
            {},
        ),
        "an unknown sampler": (
            "/asample",
            {**SAMPLE, "sampling_session_id": "nobody:sample:0", "seq_id": 0},
            {},
        ),
        "nothing to sample from": ("/asample", {**SAMPLE, "seq_id": 0}, {}),
        "inputs of two lengths": ("/forward_backward", short.SerializeToString(), binary),
    }


MADE_BELIEVE = {"inputs of two lengths"}  # a fake takes these on and fails later, or not at all


def test_0_8_a_refusal_has_a_length_and_says_why(wire: Wire, server: Served) -> None:
    for name, (path, body, headers) in refused(wire).items():
        if name in MADE_BELIEVE and server.fake is not None:
            continue
        answer = wire.post(path, body, headers=headers)
        assert 400 <= answer.status < 500, (name, answer)
        # These are retried for minutes, or mean something else.
        assert answer.status not in (402, 408, 409, 410, 425, 429), (name, answer)
        assert int(answer.headers["content-length"]) == len(answer.body) > 0, (name, answer)
        assert "transfer-encoding" not in answer.headers, (name, answer)
        assert answer.headers["content-type"].startswith(JSON), (name, answer)
        assert isinstance(answer.json["detail"], str), (name, answer.body)
        assert answer.json["detail"], name


# ---- 9


def test_0_9_what_the_first_sdks_send_is_understood(wire: Wire) -> None:
    made = wire.ok("/create_session", {"tags": [], "user_metadata": {"k": "v"}, "sdk_version": "0.3.0"})
    session = made["session_id"]
    lora = {"rank": 4, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True}
    request = {
        "session_id": session,
        "model_seq_id": 0,
        "base_model": MODEL,
        "user_metadata": None,
        "lora_config": lora,
    }
    model = wire.done("/create_model", {**request, "base_model": wire.server.model})["model_id"]
    named = {"model_id": model}
    passed = wire.done(
        "/forward_backward", {"forward_backward_input": pass_json(old=True), **named, "seq_id": 1}
    )
    assert len(passed["loss_fn_outputs"]) == len(EXAMPLES)
    wire.done("/forward", {"forward_input": pass_json(old=True), **named, "seq_id": 2})
    wire.done("/optim_step", {"adam_params": {"learning_rate": 0.0001}, **named, "seq_id": 3})
    wire.done("/optim_step", {"adam_params": {}, **named, "seq_id": 4})
    saved = wire.done("/save_weights", {**named, "path": "ck1", "seq_id": 5})
    assert saved["path"] == f"tinker://{model}/weights/ck1"
    unnamed = wire.done("/save_weights_for_sampler", {**named, "sampling_session_seq_id": 0, "seq_id": 6})
    assert unnamed.get("path") is None
    sample = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": 1},
        "sampling_session_id": unnamed["sampling_session_id"],
        "seq_id": 0,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 0,
    }
    drawn = wire.done("/asample", sample)
    assert [value is None for value in drawn["prompt_logprobs"]] == [True, False, False]
    other = {
        "session_id": session,
        "sampling_session_seq_id": 1,
        "base_model": wire.server.model,
        "model_path": None,
    }
    assert (
        wire.ok("/create_sampling_session", other)["sampling_session_id"] != unnamed["sampling_session_id"]
    )
    second = wire.done("/create_model", {**request, "model_seq_id": 1, "base_model": wire.server.model})[
        "model_id"
    ]
    wire.done("/load_weights", {"model_id": second, "path": saved["path"], "seq_id": 1})
    listed = wire.call("GET", f"/models/{model}/checkpoints")
    assert [each["tinker_path"] for each in listed.json["checkpoints"]] == [saved["path"]]


def test_0_9_what_later_sdks_may_add_is_ignored(wire: Wire) -> None:
    request = {**wire.model_request(wire.session()), "from_the_future": {"a": [1]}}
    request["lora_config"] = {**request["lora_config"], "also_new": 1}
    model = wire.done("/create_model", request)["model_id"]
    body = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.1, "new": None}, "newer": 2}
    wire.done("/optim_step", body)


# ---- 10


def test_0_10_work_is_known_by_its_numbers_not_by_its_idempotency_key(wire: Wire) -> None:
    model, once = wire.model(), wire.model()
    first = [wire.submit_pass(model, 1), wire.submit_step(model, 2)]
    again = [wire.submit_pass(model, 1), wire.submit_step(model, 2)]  # with new idempotency keys
    assert first == again
    wire.submit_pass(once, 1)
    wire.submit_step(once, 2)
    assert differences(wire.look(once, 3), wire.look(model, 3), tolerance=1e-4) == []


def test_0_10_one_idempotency_key_does_not_join_different_work(wire: Wire) -> None:
    model = wire.model()
    body = {"model_id": model, "adam_params": {}}
    headers = {"X-Idempotency-Key": "the same"}
    tickets = [wire.ticket("/optim_step", {**body, "seq_id": number}, headers=headers) for number in (1, 2)]
    assert len(set(tickets)) == 2
    assert [ticket for ticket in tickets if "error" in wire.outcome(ticket)] == []
