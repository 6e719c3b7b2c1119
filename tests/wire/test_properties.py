"""What goes onto the wire comes back: tensors, metrics and chunks through JSON and protobuf."""

from __future__ import annotations

import json
import math
import warnings
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
from tinkex.types.arrays import LossyCastWarning
from tinkex.types.chunks import UnknownChunk
from tinkex.types.rules import rule_for
from tinkex.types.topk_logprobs import MASK_LOGPROB, TopkLogprobs
from tinkex.wire import jsonbody, passes, results, samples, tensors
from tinkex.wire import tinker_public_pb2 as pb

from ..strategies import examples

FLOATS32 = st.floats(width=32)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5)
WIRE_ARRAYS = hnp.arrays(np.float32, SHAPES, elements=FLOATS32) | hnp.arrays(np.int64, SHAPES)


def same(left: Any, right: Any) -> bool:
    """Equal bit for bit as far as values go: NaN equals NaN, -0.0 is not 0.0."""
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind != "f":
        return bool(np.array_equal(left, right))
    signs = np.isnan(left) | (np.signbit(left) == np.signbit(right))
    return bool(np.array_equal(left, right, equal_nan=True) and signs.all())


def through_json(tensor: types.TensorData) -> types.TensorData:
    return jsonbody.decode(types.TensorData, jsonbody.encode(tensor))


def through_protobuf(tensor: types.TensorData) -> types.TensorData:
    return tensors.from_message(pb.Tensor.FromString(tensors.write_tensor(tensor).bytes()))


BOTH = pytest.mark.parametrize("through", [through_json, through_protobuf])


# ---- dense tensors


@BOTH
@examples(60)
@given(array=WIRE_ARRAYS)
def test_a_dense_tensor_comes_back(through: Any, array: Any):
    back = through(types.TensorData.from_numpy(array))
    assert same(back.to_numpy(), array)
    assert back.shape == list(array.shape)
    assert back.dtype == array.dtype.name
    assert back.data == array.ravel().tolist() or np.isnan(array).any()
    assert back.to_numpy().flags.writeable


@BOTH
@examples(40)
@given(array=WIRE_ARRAYS, layout=st.sampled_from(["fortran", "reversed", "strided", "readonly", "swapped"]))
def test_memory_layout_does_not_matter(through: Any, array: Any, layout: str):
    laid_out = {
        "fortran": lambda a: np.asfortranarray(a),
        "reversed": lambda a: np.flip(a),
        "strided": lambda a: np.repeat(a, 2, axis=0)[::2] if a.ndim else a,
        "readonly": lambda a: _readonly(a),
        "swapped": lambda a: a.astype(a.dtype.newbyteorder(">")),
    }[layout](array)
    back = through(types.TensorData.from_numpy(laid_out))
    assert same(back.to_numpy(), np.array(laid_out, array.dtype, order="C"))


