"""Bad input is refused when it is given: the text names the field, the value and what is allowed."""

from __future__ import annotations

import re
import socket
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tinkex import types
from tinkex.errors import Fault, InvalidArgumentError, UnknownArgumentError
from tinkex.types.chunks import UnknownChunk
from tinkex.wire.passes import PassRequest, decode_request, encode_request

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may open a connection."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)


def tensor(data: Any, dtype: Any = "float32", shape: Any = None, **indices: Any) -> types.TensorData:
    return types.TensorData(data=data, dtype=dtype, shape=shape, **indices)


def datum(**inputs: Any) -> types.Datum:
    return types.Datum(types.ModelInput.from_ints([1, 2]), inputs)


def sent(chunk: Any = None, loss: Any = "ppo", config: Any = None, seq_id: int = 1) -> bytes:
    chunks = [types.EncodedTextChunk(tokens=[1]) if chunk is None else chunk]
    data = [types.Datum(types.ModelInput(chunks=chunks), {})]
    return encode_request(PassRequest("m", seq_id, data, loss, config))


def refused(make: Callable[[], Any], words: list[str]) -> None:
    """The call raises a ValueError or TypeError that names all of these."""
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    text = str(caught.value)
    assert [word for word in words if word not in text] == [], text
    assert len(text) < 400


TENSORS: list[tuple[Callable[[], Any], list[str]]] = [
    # wrong dtype
    (lambda: tensor([1], "float64"), ["TensorData.dtype", "'float64'", "'float32'", "'int64'"]),
    (lambda: tensor([1], np.float32), ["TensorData.dtype", "numpy.float32", "'float32'"]),
    (lambda: tensor([1], None), ["dtype='float32'", "dtype='int64'"]),
    (
        lambda: types.TensorData.from_numpy(np.array([1j])),
        ["TensorData.data", "complex128", "1.j", "float"],
    ),
    (lambda: tensor(["a"]), ["TensorData.data", "str", "['a']", "integer, float or bool"]),
    (
        lambda: types.TensorData.from_numpy(np.array(["2026-01-01"], "M8[D]")),
        ["data", "datetime64", "float"],
    ),
    # object arrays
    (
        lambda: types.TensorData.from_numpy(np.array([1, None], object)),
        ["data", "object", "None", "integer"],
    ),
    (lambda: tensor([None, 1.0]), ["TensorData.data", "[None, 1.0]", "numeric"]),
    (lambda: tensor([{}]), ["TensorData.data", "[{}]", "numeric"]),
    # shape mismatch
    (lambda: tensor([1, 2, 3], shape=[2, 2]), ["TensorData.shape", "[2, 2]", "4 values", "3"]),
    (lambda: tensor([], shape=[1]), ["TensorData.shape", "[1]", "1 values", "0"]),
    (lambda: tensor([1], shape=[-1]), ["TensorData.shape", "[-1]", "0 or more"]),
    (lambda: tensor([1, 2], shape=[1.5]), ["TensorData.shape", "[1.5]", "whole numbers"]),
    (lambda: tensor([1], shape=[NAN]), ["TensorData.shape", "[nan]", "whole numbers"]),
    (lambda: tensor([1], shape=[INF]), ["TensorData.shape", "[inf]", "whole numbers"]),
    (lambda: tensor([1], shape="1"), ["TensorData.shape", "'1'", "whole numbers"]),
    (lambda: tensor([1], shape=1), ["TensorData.shape", "1", "whole numbers"]),
    # values that int64 does not have
    (lambda: tensor([1, NAN], "int64"), ["TensorData.data[1]", "nan", "int64"]),
    (lambda: tensor([-INF], "int64"), ["TensorData.data[0]", "-inf", "int64"]),
    (lambda: tensor([2**63], "int64"), ["TensorData.data", "9223372036854775808", "9223372036854775807"]),
    (lambda: tensor([2**70], "int64"), ["TensorData.data", "1180591620717411303424", "int64"]),
    (lambda: tensor([1.0, -1e30], "int64"), ["TensorData.data", "-1e+30", "9223372036854775807"]),
    # ragged lists
    (lambda: tensor([[1], [1, 2]]), ["TensorData.data", "[[1], [1, 2]]", "rectangular"]),
    # sparse
    (lambda: tensor([1], shape=[1, 2], sparse_crow_indices=[0, 1]), ["sparse_crow_indices", "together"]),
    (
        lambda: tensor([1], sparse_crow_indices=[0, 1], sparse_col_indices=[0]),
        ["TensorData.shape", "[rows, columns]", "None"],
    ),
    (
        lambda: tensor([1], shape=[1, 2], sparse_crow_indices=[0, 1], sparse_col_indices=[2]),
        ["TensorData.sparse_col_indices", "0 to 1", "[2]"],
    ),
    (
        lambda: tensor([1], shape=[1, 2], sparse_crow_indices=[0, 1, 0], sparse_col_indices=[0]),
        ["TensorData.sparse_crow_indices", "2 ascending", "[0, 1, 0]"],
    ),
    (
        lambda: tensor([1], shape=[1, 2], sparse_crow_indices=[0, NAN], sparse_col_indices=[0]),
        ["TensorData.sparse_crow_indices", "[0, nan]", "whole numbers"],
    ),
    (
        lambda: tensor([1, 2], shape=[1, 2], sparse_crow_indices=[0, 1], sparse_col_indices=[0]),
        ["2 values", "1 column", "agree"],
    ),
]

