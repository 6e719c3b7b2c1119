"""What a server must read: unknown keys, nulls, absent fields, missing tags, and either kind of number."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract import captured
from tests.strategies import examples, records
from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.types.chunks import UnknownChunk
from tinkex.types.optimizer import OptimizerConfigBase, OptimParamsBase
from tinkex.types.record import Record
from tinkex.types.rules import Anything, Table
from tinkex.types.variant import UnknownVariant
from tinkex.wire import bodies, passes, results, samples
from tinkex.wire.jsonbody import decode, encode, parse
from tinkex.wire.routes import ROUTES

BODIES = {name: route.server_request for name, route in ROUTES.items() if route.server_request is not None}
UNKNOWN = "a_field_of_tomorrow"

FULL_DATUM: dict[str, Any] = {
    "model_input": {
        "chunks": [
            {"tokens": [1, 2], "type": "encoded_text"},
            {"data": "iVBORw==", "format": "png", "expected_tokens": 5, "type": "image"},
            {"location": "s3://x", "format": "jpeg", "expected_tokens": 2, "type": "image_asset_pointer"},
            {"dmel": "AAEC", "type": "dmel"},
        ]
    },
    "loss_fn_inputs": {
        "target_tokens": {"data": [2, 3], "dtype": "int64", "shape": [2]},
        "weights": {
            "data": [0.5],
            "dtype": "float32",
            "shape": [2, 3],
            "sparse_crow_indices": [0, 1, 1],
            "sparse_col_indices": [2],
        },
    },
}
FULL_PASS: dict[str, Any] = {
    "data": [FULL_DATUM],
    "loss_fn": "ppo",
    "loss_fn_config": {"beta": 0.1, "tag": "x"},
}
EVENT: dict[str, Any] = {
    "event_id": "e",
    "event_session_index": 1,
    "severity": "INFO",
    "timestamp": "2026-01-01T00:00:00Z",
}

# One body per route with every field set, in the form a server gives it back.
FULL: dict[str, dict[str, Any]] = {
    "client_config": {"sdk_version": "1"},
    "client_dynamic_config": {"sdk_version": "1"},
    "auth_token": {},
    "create_session": {
        "tags": ["a"],
        "user_metadata": {"k": 1},
        "sdk_version": "1",
        "project_id": "p",
        "display_name": "d",
        "type": "create_session",
    },
    "session_heartbeat": {"session_id": "s", "type": "session_heartbeat"},
    "finish_session": {"reason": {"type": "errored"}, "detail": "d"},
    "create_model": {
        "session_id": "s",
        "model_seq_id": 1,
        "base_model": "b",
        "user_metadata": {"k": 1},
        "lora_config": {
            "rank": 8,
            "seed": 3,
            "train_unembed": False,
            "train_mlp": False,
            "train_attn": False,
        },
        "optimizer_config": {"type": "dimuon", "version": 1},
        "type": "create_model",
    },
    "get_info": {"model_id": "m", "type": "get_info"},
    "unload_model": {"model_id": "m", "type": "unload_model"},
    "forward": {"forward_input": FULL_PASS, "model_id": "m", "seq_id": 1},
    "forward_backward": {"forward_backward_input": FULL_PASS, "model_id": "m", "seq_id": 1},
    "optim_step": {
        "adam_params": {
            "learning_rate": 0.25,
            "beta1": 0.5,
            "beta2": 0.25,
            "eps": 0.125,
            "weight_decay": 0.5,
            "grad_clip_norm": 2.0,
        },
        "model_id": "m",
        "seq_id": 1,
        "type": "optim_step",
    },
    "save_weights": {
        "model_id": "m",
        "path": "p",
        "seq_id": 1,
        "ttl_seconds": 3600,
        "overwrite": True,
        "user_metadata": {"k": "v"},
        "type": "save_weights",
    },
    "save_weights_for_sampler": {
        "model_id": "m",
        "path": "p",
        "sampling_session_seq_id": 0,
        "seq_id": 1,
        "ttl_seconds": 3600,
        "user_metadata": {"k": "v"},
        "type": "save_weights_for_sampler",
    },
    "save_weights_external": {
        "model_id": "m",
        "path": "p",
        "seq_id": 1,
        "ttl_seconds": 3600,
        "age_encryption_recipients": ["age1"],
        "type": "save_weights_external",
    },
    "load_weights": {
        "model_id": "m",
        "seq_id": 1,
        "session_id": "s",
        "model_seq_id": 2,
        "base_model": "b",
        "user_metadata": {"k": 1},
        "path": "tinker://m/weights/p",
        "optimizer": False,
        "optimizer_config": {"type": "adamw"},
        "weights_access_token": "t",
        "type": "load_weights",
    },
    "weights_info": {"tinker_path": "tinker://m/weights/p"},
    "copy_weights": {
        "session_id": "s",
        "model_seq_id": 2,
        "destination_project_id": "p",
        "source_path": "tinker://m/weights/p",
        "ttl_seconds": 3600,
        "weights_access_token": "t",
    },
    "create_custom_loss": {
        "session_id": "s",
        "custom_loss_seq_id": 1,
        "name": "n",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {
            "format": 1,
            "nodes": [
                {"op": "output", "name": "o", "target": "t", "args": [{"ref": "a"}], "kwargs": {"k": 1}}
            ],
        },
        "type": "create_custom_loss",
    },
    "create_sampling_session": {
        "session_id": "s",
        "sampling_session_seq_id": 1,
        "base_model": "b",
        "model_path": "tinker://m/sampler_weights/p",
        "type": "create_sampling_session",
    },
    "join_sampling_session": {"sampling_session_id": "s", "type": "join_sampling_session"},
    "asample": {
        "num_samples": 2,
        "prompt": FULL_DATUM["model_input"],
        "sampling_params": {
            "max_tokens": 4,
            "seed": 7,
            "stop": ["a"],
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.5,
        },
        "base_model": "b",
        "model_path": "tinker://m/sampler_weights/p",
        "sampling_session_id": "s",
        "seq_id": 10**18,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 1,
        "topk_sample_logprobs": 1,
        "target_prompt_logprobs": {"data": [1, -1], "dtype": "int64", "shape": [2, 1]},
        "prompt_alt_tokens_k": 1,
        "prompt_logprobs_last_n": 1,
        "record_stability_info": True,
        "type": "sample",
    },
    "retrieve_future": {"request_id": "r", "allow_metadata_only": True},
    "retrieve_futures": {
        "target": {"type": "sampling_session", "sampling_session_id": "s", "cloned_sampler_id": 1},
        "prev_cursor": 3,
        "timeout": 1.5,
        "retrieved_request_ids": ["r"],
    },
    "cancel_future": {"request_id": "r"},
    "telemetry": {
        "events": [
            {**EVENT, "event": "SESSION_START"},
            {**EVENT, "event": "SESSION_END", "duration": "1 day"},
            {
                **EVENT,
                "event": "UNHANDLED_EXCEPTION",
                "error_type": "T",
                "error_message": "m",
                "traceback": "t",
            },
            {**EVENT, "event": "GENERIC_EVENT", "event_name": "n", "event_data": {"k": 1}},
        ],
        "platform": "Linux",
        "sdk_version": "1",
        "session_id": "s",
        "process_uuid": "u",
    },
    "set_checkpoint_ttl": {"ttl_seconds": 3600},
    "search_sessions": {
        "session_id": "s",
        "project_ids": ["p"],
        "user_metadata": {"k": "v"},
        "display_name": "d",
        "owner": {"type": "user", "owner_urns": ["u"]},
        "statuses": [{"type": "active"}, {"type": "client_finished", "reasons": ["success"]}],
        "limit": 10,
        "cursor": {"last_created_at": "2026-01-01T00:00:00Z", "last_session_id": "s"},
    },
    "assign_session_project": {"project_id": "p"},
}
FULL["sample_stream"] = FULL["asample"]


def read(name: str, body: Any) -> Any:
    """A body as the server understands it, in its plain form."""
    return json.loads(encode(decode(BODIES[name], json.dumps(body).encode())))


def test_every_body_is_covered_and_read_as_it_stands() -> None:
    assert FULL.keys() == BODIES.keys()
    for name, body in FULL.items():
        assert read(name, body) == body
        fields = {key for key in BODIES[name].model_fields if key != "optim_params"}
        assert fields <= set(body), name


# ---- unknown keys

# Objects that are tables: every key in them means something.
TABLES = {"user_metadata", "loss_fn_config", "loss_fn_inputs", "kwargs", "args", "event_data"}


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every object with named fields."""
    if isinstance(value, dict):
        if not path or path[-1] not in TABLES:
            yield path
        for key, inner in value.items():
            if key not in TABLES or key == "loss_fn_inputs":
                yield from objects(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, (*path, index))


