"""`TensorData` and `Datum` as users know them: what is shared, what is copied, what is refused."""

from __future__ import annotations

import copy
import pickle
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tinker.types
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinkex import types
from tinkex.errors import InvalidArgumentError
from tinkex.types import TensorData
from tinkex.types.arrays import is_numpy, is_torch

from ..strategies import examples

SMALL = hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_an_array_of_the_right_dtype_is_kept_by_reference(dtype: str):
    array = np.arange(6, dtype=dtype)
    tensor = TensorData.from_numpy(array)
    assert tensor._numpy is array
    assert tensor.to_numpy() is array
    assert TensorData(data=array, dtype=dtype)._numpy is array
    array[0] = 9
    assert tensor.data[0] == 9
    datum = types.Datum(types.ModelInput.empty(), {"x": array})
    assert datum.loss_fn_inputs["x"]._numpy is array
    assert types.Datum(types.ModelInput.empty(), {"x": tensor}).loss_fn_inputs["x"] is tensor


def test_a_read_only_array_is_copied():
    array = np.frombuffer(np.arange(3, dtype=np.int64).tobytes(), np.int64)
    tensor = TensorData.from_numpy(array)
    assert tensor._numpy is not array
    assert tensor._numpy.flags.writeable
    assert tensor.data == [0, 1, 2]


def test_a_shape_reshapes_without_copying():
    array = np.arange(6, dtype=np.float32)
    tensor = TensorData(data=array, dtype="float32", shape=[2, 3])
    assert tensor._numpy.shape == (2, 3)
    assert np.shares_memory(tensor._numpy, array)


@examples(60)
@given(array=hnp.arrays(np.float32, SMALL, elements=st.floats(width=32)) | hnp.arrays(np.int64, SMALL))
def test_construction_agrees_with_the_official_one(array: Any):
    ours, theirs = TensorData.from_numpy(array), tinker.types.TensorData.from_numpy(array)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert repr(ours.data) == repr(theirs.data)
    assert repr(ours.tolist()) == repr(theirs.tolist())
    flat = array.ravel().tolist()
    again = TensorData(data=flat, dtype=ours.dtype, shape=list(array.shape))
    assert again.equals(ours)
    assert repr(ours) == repr(theirs)


def test_no_data_is_an_empty_tensor():
    assert TensorData(dtype="int64").data == tinker.types.TensorData(dtype="int64").data == []


def test_equality_is_identity_as_in_the_official_type():
    one, two = TensorData(data=[1], dtype="int64"), TensorData(data=[1], dtype="int64")
    assert one == one
    assert one != two
    assert one.equals(two)
    assert len({one, two}) == 2


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"data": [1.0, float("nan"), 4.0]}, False),
        ({"dtype": "int64", "data": [1, 2, 3]}, False),
        ({"shape": [3, 1]}, False),
        ({"shape": None}, False),
    ],
)
def test_equals_looks_at_everything(change: dict[str, Any], same: bool):
    made = {"data": [1.0, float("nan"), 3.0], "dtype": "float32", "shape": [3]}
    assert TensorData(**made).equals(TensorData(**{**made, **change})) is same


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_tensor_survives_copying_and_pickling(clone: Any):
    dense = TensorData(data=[[1.5, float("nan")]], dtype="float32", shape=[1, 2])
    sparse = TensorData(
        data=[5], dtype="int64", shape=[2, 9], sparse_crow_indices=[0, 0, 1], sparse_col_indices=[3]
    )
    assert clone(dense).equals(dense)
    assert clone(sparse).equals(sparse)


def test_a_tensor_is_immutable():
    with pytest.raises(AttributeError):
        TensorData(data=[1], dtype="int64").dtype = "float32"  # type: ignore[misc]


@pytest.mark.parametrize("pad", [True, 1.0, None, "0"])
def test_the_pad_value_must_be_an_integer(pad: Any):
    sparse = TensorData(
        data=[5], dtype="int64", shape=[1, 4], sparse_crow_indices=[0, 1], sparse_col_indices=[3]
    )
    with pytest.raises(TypeError, match="pad_value must be an integer"):
        sparse.to_numpy(pad)
    assert sparse.to_numpy(np.int32(-1)).tolist() == [[-1, -1, -1, 5]]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"data": [1]}, "needs dtype"),
        ({"data": [1], "dtype": "float64"}, "'float64' is not supported"),
        ({"data": ["a"], "dtype": "int64"}, "TensorData.data"),
        ({"data": [[1], [2, 3]], "dtype": "int64"}, "rectangular"),
        ({"data": [1 + 2j], "dtype": "float32"}, "complex128 is not supported"),
        ({"data": [2**63], "dtype": "int64"}, "9223372036854775808 is beyond int64"),
        ({"data": [2**70], "dtype": "int64"}, "within int64"),
        ({"data": [float("nan")], "dtype": "int64"}, "NaN or infinity"),
        ({"data": [1, 2], "dtype": "int64", "shape": [3]}, r"\[3\] needs 3 values, data has 2"),
        ({"data": [1], "dtype": "int64", "shape": [-1]}, r"\[-1\] is not a list of lengths"),
        ({"data": [1], "dtype": "int64", "shape": [float("nan")]}, "is not a list of lengths"),
        ({"data": [1], "dtype": "int64", "shape": 1}, "is not a list of lengths"),
    ],
)
def test_bad_tensors_are_refused_with_the_field(made: dict[str, Any], text: str):
    with pytest.raises((InvalidArgumentError, TypeError), match=text):
        TensorData(**made)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sparse_col_indices": None}, "come together"),
        ({"shape": None}, r"needs \[rows, columns\]"),
        ({"shape": [2]}, r"needs \[rows, columns\]"),
        ({"sparse_crow_indices": [0, 2]}, "needs 3 ascending numbers from 0"),
        ({"sparse_crow_indices": [0, 2, 1]}, "needs 3 ascending numbers from 0"),
        ({"sparse_crow_indices": [1, 1, 2]}, "needs 3 ascending numbers from 0"),
        ({"sparse_crow_indices": [0, 1, 3]}, "must agree"),
        ({"data": [1]}, "must agree"),
        ({"sparse_col_indices": [0, 4]}, "must be from 0 to 3"),
        ({"sparse_col_indices": [-1, 0]}, "must be from 0 to 3"),
    ],
)
def test_bad_sparse_tensors_are_refused_with_the_field(change: dict[str, Any], text: str):
    made = {
        "data": [7, 8],
        "dtype": "int64",
        "shape": [2, 4],
        "sparse_crow_indices": [0, 1, 2],
        "sparse_col_indices": [0, 3],
    }
    assert TensorData(**made).tolist() == [[7, 0, 0, 0], [0, 0, 0, 8]]
    with pytest.raises(InvalidArgumentError, match=text):
        TensorData(**{**made, **change})