DATA: list[tuple[Callable[[], Any], list[str]]] = [
    # 3-D tensors
    (
        lambda: datum(weights=np.zeros((1, 2, 3), np.float32)),
        ["Datum.loss_fn_inputs['weights']", "[1, 2, 3]", "3 dimensions", "[T, K]"],
    ),
    (lambda: datum(weights=[[[1.0]]]), ["loss_fn_inputs['weights']", "[1, 1, 1]", "[T]", "[T, K]"]),
    (
        lambda: datum(mine=tensor([1.0], shape=[1, 1, 1])),
        ["loss_fn_inputs['mine']", "[1, 1, 1]", "3 dimensions"],
    ),
    # ragged lists, objects, other things
    (lambda: datum(weights=[[1.0], [1.0, 2.0]]), ["['weights']", "rectangular", "[[1.0], [1.0, 2.0]]"]),
    (lambda: datum(weights=[object()]), ["loss_fn_inputs['weights']", "object object", "numeric"]),
    (lambda: datum(weights=["a"]), ["loss_fn_inputs['weights']", "['a']", "float"]),
    (lambda: datum(weights="abc"), ["loss_fn_inputs['weights']", "'abc'", "TensorData", "list"]),
    (lambda: datum(weights=None), ["loss_fn_inputs['weights']", "None", "TensorData", "list"]),
    (lambda: datum(weights=0.5), ["loss_fn_inputs['weights']", "0.5", "TensorData", "list"]),
    (lambda: datum(target_tokens=[1, NAN]), ["loss_fn_inputs['target_tokens'][1]", "nan", "int64"]),
    (
        lambda: datum(mine=[1.0]),
        ["loss_fn_inputs['mine']", "dtype", "numpy", "target_tokens", "advantages"],
    ),
    (lambda: types.Datum([1, 2, 3], {}), ["Datum.model_input", "[1, 2, 3]", "ModelInput"]),
    (lambda: types.Datum(types.ModelInput.empty(), [1]), ["Datum.loss_fn_inputs", "[1]", "mapping"]),
    (lambda: types.Datum(types.ModelInput.empty(), {1: np.zeros(1)}), ["loss_fn_inputs[1]", "text"]),
    # provenance
    (
        lambda: types.PromptProvenanceSpan(sequence_id="", length=1),
        ["PromptProvenanceSpan.sequence_id", "''", "not empty"],
    ),
    (
        lambda: types.SampledProvenanceSpan(sequence_id=7, length=1),
        ["SampledProvenanceSpan.sequence_id", "7", "text"],
    ),
    (
        lambda: types.SampledProvenanceSpan(sequence_id="s", length=NAN),
        ["SampledProvenanceSpan.length", "nan", "whole number"],
    ),
    (
        lambda: types.SampledProvenanceSpan(sequence_id="s", length=1, offset=2**63),
        ["SampledProvenanceSpan.offset", "9223372036854775808", "int64"],
    ),
    (
        lambda: types.Datum(types.ModelInput.empty(), {}, []),
        ["Datum", "pair", "both"],
    ),
    (
        lambda: datum(target_tokens=[1]).with_provenance(
            [types.PromptProvenanceSpan(sequence_id="s", length=5)],
            [types.PromptProvenanceSpan(sequence_id="s", length=1)],
        ),
        ["with_provenance model_input", "5", "2"],
    ),
]