def changed(body: Any, path: tuple[Any, ...], change: Callable[[Any], None]) -> Any:
    """A copy of a body with one place in it changed."""
    body = copy.deepcopy(body)
    place = body
    for step in path:
        place = place[step]
    change(place)
    return body


@pytest.mark.parametrize("name", BODIES)
def test_an_unknown_key_at_any_level_is_passed_over(name: str) -> None:
    paths = list(objects(FULL[name]))
    assert paths
    for path in paths:
        for value in (None, 1, "x", [1], {"deep": {"er": 1}}):
            body = changed(FULL[name], path, lambda place, value=value: place.update({UNKNOWN: value}))
            assert read(name, body) == FULL[name], path


def test_an_unknown_key_is_kept_aside() -> None:
    record = decode(types.SaveWeightsRequest, b'{"model_id":"m","shiny":1}')
    assert record.extra == {"shiny": 1}


# ---- null and absent


def optional_fields(kind: Any) -> dict[str, Any]:
    return {name: info for name, info in kind.model_fields.items() if not info.is_required()}


def nested(kind: Any, body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every record in a body: its path and its class."""
    record = decode(kind, json.dumps(body).encode())
    yield from _nested(record, body, path)


def _nested(value: Any, body: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Record):
        yield path, type(value)
        for name, inner in value._items():
            if name in body:
                yield from _nested(inner, body[name], (*path, name))
    elif isinstance(value, types.ModelInput):
        for index, chunk in enumerate(value.chunks):
            yield from _nested(chunk, body["chunks"][index], (*path, "chunks", index))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _nested(inner, body[index], (*path, index))


OPTIONAL = [
    (name, path, field, kind)
    for name in BODIES
    for path, kind in nested(BODIES[name], FULL[name])
    for field in optional_fields(kind)
]


def test_optional_fields_are_found_at_every_level() -> None:
    assert len(OPTIONAL) > 100
    assert ("asample", ("prompt", "chunks", 1), "expected_tokens", types.ImageChunk) in OPTIONAL


@pytest.mark.parametrize("name", BODIES)
def test_an_optional_field_may_be_null_or_absent(name: str) -> None:
    checked = [entry for entry in OPTIONAL if entry[0] == name]
    for _, path, field, kind in checked:
        absent = read(name, changed(FULL[name], path, lambda place, f=field: place.pop(f)))
        null = read(name, changed(FULL[name], path, lambda place, f=field: place.update({f: None})))
        assert absent == null, (path, field)
        default = kind.model_fields[field].get_default()
        place: Any = absent
        for step in path:
            place = place[step]
        if field in ("type", "state") and kind.__tag__ is not None:
            assert place[field]  # the arm of a union that lacks its tag is inferred
        elif default is None and field not in kind.writes_null:
            assert field not in place
        else:
            assert place[field] == json.loads(encode(default)), (path, field)
    bare = copy.deepcopy(FULL[name])
    for _, path, field, _ in reversed(checked):
        place = bare
        for step in path:
            if isinstance(place, dict) and step not in place:
                break
            place = place[step]
        else:
            place.pop(field, None)
    assert read(name, bare) == read(name, read(name, bare))


@pytest.mark.parametrize("name", [name for name in BODIES if optional_fields(BODIES[name])])
@examples(15)
@given(drawn=st.data())
def test_any_mix_of_null_and_absent_is_read_alike(name: str, drawn: st.DataObject) -> None:
    kind = BODIES[name]
    body = json.loads(encode(drawn.draw(records(kind))))
    gone = drawn.draw(st.sets(st.sampled_from(list(optional_fields(kind)))))
    absent = {key: value for key, value in body.items() if key not in gone}
    null = {**absent, **dict.fromkeys(gone, None)}
    assert read(name, absent) == read(name, null)


def test_tensors_may_have_null_parts() -> None:
    body = (
        b'{"data":[1,2],"dtype":"int64","shape":null,"sparse_crow_indices":null,"sparse_col_indices":null}'
    )
    assert encode(decode(types.TensorData, body)) == b'{"data":[1,2],"dtype":"int64"}'


# ---- tags


@pytest.mark.parametrize("name", BODIES)
def test_own_type_may_be_missing(name: str) -> None:
    body = {key: value for key, value in FULL[name].items() if key != "type"}
    assert read(name, body) == FULL[name]


def test_the_kind_of_a_chunk_is_inferred() -> None:
    expected = FULL_DATUM["model_input"]
    bare = {"chunks": [{k: v for k, v in chunk.items() if k != "type"} for chunk in expected["chunks"]]}
    assert json.loads(encode(decode(types.ModelInput, json.dumps(bare).encode()))) == expected
    null = {"chunks": [{**chunk, "type": None} for chunk in expected["chunks"]]}
    assert json.loads(encode(decode(types.ModelInput, json.dumps(null).encode()))) == expected


def test_images_of_the_first_sdks_are_read() -> None:
    chunks = [
        {"data": "iVBORw==", "format": "png", "height": 4, "width": 8, "tokens": 12},
        {"location": "s3://x", "format": "jpeg", "height": 4, "width": 8, "tokens": 7},
        {"data": "iVBORw==", "format": "png", "height": 4, "width": 8, "tokens": 12, "type": "image"},
        {"tokens": [1, 2]},
    ]
    read_back = decode(types.ModelInput, json.dumps({"chunks": chunks}).encode())
    image, pointer, tagged, text = read_back.chunks
    assert isinstance(image, types.ImageChunk)
    assert isinstance(pointer, types.ImageAssetPointerChunk)
    assert isinstance(text, types.EncodedTextChunk)
    assert image == tagged
    assert (image.expected_tokens, pointer.expected_tokens) == (12, 7)
    assert read_back.length == 12 + 7 + 12 + 2
    assert image.extra == {"height": 4, "width": 8, "tokens": 12}


def test_an_unknown_chunk_is_kept_as_it_came() -> None:
    chunk = {"type": "hologram", "beams": [1, {"deep": None}], "note": None}
    body = {"chunks": [{"tokens": [1], "type": "encoded_text"}, chunk]}
    prompt = decode(types.ModelInput, json.dumps(body).encode())
    kept = prompt.chunks[1]
    assert isinstance(kept, UnknownChunk)
    assert (kept.type, kept.beams) == ("hologram", [1, {"deep": None}])
    written = json.loads(encode(prompt))
    assert written["chunks"][1] == {"type": "hologram", "beams": [1, {"deep": None}]}
    with pytest.raises(InvalidArgumentError, match="hologram"):
        _ = prompt.length


def test_an_unknown_optimizer_is_kept() -> None:
    body = {**FULL["create_model"], "optimizer_config": {"type": "shampoo", "block": 64}}
    record = decode(BODIES["create_model"], json.dumps(body).encode())
    assert type(record.optimizer_config) is OptimizerConfigBase
    assert (record.optimizer_config.type, record.optimizer_config.block) == ("shampoo", 64)
    assert json.loads(encode(record)) == body
    step = {"model_id": "m", "type": "optim_step", "optimizer_params": {"type": "shampoo", "lr": 1}}
    record = decode(BODIES["optim_step"], json.dumps(step).encode())
    assert type(record.optim_params) is OptimParamsBase
    assert json.loads(encode(record)) == step


def test_a_known_optimizer_with_an_unknown_setting_is_read() -> None:
    """SDK 0.29 sends two settings of Dimuon that later ones do not have."""
    step = {
        "model_id": "m",
        "optimizer_params": {
            "type": "dimuon",
            "learning_rate": 0.5,
            "damping": 1e-4,
            "rank_lr_correction_exponent": 0.175,
        },
    }
    params = decode(BODIES["optim_step"], json.dumps(step).encode()).optim_params
    assert type(params) is types.DimuonParams
    assert params.extra == {"damping": 1e-4, "rank_lr_correction_exponent": 0.175}


def test_adam_may_come_under_either_name() -> None:
    for body in (
        {"model_id": "m", "adam_params": {"learning_rate": 0.5}},
        {"model_id": "m", "optim_params": {"learning_rate": 0.5}},
        {"model_id": "m", "adam_params": {"learning_rate": 0.5}, "optimizer_params": None},
        {"model_id": "m", "adam_params": None, "optimizer_params": {"type": "adamw", "learning_rate": 0.5}},
    ):
        params = decode(BODIES["optim_step"], json.dumps(body).encode()).optim_params
        assert isinstance(params, types.AdamParams)
        assert params.learning_rate == 0.5


UNKNOWN_TAGS = [
    (
        types.SessionSummary,
        {
            "session_id": "s",
            "created_at": "2026-01-01T00:00:00Z",
            "owner": "o",
            "project_id": "p",
            "checkpoints_count": 0,
            "status": {"type": "hibernating", "until": "spring"},
        },
        "status",
    ),
    (
        types.BillingUsageEvent,
        {
            "bucket_start": "2026-01-01T00:00:00Z",
            "bucket_end": "2026-01-01T01:00:00Z",
            "event_info": {"type": "teleport", "metres": 3},
        },
        "event_info",
    ),
    (bodies.FinishSessionRequest, {"reason": {"type": "bored"}, "detail": None}, "reason"),
]


@pytest.mark.parametrize(("kind", "body", "field"), UNKNOWN_TAGS)
def test_an_unknown_tag_is_kept(kind: Any, body: dict[str, Any], field: str) -> None:
    record = decode(kind, json.dumps(body).encode())
    held = getattr(record, field)
    assert isinstance(held, UnknownVariant)
    assert held.type == body[field]["type"]
    assert json.loads(encode(record)) == body


def test_an_unknown_event_is_kept() -> None:
    event = {**EVENT, "event": "SOLAR_FLARE", "strength": 5}
    body = {**FULL["telemetry"], "events": [event]}
    assert read("telemetry", body) == body


def test_unknown_words_in_known_fields_are_kept() -> None:
    body = {"completions": [{"state": "paused", "request_id": "r"}], "cursor": 4}
    assert json.loads(encode(decode(types.FuturesRetrieveResponse, json.dumps(body).encode()))) == body
    wait = {"type": "try_again", "request_id": "r", "queue_state": "paused_for_lunch"}
    assert json.loads(encode(decode(types.TryAgainResponse, json.dumps(wait).encode()))) == wait


def test_old_bodies_lack_what_later_ones_must_have() -> None:
    old = {"model_id": "m", "path": "tinker://m/weights/p", "seq_id": 1}
    assert decode(BODIES["load_weights"], json.dumps(old).encode()).optimizer is True
    report = {key: value for key, value in FULL["telemetry"].items() if key != "process_uuid"}
    assert decode(BODIES["telemetry"], json.dumps(report).encode()).process_uuid == ""
    session = decode(BODIES["create_session"], b'{"sdk_version":"0.3.0"}')
    assert (session.tags, session.user_metadata) == ([], None)


# ---- numbers


def swapped(value: Any) -> Any:
    """Every whole number as a float and every whole float as an integer."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return float(value) if abs(value) < 2**53 else value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [swapped(item) for item in value]
    if isinstance(value, dict):
        return {key: swapped(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("name", BODIES)
def test_either_kind_of_number_is_read(name: str) -> None:
    assert read(name, swapped(FULL[name])) == FULL[name]
    record = decode(BODIES[name], json.dumps(swapped(FULL[name])).encode())
    for field, info in BODIES[name].model_fields.items():
        value = getattr(record, field)
        if not isinstance(info.rule, (Anything, Table)) and isinstance(value, (int, float)):
            plain_one = decode(BODIES[name], json.dumps(FULL[name]).encode())
            assert type(value) is type(getattr(plain_one, field))


def test_token_lists_of_floats_become_integers() -> None:
    prompt = decode(types.ModelInput, b'{"chunks":[{"tokens":[1.0, 2.0]}]}')
    assert prompt.to_ints() == [1, 2]
    assert all(type(token) is int for token in prompt.to_ints())
    assert encode(prompt) == b'{"chunks":[{"tokens":[1,2],"type":"encoded_text"}]}'
    tensor = decode(types.TensorData, b'{"data":[1.0,2.0],"dtype":"int64","shape":[2.0]}')
    assert encode(tensor) == b'{"data":[1,2],"dtype":"int64","shape":[2]}'
    sparse = decode(
        types.TensorData,
        b'{"data":[1],"dtype":"float32","shape":[1.0,2.0],"sparse_crow_indices":[0.0,1.0],'
        b'"sparse_col_indices":[1.0]}',
    )
    assert sparse.tolist() == [[0.0, 1.0]]
    assert encode(sparse).endswith(b'"shape":[1,2],"sparse_crow_indices":[0,1],"sparse_col_indices":[1]}')


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (types.ModelInput, b'{"chunks":[{"tokens":[1.5]}]}', ["tokens", "1.5"]),
        (types.ModelInput, b'{"chunks":[{"tokens":[4294967296]}]}', ["tokens[0]", "4294967296", "int32"]),
        (types.ModelInput, b'{"chunks":[{}]}', ["chunks[0]", "type"]),
        (types.ModelInput, b'{"chunks":{}}', ["chunks", "list"]),
        (types.ModelInput, b"[]", ["ModelInput", "[]"]),
        (types.LoraConfig, b'{"rank":1.5}', ["rank", "1.5", "integer"]),
        (types.LoraConfig, b"{}", ["rank", "missing"]),
        (types.SaveWeightsRequest, b'{"model_id":7}', ["model_id", "7", "string"]),
        (types.SaveWeightsRequest, b'{"model_id":"m","overwrite":"maybe"}', ["overwrite", "maybe"]),
        (types.SessionSearchRequest, b'{"limit":900}', ["limit", "900", "200"]),
        (types.SessionSearchRequest, b'{"owner":{"type":"user","owner_urns":[]}}', ["owner_urns", "1"]),
        (types.GetInfoRequest, b'{"model_id":"m","type":"get_out"}', ["type", "get_out", "get_info"]),
        (types.GetInfoRequest, b"not json", ["JSON"]),
        (types.GetInfoRequest, b"", ["JSON"]),
        (types.GetInfoRequest, b"\xff\xfe", ["JSON"]),
        (
            bodies.ForwardBody,
            b'{"model_id":"m","forward_input":{"loss_fn":"ppo"}}',
            ["forward_input", "data"],
        ),
        (
            bodies.ForwardBody,
            (
                b'{"model_id":"m","forward_input":{"loss_fn":"ppo","data":[{"model_input":{"chunks":[]},'
                b'"loss_fn_inputs":{"weights":{"data":[1],"dtype":"float64"}}}]}}'
            ),
            ["forward_input.data[0].loss_fn_inputs['weights']", "float64", "float32"],
        ),
    ],
)
def test_what_cannot_be_read_is_named(kind: Any, body: bytes, words: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(kind, body)
    for word in words:
        assert word in str(caught.value)


_KEYS = ["chunks", "tokens", "type", "prompt", "data", "dtype", "shape", "loss_fn_inputs", "loss_fn_config"]
RUBBISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
)


def refused_or_read(read_it: Callable[[bytes], Any], kind: Any, body: bytes) -> None:
    """A reader returns its record or refuses; it never fails in another way."""
    try:
        value = read_it(body)
    except InvalidArgumentError:
        return
    assert isinstance(value, kind)


@examples(150)
@given(body=st.binary(max_size=60) | RUBBISH.map(lambda value: json.dumps(value).encode()))
def test_rubbish_in_json_is_refused(body: bytes) -> None:
    for kind in (types.SampleRequest, types.ModelInput, types.TensorData, bodies.ForwardBackwardBody):
        refused_or_read(lambda raw, kind=kind: decode(kind, raw), kind, body)
    refused_or_read(lambda raw: results.read_output(parse(raw)), types.ForwardBackwardOutput, body)
    refused_or_read(lambda raw: results.read_samples(parse(raw)), types.SampleResponse, body)


@examples(100)
@given(
    field=st.sampled_from(_KEYS),
    value=RUBBISH,
    path=st.sampled_from(list(objects(FULL["forward_backward"]))),
)
def test_rubbish_inside_a_good_body_is_refused(field: str, value: Any, path: tuple[Any, ...]) -> None:
    body = changed(FULL["forward_backward"], path, lambda place: place.update({field: value}))
    kind = BODIES["forward_backward"]
    refused_or_read(lambda raw: decode(kind, raw), kind, json.dumps(body).encode())


RAW = {
    "request": (passes.decode_request, passes.PassRequest, captured.FORWARD_BACKWARD),
    "output": (passes.decode_output, types.ForwardBackwardOutput, captured.FORWARD_BACKWARD_OUTPUT),
    "sample": (samples.decode_sample_response, types.SampleResponse, captured.SAMPLE_RESPONSE),
}


@pytest.mark.parametrize("name", RAW)
@examples(300)
@given(drawn=st.data())
def test_damaged_protobuf_is_refused(name: str, drawn: st.DataObject) -> None:
    reader, kind, text = RAW[name]
    raw = bytearray(base64.b64decode(text))
    for _ in range(drawn.draw(st.integers(1, 3))):
        raw[drawn.draw(st.integers(0, len(raw) - 1))] = drawn.draw(st.integers(0, 255))
    end = drawn.draw(st.integers(0, len(raw)))
    refused_or_read(reader, kind, bytes(raw[:end]))
    refused_or_read(reader, kind, bytes(raw))