def _readonly(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


EXACT_DTYPES = [
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
]


@BOTH
@pytest.mark.parametrize("dtype", EXACT_DTYPES)
@examples(15)
@given(data=st.data())
def test_narrow_dtypes_are_sent_exactly_and_silently(through: Any, dtype: str, data: st.DataObject):
    array = data.draw(hnp.arrays(dtype, SHAPES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = through(types.TensorData.from_numpy(array))
    wide = "float32" if dtype.startswith("float") else "int64"
    assert back.dtype == wide
    assert same(back.to_numpy(), array.astype(wide))


@examples(60)
@given(array=hnp.arrays(np.float64, SHAPES))
def test_float64_is_rounded_and_only_overflow_warns(array: Any):
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    overflows = bool((np.isinf(narrow) & np.isfinite(array)).any())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensor = types.TensorData.from_numpy(array)
    assert [w.category for w in caught] == [LossyCastWarning] * overflows
    assert same(through_protobuf(tensor).to_numpy(), narrow)


@examples(60)
@given(array=hnp.arrays(np.uint64, SHAPES))
def test_uint64_is_sent_exactly_or_refused(array: Any):
    if array.size and int(array.max()) > 2**63 - 1:
        with pytest.raises(InvalidArgumentError, match=f"{array.max()} is beyond int64"):
            types.TensorData.from_numpy(array)
    else:
        assert same(through_json(types.TensorData.from_numpy(array)).to_numpy(), array.astype(np.int64))


@examples(40)
@given(array=hnp.arrays(np.int64, SHAPES))
def test_integers_sent_as_floats_warn_when_digits_are_lost(array: Any):
    exact = all(int(np.float32(value)) == value for value in array.ravel().tolist())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensor = types.TensorData(data=array, dtype="float32")
    assert bool(caught) is not exact
    assert same(tensor.to_numpy(), array.astype(np.float32))


@examples(40)
@given(array=hnp.arrays(np.float32, SHAPES, elements=FLOATS32))
def test_floats_sent_as_integers_warn_or_are_refused(array: Any):
    finite = bool(np.isfinite(array).all())
    if not finite or (array.size and float(np.abs(array).max()) >= 2.0**63):
        with pytest.raises(InvalidArgumentError, match=r"TensorData\.data"):
            types.TensorData(data=array, dtype="int64")
        return
    whole = bool((array == np.trunc(array)).all())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensor = types.TensorData(data=array, dtype="int64")
    assert bool(caught) is not whole
    assert tensor.data == [int(value) for value in array.ravel().tolist()]


# ---- stored dtypes only a peer uses


@examples(40)
@given(bits=hnp.arrays(np.uint16, hnp.array_shapes(max_dims=1, min_side=0)))
def test_bfloat16_is_read_as_the_same_float32(bits: Any):
    back = tensors.from_message(pb.Tensor(dense=bits.tobytes(), dtype=pb.DTYPE_BFLOAT16, shape=bits.shape))
    assert back.dtype == "float32"
    assert back.shape == [bits.size]
    for stored, value in zip(bits.tolist(), back.data, strict=True):
        # sign, 8 exponent bits, 7 fraction bits
        sign, exponent, fraction = -1 if stored >> 15 else 1, stored >> 7 & 0xFF, stored & 0x7F
        if exponent == 0xFF:
            assert math.isnan(value) if fraction else value == sign * math.inf
        else:
            scale, lead = (exponent - 127, 1) if exponent else (-126, 0)
            assert value == sign * (lead + fraction / 128) * 2.0**scale


@examples(40)
@given(array=hnp.arrays(np.int32, SHAPES))
def test_int32_is_widened(array: Any):
    message = pb.Tensor(dense=array.tobytes(), dtype=pb.DTYPE_INT32, shape=array.shape)
    assert same(tensors.from_message(message).to_numpy(), array.astype(np.int64))


@pytest.mark.parametrize("dtype", [0, 5, 99])
def test_an_unknown_dtype_is_refused(dtype: int):
    with pytest.raises(InvalidArgumentError, match=f"dtype: {dtype} is not known"):
        tensors.from_message(pb.Tensor(dense=b"1234", dtype=dtype))


@pytest.mark.parametrize(("dtype", "size"), [(1, 3), (2, 7), (3, 5), (4, 1)])
def test_a_torn_buffer_is_refused(dtype: int, size: int):
    with pytest.raises(InvalidArgumentError, match=f"{size} bytes are no whole number"):
        tensors.from_message(pb.Tensor(dense=bytes(size), dtype=dtype))


def test_a_shape_that_does_not_fit_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"\[3, 2\] needs 6 values, data has 4"):
        tensors.from_message(pb.Tensor(dense=bytes(16), dtype=pb.DTYPE_FLOAT32, shape=[3, 2]))


def test_without_a_shape_one_value_is_a_scalar_and_others_a_vector():
    assert through_protobuf(types.TensorData.from_numpy(np.float32([7.5]).reshape(()))).shape == []
    for size in (0, 2, 3):
        message = pb.Tensor(dense=bytes(4 * size), dtype=pb.DTYPE_FLOAT32)
        assert tensors.from_message(message).shape == [size]


# ---- sparse tensors


@st.composite
def csr(draw: Any) -> types.TensorData:
    rows, columns = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    listed = [sorted(draw(st.sets(st.integers(0, columns - 1)))) for _ in range(rows)]
    crow = [0]
    for row in listed:
        crow.append(crow[-1] + len(row))
    dtype = draw(st.sampled_from(["int64", "float32"]))
    element = FLOATS32 if dtype == "float32" else st.integers(-(2**63), 2**63 - 1)
    return types.TensorData(
        data=draw(st.lists(element, min_size=crow[-1], max_size=crow[-1])),
        dtype=dtype,
        shape=[rows, columns],
        sparse_crow_indices=crow,
        sparse_col_indices=[column for row in listed for column in row],
    )


@BOTH
@examples(60)
@given(tensor=csr())
def test_a_sparse_tensor_comes_back_sparse(through: Any, tensor: types.TensorData):
    back = through(tensor)
    assert back.equals(tensor)
    assert back.sparse_crow_indices == tensor.sparse_crow_indices
    assert back.sparse_col_indices == tensor.sparse_col_indices


@examples(60)
@given(tensor=csr(), pad=st.integers(-5, 5))
def test_a_sparse_tensor_densifies_as_plain_loops_do(tensor: types.TensorData, pad: int):
    rows, columns = tensor.shape
    expected = [[float(pad) if tensor.dtype == "float32" else pad] * columns for _ in range(rows)]
    for row in range(rows):
        for at in range(tensor.sparse_crow_indices[row], tensor.sparse_crow_indices[row + 1]):
            expected[row][tensor.sparse_col_indices[at]] = tensor.data[at]
    assert same(tensor.to_numpy(pad), np.array(expected, tensor.dtype).reshape(rows, columns))


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
    mine, expected = _clean(back), _clean(response)
    for sequence in expected[0]:
        sequence[4] = None  # JSON has no top-k of sampled tokens
    assert mine == expected


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
