"""What a server must read: unknown keys, nulls, absent fields, missing tags, and either kind of number."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.full_bodies import BODIES, EVENT, FULL, FULL_DATUM, changed, objects, read
from tests.strategies import examples, records
from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.types.chunks import UnknownChunk
from tinkex.types.compounds import Table
from tinkex.types.optimizer import OptimizerConfigBase, OptimParamsBase
from tinkex.types.record import Record
from tinkex.types.rules import Anything
from tinkex.types.variant import UnknownVariant
from tinkex.wire import bodies
from tinkex.wire.jsonbody import decode, encode

UNKNOWN = "a_field_of_tomorrow"


def test_every_body_is_covered_and_read_as_it_stands() -> None:
    assert FULL.keys() == BODIES.keys()
    for name, body in FULL.items():
        assert read(name, body) == body
        fields = {key for key in BODIES[name].model_fields if key != "optim_params"}
        assert fields <= set(body), name


# ---- unknown keys


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
