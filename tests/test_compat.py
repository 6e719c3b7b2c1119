"""The official SDK's module paths: importable, thin, and the same objects as ours."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import math
import threading
from typing import Any

import numpy as np
import pytest
import tinker
import tinker.lib.chunked_fwdbwd_helpers as their_chunks
import tinker.proto.request_conv as their_requests
import tinker.proto.response_conv as their_responses
import tinker.proto.tinker_public_pb2 as their_pb

import tinkex
from tinkex import types
from tinkex.client.portal import portal
from tinkex.client.wrapped_future import AwaitableConcurrentFuture
from tinkex.lib.chunked_fwdbwd_helpers import REDUCE_MAP, combine_fwd_bwd_output_results
from tinkex.proto import request_conv, response_conv, tinker_public_pb2
from tinkex.wire.passes import encode_output
from tinkex.wire.samples import encode_sample_response

WAIT = 20.0

SAME = [
    ("lib.public_interfaces", "APIFuture", "APIFuture"),
    ("lib.public_interfaces", "ServiceClient", "ServiceClient"),
    ("lib.public_interfaces", "LossHandle", "LossHandle"),
    ("lib.public_interfaces.admin_client", "AdminClient", "AdminClient"),
    ("lib.public_interfaces.api_future", "APIFuture", "APIFuture"),
    ("lib.public_interfaces.custom_loss", "LossHandle", "LossHandle"),
    ("lib.public_interfaces.rest_client", "RestClient", "RestClient"),
    ("lib.public_interfaces.sampling_client", "SamplingClient", "SamplingClient"),
    ("lib.public_interfaces.service_client", "ServiceClient", "ServiceClient"),
    ("lib.public_interfaces.training_client", "TrainingClient", "TrainingClient"),
    ("lib.retry_handler", "RetryConfig", "RetryConfig"),
    ("_exceptions", "RequestFailedError", "RequestFailedError"),
    ("_exceptions", "RateLimitError", "RateLimitError"),
    ("_types", "RequestOptions", "RequestOptions"),
    ("_client", "Timeout", "Timeout"),
    ("types.tensor_data", "TensorData", "TensorData"),
]


@pytest.mark.parametrize(("path", "name", "public"), SAME)
def test_old_paths_lead_to_the_same_objects(path: str, name: str, public: str):
    assert hasattr(importlib.import_module(f"tinker.{path}"), name)
    assert getattr(importlib.import_module(f"tinkex.{path}"), name) is getattr(tinkex, public)


@pytest.mark.parametrize(
    "path",
    ["lib.public_interfaces", "lib.public_interfaces.api_future", "_exceptions", "proto.response_conv"],
)
def test_no_public_name_of_these_modules_is_missing(path: str):
    theirs, ours = importlib.import_module(f"tinker.{path}"), importlib.import_module(f"tinkex.{path}")
    made_there = {
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("tinker")
    }
    assert made_there - {"T"} <= set(dir(ours)) | set(types.__all__)


def test_the_holder_is_the_session():
    from tinkex.client.session import Session
    from tinkex.lib.internal_client_holder import ClientConnectionPoolType, InternalClientHolder

    official = importlib.import_module("tinker.lib.internal_client_holder").ClientConnectionPoolType
    assert InternalClientHolder is Session
    assert {each.name: each.value for each in ClientConnectionPoolType} == {
        each.name: each.value for each in official
    }


def test_not_given_is_falsy_and_not_none():
    from tinkex._types import NOT_GIVEN, NotGiven

    assert not NOT_GIVEN
    assert NOT_GIVEN is not None
    assert isinstance(NOT_GIVEN, NotGiven)
    assert repr(NOT_GIVEN) == repr(importlib.import_module("tinker._types").NOT_GIVEN)


def test_what_cannot_exist_honestly_says_so():
    client = importlib.import_module("tinkex._client")
    with pytest.raises(ImportError, match="no AsyncTinker"):
        _ = client.AsyncTinker
    with pytest.raises(AttributeError, match="no attribute 'x'"):
        _ = client.x
    with pytest.raises(ImportError, match="no _base_client"):
        importlib.import_module("tinkex._base_client")


@pytest.mark.parametrize("status", range(400, 600))
def test_retryable_statuses_are_the_official_ones_and_billing(status: int):
    from tinkex.lib.retry_handler import is_retryable_status_code

    official = importlib.import_module("tinker.lib.retry_handler").is_retryable_status_code(status)
    assert is_retryable_status_code(status) == (official or status == 402)


# ---- combining


def output(module: Any, size: int, metrics: dict[str, float]) -> Any:
    rows = [
        {"logprobs": module.TensorData(data=[float(n)], dtype="float32", shape=[1])} for n in range(size)
    ]
    return module.ForwardBackwardOutput(
        loss_fn_output_type="TorchLossReturn", loss_fn_outputs=rows, metrics=metrics
    )


NAMES = ["loss:sum", "lr:mean", "a:min", "a:max", "s:slack", "h:hash2", "u:unique", "new:thing"]
METRICS = [
    dict(zip(NAMES, [3.0, 1.0, 4.0, 9.0, 1.0, 5.0, 1.0, 0.0], strict=True)),
    dict(zip(NAMES, [4.5, 4.0, 2.0, 1.0, 7.0, 2.0**63, 2.0, 0.0], strict=True)),
]


def test_combining_gives_the_official_numbers():
    mine = combine_fwd_bwd_output_results(
        [output(types, n, m) for n, m in zip((1, 3), METRICS, strict=True)]
    )
    theirs = their_chunks.combine_fwd_bwd_output_results(
        [output(tinker, n, m) for n, m in zip((1, 3), METRICS, strict=True)]
    )
    assert mine.metrics == theirs.metrics
    assert [one["logprobs"].data for one in mine.loss_fn_outputs] == [
        one["logprobs"].data for one in theirs.loss_fn_outputs
    ]
    assert combine_fwd_bwd_output_results([]).metrics == {}


@pytest.mark.parametrize("name", sorted(their_chunks.REDUCE_MAP))
def test_reducers_take_the_official_calls(name: str):
    values = [3.0, 1.0, 2.0]
    assert set(REDUCE_MAP) == set(their_chunks.REDUCE_MAP)
    assert REDUCE_MAP[name](values) == their_chunks.REDUCE_MAP[name](values)
    if name in ("mean", "slack"):
        assert REDUCE_MAP[name](values, [1, 2, 3]) == pytest.approx(
            their_chunks.REDUCE_MAP[name](values, [1, 2, 3])
        )


@pytest.mark.parametrize("name", ["max", "mean", "min", "slack", "sum"])
@pytest.mark.parametrize("values", [[math.nan, 1.0], [1.0, math.nan], [2.0, math.nan, 1.0]])
def test_one_piece_that_is_no_number_shows_in_the_whole(name: str, values: list[float]):
    assert math.isnan(their_chunks.REDUCE_MAP[name](values))
    assert math.isnan(REDUCE_MAP[name](values))


# ---- protobuf


def request(module: Any) -> Any:
    datum = module.Datum(
        model_input=module.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={
            "target_tokens": module.TensorData.from_numpy(np.array([2, 3, 4])),
            "weights": module.TensorData.from_numpy(np.array([0.0, 1.0, 0.5], np.float32)),
        },
    )
    kinds = importlib.import_module(f"{module.__name__.split('.')[0]}.types")
    return kinds.ForwardBackwardRequest(
        forward_backward_input=kinds.ForwardBackwardInput(
            data=[datum], loss_fn="ppo", loss_fn_config={"clip": 0.2}
        ),
        model_id="m",
        seq_id=3,
    )


def test_requests_become_the_official_message():
    mine = request_conv.forward_backward_request_to_proto(request(tinkex))
    theirs = their_requests.forward_backward_request_to_proto(request(tinker))
    assert isinstance(mine, tinker_public_pb2.ForwardBackwardRequest)
    assert their_pb.ForwardBackwardRequest.FromString(mine.SerializeToString()) == theirs


def test_results_are_read_from_the_official_message():
    response = types.SampleResponse(
        [types.SampledSequence("length", "s", np.array([5, 6], np.int32), np.array([-1, -2], np.float32))]
    )
    body = encode_sample_response(response)
    mine, theirs = (
        response_conv.deserialize_sample_response(body),
        their_responses.deserialize_sample_response(body),
    )
    assert mine.sequences[0].tokens == theirs.sequences[0].tokens == [5, 6]
    assert mine.sequences[0].stop_reason == theirs.sequences[0].stop_reason
    assert response_conv.deserialize_proto_response(body, types.SampleResponse) == mine

    body = encode_output(output(types, 2, {"loss:sum": 1.5}))
    passed = response_conv.deserialize_proto_response(body, types.ForwardBackwardOutput)
    assert isinstance(passed, types.ForwardBackwardOutput)
    assert passed.metrics == their_responses.deserialize_forward_backward_output(body).metrics
    with pytest.raises(ValueError, match="AdamParams"):
        response_conv.deserialize_proto_response(body, types.AdamParams)


def test_every_official_message_is_there():
    for name in their_pb.DESCRIPTOR.message_types_by_name:
        assert hasattr(tinker_public_pb2, name)
    assert tinker_public_pb2.STOP_REASON_LENGTH == their_pb.STOP_REASON_LENGTH


# ---- AwaitableConcurrentFuture


def test_a_foreign_future_can_be_awaited():
    foreign: concurrent.futures.Future[int] = concurrent.futures.Future()
    wrapped = AwaitableConcurrentFuture(foreign)
    assert isinstance(wrapped, tinkex.APIFuture)
    assert wrapped.future() is foreign

    async def wait() -> int:
        with pytest.raises(TimeoutError):
            await wrapped.result_async(0.0)
        threading.Timer(0.01, foreign.set_result, [5]).start()
        return await wrapped

    assert asyncio.run(wait()) == 5
    assert wrapped.result(WAIT) == 5
    assert wrapped.done()
    assert concurrent.futures.wait([wrapped], WAIT).done == {wrapped}


def test_errors_and_cancelling_are_passed_on():
    failed: concurrent.futures.Future[int] = concurrent.futures.Future()
    failed.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        AwaitableConcurrentFuture(failed).result(WAIT)
    foreign: concurrent.futures.Future[int] = concurrent.futures.Future()
    wrapped = AwaitableConcurrentFuture(foreign)
    assert wrapped.cancel()
    assert foreign.cancelled()
    assert wrapped.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        wrapped.result(WAIT)


def test_one_of_ours_can_be_wrapped_too():
    async def seven() -> int:
        return 7

    wrapped = AwaitableConcurrentFuture(portal().start(seven()))
    assert wrapped.result(WAIT) == 7

    async def wait() -> int:
        return await AwaitableConcurrentFuture(portal().start(seven()))

    assert asyncio.run(wait()) == 7
