"""Results to try the contract on: ours, and the official SDK's protobuf messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from tinker.proto import tinker_public_pb2 as pb

from tests.strategies import FLOAT32, INT32, TEXT, tensors
from tinkex import types
from tinkex.types.sample_response import PromptAltTokens, SampledSequence, SampleResponse
from tinkex.types.topk_logprobs import MASK_LOGPROB, TopkLogprobs


def floats32(size: int) -> st.SearchStrategy[Any]:
    return st.lists(FLOAT32, min_size=size, max_size=size).map(lambda values: np.array(values, np.float32))


def ids32(size: int) -> st.SearchStrategy[Any]:
    return st.lists(INT32, min_size=size, max_size=size).map(lambda values: np.array(values, np.int32))


@st.composite
def topks(draw: st.DrawFn) -> TopkLogprobs:
    length, k = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cell = st.just((0, MASK_LOGPROB)) | st.tuples(INT32, FLOAT32)
    cells = draw(st.lists(cell, min_size=length * k, max_size=length * k))
    return TopkLogprobs(
        np.array([token for token, _ in cells], np.int32).reshape(length, k),
        np.array([logprob for _, logprob in cells], np.float32).reshape(length, k),
    )


@st.composite
def sequences(draw: st.DrawFn) -> SampledSequence:
    size = draw(st.integers(0, 4))
    return SampledSequence(
        draw(st.sampled_from(["stop", "length"])),
        "",
        draw(ids32(size)),
        draw(st.none() | floats32(size)),
        draw(st.none() | topks()),
    )


def sample_responses() -> st.SearchStrategy[SampleResponse]:
    floats = tensors(("float32",), finite=False)
    alternatives = st.builds(PromptAltTokens, tensors(("int64",), sparse=False), floats)
    return st.builds(
        SampleResponse,
        st.lists(sequences(), max_size=3),
        st.none() | st.integers(0, 4).flatmap(floats32),
        st.none() | topks(),
        st.none() | floats,
        st.integers(0, 2**31 - 1),
        st.none() | alternatives,
    )


@st.composite
def topk_messages(draw: st.DrawFn) -> Any:
    topk = draw(topks())
    length, k = topk.token_ids.shape
    if draw(st.booleans()) and draw(st.booleans()):
        return pb.TopkLogprobs(k=k)  # a length of 0 stands for nothing
    return pb.TopkLogprobs(
        token_ids=topk.token_ids.tobytes(), logprobs=topk.logprobs.tobytes(), k=k, length=length
    )


_STORED = {
    pb.DTYPE_FLOAT32: np.float32,
    pb.DTYPE_INT64: np.int64,
    pb.DTYPE_INT32: np.int32,
    pb.DTYPE_BFLOAT16: np.uint16,
}


def stored(dtype: int, size: int) -> st.SearchStrategy[bytes]:
    width = np.dtype(_STORED[dtype]).itemsize * size
    return st.binary(min_size=width, max_size=width)


@st.composite
def tensor_messages(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from([pb.DTYPE_FLOAT32, pb.DTYPE_INT64, pb.DTYPE_INT32]))
    rows, columns = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        cells = sorted(draw(st.sets(st.integers(0, max(rows * columns - 1, 0)), max_size=rows * columns)))
        counts = [sum(cell // columns == row for cell in cells) for row in range(rows)]
        message = pb.Tensor(dtype=dtype, shape=[rows, columns])
        message.sparse_csr.values = draw(stored(dtype, len(cells)))
        message.sparse_csr.crow_indices = np.cumsum([0, *counts]).astype(np.int64).tobytes()
        message.sparse_csr.col_indices = np.array([cell % columns for cell in cells], np.int64).tobytes()
        return message
    shape = draw(st.sampled_from([[rows], [rows, columns], []]))
    return pb.Tensor(dtype=dtype, shape=shape, dense=draw(stored(dtype, int(np.prod(shape)))))


def maybe(message: Any, field: str, value: Any) -> None:
    if value is not None:
        getattr(message, field).CopyFrom(value)


@st.composite
def sample_messages(draw: st.DrawFn) -> Any:
    message = pb.SampleResponse(prompt_cache_hit_tokens=draw(INT32))
    for _ in range(draw(st.integers(0, 3))):
        size = draw(st.integers(0, 4))
        item = message.sequences.add(
            stop_reason=draw(st.sampled_from([0, 1])), tokens=draw(ids32(size)).tobytes()
        )
        if draw(st.booleans()):
            item.logprobs = draw(floats32(size)).tobytes()
        maybe(item, "topk_sampled_logprobs", draw(st.none() | topk_messages()))
    if draw(st.booleans()):
        message.prompt_logprobs = draw(st.integers(0, 4).flatmap(floats32)).tobytes()
    maybe(message, "topk_prompt_logprobs", draw(st.none() | topk_messages()))
    maybe(message, "target_prompt_logprobs", draw(st.none() | tensor_messages()))
    if draw(st.booleans()):
        message.prompt_alt_tokens.tokens.CopyFrom(draw(tensor_messages()))
        message.prompt_alt_tokens.logprobs.CopyFrom(draw(tensor_messages()))
    return message


@st.composite
def outputs(draw: st.DrawFn) -> types.ForwardBackwardOutput:
    names = draw(st.lists(TEXT, unique=True, max_size=3))
    held = draw(
        st.lists(st.fixed_dictionaries({name: tensors(finite=False) for name in names}), max_size=4)
    )
    metrics = draw(st.dictionaries(TEXT, st.floats(), max_size=3))
    kind = draw(st.sampled_from(["TorchLossReturn", "ArrayRecord"]))
    return types.ForwardBackwardOutput(kind, held, metrics)


@st.composite
def batches(draw: st.DrawFn, count: int) -> Any:
    dtype = draw(st.sampled_from(list(_STORED)))
    width = np.dtype(_STORED[dtype]).itemsize
    trailing = draw(st.sampled_from([[], [2], [3], [2, 2]]))
    lengths = [draw(st.integers(0, 3)) for _ in range(count)]
    sizes = [int(length * np.prod(trailing)) for length in lengths]
    return pb.BatchedTensor(
        data=draw(stored(dtype, sum(sizes))),
        offsets=(np.cumsum([0, *sizes]) * width).astype(np.int64).tobytes(),
        dtype=dtype,
        trailing_shape=trailing,
    )


@st.composite
def output_messages(draw: st.DrawFn) -> Any:
    message = pb.ForwardBackwardOutput(
        loss_fn_output_type=draw(st.sampled_from(["", "TorchLossReturn", "a.b:TorchLossReturn", "x:y:Z"]))
    )
    message.metrics.update(draw(st.dictionaries(TEXT, st.floats(), max_size=3)))
    names = draw(st.lists(TEXT, unique=True, max_size=3))
    counted = draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(0, 3))
        record = message.loss_fn_outputs.add(num_datums=count if counted or not names else 0)
        for name in names:
            record.fields[name].CopyFrom(draw(batches(count)))
    return message