INPUTS: list[tuple[Callable[[], Any], list[str]]] = [
    # tokens outside int32
    (lambda: types.ModelInput.from_ints([1, 2**31]), ["tokens[1]", "2147483648", "int32", "2147483647"]),
    (lambda: types.ModelInput.from_ints(np.array([2**40])), ["tokens[0]", "1099511627776", "int32"]),
    (lambda: types.ModelInput.from_ints([-(2**31) - 1]), ["tokens[0]", "-2147483649", "-2147483648"]),
    (lambda: types.ModelInput.from_ints(np.array([2**63], np.uint64)), ["tokens[0]", str(2**63), "int32"]),
    (lambda: types.ModelInput.from_ints([2**70]), ["tokens", "1180591620717411303424", "int64"]),
    # not integers, not a list
    (lambda: types.ModelInput.from_ints([1.5]), ["EncodedTextChunk.tokens", "[1.5]", "integers"]),
    (lambda: types.ModelInput.from_ints([NAN]), ["EncodedTextChunk.tokens", "[nan]", "integers"]),
    (lambda: types.ModelInput.from_ints([True]), ["EncodedTextChunk.tokens", "[True]", "integers"]),
    (lambda: types.ModelInput.from_ints("abc"), ["EncodedTextChunk.tokens", "'abc'", "integers"]),
    (lambda: types.ModelInput.from_ints(["a"]), ["EncodedTextChunk.tokens", "['a']", "integer"]),
    (lambda: types.ModelInput.from_ints(None), ["EncodedTextChunk.tokens", "None", "integers"]),
    (lambda: types.ModelInput.from_ints(5), ["EncodedTextChunk.tokens", "5", "integers"]),
    (
        lambda: types.ModelInput.from_ints([[1, 2]]),
        ["EncodedTextChunk.tokens", "[1, 2]", "one-dimensional"],
    ),
    (lambda: types.ModelInput.from_ints([[1], [1, 2]]), ["EncodedTextChunk.tokens", "rectangular"]),
    (lambda: types.EncodedTextChunk(tokens=[1], type="image"), ["type", "'image'", "'encoded_text'"]),
    # unknown chunks
    (
        lambda: types.ModelInput(chunks=[{"type": "hologram"}]),
        ["ModelInput.chunks[0].type", "'hologram'", "'encoded_text'", "'dmel'"],
    ),
    (lambda: types.ModelInput(chunks=[None]), ["ModelInput.chunks[0]", "None", "EncodedTextChunk"]),
    (lambda: types.ModelInput(chunks=[[1, 2]]), ["ModelInput.chunks[0]", "[1, 2]", "EncodedTextChunk"]),
    (lambda: types.ModelInput(chunks=None), ["ModelInput.chunks", "None", "list"]),
    (lambda: types.ModelInput(chunks=[{"tokens": [2**31]}]), ["chunks[0]", "2147483648", "int32"]),
    # images and audio
    (lambda: types.ImageChunk(data=b"", format="gif"), ["ImageChunk.format", "'gif'", "'png'", "'jpeg'"]),
    (lambda: types.ImageChunk(data="%%", format="png"), ["ImageChunk.data", "'%%'", "base64"]),
    (lambda: types.ImageChunk(data=b""), ["ImageChunk", "format"]),
    (lambda: types.ImageChunk(data=b"", format="png").length, ["ImageChunk.expected_tokens", "set"]),
    (lambda: types.DmelChunk(dmel=b"\x09").length, ["DmelChunk.dmel", "9", "0 to 7"]),
    (lambda: types.ModelInput(chunks=[types.DmelChunk(dmel=b"")]).length, ["DmelChunk.dmel", "cut off"]),
]

