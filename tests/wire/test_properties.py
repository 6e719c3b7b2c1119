"""What goes onto the wire comes back: tensors of every dtype and layout, through JSON and protobuf."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.types.arrays import LossyCastWarning
from tinkex.wire import jsonbody, tensors
from tinkex.wire import tinker_public_pb2 as pb

from ..strategies import examples
from .arrays import FLOATS32, SHAPES, WIRE_ARRAYS, csr, same


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


@examples(60)
@given(data=st.data(), dtype=st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"]))
@example(data=None, dtype="int8")
@example(data=None, dtype="int64")
@example(data=None, dtype="uint64")
def test_integers_sent_as_floats_warn_when_digits_are_lost(data: st.DataObject | None, dtype: str):
    limits = np.iinfo(dtype)
    array = (
        np.array([limits.min, limits.max], dtype) if data is None else data.draw(hnp.arrays(dtype, SHAPES))
    )
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
