"""Recorded traffic is read, and written again as it was."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import parse_qsl, urlencode

import pytest
from tinker.proto import tinker_public_pb2 as official_pb

from tests.contract import captured
from tinkex import types
from tinkex.wire import bodies, headers, passes, samples
from tinkex.wire.jsonbody import convert, decode, encode
from tinkex.wire.routes import ROUTES, Route


def route_of(method: str, path: str) -> Route:
    def matches(route: Route) -> bool:
        pattern = re.sub(r"\{\w+:path\}", "(.+)", route.full_path)
        return route.method == method and bool(re.fullmatch(re.sub(r"\{\w+\}", "([^/]+)", pattern), path))

    (found,) = [route for route in ROUTES.values() if matches(route)]
    return found


@pytest.mark.parametrize(("method", "path", "body"), captured.REQUESTS_0_36)
def test_a_request_is_read_and_written_again(method: str, path: str, body: str) -> None:
    route = route_of(method, path)
    for kind in (route.request, route.server_request):
        record = decode(kind, body.encode())
        assert json.loads(encode(record)) == json.loads(body)
        assert not record.extra


def test_explicit_nulls_are_kept_where_they_mean_something() -> None:
    assert encode(decode(bodies.SetTtlRequest, b'{"ttl_seconds":null}')) == b'{"ttl_seconds":null}'
    body = b'{"reason":{"type":"success"},"detail":null}'
    assert encode(decode(bodies.FinishSessionRequest, body)) == body


@pytest.mark.parametrize(("path", "query"), captured.QUERIES_0_36)
def test_a_query_is_read_and_written_again(path: str, query: str) -> None:
    record = convert(route_of("GET", path).query, dict(parse_qsl(query)))
    assert urlencode(bodies.query_of(record)) == query


@pytest.mark.parametrize(("path", "body", "filled"), captured.REQUESTS_0_3)
def test_an_old_request_is_read_with_its_defaults(path: str, body: str, filled: str) -> None:
    record = decode(route_of("POST", path).server_request, body.encode())
    assert json.loads(encode(record)) == json.loads(filled)


def test_paths_keep_their_colons_and_slashes() -> None:
    run = "sess-1:train:0"
    old = ROUTES["list_model_checkpoints"].url_path(training_run_id=run)
    assert old == "/api/v1/models/sess-1:train:0/checkpoints"
    ttl = ROUTES["set_checkpoint_ttl"].url_path(training_run_id=run, checkpoint_id="weights/ck1")
    assert ttl == "/api/v1/training_runs/sess-1:train:0/checkpoints/weights/ck1/ttl"
    assert route_of("PUT", ttl) is ROUTES["set_checkpoint_ttl"]
    assert ROUTES["get_training_run"].url_path(training_run_id=run) == f"/api/v1/training_runs/{run}"


def test_a_pass_is_read_and_is_the_same_message_again() -> None:
    raw = base64.b64decode(captured.FORWARD_BACKWARD)
    request = passes.decode_request(raw)
    assert (request.model_id, request.seq_id, request.loss_fn) == ("sess-1:train:0", 3, "ppo")
    assert request.loss_fn_config == {"clip_low_threshold": 0.8, "tag": "x"}
    assert not request.forward_only
    (datum,) = request.data
    assert datum.model_input == types.ModelInput.from_ints([1, 2, 3])
    targets, weights = datum.loss_fn_inputs["target_tokens"], datum.loss_fn_inputs["weights"]
    assert (targets.tolist(), targets.dtype, targets.shape) == ([2, 3, 4], "int64", [3])
    assert (weights.tolist(), weights.dtype, weights.shape) == ([0.0, 1.0, 1.0], "float32", [3])
    again = passes.encode_request(request)
    assert len(again) == len(raw)
    parse = official_pb.ForwardBackwardRequest.FromString
    assert parse(again) == parse(raw)


def test_an_output_is_read_and_is_the_same_message_again() -> None:
    raw = base64.b64decode(captured.FORWARD_BACKWARD_OUTPUT)
    output = passes.decode_output(raw)
    assert output.loss_fn_output_type == "TorchLossReturn"
    assert [one["logprobs"].tolist() for one in output.loss_fn_outputs] == [[-0.5] * 3] * 2
    assert output.metrics == {"loss:sum": 2.5, "tok:mean": 2.0}
    parse = official_pb.ForwardBackwardOutput.FromString
    assert parse(passes.encode_output(output)) == parse(raw)


def test_a_sample_is_read_and_is_the_same_message_again() -> None:
    raw = base64.b64decode(captured.SAMPLE_RESPONSE)
    response = samples.decode_sample_response(raw, ["seq-0"])
    (sequence,) = response.sequences
    assert (sequence.tokens, sequence.stop_reason, sequence.sequence_id) == ([0, 1, 2], "stop", "seq-0")
    assert sequence.logprobs == pytest.approx([-0.1, -0.2, -0.3])
    assert response.prompt_logprobs == [None, -1.0, -1.0]
    again = samples.encode_sample_response(response)
    assert again == raw
    assert official_pb.SampleResponse.FromString(again) == official_pb.SampleResponse.FromString(raw)


def test_headers_have_the_recorded_names() -> None:
    ours = [
        headers.API_KEY,
        headers.IDEMPOTENCY_KEY,
        headers.REQUEST_ITERATION,
        headers.REQUEST_TYPE,
        headers.PROMISE_ROUNDTRIP,
    ]
    assert {name.lower() for name in ours} <= set(captured.HEADERS)
    assert captured.HEADERS["accept"] == headers.JSON
    types_polled = {route.request_type for route in ROUTES.values()}
    assert captured.HEADERS["x-tinker-request-type"] in types_polled
