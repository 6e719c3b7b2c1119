"""Every response our server can write is taken by the official SDK's own parsing, and the reverse."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st
from tinker import types as ot
from tinker.lib import api_future_impl as official_future
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from tests.contract import official
from tests.contract.result_strategies import output_messages, outputs, sample_messages, sample_responses
from tests.strategies import FLOAT, examples, plain, plain_json, records
from tests.strategies import official as official_instances
from tinkex import types
from tinkex.errors import RequestErrorCategory
from tinkex.types.sample_response import PromptAltTokens, SampledSequence, SampleResponse
from tinkex.wire import bodies, passes, results, samples
from tinkex.wire.headers import JSON, PROTOBUF
from tinkex.wire.jsonbody import decode, encode
from tinkex.wire.routes import ROUTES

_PARTS = [
    (part, kind)
    for route in ROUTES.values()
    for part in ("response", "result")
    if (kind := getattr(route, part)) is not None
]
ANSWERS = {kind.__name__: kind for part, kind in _PARTS if part == "response" and official.model(kind)}
RESULTS = {kind.__name__: kind for part, kind in _PARTS if part == "result" and official.model(kind)}
# The official SDK ignores the body of these, reads it as protobuf, no longer asks for it, or never did.
UNMODELLED = {
    "Nothing", "SampleResponse", "ForwardBackwardOutput", "ArchiveUrlResponse", "TokenizerFilesResponse"
}  # fmt: skip


def test_every_response_is_covered() -> None:
    assert {kind.__name__ for _, kind in _PARTS} - set(ANSWERS) - set(RESULTS) == UNMODELLED


def without_null(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}


@pytest.mark.parametrize("name", ANSWERS)
@examples(15)
@given(drawn=st.data())
def test_ours_is_taken_by_the_official_client(name: str, drawn: st.DataObject) -> None:
    model = official.model(ANSWERS[name])
    body = encode(drawn.draw(records(ANSWERS[name])))
    if name == "ApiKeyResponse":  # the CLI reads this one without the SDK's client
        read = model.model_validate_json(body)
    else:
        read = official.read(body, model)
    assert isinstance(read, model)
    assert plain(official.written(read)) == without_null(plain_json(body))


@pytest.mark.parametrize("name", RESULTS)
@examples(15)
@given(drawn=st.data())
def test_our_results_are_taken_by_the_official_future(name: str, drawn: st.DataObject) -> None:
    model = official.model(RESULTS[name])
    body = encode(drawn.draw(records(RESULTS[name])))
    outcome, read = official.retrieve(answer(body), model)
    assert isinstance(outcome, official_future._SuccessJson)
    assert isinstance(read, model)
    assert plain(official.written(read)) == without_null(plain_json(body))


@pytest.mark.parametrize("name", {**ANSWERS, **RESULTS})
@examples(25)
@given(drawn=st.data(), nulls=st.booleans())
def test_official_responses_are_read_by_ours(name: str, drawn: st.DataObject, nulls: bool) -> None:
    kind = {**ANSWERS, **RESULTS}[name]
    instance = drawn.draw(official_instances(official.model(kind)))
    sent = instance.model_dump(mode="json", exclude_none=not nulls)
    read = decode(kind, json.dumps(sent).encode())
    assert plain_json(encode(read)) == plain(instance.model_dump(mode="json", exclude_none=True))


def answer(body: bytes, status: int = 200, kind: str = JSON) -> httpx.Response:
    return httpx.Response(status, content=body, headers={"content-type": kind})


# ---- what a poll can answer besides a result


@examples(25)
@given(failure=records(types.RequestFailedResponse))
def test_a_failure_is_raised_with_its_category(failure: types.RequestFailedResponse) -> None:
    with pytest.raises(tinker.RequestFailedError) as caught:
        official.retrieve(answer(encode(failure)), ot.OptimStepResponse)
    assert caught.value.category.value == failure.category.value
    assert failure.error in str(caught.value)


@pytest.mark.parametrize("status", [200, 408])
@examples(15)
@given(wait=records(types.TryAgainResponse))
def test_try_again_carries_its_queue_state(status: int, wait: types.TryAgainResponse) -> None:
    body = encode(wait)
    outcome, result = official.retrieve(answer(body, status), ot.OptimStepResponse)
    assert result is None
    if status == 408:
        assert outcome.kind is official_future._TransportErrorKind.RETRY
        assert outcome.try_again_body == json.loads(body)
    else:
        assert isinstance(outcome, official_future._TryAgain)
        assert outcome.queue_state.value == wait.queue_state
        assert outcome.queue_state_reason == wait.queue_state_reason
    read = official.model(types.TryAgainResponse).model_validate_json(body)
    assert (read.request_id, read.queue_state) == (wait.request_id, wait.queue_state)


@examples(15)
@given(size=st.integers(0, 2**40))
def test_the_size_of_a_large_result_is_announced(size: int) -> None:
    body = encode(bodies.CompleteMetadataResponse(response_payload_size=size))
    outcome, result = official.retrieve(answer(body), ot.SampleResponse)
    assert outcome == official_future._MetadataOnly(payload_size=size)
    assert result is None


def test_an_unset_field_never_looks_like_a_failure() -> None:
    body = json.loads(encode(types.OptimStepResponse()))
    assert body == {}
    exported = json.loads(encode(bodies.TraceExportResponse(status="pending")))
    assert exported == {"status": "pending"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_metric_that_is_no_number_reaches_the_official_client(number: float) -> None:
    body = encode(types.OptimStepResponse(metrics={"grad_norm": number, "step": 3.0}))
    _, read = official.retrieve(answer(body), ot.OptimStepResponse)
    assert repr(read.metrics) == repr({"grad_norm": number, "step": 3.0})
    assert repr(decode(types.OptimStepResponse, body).metrics) == repr(read.metrics)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 422, 429, 500, 503])
def test_an_error_body_is_shown_by_the_official_client(status: int) -> None:
    body = encode(bodies.ErrorBody(detail="no such model: m-1"))
    request = httpx.Request("GET", "http://127.0.0.1:1/")
    response = httpx.Response(status, content=body, headers={"content-type": JSON}, request=request)
    client = official.http_client(lambda _: response)
    error = client._make_status_error_from_response(response)
    assert error.status_code == status
    assert error.body == {"detail": "no such model: m-1"}
    assert "no such model: m-1" in str(error)


# ---- samples


def tensor_values(tensor: Any) -> Any:
    if tensor is None:
        return None
    return plain(
        [tensor.dtype, tensor.shape, tensor.data, tensor.sparse_crow_indices, tensor.sparse_col_indices]
    )


def sample_values(response: Any) -> Any:
    alternatives = response.prompt_alt_tokens
    return plain(
        {
            "sequences": [
                [each.stop_reason, each.tokens, each.logprobs, each.topk_logprobs]
                for each in response.sequences
            ],
            "arrays": [
                [str(each.tokens_np.dtype), each.logprobs_np is None or str(each.logprobs_np.dtype)]
                for each in response.sequences
            ],
            "prompt": response.prompt_logprobs,
            "topk": response.topk_prompt_logprobs,
            "target": tensor_values(response.target_prompt_logprobs),
            "cached": response.prompt_cache_hit_tokens,
            "alternatives": alternatives
            and [tensor_values(alternatives.tokens), tensor_values(alternatives.logprobs)],
        }
    )


def stated(tensor: types.TensorData | None) -> types.TensorData | None:
    """The tensor with its shape spelt out, as every response has it."""
    if tensor is None or tensor.shape is not None:
        return tensor
    return types.TensorData.from_numpy(tensor.to_numpy())


def as_read(response: SampleResponse) -> SampleResponse:
    """What must come out at the other end: nothing is what an empty array stands for."""
    alternatives = response.prompt_alt_tokens
    prompt = response.prompt_logprobs_np
    return SampleResponse(
        [
            SampledSequence(
                each.stop_reason,
                each.sequence_id,
                each.tokens_np,
                None if each.logprobs_np is None or not each.logprobs_np.size else each.logprobs_np,
                each.topk_logprobs_np,
            )
            for each in response.sequences
        ],
        None if prompt is None or not prompt.size else prompt,
        response.topk_prompt_logprobs_np,
        stated(response.target_prompt_logprobs),
        response.prompt_cache_hit_tokens,
        alternatives and PromptAltTokens(stated(alternatives.tokens), stated(alternatives.logprobs)),
    )


@examples(150)
@given(response=sample_responses())
def test_our_samples_are_read_by_the_official_sdk(response: SampleResponse) -> None:
    body = samples.encode_sample_response(response)
    expected = sample_values(as_read(response))
    assert sample_values(deserialize_sample_response(body)) == expected
    assert sample_values(samples.decode_sample_response(body)) == expected


@examples(150)
@given(message=sample_messages())
def test_official_samples_are_read_by_ours(message: Any) -> None:
    body = message.SerializeToString()
    read = samples.decode_sample_response(body)
    assert sample_values(read) == sample_values(deserialize_sample_response(body))
    assert pb.SampleResponse.FromString(samples.encode_sample_response(read)).IsInitialized()


def test_a_sample_reaches_the_caller_through_the_official_future() -> None:
    response = SampleResponse([SampledSequence("length", "s-0", np.array([7, 8], np.int32))])
    reply = answer(samples.encode_sample_response(response), kind=PROTOBUF)
    outcome, read = official.retrieve(reply, ot.SampleResponse)
    assert isinstance(outcome, official_future._SuccessProto)
    assert [(each.tokens, each.stop_reason) for each in read.sequences] == [([7, 8], "length")]


def test_sequences_get_the_names_of_their_ticket() -> None:
    body = samples.encode_sample_response(
        SampleResponse([SampledSequence("stop", "", np.array([token], np.int32)) for token in range(3)])
    )
    read = samples.decode_sample_response(body, ["a", "b"])
    first, second, third = [each.sequence_id for each in read.sequences]
    assert (first, second) == ("a", "b")
    assert third
    assert third not in ("a", "b")


def test_a_stop_reason_from_the_future_does_not_lose_the_sample() -> None:
    message = pb.SampleResponse()
    message.sequences.add(stop_reason=7, tokens=np.array([1], np.int32).tobytes())
    (sequence,) = samples.decode_sample_response(message.SerializeToString()).sequences
    assert (sequence.tokens, sequence.stop_reason) == ([1], "unknown(7)")


# ---- passes


def batched(tensor: types.TensorData) -> types.TensorData:
    """A tensor as a result carries it: dense, and a scalar is a vector of one."""
    array = tensor.to_numpy()
    array = array.reshape(1) if array.ndim == 0 else array
    return types.TensorData(data=array, dtype=tensor.dtype, shape=list(array.shape))


def output_values(output: Any) -> Any:
    return plain(
        [
            output.loss_fn_output_type,
            [{name: tensor_values(each) for name, each in one.items()} for one in output.loss_fn_outputs],
            dict(output.metrics),
        ]
    )


@examples(150)
@given(output=outputs())
def test_our_passes_are_read_by_the_official_sdk(output: types.ForwardBackwardOutput) -> None:
    body = passes.encode_output(output)
    expected = types.ForwardBackwardOutput(
        output.loss_fn_output_type,
        [{name: batched(each) for name, each in one.items()} for one in output.loss_fn_outputs],
        output.metrics,
    )
    assert output_values(deserialize_forward_backward_output(body)) == output_values(expected)
    assert output_values(passes.decode_output(body)) == output_values(expected)


@examples(200)
@given(message=output_messages())
def test_official_passes_are_read_by_ours(message: Any) -> None:
    body = message.SerializeToString()
    read = passes.decode_output(body)
    assert output_values(read) == output_values(deserialize_forward_backward_output(body))


def test_outputs_without_arrays_keep_their_number() -> None:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="T")
    message.loss_fn_outputs.add(num_datums=2)
    message.loss_fn_outputs.add(num_datums=1)
    read = passes.decode_output(message.SerializeToString())
    assert read.loss_fn_outputs == [{}, {}, {}]
    again = passes.encode_output(read)
    assert deserialize_forward_backward_output(again).loss_fn_outputs == [{}, {}, {}]


def test_arrays_of_a_result_can_be_written_to() -> None:
    output = types.ForwardBackwardOutput("T", [{"logprobs": types.TensorData([1.5, 2.5], "float32", [2])}])
    (one,) = passes.decode_output(passes.encode_output(output)).loss_fn_outputs
    one["logprobs"].to_numpy()[0] = 9.0
    assert one["logprobs"].tolist() == [9.0, 2.5]


# ---- the JSON forms, for SDK 0.24 and older


@examples(100)
@given(output=outputs())
def test_passes_survive_json(output: types.ForwardBackwardOutput) -> None:
    body = results.output_to_json(output)
    data = json.loads(body)
    for one in data["loss_fn_outputs"]:
        for tensor in one.values():
            assert set(tensor) <= {"data", "dtype", "shape"}
    expected = types.ForwardBackwardOutput(
        output.loss_fn_output_type,
        [{name: dense(each) for name, each in one.items()} for one in output.loss_fn_outputs],
        output.metrics,
    )
    assert output_values(results.read_output(data)) == output_values(expected)


def dense(tensor: types.TensorData) -> types.TensorData:
    return types.TensorData.from_numpy(tensor.to_numpy()) if tensor.is_sparse else tensor


@examples(100)
@given(response=sample_responses())
def test_samples_survive_json(response: SampleResponse) -> None:
    data = json.loads(results.samples_to_json(response))
    read = results.read_samples(data, [each.sequence_id for each in response.sequences])
    assert [each.tokens for each in read.sequences] == [each.tokens for each in response.sequences]
    assert [each.stop_reason for each in read.sequences] == [
        each.stop_reason for each in response.sequences
    ]
    assert plain([each.logprobs for each in read.sequences]) == plain(
        [each.logprobs for each in response.sequences]
    )
    assert plain(read.prompt_logprobs) == plain(response.prompt_logprobs)
    assert plain(read.topk_prompt_logprobs) == plain(response.topk_prompt_logprobs)


def test_a_failed_category_is_written_in_lower_case() -> None:
    failure = types.RequestFailedResponse(error="x", category=RequestErrorCategory.User)
    assert encode(failure) == b'{"error":"x","category":"user"}'
    assert decode(types.RequestFailedResponse, b'{"error":"x","category":"USER"}') == failure


@examples(20)
@given(number=FLOAT)
def test_json_numbers_keep_every_digit(number: float) -> None:
    assert json.loads(encode(types.AdamParams(learning_rate=number)))["learning_rate"] == number