SETTINGS: list[tuple[Callable[[], Any], list[str]]] = [
    (lambda: types.SamplingParams(max_tokens="many"), ["SamplingParams.max_tokens", "'many'", "integer"]),
    (lambda: types.SamplingParams(max_tokens=1.5), ["SamplingParams.max_tokens", "1.5", "integer"]),
    (lambda: types.SamplingParams(max_tokens=NAN), ["SamplingParams.max_tokens", "nan", "integer"]),
    (lambda: types.SamplingParams(temperature="hot"), ["SamplingParams.temperature", "'hot'", "number"]),
    (lambda: types.SamplingParams(temperature=NAN), ["SamplingParams.temperature", "nan", "finite"]),
    (lambda: types.SamplingParams(top_p=INF), ["SamplingParams.top_p", "inf", "finite"]),
    (lambda: types.SamplingParams(stop=[1, "a"]), ["SamplingParams.stop", "[1, 'a']", "texts only"]),
    (lambda: types.SamplingParams(stop=5), ["SamplingParams.stop", "5", "token ids"]),
    (lambda: types.AdamParams(learning_rate=NAN), ["AdamParams.learning_rate", "nan", "finite"]),
    (lambda: types.AdamParams(beta1=None), ["AdamParams.beta1", "None", "number"]),
    (lambda: types.AdamParams(0.1), ["AdamParams", "keyword"]),
    (lambda: types.DimuonParams(learning_rate=-1), ["DimuonParams.learning_rate", "-1", "≥ 0"]),
    (lambda: types.DimuonParams(learning_rate=1, beta1=1.0), ["DimuonParams.beta1", "1.0", "< 1"]),
    (lambda: types.LoraConfig(rank=None), ["LoraConfig.rank", "None", "integer"]),
    (lambda: types.LoraConfig(), ["LoraConfig", "rank"]),
    (
        lambda: types.LoraConfig(rank=8, train_mlp="maybe"),
        ["LoraConfig.train_mlp", "'maybe'", "true or false"],
    ),
    (
        lambda: types.SessionSearchRequest(limit=500),
        ["SessionSearchRequest.limit", "500", "≥ 1", "≤ 200"],
    ),
    (
        lambda: types.CreateModelRequest(
            session_id="s", model_seq_id=0, base_model="b", lora_config={"rank": "x"}
        ),
        ["lora_config", "rank", "'x'", "integer"],
    ),
    (
        lambda: types.ParsedCheckpointTinkerPath.from_tinker_path("tinker://run/weights"),
        ["tinker path", "'tinker://run/weights'", "sampler_weights"],
    ),
]

PASSES: list[tuple[Callable[[], Any], list[str]]] = [
    (
        lambda: sent(types.ImageAssetPointerChunk(location="s3://x", format="png")),
        ["data[0].model_input.chunks[0]", "ImageAssetPointerChunk", "EncodedTextChunk", "ImageChunk"],
    ),
    (
        lambda: sent(UnknownChunk(type="hologram")),
        ["data[0].model_input.chunks[0]", "UnknownChunk", "EncodedTextChunk"],
    ),
    (
        lambda: sent(types.ImageChunk(data=b"", format="png", expected_tokens=2**40)),
        ["chunks[0].expected_tokens", "1099511627776", "int32"],
    ),
    (
        lambda: sent(loss="cross_entrpy"),
        ["loss_fn", "'cross_entrpy'", "ppo", "did you mean 'cross_entropy'"],
    ),
    (lambda: sent(loss="zzz"), ["loss_fn", "'zzz'", "cross_entropy", "custom"]),
    (lambda: sent(loss=None), ["loss_fn", "None", "cross_entropy"]),
    (lambda: sent(config={"beta": [1]}), ["loss_fn_config['beta']", "[1]", "number or text"]),
    (lambda: sent(config={"beta": None}), ["loss_fn_config['beta']", "None", "number or text"]),
    (lambda: sent(config={"beta": np.zeros(2)}), ["loss_fn_config['beta']", "array", "number or text"]),
    (lambda: sent(config={1: 1.0}), ["loss_fn_config", "1", "text"]),
    (lambda: sent(config=[1]), ["loss_fn_config", "[1]", "mapping"]),
    (lambda: sent(seq_id=-1), ["seq_id", "-1", "0 to 2147483647"]),
    (lambda: sent(seq_id=2**31), ["seq_id", "2147483648", "0 to 2147483647"]),
]


@pytest.mark.parametrize(("make", "words"), TENSORS)
def test_a_bad_tensor(make: Callable[[], Any], words: list[str]) -> None:
    refused(make, words)


@pytest.mark.parametrize(("make", "words"), DATA)
def test_a_bad_datum(make: Callable[[], Any], words: list[str]) -> None:
    refused(make, words)


