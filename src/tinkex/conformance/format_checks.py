"""Plain requests about forms: what bodies a server reads, and how it writes results."""

from __future__ import annotations

from typing import Any

import zstandard

from ..errors import TinkerError
from ..wire import tinker_public_pb2 as pb
from ..wire.headers import PROTOBUF
from ..wire.passes import decode_output
from ..wire.samples import decode_sample_response
from .checks import Failed, Skipped, check, expect, widest
from .examples import EXAMPLES, RANK, SAMPLE, logprobs, pass_json
from .plain_http import Answer
from .plain_work import pass_body, rows_of
from .surroundings import Surroundings

_REDUCTIONS = ("sum", "min", "max", "mean", "slack", "unique", "hash2")
_CLOSE = 1e-3
_LENGTHS = [len(tokens) for tokens, _, _ in EXAMPLES]


def _binary(here: Surroundings, ticket: str) -> Answer:
    last = here.work.polls(ticket, binary=True)[-1]
    expect(last.status == 200, str(last))
    expect(last.binary, f"asked for protobuf, got {last.headers.get('content-type')}: {last}")
    return last


def _both_forms(here: Surroundings, ticket: str) -> str:
    """A pass's result is the same in both forms."""
    plain = here.work.result(ticket)
    expect(
        {"loss_fn_output_type", "loss_fn_outputs", "metrics"} <= set(plain),
        f"the JSON result has only {sorted(plain)}",
    )
    rows = rows_of(plain)
    expect(
        [len(row) for row in rows] == _LENGTHS, f"logprobs of {[len(row) for row in rows]}, not {_LENGTHS}"
    )
    # SDKs up to 0.16 refuse a tensor with any other key, even one that is null.
    extra = {key for row in plain["loss_fn_outputs"] for key in row["logprobs"]} - {
        "data",
        "dtype",
        "shape",
    }
    expect(not extra, f"tensors with {', '.join(sorted(extra))} are refused by SDKs up to 0.16")
    packed = _binary(here, ticket).body
    try:
        output = decode_output(packed)
    except (TinkerError, ValueError) as error:
        raise Failed(f"the protobuf result cannot be read: {error}") from None
    apart = widest(rows, logprobs(output))
    expect(apart <= _CLOSE, f"logprobs in JSON and protobuf differ by {apart:.2g}")
    expect(set(plain["metrics"]) == set(output.metrics), "JSON and protobuf have different metrics")
    counted = sum(
        record.num_datums for record in pb.ForwardBackwardOutput.FromString(packed).loss_fn_outputs
    )
    expect(counted == len(EXAMPLES), f"num_datums says {counted} of {len(EXAMPLES)}")
    return f"{len(rows)} outputs in JSON and protobuf, loss:sum {plain['metrics'].get('loss:sum')}"


@check("wire/0.1/protobuf-pass")
def protobuf_pass(here: Surroundings) -> str:
    """A pass in protobuf is read, and its result comes as JSON or protobuf, as asked."""
    return _both_forms(here, here.work.submit_pass(here.work.model(), 1))


@check("wire/0.1/forward-only-pass")
def forward_only_pass(here: Surroundings) -> str:
    """A forward pass in protobuf (`forward_only`) has the same result."""
    return _both_forms(here, here.work.submit_pass(here.work.model(), 1, forward_only=True))


@check("wire/0.1/json-pass")
def json_pass(here: Surroundings) -> str:
    """A pass in JSON (SDKs up to 0.24) is read."""
    body = {"forward_backward_input": pass_json(), "model_id": here.work.model(), "seq_id": 1}
    return _both_forms(here, here.work.ticket("/forward_backward", body))


@check("wire/0.1/forward-route")
def forward_route(here: Surroundings) -> str:
    """A forward pass by its own route (SDKs up to 0.24) is read."""
    body = {"forward_input": pass_json(), "model_id": here.work.model(), "seq_id": 1}
    return _both_forms(here, here.work.ticket("/forward", body))


@check("wire/1.7/zstd-pass")
def zstd_pass(here: Surroundings) -> str:
    """A compressed pass is read, if the settings let clients send one."""
    body = zstandard.compress(pass_body(here.work.model(), 1))
    headers = {"Content-Type": PROTOBUF, "Content-Encoding": "zstd"}
    answer = here.http.post("/forward_backward", body, headers=headers)
    asked = here.http.ok("/client/config", {"sdk_version": "0.36.0"}).get("proto_compress_fwdbwd")
    if answer.refused and not asked:
        raise Skipped(f"not read, and no client is told to send it: {answer}")
    expect(answer.status == 200, str(answer))
    return _both_forms(here, answer.json["request_id"])


@check("wire/0.1/sample-forms")
def sample_forms(here: Surroundings) -> str:
    """A sample's result comes as JSON or protobuf, as asked."""
    ticket = here.work.submit_sample(here.work.sampler(), num_samples=2, prompt_logprobs=True)
    plain = here.work.result(ticket)
    names = [f"s{number}" for number in range(len(plain["sequences"]))]
    try:
        packed = decode_sample_response(_binary(here, ticket).body, names)
    except (TinkerError, ValueError) as error:
        raise Failed(f"the protobuf result cannot be read: {error}") from None
    tokens = [each["tokens"] for each in plain["sequences"]]
    expect(tokens == [each.tokens for each in packed.sequences], "JSON and protobuf have different tokens")
    said = plain["prompt_logprobs"]
    expect(said and said[0] is None, f"prompt_logprobs[0] must be null: {said}")
    apart = widest(said, packed.prompt_logprobs)
    expect(apart <= _CLOSE, f"prompt_logprobs {said} in JSON, {packed.prompt_logprobs} in protobuf")
    expect(
        {each["stop_reason"] for each in plain["sequences"]} <= {"stop", "length"}, "unknown stop_reason"
    )
    return f"{len(tokens)} sequences of {[len(each) for each in tokens]} tokens in both forms"


