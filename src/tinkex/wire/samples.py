"""Results of sampling in protobuf, both ways."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from .._lazy import np
from ..errors import InvalidArgumentError
from ..types.arrays import Array
from ..types.identifiers import StopReason
from ..types.sample_response import PromptAltTokens, SampledSequence, SampleResponse
from ..types.tensor_data import TensorData
from ..types.topk_logprobs import TopkLogprobs
from .tensors import from_message, write_tensor

if TYPE_CHECKING:
    from . import tinker_public_pb2 as pb

__all__ = ["decode_sample_response", "encode_sample_response"]

logger: Final = logging.getLogger(__name__)

_STOP_REASONS: dict[int, StopReason] = {0: "stop", 1: "length"}
_STOP_NUMBERS = {"stop": 0, "length": 1}


def encode_sample_response(response: SampleResponse) -> bytes:
    """A sampling result as bytes; sequence ids travel in the ticket, not here."""
    from . import tinker_public_pb2 as pb

    message = pb.SampleResponse(prompt_cache_hit_tokens=response.prompt_cache_hit_tokens)
    for sequence in response.sequences:
        item = message.sequences.add(
            stop_reason=_STOP_NUMBERS[sequence.stop_reason],
            tokens=_bytes(sequence.tokens_np, sequence.tokens, "<i4"),
        )
        if sequence.logprobs is not None:
            item.logprobs = _bytes(sequence.logprobs_np, sequence.logprobs, "<f4")
        if sequence.topk_logprobs_np is not None:
            _write_topk(item.topk_sampled_logprobs, sequence.topk_logprobs_np)
    logprobs = response.prompt_logprobs_np
    if logprobs is None and response.prompt_logprobs is not None:
        logprobs = np.array(
            [np.nan if value is None else value for value in response.prompt_logprobs], "<f4"
        )
    if logprobs is not None:
        message.prompt_logprobs = logprobs.astype("<f4").tobytes()
    if response.topk_prompt_logprobs_np is not None:
        _write_topk(message.topk_prompt_logprobs, response.topk_prompt_logprobs_np)
    if response.target_prompt_logprobs is not None:
        _write_into(message.target_prompt_logprobs, response.target_prompt_logprobs)
    if response.prompt_alt_tokens is not None:
        _write_into(message.prompt_alt_tokens.tokens, response.prompt_alt_tokens.tokens)
        _write_into(message.prompt_alt_tokens.logprobs, response.prompt_alt_tokens.logprobs)
    return message.SerializeToString()


def _bytes(array: Array | None, values: list[Any], dtype: str) -> bytes:
    held = np.asarray(values, dtype) if array is None else array.astype(dtype, copy=False)
    raw: bytes = held.tobytes()
    return raw


def _write_into(message: pb.Tensor, tensor: TensorData) -> None:
    if tensor.shape is None:  # readers of a result take an empty shape for a scalar
        tensor = TensorData.wrap(tensor._numpy, tensor.dtype, list(tensor._numpy.shape))
    message.ParseFromString(write_tensor(tensor).bytes())


def _write_topk(message: pb.TopkLogprobs, topk: TopkLogprobs) -> None:
    message.length, message.k = topk.token_ids.shape
    message.token_ids = topk.token_ids.astype("<i4").tobytes()
    message.logprobs = topk.logprobs.astype("<f4").tobytes()


def decode_sample_response(
    body: bytes, sequence_ids: Sequence[str] | None = None, request_id: str = "sequence"
) -> SampleResponse:
    """Read a sampling result; `sequence_ids` from the ticket name its sequences.

    Ids a server did not give are made from the ticket's, so that every sequence has one.
    """
    from google.protobuf.message import DecodeError

    from . import tinker_public_pb2 as pb

    message = pb.SampleResponse()
    try:
        message.ParseFromString(body)
    except DecodeError as problem:
        raise InvalidArgumentError(f"the body is not a SampleResponse: {problem}") from None
    names = list(sequence_ids or ())
    sequences = [
        SampledSequence(
            _stop_reason(item.stop_reason),
            names[index] if index < len(names) else f"{request_id}:{index}",
            _array(item.tokens, "<i4"),
            _array(item.logprobs, "<f4") if item.logprobs else None,
            _read_topk(item.topk_sampled_logprobs) if item.HasField("topk_sampled_logprobs") else None,
        )
        for index, item in enumerate(message.sequences)
    ]
    return SampleResponse(
        sequences,
        _array(message.prompt_logprobs, "<f4") if message.prompt_logprobs else None,
        _read_topk(message.topk_prompt_logprobs) if message.HasField("topk_prompt_logprobs") else None,
        from_message(message.target_prompt_logprobs)
        if message.HasField("target_prompt_logprobs")
        else None,
        message.prompt_cache_hit_tokens,
        PromptAltTokens(
            from_message(message.prompt_alt_tokens.tokens),
            from_message(message.prompt_alt_tokens.logprobs),
        )
        if message.HasField("prompt_alt_tokens")
        else None,
    )


def _stop_reason(number: int) -> StopReason:
    known = _STOP_REASONS.get(number)
    if known is None:
        logger.warning("the server gave stop reason %d, which this version does not know", number)
        return f"unknown({number})"  # type: ignore[return-value]
    return known


def _array(data: bytes, dtype: str) -> Array:
    if len(data) % 4:
        raise InvalidArgumentError(f"SampleResponse: {len(data)} bytes are no array of {dtype}")
    return np.frombuffer(bytearray(data), dtype)


def _read_topk(message: pb.TopkLogprobs) -> TopkLogprobs | None:
    shape = (message.length, message.k)
    if 0 in shape:
        return None
    ids, logprobs = _array(message.token_ids, "<i4"), _array(message.logprobs, "<f4")
    if ids.size != shape[0] * shape[1] or logprobs.size != ids.size:
        raise InvalidArgumentError(
            f"TopkLogprobs: {ids.size} ids and {logprobs.size} logprobs do not make {shape}"
        )
    return TopkLogprobs(ids.reshape(shape), logprobs.reshape(shape))