@pytest.mark.parametrize(("make", "words"), INPUTS)
def test_a_bad_model_input(make: Callable[[], Any], words: list[str]) -> None:
    refused(make, words)


@pytest.mark.parametrize(("make", "words"), SETTINGS)
def test_bad_settings(make: Callable[[], Any], words: list[str]) -> None:
    refused(make, words)


@pytest.mark.parametrize(("make", "words"), PASSES)
def test_a_bad_pass_is_refused_before_it_is_sent(make: Callable[[], Any], words: list[str]) -> None:
    refused(make, words)


def test_the_refusal_is_ours_and_says_whose_fault_it_is() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        types.ModelInput.from_ints([2**31])
    assert caught.value.fault is Fault.USER
    assert not caught.value.retryable


def test_a_long_value_is_shown_short() -> None:
    refused(lambda: types.ModelInput.from_ints([1.5] * 10_000), ["tokens", "[1.5, 1.5", "…"])
    refused(lambda: types.SamplingParams(max_tokens="x" * 10_000), ["max_tokens", "…"])


def test_config_numbers_may_be_of_any_kind() -> None:
    config = {"a": 1, "b": 0.5, "c": np.float32(0.25), "d": np.int64(2), "e": True, "f": Fraction(1, 2)}
    read = decode_request(sent(config=config))
    assert read.loss_fn_config == {"a": 1.0, "b": 0.5, "c": 0.25, "d": 2.0, "e": 1.0, "f": 0.5}


# ---- unknown keywords

TYPOS: list[tuple[Any, dict[str, Any], str, str]] = [
    (types.SamplingParams, {"max_token": 5}, "max_token", "max_tokens"),
    (types.SamplingParams, {"temprature": 0.5}, "temprature", "temperature"),
    (types.AdamParams, {"learningrate": 0.1}, "learningrate", "learning_rate"),
    (types.AdamParams, {"weightdecay": 0.1}, "weightdecay", "weight_decay"),
    (types.LoraConfig, {"rank": 8, "train_mpl": True}, "train_mpl", "train_mlp"),
    (types.ImageChunk, {"data": b"", "fromat": "png", "format": "png"}, "fromat", "format"),
    (types.EncodedTextChunk, {"tokens": [1], "token": [1]}, "token", "tokens"),
    (types.ModelInput, {"chunks": [], "chunk": []}, "chunk", "chunks"),
    (types.SaveWeightsRequest, {"model_id": "m", "ttl_second": 1}, "ttl_second", "ttl_seconds"),
]


@pytest.mark.parametrize(("kind", "given", "wrong", "near"), TYPOS)
def test_an_unknown_keyword_is_refused_with_the_nearest_name(
    kind: Any, given: dict[str, Any], wrong: str, near: str
) -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        kind(**given)
    assert f"{wrong!r} (did you mean {near!r}?)" in str(caught.value)
    assert kind.__name__ in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_a_keyword_like_no_other_lists_them_all() -> None:
    with pytest.raises(UnknownArgumentError, match="zzz") as caught:
        types.AdamParams(zzz=1)
    assert "did you mean" not in str(caught.value)
    for field in types.AdamParams.model_fields:
        assert field in str(caught.value)


@pytest.mark.parametrize(("kind", "given", "wrong", "near"), TYPOS)
def test_unknown_keywords_only_warn_when_asked_to(
    monkeypatch: pytest.MonkeyPatch, kind: Any, given: dict[str, Any], wrong: str, near: str
) -> None:
    monkeypatch.setenv("TINKEX_UNKNOWN_ARGUMENTS", "warn")
    with pytest.warns(FutureWarning, match=re.escape(f"{wrong!r} (did you mean {near!r}?)")) as caught:
        made = kind(**given)
    assert caught[0].filename == __file__
    known = {name: value for name, value in given.items() if name != wrong}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made == kind(**known)
    assert not hasattr(made, wrong)


def test_any_other_setting_still_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKEX_UNKNOWN_ARGUMENTS", "ignore")
    with pytest.raises(UnknownArgumentError):
        types.SamplingParams(max_token=5)


def test_nested_mappings_are_held_to_the_same_names() -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean 'rank'"):
        types.CreateModelRequest(
            session_id="s", model_seq_id=0, base_model="b", lora_config={"rank": 8, "rnak": 8}
        )
