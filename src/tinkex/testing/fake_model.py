"""A model that is not one: every logprob is a cheap function of two neighbouring tokens.

The same pair of tokens gets the same logprob in a forward pass, in a prompt and in a sample, so
what was sampled is on-policy; each optimizer step makes every token a little likelier.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from .._lazy import np
from ..types import Datum, ModelInput, SampleRequest, TensorData
from ..types.arrays import Array
from ..types.chunks import EncodedTextChunk
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.sample_response import PromptAltTokens, SampledSequence, SampleResponse
from ..types.topk_logprobs import MASK_LOGPROB, TopkLogprobs
from ..wire.passes import PassRequest
from .tickets import WorkFailed

__all__ = ["VOCABULARY", "logprobs", "run_pass", "run_sample", "tokens_of"]

VOCABULARY = 4096
_MASK = 0xFFFF_FFFF
_EASIER = 0.97  # how much closer to zero a step brings every logprob
_DEFAULT_TOKENS = 16  # sampled when nobody says how many


def _mixed(value: Any) -> Any:
    """Scramble an array of 32-bit numbers, in place."""
    value ^= value >> 16
    value *= np.uint32(0x7FEB352D)
    value ^= value >> 15
    value *= np.uint32(0x846CA68B)
    value ^= value >> 16
    return value


def _bits(value: Array) -> Array:
    """Whole numbers as 32-bit ones, whatever they were."""
    return value.astype(np.int64, copy=False).astype(np.uint32)


def logprobs(before: Array, tokens: Array, steps: int = 0) -> Array:
    """The logprob of each token after the one before it, float32."""
    mixed = _mixed(_bits(before) * np.uint32(0x9E3779B1) + _bits(tokens))
    made: Array = mixed.astype(np.float32)
    made *= np.float32(-4.0 * _EASIER**steps / 2**32)
    made -= np.float32(0.05 * _EASIER**steps)
    return made


def tokens_of(prompt: ModelInput) -> Array:
    """The token at each position of an input; images and audio get ones made from their bytes."""
    parts = []
    for chunk in prompt.chunks:
        if isinstance(chunk, EncodedTextChunk):
            parts.append(np.asarray(chunk.raw_tokens(), np.int64))
            continue
        held = getattr(chunk, "data", None) or getattr(chunk, "dmel", None) or repr(chunk).encode()
        length = chunk.length if getattr(chunk, "expected_tokens", 1) is not None else 1
        parts.append(np.full(length, zlib.crc32(held) % VOCABULARY, np.int64))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


# ---- passes


def run_pass(request: PassRequest, steps: int) -> ForwardBackwardOutput:
    """The logprob of every target, and the loss: a sum over targets."""
    outputs: list[dict[str, TensorData]] = []
    loss = 0.0
    count = 0
    total = 0.0
    for index, datum in enumerate(request.data):
        made = _target_logprobs(datum, index, steps)
        loss += _loss(request.loss_fn, datum, made, index)
        count += made.size
        total += float(made.mean()) if made.size else 0.0
        outputs.append({"logprobs": TensorData.wrap(made, "float32", list(made.shape))})
    metrics = {
        "loss:sum": loss,
        "tokens:sum": float(count),
        "logprob:mean": total / len(outputs) if outputs else 0.0,
        "step:max": float(steps),
    }
    return ForwardBackwardOutput("TorchLossReturn", outputs, metrics)


def _target_logprobs(datum: Datum, index: int, steps: int) -> Array:
    targets = datum.loss_fn_inputs.get("target_tokens")
    if targets is None:
        raise WorkFailed(f"data[{index}].loss_fn_inputs: target_tokens is missing")
    wanted = targets.to_numpy()
    read = tokens_of(datum.model_input)
    if wanted.ndim == 0 or wanted.shape[0] != read.shape[0]:
        raise WorkFailed(
            f"data[{index}]: target_tokens of shape {list(wanted.shape)} do not fit "
            f"an input of {read.shape[0]} tokens"
        )
    return logprobs(read[:, None] if wanted.ndim == 2 else read, wanted, steps)


def _loss(name: str, datum: Datum, made: Array, index: int) -> float:
    if name == "cross_entropy":
        weights = datum.loss_fn_inputs.get("weights")
        return float(-(made if weights is None else made * weights.to_numpy()).sum())
    if name in ("custom", "stable_reinforce"):
        return float(-made.sum())
    old, advantages = (_input(datum, key, index) for key in ("logprobs", "advantages"))
    if name == "dro":
        return float(-(made * advantages - 0.005 * (made - old) ** 2).sum())
    ratio = np.exp(made - old)
    if name == "ppo":
        return float(-np.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages).sum())
    if name == "cispo":
        return float(-(ratio.clip(0.0, 4.0) * made * advantages).sum())
    return float(-(ratio * advantages).sum())


def _input(datum: Datum, name: str, index: int) -> Array:
    held = datum.loss_fn_inputs.get(name)
    if held is None:
        raise WorkFailed(f"data[{index}].loss_fn_inputs: {name} is missing")
    return held.to_numpy()


# ---- samples


def run_sample(request: SampleRequest, steps: int, sequence_ids: Sequence[str]) -> SampleResponse:
    """Tokens that depend on seed, sample and position alone, and what was asked of the prompt."""
    params = request.sampling_params
    prompt = tokens_of(request.prompt)
    greedy = params.temperature == 0
    seed = 0 if greedy else params.seed if params.seed is not None else request.seq_id or 0
    sequences = [
        _sequence(request, prompt, steps, seed, 0 if greedy else number, name)
        for number, name in enumerate(sequence_ids)
    ]
    return SampleResponse(
        sequences,
        _prompt_logprobs(request, prompt, steps) if request.prompt_logprobs else None,
        _prompt_topk(request, prompt, steps),
        _target_prompt_logprobs(request, prompt, steps),
        0,
        _alternatives(request, prompt, steps, seed),
    )


def _sequence(
    request: SampleRequest, prompt: Array, steps: int, seed: int, number: int, name: str
) -> SampledSequence:
    params = request.sampling_params
    length = _DEFAULT_TOKENS if params.max_tokens is None else params.max_tokens
    base = (seed * 0x9E3779B1 + number * 0x85EBCA6B + 0x2545F491) & _MASK
    places = np.arange(base, base + length).astype(np.uint32)
    tokens = (_mixed(places) % np.uint32(VOCABULARY)).astype(np.int32)
    stopped = params.max_tokens is None
    if isinstance(params.stop, list) and params.stop and isinstance(params.stop[0], int):
        ends = np.isin(tokens, params.stop).nonzero()[0]
        if ends.size:
            tokens, stopped = tokens[: int(ends[0]) + 1], True
    before = np.empty(tokens.size, np.int64)
    before[1:] = tokens[:-1]
    before[:1] = prompt[-1] if prompt.size else 0
    topk = None
    if request.topk_sample_logprobs and tokens.size:
        topk = _topk(before, request.topk_sample_logprobs, steps)
    return SampledSequence(
        "stop" if stopped else "length", name, tokens, logprobs(before, tokens, steps), topk
    )


def _prompt_logprobs(request: SampleRequest, prompt: Array, steps: int) -> Array:
    made = np.full(prompt.size, np.nan, np.float32)
    made[1:] = logprobs(prompt[:-1], prompt[1:], steps)
    if request.prompt_logprobs_last_n is not None:
        made[: prompt.size - request.prompt_logprobs_last_n] = np.nan
    return made


def _prompt_topk(request: SampleRequest, prompt: Array, steps: int) -> TopkLogprobs | None:
    if not request.topk_prompt_logprobs or not prompt.size:
        return None
    known = _topk(prompt[:-1], request.topk_prompt_logprobs, steps)
    empty = np.zeros((1, request.topk_prompt_logprobs), np.int32)
    ids = np.concatenate([empty, known.token_ids])
    values = np.concatenate([empty + np.float32(MASK_LOGPROB), known.logprobs]).astype(np.float32)
    if request.prompt_logprobs_last_n is not None:
        hidden = prompt.size - request.prompt_logprobs_last_n
        ids[:hidden], values[:hidden] = 0, MASK_LOGPROB
    return TopkLogprobs(ids, values)


def _topk(before: Array, k: int, steps: int) -> TopkLogprobs:
    """K tokens for each position, likeliest first."""
    candidates = (before[:, None] * 17 + np.arange(k)[None, :] * 101 + 1) % VOCABULARY
    values = logprobs(before[:, None], candidates, steps)
    order = np.argsort(-values, axis=1, kind="stable")
    return TopkLogprobs(
        np.take_along_axis(candidates, order, 1).astype(np.int32), np.take_along_axis(values, order, 1)
    )


def _target_prompt_logprobs(request: SampleRequest, prompt: Array, steps: int) -> TensorData | None:
    asked = request.target_prompt_logprobs
    if asked is None:
        return None
    if asked.shape is None or len(asked.shape) != 2 or asked.shape[0] != max(prompt.size - 1, 0):
        raise WorkFailed(
            f"target_prompt_logprobs: shape {asked.shape} does not fit a prompt of {prompt.size} tokens"
        )
    ids = asked.to_numpy(pad_value=-1)
    values = np.where(ids < 0, np.float32(0), logprobs(prompt[:-1, None], np.maximum(ids, 0), steps))
    if asked.sparse_crow_indices is None:
        return TensorData.from_numpy(values)
    rows = np.repeat(np.arange(ids.shape[0]), np.diff(asked.sparse_crow_indices))
    return TensorData(
        data=values[rows, np.asarray(asked.sparse_col_indices, np.int64)],
        dtype="float32",
        shape=asked.shape,
        sparse_crow_indices=asked.sparse_crow_indices,
        sparse_col_indices=asked.sparse_col_indices,
    )


def _alternatives(request: SampleRequest, prompt: Array, steps: int, seed: int) -> PromptAltTokens | None:
    k = request.prompt_alt_tokens_k
    if not k:
        return None
    before = prompt[:-1, None]
    places = _bits(before * 64 + np.arange(k) + (seed & _MASK))
    tokens = (_mixed(places) % np.uint32(VOCABULARY)).astype(np.int64)
    return PromptAltTokens(
        TensorData.from_numpy(tokens), TensorData.from_numpy(logprobs(before, tokens, steps))
    )
