"""The array-backed types: list views, equality, copying, pickling, and making input from text."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import tinker.types
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tinker.types.topk_logprobs import TopkLogprobs as OfficialTopk

from tinkex import types
from tinkex.errors import InvalidArgumentError, UnknownArgumentError
from tinkex.types.topk_logprobs import MASK_LOGPROB, TopkLogprobs

from ..strategies import examples

NAN = float("nan")
TOPK = TopkLogprobs(
    np.int32([[5, 6], [7, 0], [0, 0]]),
    np.float32([[-0.5, -1.0], [-2.0, MASK_LOGPROB], [MASK_LOGPROB, MASK_LOGPROB]]),
)
TOPK_LISTS = [[(5, -0.5), (6, -1.0)], [(7, -2.0)], None]


def sequence(**change: Any) -> types.SampledSequence:
    made = {
        "stop_reason": "stop",
        "sequence_id": "q",
        "tokens_np": np.int32([1, 2, 3]),
        "logprobs_np": np.float32([-0.25, -0.5, -1.0]),
        "topk_logprobs_np": TOPK,
    }
    return types.SampledSequence(**{**made, **change})


def response(**change: Any) -> types.SampleResponse:
    made = {
        "sequences": [sequence()],
        "prompt_logprobs_np": np.float32([NAN, -1.5]),
        "topk_prompt_logprobs_np": TOPK,
        "target_prompt_logprobs": types.TensorData(data=[[1.0]], dtype="float32", shape=[1, 1]),
        "prompt_cache_hit_tokens": 3,
        "prompt_alt_tokens": types.PromptAltTokens(
            types.TensorData(data=[[1]], dtype="int64", shape=[1, 1]),
            types.TensorData(data=[[-1.0]], dtype="float32", shape=[1, 1]),
        ),
    }
    return types.SampleResponse(**{**made, **change})


# ---- views


def test_a_sequence_has_list_views():
    made = sequence()
    assert made.tokens == [1, 2, 3]
    assert all(type(token) is int for token in made.tokens)
    assert made.logprobs == [-0.25, -0.5, -1.0]
    assert made.topk_logprobs == TOPK_LISTS
    assert made.tokens is made.tokens  # made once
    assert made.logprobs is made.logprobs
    assert made.topk_logprobs is made.topk_logprobs


def test_what_the_server_did_not_give_is_none():
    bare = types.SampledSequence("length", "q")
    assert (bare.tokens, bare.logprobs, bare.topk_logprobs) == ([], None, None)
    empty = types.SampleResponse([])
    assert (empty.prompt_logprobs, empty.topk_prompt_logprobs) == (None, None)
    assert empty.prompt_cache_hit_tokens == 0


def test_a_prompt_logprob_that_was_not_computed_is_none():
    assert response().prompt_logprobs == [None, -1.5]
    assert response().topk_prompt_logprobs == TOPK_LISTS


def test_lists_given_at_construction_are_kept():
    tokens, logprobs = [9], [-3.0]
    made = types.SampledSequence("stop", "q", _tokens_list=tokens, _logprobs_list=logprobs)
    assert made.tokens is tokens
    assert made.logprobs is logprobs


@examples(80)
@given(data=st.data(), shape=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_top_k_lists_are_the_official_ones(data: st.DataObject, shape: tuple[int, int]):
    ids = data.draw(hnp.arrays(np.int32, shape, elements=st.sampled_from([0, 4])))
    logprobs = data.draw(hnp.arrays(np.float32, shape, elements=st.sampled_from([MASK_LOGPROB, -1.0])))
    ours = types.SampledSequence("stop", "q", topk_logprobs_np=TopkLogprobs(ids, logprobs))
    theirs = tinker.types.SampledSequence("stop", "q", topk_logprobs_np=OfficialTopk(ids, logprobs))
    assert ours.topk_logprobs == theirs.topk_logprobs


@examples(60)
@given(array=hnp.arrays(np.float32, st.integers(0, 5), elements=st.floats(width=32)))
def test_prompt_logprobs_are_the_official_ones(array: Any):
    ours = types.SampleResponse([], prompt_logprobs_np=array)
    assert ours.prompt_logprobs == tinker.types.SampleResponse([], prompt_logprobs_np=array).prompt_logprobs


# ---- equality


@pytest.mark.parametrize(
    "change",
    [
        {"stop_reason": "length"},
        {"sequence_id": "r"},
        {"tokens_np": np.int32([1, 2])},
        {"logprobs_np": None},
        {"topk_logprobs_np": None},
    ],
)
def test_sequences_are_equal_by_value(change: dict[str, Any]):
    assert sequence() == sequence()
    assert sequence() == sequence(tokens_np=None, _tokens_list=[1, 2, 3])
    assert sequence() != sequence(**change)
    assert sequence() != "sequence"


@pytest.mark.parametrize(
    "change",
    [
        {"sequences": []},
        {"sequences": [sequence(), sequence()]},
        {"prompt_logprobs_np": None},
        {"topk_prompt_logprobs_np": None},
        {"target_prompt_logprobs": None},
        {"target_prompt_logprobs": types.TensorData(data=[[2.0]], dtype="float32", shape=[1, 1])},
        {"prompt_cache_hit_tokens": 4},
        {"prompt_alt_tokens": None},
    ],
)
def test_responses_are_equal_by_value(change: dict[str, Any]):
    assert response() == response()
    assert response() != response(**change)
    assert response() != 3


def test_results_cannot_be_hashed():
    for made in (sequence(), response()):
        with pytest.raises(TypeError, match="unhashable"):
            hash(made)


# ---- copies


HOT = {
    "TensorData": lambda: types.TensorData(data=[1, 2], dtype="int64", shape=[2]),
    "EncodedTextChunk(list)": lambda: types.EncodedTextChunk(tokens=[1, 2]),
    "EncodedTextChunk(array)": lambda: types.EncodedTextChunk(tokens=np.int32([1, 2])),
    "ModelInput": lambda: types.ModelInput.from_ints([1, 2]).append(
        types.ImageChunk(data=b"x", format="png")
    ),
    "Datum": lambda: types.Datum(types.ModelInput.from_ints([1]), {"weights": [1.0]}),
    "SampledSequence": sequence,
    "SampleResponse": response,
    "ForwardBackwardOutput": lambda: types.ForwardBackwardOutput(
        "ArrayRecord", [{"logprobs": types.TensorData(data=[-1.0], dtype="float32")}], {"loss:sum": NAN}
    ),
    "PromptAltTokens": lambda: response().prompt_alt_tokens,
    "TopkLogprobs": lambda: TOPK,
    "PromptProvenanceSpan": lambda: types.PromptProvenanceSpan(sequence_id="q", length=2),
    "ForwardBackwardInput": lambda: types.ForwardBackwardInput(
        [types.Datum(types.ModelInput.from_ints([1]), {"weights": [1.0]})], "ppo", {"clip": 0.2}
    ),
    "SamplingParams": lambda: types.SamplingParams(max_tokens=3, stop=["a"]),
    "OptimizerConfigBase": lambda: types.OptimizerConfigBase(type="new", momentum=0.5),
}


def _open(value: Any) -> Any:
    """Everything a value holds, in comparable form."""
    if isinstance(value, np.ndarray):
        return [value.dtype.name, value.shape, value.tobytes()]
    if isinstance(value, types.ModelInput):
        return [_open(chunk) for chunk in value.chunks]
    if dataclasses.is_dataclass(value):
        return {field.name: _open(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _open(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_open(item) for item in value]
    return repr(value)


CLONES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": lambda v, n=n: pickle.loads(pickle.dumps(v, n)) for n in range(2, 6)},
}


@pytest.mark.parametrize("clone", CLONES.values(), ids=CLONES)
@pytest.mark.parametrize("make", HOT.values(), ids=HOT)
def test_copies_and_pickles_hold_the_same(make: Any, clone: Any):
    held = make()
    twin = clone(held)
    assert type(twin) is type(held)
    assert _open(twin) == _open(held)


@pytest.mark.parametrize("clone", [*CLONES.values(), lambda v: v.model_copy()])
def test_copies_keep_what_a_newer_peer_sent(clone: Any):
    read = types.WhoamiResponse.model_validate({"user_urn": "u", "org_urn": "o", "plan": "free"})
    assert clone(read).extra == {"plan": "free"}
    assert clone(read) == read


def test_a_deep_copy_shares_nothing():
    array = np.float32([1.0])
    datum = types.Datum(types.ModelInput.empty(), {"weights": array})
    twin = copy.deepcopy(datum)
    array[0] = 2.0
    assert datum.loss_fn_inputs["weights"].data == [2.0]
    assert twin.loss_fn_inputs["weights"].data == [1.0]


REPLACEABLE = [
    name for name, make in HOT.items() if dataclasses.is_dataclass(make()) and name != "TensorData"
]


@pytest.mark.parametrize("name", REPLACEABLE)
def test_every_dataclass_can_be_replaced(name: str):
    held = HOT[name]()
    assert _open(dataclasses.replace(held)) == _open(held)
    field = dataclasses.fields(held)[0].name
    value = getattr(held, field)
    changed = dataclasses.replace(held, **{field: value})
    assert getattr(changed, field) is value


def test_replacing_a_field_changes_only_it():
    changed = dataclasses.replace(sequence(), sequence_id="other")
    assert changed.sequence_id == "other"
    assert changed.tokens == [1, 2, 3]
    datum = HOT["Datum"]()
    other = dataclasses.replace(datum, model_input=types.ModelInput.from_ints([7]))
    assert other.model_input.to_ints() == [7]
    assert other.loss_fn_inputs["weights"] is datum.loss_fn_inputs["weights"]


@pytest.mark.parametrize("make", HOT.values(), ids=HOT)
def test_hot_types_are_immutable(make: Any):
    held = make()
    name = dataclasses.fields(held)[0].name if dataclasses.is_dataclass(held) else "type"
    with pytest.raises(AttributeError):
        setattr(held, name, 1)


# ---- input from text


class Letters:
    """The smallest encoder: one id a letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class Encoding:
    """What the `tokenizers` package returns."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


class Marking:
    """An encoder with a start mark, and a result object."""

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        return Encoding([1] * add_special_tokens + [ord(letter) for letter in text])


def test_text_becomes_tokens():
    assert types.ModelInput.from_text("hi", Letters()).to_ints() == [104, 105]
    assert types.ModelInput.from_text("", Letters()).to_ints() == []
    array = type("Array", (), {"encode": lambda self, text: np.array([3, 4])})()
    assert types.ModelInput.from_text("hi", array).to_ints() == [3, 4]


def test_an_encoders_result_object_is_understood():
    assert types.ModelInput.from_text("hi", Marking()).to_ints() == [1, 104, 105]
    plain = types.ModelInput.from_text("hi", Marking(), add_special_tokens=False)
    assert plain.to_ints() == [104, 105]


@pytest.mark.parametrize("text", [None, b"hi", ["hi"], 3])
def test_only_text_is_encoded(text: Any):
    with pytest.raises(InvalidArgumentError, match="expected text"):
        types.ModelInput.from_text(text, Letters())


# ---- tokens


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_tokens_may_be_any_integer_array(dtype: str):
    made = types.ModelInput.from_ints(np.array([1, 2, 100], dtype))
    assert made.to_ints() == [1, 2, 100]
    assert made.chunks[0].tokens_np.dtype == np.int32
    assert made == types.ModelInput.from_ints([1, 2, 100]) == types.ModelInput.from_ints((1, 2, 100))
    assert hash(made) == hash(types.ModelInput.from_ints([1, 2, 100]))
    assert made.length == 3
    assert repr(made) == repr(types.ModelInput.from_ints([1, 2, 100]))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([1, 2**31], r"tokens\[1\]: 2147483648 is outside int32"),
        (np.array([0, 0, -(2**31) - 1]), r"tokens\[2\]: -2147483649 is outside int32"),
        ([1.5], "token ids must be integers, got dtype float64"),
        (np.float32([1]), "token ids must be integers, got dtype float32"),
        (np.array([True]), "token ids must be integers, got dtype bool"),
        ([[1], [2]], r"must be one-dimensional, got shape \[2, 1\]"),
        (np.zeros((1, 1), int), r"must be one-dimensional, got shape \[1, 1\]"),
        (["a"], "EncodedTextChunk.tokens"),
        ("abc", "expected a list or array of integers"),
        (b"abc", "expected a list or array of integers"),
        (7, "expected a list or array of integers"),
        (None, "expected a list or array of integers"),
    ],
)
def test_bad_tokens_are_refused_with_place_and_value(tokens: Any, text: str):
    with pytest.raises(InvalidArgumentError, match=text):
        types.ModelInput.from_ints(tokens)


def test_a_misspelt_field_of_the_input_is_named():
    with pytest.raises(UnknownArgumentError, match="did you mean 'chunks'"):
        types.ModelInput(chunks=[], chunk=[])
    with pytest.raises(UnknownArgumentError, match="did you mean 'tokens'"):
        types.EncodedTextChunk(tokens=[], token=[])


def test_input_grows_by_new_objects():
    start = types.ModelInput.empty()
    grown = start.append_int(5).append(types.EncodedTextChunk(tokens=[6, 7]))
    assert start.length == 0
    assert grown.to_ints() == [5, 6, 7]
    image = grown.append(types.ImageChunk(data=b"x", format="png", expected_tokens=10))
    assert image.length == 13
    with pytest.raises(ValueError, match="only text chunks hold token ids, got ImageChunk"):
        image.to_ints()
    with pytest.raises(ValueError, match="expected_tokens"):
        _ = grown.append(types.ImageChunk(data=b"x", format="png")).length
