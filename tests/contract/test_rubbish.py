"""What a server cannot read is refused by name, and no damage makes it fail in another way."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract import captured
from tests.contract.full_bodies import BODIES, FULL, changed, objects
from tests.strategies import examples
from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.wire import bodies, passes, results, samples
from tinkex.wire.jsonbody import decode, parse


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
