"""Every request we write is read by the official models with equal values, and the other way round."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinker import types as ot
from tinker.proto import tinker_public_pb2 as official_pb
from tinker.proto.request_conv import forward_backward_request_to_proto

from tests.contract import official
from tests.strategies import (
    FLOAT,
    INT32,
    TEXT,
    data,
    examples,
    loss_configs,
    plain,
    plain_json,
    records,
    trainable_chunks,
)
from tests.strategies import official as official_instances
from tinkex import types
from tinkex.types.losses import LOSS_NAMES
from tinkex.wire import bodies, passes
from tinkex.wire import tinker_public_pb2 as our_pb
from tinkex.wire.jsonbody import decode, encode
from tinkex.wire.routes import ROUTES

MODELLED = {
    name: (route.request, model)
    for name, route in ROUTES.items()
    if route.request is not None and (model := official.model(route.request)) is not None
}
QUERIES = {
    name: (route.query, model)
    for name, route in ROUTES.items()
    if route.query is not None and (model := official.model(route.query)) is not None
}
HAND_BUILT = {
    "auth_token",
    "finish_session",
    "forward",
    "forward_backward",
    "weights_info",
    "cancel_future",
    "set_checkpoint_ttl",
    "assign_session_project",
}


def test_every_request_has_a_counterpart_or_a_golden_body() -> None:
    requests = {name for name, route in ROUTES.items() if route.request is not None}
    assert requests - set(MODELLED) == HAND_BUILT


@pytest.mark.parametrize("name", MODELLED)
@examples(20)
@given(drawn=st.data())
def test_ours_is_read_by_the_official_model(name: str, drawn: st.DataObject) -> None:
    kind, model = MODELLED[name]
    body = encode(drawn.draw(records(kind)))
    read = model.model_validate_json(body)
    set_ones = {key: value for key, value in plain_json(body).items() if value is not None}
    assert plain(official.written(read)) == set_ones
    assert official.written(model.model_validate(json.loads(body))) == official.written(read)


@pytest.mark.parametrize("name", MODELLED)
@examples(20)
@given(drawn=st.data())
def test_the_official_one_is_read_by_ours(name: str, drawn: st.DataObject) -> None:
    kind, model = MODELLED[name]
    sent = official.written(drawn.draw(official_instances(model)))
    for reader in (kind, ROUTES[name].server_request):
        read = decode(reader, json.dumps(sent).encode())
        again = {key: value for key, value in plain_json(encode(read)).items() if value is not None}
        assert again == plain(sent)
        assert not read.extra


@pytest.mark.parametrize("name", QUERIES)
@examples(20)
@given(drawn=st.data())
def test_queries_are_spelt_as_the_official_sdk_spells_them(name: str, drawn: st.DataObject) -> None:
    kind, model = QUERIES[name]
    query = drawn.draw(records(kind))
    read = model.model_validate(bodies.query_of(query))
    assert plain(official.written(read)) == plain(bodies.query_of(query))
    assert decode(kind, encode(bodies.query_of(query))) == query


@pytest.mark.parametrize(
    ("query", "pairs"),
    [
        (bodies.ScopeQuery(), {"access_scope": "owned"}),
        (bodies.ListRunsQuery(), {"limit": "20", "offset": "0", "access_scope": "owned"}),
        (
            bodies.ListRunsQuery(limit=5, offset=10, access_scope="accessible", project_id="p"),
            {"limit": "5", "offset": "10", "access_scope": "accessible", "project_id": "p"},
        ),
        (bodies.ListSessionsQuery(), {"limit": "20", "offset": "0", "access_scope": "owned"}),
        (bodies.ListCheckpointsQuery(), {"limit": "100", "offset": "0"}),
        (bodies.AuditQuery(), {"event_type": "all"}),
        (
            bodies.AuditQuery(event_type="teams", day="2026-01-31"),
            {"event_type": "teams", "day": "2026-01-31"},
        ),
        (
            types.GetBillingUsageRequest(
                starting_on="2026-07-13T00:00:00Z", ending_before="2026-07-14T00:00:00Z"
            ),
            {"starting_on": "2026-07-13T00:00:00Z", "ending_before": "2026-07-14T00:00:00Z"},
        ),
        (types.GetCurrentCheckpointStorageUsageRequest(), {}),
    ],
)
def test_golden_queries(query: Any, pairs: dict[str, str]) -> None:
    assert bodies.query_of(query) == pairs


FINISH = types.ClientSessionFinishSuccess(), types.ClientSessionFinishErrored()


@pytest.mark.parametrize(
    ("record", "body"),
    [
        (bodies.Nothing(), "{}"),
        (bodies.SetTtlRequest(ttl_seconds=7200), '{"ttl_seconds":7200}'),
        (bodies.SetTtlRequest(ttl_seconds=None), '{"ttl_seconds":null}'),
        (bodies.SetTtlRequest(), '{"ttl_seconds":null}'),
        (bodies.FinishSessionRequest(reason=FINISH[0]), '{"reason":{"type":"success"},"detail":null}'),
        (
            bodies.FinishSessionRequest(reason=FINISH[1], detail="out of memory"),
            '{"reason":{"type":"errored"},"detail":"out of memory"}',
        ),
        (
            bodies.FinishSessionRequest(reason=types.ClientSessionFinishInterrupted()),
            '{"reason":{"type":"interrupted"},"detail":null}',
        ),
        (
            bodies.WeightsInfoRequest(tinker_path="tinker://a:train:0/weights/ck1"),
            '{"tinker_path":"tinker://a:train:0/weights/ck1"}',
        ),
        (bodies.AssignProjectRequest(project_id="proj1"), '{"project_id":"proj1"}'),
        (bodies.CancelFutureRequest(request_id="req-7"), '{"request_id":"req-7"}'),
        (
            types.SaveWeightsForSamplerRequest(model_id="m", sampling_session_seq_id=0, seq_id=9),
            '{"model_id":"m","sampling_session_seq_id":0,"seq_id":9,"type":"save_weights_for_sampler"}',
        ),
        (
            types.OptimStepRequest(
                model_id="m", seq_id=5, optim_params=types.DimuonParams(learning_rate=0.001)
            ),
            (
                '{"optimizer_params":{"type":"dimuon","learning_rate":0.001,"grad_clip_norm":0.0,"beta1":0.9},'
                '"model_id":"m","seq_id":5,"type":"optim_step"}'
            ),
        ),
        (
            types.SamplingParams(stop=[]),
            '{"stop":[],"temperature":1.0,"top_k":-1,"top_p":1.0}',
        ),
    ],
)
def test_golden_bodies(record: Any, body: str) -> None:
    assert encode(record).decode() == body
    assert decode(type(record), body.encode()) == record


# ---- passes in JSON, as SDK 0.24 and older send them


@examples(40)
@given(
    sent=records(bodies.ForwardBackwardBody),
    forward=records(bodies.ForwardBody),
)
def test_json_passes_are_read_by_the_official_mirror(sent: Any, forward: Any) -> None:
    for record, key in ((sent, "forward_backward_input"), (forward, "forward_input")):
        body = json.loads(encode(record))
        read = official.PassInput.model_validate(body[key])
        assert plain(official.written(read)) == plain(body[key])
        again = decode(type(record), encode({**body, key: official.written(read)}))
        assert encode(again) == encode(record)


# ---- passes in protobuf


def pass_requests() -> st.SearchStrategy[passes.PassRequest]:
    return st.builds(
        passes.PassRequest,
        TEXT,
        st.integers(0, 2**31 - 1),
        st.lists(data(trainable_chunks(), provenance=True, finite=False), max_size=3),
        st.sampled_from(LOSS_NAMES),
        loss_configs(),
        st.booleans(),
    )


def official_tensor(tensor: types.TensorData) -> ot.TensorData:
    return ot.TensorData(
        tensor._numpy.ravel(),
        tensor.dtype,
        tensor.shape,
        tensor.sparse_crow_indices,
        tensor.sparse_col_indices,
    )


def official_chunk(chunk: Any) -> Any:
    return getattr(ot, type(chunk).__name__)(**dict(chunk._items()))


def official_spans(spans: Any) -> Any:
    return spans and [
        getattr(ot, type(span).__name__)(
            sequence_id=span.sequence_id, offset=span.offset, length=span.length
        )
        for span in spans
    ]


def official_datum(datum: types.Datum) -> ot.Datum:
    return ot.Datum(
        ot.ModelInput(chunks=[official_chunk(chunk) for chunk in datum.model_input.chunks]),
        {name: official_tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()},
        official_spans(datum.model_input_spans),
        official_spans(datum.loss_fn_input_spans),
    )


def official_message(request: passes.PassRequest) -> Any:
    message = forward_backward_request_to_proto(
        ot.ForwardBackwardRequest(
            ot.ForwardBackwardInput(
                [official_datum(datum) for datum in request.data],
                request.loss_fn,
                request.loss_fn_config,
            ),
            request.model_id,
            request.seq_id,
        )
    )
    message.forward_only = request.forward_only
    return message


@examples(150)
@given(request=pass_requests())
def test_a_pass_is_the_same_message_from_both(request: passes.PassRequest) -> None:
    ours = official_pb.ForwardBackwardRequest.FromString(passes.encode_request(request))
    official_one = official_message(request)
    assert ours == official_one
    assert ours.SerializeToString(deterministic=True) == official_one.SerializeToString(deterministic=True)
    late = bytes(passes.PassBody(request).numbered(request.seq_id))
    assert official_pb.ForwardBackwardRequest.FromString(late) == official_one


def same_datum(left: types.Datum, right: types.Datum) -> bool:
    return (
        left.model_input == right.model_input
        and left.model_input_spans == right.model_input_spans
        and left.loss_fn_input_spans == right.loss_fn_input_spans
        and left.loss_fn_inputs.keys() == right.loss_fn_inputs.keys()
        and all(
            same_tensor(tensor, right.loss_fn_inputs[name]) for name, tensor in left.loss_fn_inputs.items()
        )
    )


def same_tensor(sent: types.TensorData, read: types.TensorData) -> bool:
    """Equal as far as the wire can tell: an unstated shape is read as the one it stands for."""
    if sent.shape is None:
        shape = [] if sent._numpy.size == 1 else [sent._numpy.size]
        sent = types.TensorData(data=sent._numpy, dtype=sent.dtype, shape=shape)
    return sent.equals(read)


@examples(150)
@given(request=pass_requests())
def test_an_official_pass_is_read_with_equal_values(request: passes.PassRequest) -> None:
    for body in (official_message(request).SerializeToString(), passes.encode_request(request)):
        read = passes.decode_request(body)
        assert (read.model_id, read.seq_id, read.loss_fn, read.forward_only) == (
            request.model_id,
            request.seq_id,
            request.loss_fn,
            request.forward_only,
        )
        assert (read.loss_fn_config or {}) == (request.loss_fn_config or {})
        assert len(read.data) == len(request.data)
        assert all(map(same_datum, request.data, read.data))


@examples(30)
@given(config=st.dictionaries(TEXT, FLOAT, min_size=1), tokens=st.lists(INT32, max_size=4))
def test_a_pass_with_the_old_config_only_is_read(config: dict[str, float], tokens: list[int]) -> None:
    message = official_pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="ppo")
    message.loss_fn_config.update(config)
    assert passes.decode_request(message.SerializeToString()).loss_fn_config == config


def test_fields_a_newer_sdk_adds_to_a_pass_are_skipped() -> None:
    known = official_pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="ppo").SerializeToString()
    unknown = bytes([15 << 3 | 2, 3]) + b"new"
    read = passes.decode_request(known + unknown)
    assert (read.model_id, read.seq_id, read.loss_fn) == ("m", 1, "ppo")
    assert our_pb.ForwardBackwardRequest.FromString(known + unknown).model_id == "m"