@check("wire/0.3/sequence-ids")
def sequence_ids(here: Surroundings) -> str:
    """A submitted sample names each of its sequences."""
    sampler = here.work.sampler()
    for number, count in enumerate((1, 3)):
        body = {**SAMPLE, "sampling_session_id": sampler, "seq_id": number, "num_samples": count}
        made = here.http.ok("/asample", body)
        names = made.get("sample_sequence_ids")
        expect(isinstance(names, list), f"no sample_sequence_ids in {made}: SDKs from 0.26 refuse that")
        expect(len(set(map(str, names))) == count, f"{count} samples, but the names {names}")
        expect(all(isinstance(name, str) for name in names), f"not all names are texts: {names}")
        got = len(here.work.result(made["request_id"])["sequences"])
        expect(got == count, f"{count} samples asked for, {got} came")
    return f"{names}"


@check("wire/0.4/metric-names")
def metric_names(here: Surroundings) -> str:
    """The name of every metric says how it is reduced, and loss:sum is there."""
    model = here.work.model()
    tickets = [here.work.submit_pass(model, 1), here.work.submit_pass(model, 2, forward_only=True)]
    for ticket in tickets:
        metrics = here.work.result(ticket).get("metrics")
        expect(isinstance(metrics, dict), f"metrics is {metrics!r}")
        odd = [name for name in metrics if name.count(":") != 1]
        expect(not odd, f"{odd}: SDKs raise at names without exactly one colon")
        dropped = [name for name in metrics if name.rpartition(":")[2] not in _REDUCTIONS]
        expect(not dropped, f"{dropped}: SDKs drop reductions they do not know")
        expect("loss:sum" in metrics, f"no loss:sum in {sorted(metrics)}: custom losses fail")
        odd = [name for name, value in metrics.items() if not isinstance(value, (int, float))]
        expect(not odd, f"{odd} are not numbers")
    return ", ".join(sorted(metrics))


def _old_model(here: Surroundings, session: str, number: int) -> str:
    lora = {"rank": RANK, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True}
    body = {"session_id": session, "model_seq_id": number, "base_model": here.base_model}
    return str(
        here.work.done("/create_model", {**body, "user_metadata": None, "lora_config": lora})["model_id"]
    )


@check("wire/9/sdk-0.3.0")
def first_sdk(here: Surroundings) -> str:
    """What SDK 0.3.0 sends is understood: nulls, no types, defaults left out."""
    work = here.work
    opened = {"tags": [], "user_metadata": {"k": "v"}, "sdk_version": "0.3.0"}
    session = str(here.http.ok("/create_session", opened)["session_id"])
    work.adopt(session)
    model = _old_model(here, session, 0)
    named = {"model_id": model}
    old = pass_json(tagged=False)
    passed = work.done("/forward_backward", {"forward_backward_input": old, **named, "seq_id": 1})
    expect(len(passed["loss_fn_outputs"]) == len(EXAMPLES), f"{len(passed['loss_fn_outputs'])} outputs")
    work.done("/forward", {"forward_input": old, **named, "seq_id": 2})
    work.done("/optim_step", {"adam_params": {"learning_rate": 0.0001}, **named, "seq_id": 3})
    work.done("/optim_step", {"adam_params": {}, **named, "seq_id": 4})
    saved = work.done("/save_weights", {**named, "path": "ck1", "seq_id": 5})["path"]
    unnamed = work.done("/save_weights_for_sampler", {**named, "sampling_session_seq_id": 0, "seq_id": 6})
    expect(
        unnamed.get("path") is None, f"an unnamed save has the path {unnamed.get('path')}: 0.3.0 refuses it"
    )
    sample: dict[str, Any] = {
        "num_samples": 1,
        "seq_id": 0,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 0,
    }
    sample |= {"prompt": {"chunks": [{"tokens": [5, 6, 7]}]}, "sampling_params": {"max_tokens": 1}}
    drawn = work.done("/asample", {**sample, "sampling_session_id": unnamed["sampling_session_id"]})
    given = [value is not None for value in drawn["prompt_logprobs"] or ()]
    expect(given == [False, True, True], f"prompt_logprobs {drawn['prompt_logprobs']}")
    base = {"session_id": session, "sampling_session_seq_id": 1, "base_model": here.base_model}
    here.http.ok("/create_sampling_session", {**base, "model_path": None})
    second = _old_model(here, session, 1)
    work.done("/load_weights", {"model_id": second, "path": saved, "seq_id": 1})
    listed = here.http.found(f"/models/{model}/checkpoints")["checkpoints"]
    expect(
        saved in [each["tinker_path"] for each in listed],
        f"{saved} is not under /models/{model}/checkpoints",
    )
    return "12 requests of 0.3.0, each understood"


@check("wire/9/unknown-fields")
def unknown_fields(here: Surroundings) -> str:
    """What later SDKs may add is ignored."""
    request: dict[str, Any] = {
        **here.work.model_request(here.work.session()),
        "from_the_future": {"a": [1]},
    }
    request["lora_config"] = {**request["lora_config"], "also_new": 1}
    model = here.work.done("/create_model", request)["model_id"]
    body = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.1, "new": None}, "newer": 2}
    here.work.done("/optim_step", body)
    return "extra fields in bodies, and in objects within them"