# ---- torch


@examples(60)
@given(
    array=hnp.arrays(
        np.int64, hnp.array_shapes(min_dims=1, max_dims=2, max_side=8), elements=st.integers(0, 3)
    ),
    pad=st.integers(-1, 2),
    floating=st.booleans(),
)
def test_sparse_layout_is_the_official_one(array: Any, pad: int, floating: bool):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(array.astype(np.float32) if floating else array)
    ours = TensorData.from_torch_sparse(tensor, pad)
    theirs = tinker.types.TensorData.from_torch_sparse(tensor, pad)
    assert (ours.dtype, ours.shape, ours.data) == (theirs.dtype, theirs.shape, theirs.data)
    assert ours.sparse_crow_indices == theirs.sparse_crow_indices
    assert ours.sparse_col_indices == theirs.sparse_col_indices
    assert torch.equal(ours.to_torch(pad), theirs.to_torch(pad))


def test_torch_tensors_share_memory_and_bfloat16_is_widened():
    torch = pytest.importorskip("torch")
    held = torch.arange(4, dtype=torch.float32)
    assert TensorData.from_torch(held)._numpy.ctypes.data == held.data_ptr()
    assert TensorData.from_torch(held).to_torch().data_ptr() == held.data_ptr()
    brain = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    assert TensorData.from_torch(brain).data == [1.5, -2.0]
    datum = types.Datum(types.ModelInput.empty(), {"weights": torch.zeros(4, 9), "x": torch.zeros(4, 9)})
    assert datum.loss_fn_inputs["weights"].is_sparse
    assert not datum.loss_fn_inputs["x"].is_sparse


def test_without_torch_the_conversion_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"tinkex\[torch\]"):
        TensorData(data=[1], dtype="int64").to_torch()


# ---- datum


@pytest.mark.parametrize(
    "name", ["target_tokens", "weights", "advantages", "logprobs", "sequence_ratio_mask"]
)
def test_a_list_gets_the_dtype_of_its_name(name: str):
    data = [[1, 2], [3, 4]]
    for value in ([1, 2], [1.0, 2.0], data, []):
        ours = types.Datum(types.ModelInput.empty(), {name: value}).loss_fn_inputs[name]
        model_input = tinker.types.ModelInput.empty()
        theirs = tinker.types.Datum(model_input, {name: value}).loss_fn_inputs[name]
        assert (ours.dtype, ours.shape, ours.data) == (theirs.dtype, theirs.shape, theirs.data)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, 2], r"loss_fn_inputs\['mine'\]: a plain list has no dtype under this name.*target_tokens"),
        (np.zeros((2, 2, 2), np.float32), r"loss_fn_inputs\['mine'\]: shape \[2, 2, 2\] has 3 dimensions"),
        (np.array(["a"]), r"loss_fn_inputs\['mine'\]: dtype str.* is not supported"),
        ("text", r"loss_fn_inputs\['mine'\]: expected TensorData"),
        (3, r"loss_fn_inputs\['mine'\]: expected TensorData"),
    ],
)
def test_bad_loss_inputs_are_refused_with_their_name(value: Any, text: str):
    with pytest.raises((InvalidArgumentError, TypeError), match=text):
        types.Datum(types.ModelInput.empty(), {"mine": value})


def test_bools_and_unsigned_integers_are_fine():
    for dtype in ("bool", "uint8", "uint16", "uint32", "uint64"):
        made = types.Datum(types.ModelInput.empty(), {"mask": np.array([0, 1], dtype)}).loss_fn_inputs[
            "mask"
        ]
        assert (made.dtype, made.data) == ("int64", [0, 1])


def test_provenance_comes_in_pairs_that_tile():
    span = types.SampledProvenanceSpan(sequence_id="s", length=2)
    datum = types.Datum(types.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})
    marked = datum.with_provenance(model_input=[span], loss_fn_inputs=[span])
    assert marked.model_input_spans == marked.loss_fn_input_spans == [span]
    assert datum.model_input_spans is None
    with pytest.raises(AssertionError, match="pair"):
        types.Datum(datum.model_input, {}, [span])
    with pytest.raises(ValueError, match="model_input: the spans cover 4 positions, the field has 2"):
        datum.with_provenance([span, span], [span])
    with pytest.raises(ValueError, match="loss_fn_inputs: the spans cover 0 positions, the field has 2"):
        datum.with_provenance([span], [])
    with pytest.raises(TypeError, match="expected PromptProvenanceSpan"):
        types.Datum(datum.model_input, {}, ["s"], ["s"])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_half_loaded_library_is_none_yet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another thread is importing it: the module is there, its classes are not.
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not is_torch([1.0])
    assert not is_numpy([1.0])
