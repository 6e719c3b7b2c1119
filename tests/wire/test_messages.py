"""Whole messages come back: results, metrics, samples, chunks and requests, through JSON and protobuf."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
import tinker.types
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.types.chunks import UnknownChunk
from tinkex.types.compounds import rule_for
from tinkex.types.topk_logprobs import MASK_LOGPROB, TopkLogprobs
from tinkex.wire import jsonbody, passes, results, samples
from tinkex.wire import tinker_public_pb2 as pb

from ..strategies import examples
from .arrays import FLOATS32, WIRE_ARRAYS, csr, same

# ---- results of passes


METRICS = st.dictionaries(st.text(max_size=8), st.floats(), max_size=4)


@st.composite
def outputs(draw: Any) -> types.ForwardBackwardOutput:
    fields = draw(
        st.lists(st.sampled_from(["logprobs", "elementwise_loss", "ids"]), unique=True, min_size=1)
    )
    many = draw(st.lists(st.integers(0, 4), max_size=4))
    width = draw(st.none() | st.integers(1, 3))
    made = []
    for length in many:
        shape = (length,) if width is None else (length, width)
        kinds = {name: np.int64 if name == "ids" else np.float32 for name in fields}
        arrays = {
            name: draw(hnp.arrays(kind, shape, elements=FLOATS32 if kind is np.float32 else None))
            for name, kind in kinds.items()
        }
        made.append({name: types.TensorData.from_numpy(array) for name, array in arrays.items()})
    return types.ForwardBackwardOutput("ArrayRecord", made, draw(METRICS))


def _same_output(left: types.ForwardBackwardOutput, right: types.ForwardBackwardOutput) -> None:
    assert len(left.loss_fn_outputs) == len(right.loss_fn_outputs)
    for mine, expected in zip(left.loss_fn_outputs, right.loss_fn_outputs, strict=True):
        assert mine.keys() == expected.keys()
        assert all(mine[name].equals(expected[name]) for name in mine)
    assert left.metrics.keys() == right.metrics.keys()
    for name, value in left.metrics.items():
        assert same(np.float64(value), np.float64(right.metrics[name]))


@examples(60)
@given(output=outputs())
def test_a_pass_result_comes_back_through_protobuf(output: types.ForwardBackwardOutput):
    _same_output(passes.decode_output(passes.encode_output(output)), output)


@examples(60)
@given(output=outputs())
def test_a_pass_result_comes_back_through_json(output: types.ForwardBackwardOutput):
    _same_output(results.read_output(jsonbody.parse(results.output_to_json(output))), output)


def test_outputs_of_different_layout_keep_their_order():
    arrays = [np.float32([1, 2]), np.float32([[3, 4]]), np.float32([5]), np.int64([6])]
    made = [{"x": types.TensorData.from_numpy(array)} for array in arrays]
    output = types.ForwardBackwardOutput("ArrayRecord", made, {})
    _same_output(passes.decode_output(passes.encode_output(output)), output)


@examples(40)
@given(metrics=METRICS)
def test_metrics_of_a_step_keep_nan_and_infinities(metrics: dict[str, float]):
    body = jsonbody.encode(types.OptimStepResponse(metrics=metrics))
    official = tinker.types.OptimStepResponse.model_validate_json(body)
    for read in (official.metrics, jsonbody.decode(types.OptimStepResponse, body).metrics):
        assert read.keys() == metrics.keys()
        assert all(same(np.float64(read[name]), np.float64(metrics[name])) for name in metrics)


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b"[1,]", b'{"a": NaN', b"\xff\xfe", b'{"a":1}{}'])
def test_what_is_no_json_is_refused(body: bytes):
    with pytest.raises(InvalidArgumentError, match="is not JSON"):
        jsonbody.decode(types.OptimStepResponse, body)


# ---- samples


@st.composite
def topks(draw: Any, length: int) -> TopkLogprobs:
    """Rows of at most k entries, the rest of a row empty."""
    k = draw(st.integers(1, 3))
    ids, logprobs = np.zeros((length, k), np.int32), np.full((length, k), MASK_LOGPROB, np.float32)
    for row in range(length):
        for column in range(draw(st.integers(0, k))):
            ids[row, column] = draw(st.integers(1, 99))
            logprobs[row, column] = draw(st.floats(-50, 0, width=32))
    return TopkLogprobs(ids, logprobs)


@st.composite
def responses(draw: Any) -> types.SampleResponse:
    sequences = []
    for index in range(draw(st.integers(0, 3))):
        tokens = draw(hnp.arrays(np.int32, draw(st.integers(0, 4))))
        known = draw(st.booleans()) and tokens.size > 0
        sequences.append(
            types.SampledSequence(
                draw(st.sampled_from(["stop", "length"])),
                f"id-{index}",
                tokens,
                draw(hnp.arrays(np.float32, tokens.size, elements=FLOATS32)) if known else None,
                draw(topks(tokens.size)) if known else None,
            )
        )
    prompt = draw(st.integers(1, 4))
    pair = st.tuples(hnp.arrays(np.int64, (prompt, 2)), hnp.arrays(np.float32, (prompt, 2)))
    alternatives = draw(st.none() | pair)
    return types.SampleResponse(
        sequences,
        draw(st.none() | hnp.arrays(np.float32, prompt, elements=FLOATS32)),
        draw(st.none() | topks(prompt)),
        draw(st.none() | csr()),
        draw(st.integers(0, 2**31 - 1)),
        None
        if alternatives is None
        else types.PromptAltTokens(*map(types.TensorData.from_numpy, alternatives)),
    )


def _clean(response: types.SampleResponse) -> Any:
    """Every list view with NaN made comparable."""
    return json.loads(
        json.dumps(
            [
                [
                    [s.stop_reason, s.sequence_id, s.tokens, s.logprobs, s.topk_logprobs]
                    for s in response.sequences
                ],
                response.prompt_logprobs,
                response.topk_prompt_logprobs,
            ]
        ).replace("NaN", '"NaN"')
    )


@examples(60)
@given(response=responses())
def test_samples_come_back_through_protobuf(response: types.SampleResponse):
    names = [sequence.sequence_id for sequence in response.sequences]
    back = samples.decode_sample_response(samples.encode_sample_response(response), names)
    assert _clean(back) == _clean(response)
    assert back.prompt_cache_hit_tokens == response.prompt_cache_hit_tokens
    target, alternatives = response.target_prompt_logprobs, response.prompt_alt_tokens
    assert target is None or target.equals(back.target_prompt_logprobs)
    assert (alternatives is None) == (back.prompt_alt_tokens is None)
    if alternatives is not None:
        assert alternatives.tokens.equals(back.prompt_alt_tokens.tokens)
        assert alternatives.logprobs.equals(back.prompt_alt_tokens.logprobs)


@examples(40)
@given(response=responses())
def test_samples_come_back_through_json(response: types.SampleResponse):
    names = [sequence.sequence_id for sequence in response.sequences]
    back = results.read_samples(jsonbody.parse(results.samples_to_json(response)), names)
    assert _clean(back) == _clean(response)
    assert back.prompt_cache_hit_tokens == response.prompt_cache_hit_tokens
    target, alternatives = response.target_prompt_logprobs, response.prompt_alt_tokens
    assert target is None or target.equals(back.target_prompt_logprobs)
    assert (alternatives is None) == (back.prompt_alt_tokens is None)
    if alternatives is not None:
        assert alternatives.tokens.equals(back.prompt_alt_tokens.tokens)
        assert alternatives.logprobs.equals(back.prompt_alt_tokens.logprobs)


def test_a_stop_reason_of_the_future_still_yields_tokens():
    body = pb.SampleResponse(
        sequences=[pb.SampledSequence(stop_reason=7, tokens=np.int32([1, 2]).tobytes())]
    )
    (sequence,) = samples.decode_sample_response(body.SerializeToString()).sequences
    assert sequence.stop_reason == "unknown(7)"
    assert sequence.tokens == [1, 2]


# ---- chunks


TOKENS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6)
TEXT_CHUNKS = TOKENS.map(lambda tokens: types.EncodedTextChunk(tokens=tokens)) | TOKENS.map(
    lambda tokens: types.EncodedTextChunk(tokens=np.array(tokens, np.int32))
)
IMAGES = st.builds(
    lambda data, format, expected: types.ImageChunk(data=data, format=format, expected_tokens=expected),
    st.binary(max_size=9),
    st.sampled_from(["png", "jpeg"]),
    st.none() | st.integers(0, 2**31 - 1),
)
AUDIO = st.binary(max_size=9).map(lambda dmel: types.DmelChunk(dmel=dmel))
POINTERS = st.builds(
    lambda location, format: types.ImageAssetPointerChunk(location=location, format=format),
    st.text(max_size=9),
    st.sampled_from(["png", "jpeg"]),
)
UNKNOWN = st.dictionaries(st.sampled_from(["clip", "fps"]), st.integers(0, 9)).map(
    lambda rest: UnknownChunk(type="video", **rest)
)


@examples(80)
@given(chunks=st.lists(TEXT_CHUNKS | IMAGES | AUDIO | POINTERS | UNKNOWN, max_size=4))
def test_chunks_come_back_through_json(chunks: list[Any]):
    held = types.ModelInput(chunks=chunks)
    back = jsonbody.decode(types.ModelInput, jsonbody.encode(held))
    assert [type(chunk) for chunk in back.chunks] == [type(chunk) for chunk in chunks]
    assert back == held
    assert jsonbody.encode(back) == jsonbody.encode(held)


@examples(60)
@given(chunks=st.lists(TEXT_CHUNKS | IMAGES | AUDIO, max_size=4))
def test_chunks_come_back_through_protobuf(chunks: list[Any]):
    request = passes.PassRequest("m", 1, [types.Datum(types.ModelInput(chunks=chunks))], "cross_entropy")
    (datum,) = passes.decode_request(passes.encode_request(request)).data
    assert datum.model_input == types.ModelInput(chunks=chunks)


@pytest.mark.parametrize(
    "chunk",
    [types.ImageAssetPointerChunk(location="s3://x", format="png"), UnknownChunk(type="video")],
    ids=["pointer", "unknown"],
)
def test_a_chunk_training_cannot_carry_is_refused(chunk: Any):
    request = passes.PassRequest("m", 1, [types.Datum(types.ModelInput(chunks=[chunk]))], "cross_entropy")
    with pytest.raises(
        InvalidArgumentError, match=r"data\[0\].model_input.chunks\[0\].*cannot be trained on"
    ):
        passes.encode_request(request)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ({"tokens": [1]}, "encoded_text"),
        ({"data": "aGk=", "format": "png", "tokens": 3, "height": 1, "width": 1}, "image"),
        ({"location": "x", "format": "png", "tokens": 3}, "image_asset_pointer"),
        ({"dmel": "aGk="}, "dmel"),
        ({"type": "video", "clip": 1}, "video"),
    ],
)
def test_a_chunk_without_or_with_an_unknown_tag_is_read(sent: dict[str, Any], kind: str):
    chunk = rule_for(types.ModelInputChunk).take(sent, True)
    assert chunk.type == kind
    if kind.startswith("image"):
        assert chunk.length == 3


CONFIG = st.none() | st.dictionaries(st.text(max_size=6), st.floats(allow_nan=False) | st.text(max_size=5))


@examples(60)
@given(config=CONFIG, seq=st.integers(0, 2**31 - 1), forward=st.booleans(), arrays=st.lists(WIRE_ARRAYS))
def test_a_pass_request_comes_back(config: Any, seq: int, forward: bool, arrays: list[Any]):
    inputs = {f"input {index}": array for index, array in enumerate(arrays)}
    datum = types.Datum(types.ModelInput.from_ints([1, 2]), inputs)
    request = passes.PassRequest("s:train:0", seq, [datum, datum], "ppo", config, forward)
    back = passes.decode_request(passes.encode_request(request))
    assert (back.model_id, back.seq_id, back.loss_fn) == ("s:train:0", seq, "ppo")
    assert back.loss_fn_config == (config or None)
    assert back.forward_only is forward
    assert len(back.data) == 2
    for twin in back.data:
        assert twin.model_input == datum.model_input
        assert twin.loss_fn_inputs.keys() == inputs.keys()
        assert all(twin.loss_fn_inputs[name].equals(datum.loss_fn_inputs[name]) for name in inputs)


def test_numbers_are_written_without_a_list_between():
    assert jsonbody.numbers(np.arange(6)[::2]) == msgspec.Raw(b"[0,2,4]")
