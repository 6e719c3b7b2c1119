"""Bodies written down byte for byte: defaults, tags, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.types.losses import LOSS_NAMES
from tinkex.wire import passes
from tinkex.wire import tinker_public_pb2 as pb
from tinkex.wire.jsonbody import encode

from ..strategies import examples
from .arrays import SHAPES


def test_an_optimizer_step_without_settings_sends_all_of_them():
    request = types.OptimStepRequest(optim_params=types.AdamParams(), model_id="m", seq_id=1)
    assert encode(request) == (
        b'{"adam_params":{"learning_rate":0.0001,"beta1":0.9,"beta2":0.95,"eps":1e-12,"weight_decay":0.0,'
        b'"grad_clip_norm":0.0},"model_id":"m","seq_id":1,"type":"optim_step"}'
    )


CHUNKS = [
    (types.EncodedTextChunk(tokens=[1, -2]), b'{"tokens":[1,-2],"type":"encoded_text"}'),
    (types.EncodedTextChunk(tokens=np.int64([1, -2])), b'{"tokens":[1,-2],"type":"encoded_text"}'),
    (types.ImageChunk(data=b"hi", format="png"), b'{"data":"aGk=","format":"png","type":"image"}'),
    (
        types.ImageChunk(data=b"hi", format="jpeg", expected_tokens=7),
        b'{"data":"aGk=","format":"jpeg","expected_tokens":7,"type":"image"}',
    ),
    (
        types.ImageAssetPointerChunk(format="png", location="s3://x"),
        b'{"format":"png","location":"s3://x","type":"image_asset_pointer"}',
    ),
    (types.DmelChunk(dmel=b"hi"), b'{"dmel":"aGk=","type":"dmel"}'),
]


@pytest.mark.parametrize(("chunk", "body"), CHUNKS)
def test_every_kind_of_chunk_carries_its_tag(chunk: Any, body: bytes):
    assert encode(chunk) == body
    assert encode(types.ModelInput(chunks=[chunk])) == b'{"chunks":[' + body + b"]}"


def test_an_image_is_base64_in_json_and_bytes_in_protobuf():
    image = types.ImageChunk(data=b"hi", format="png")
    datum = types.Datum(types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[5]), image]))
    body = passes.encode_request(passes.PassRequest("m", 1, [datum], "cross_entropy"))
    text, held = pb.ForwardBackwardRequest.FromString(body).data[0].model_input
    assert text.encoded_text.tokens == np.int32([5]).tobytes()
    assert held.image.data == b"hi"


def test_what_is_not_set_is_left_out_of_a_sample_request():
    request = types.SampleRequest(
        prompt=types.ModelInput.from_ints([1]), sampling_params=types.SamplingParams(max_tokens=3)
    )
    assert json.loads(encode(request)) == {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 3, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "topk_prompt_logprobs": 0,
        "topk_sample_logprobs": 0,
        "prompt_alt_tokens_k": 0,
        "type": "sample",
    }


DTYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", DTYPES)
@examples(10)
@given(shape=SHAPES)
def test_only_two_dtypes_are_ever_sent(dtype: str, shape: tuple[int, ...]):
    datum = types.Datum(types.ModelInput.empty(), {"x": np.ones(shape, dtype)})
    body = passes.encode_request(passes.PassRequest("m", 1, [datum], "cross_entropy"))
    tensor = pb.ForwardBackwardRequest.FromString(body).data[0].loss_fn_inputs["x"]
    assert tensor.dtype == (pb.DTYPE_FLOAT32 if dtype.startswith("float") else pb.DTYPE_INT64)
    width = 4 if tensor.dtype == pb.DTYPE_FLOAT32 else 8
    assert len(tensor.dense) == width * int(np.prod(shape))


@examples(20)
@given(array=hnp.arrays(np.int64, SHAPES))
def test_an_array_changed_after_encoding_does_not_change_the_body(array: Any):
    datum = types.Datum(types.ModelInput.empty(), {"x": array})
    body = passes.encode_request(passes.PassRequest("m", 1, [datum], "cross_entropy"))
    before = bytes(body)
    array += 1
    assert bytes(body) == before


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_every_loss_is_sent_by_its_name(name: str):
    body = passes.encode_request(passes.PassRequest("m", 1, [], name))
    assert pb.ForwardBackwardRequest.FromString(body).loss_fn == name


@pytest.mark.parametrize("name", ["bogus", "", None, "crossentropy"])
def test_an_unknown_loss_is_refused_with_the_choices(name: Any):
    with pytest.raises(InvalidArgumentError, match="use one of " + ", ".join(LOSS_NAMES)) as caught:
        passes.encode_request(passes.PassRequest("m", 1, [], name))
    assert ("did you mean 'cross_entropy'?" in str(caught.value)) is (name == "crossentropy")
