"""What passes and samples must be like to be let in; what is let in is in the engine's own form.

A refusal names the place and gives both numbers or the allowed values, and leaves nothing behind.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import numpy as np

from ..engine.messages import Array, Datum, SamplingParams, ScoreOptions, SparseRows, TrainPart
from ..errors import InvalidArgumentError
from ..types import CreateCustomLossRequest, SampleRequest
from ..types.chunks import EncodedTextChunk
from ..types.datum import Datum as ClientDatum
from ..types.losses import check_loss
from ..types.model_input import ModelInput
from ..types.tensor_data import TensorData
from ..wire.jsonbody import encode
from ..wire.passes import PassRequest
from .base_models import BaseFacts
from .options import Limits
from .problems import Problem

TARGETS = "target_tokens"
MOST_STOPS, LONGEST_STOP = 64, 1024
LOSS_INPUTS: Mapping[str, tuple[str, ...]] = {
    "cross_entropy": (),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
    "dro": ("logprobs", "advantages"),
    "gspo": ("logprobs", "advantages", "sequence_ratio_mask"),
    "custom": (),
}
"""What each loss needs besides targets."""
LOSS_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "cross_entropy": (),
    "importance_sampling": (),
    "ppo": ("clip_low_threshold", "clip_high_threshold"),
    "cispo": ("clip_low_threshold", "clip_high_threshold"),
    "dro": ("beta",),
    "gspo": ("clip_low_threshold", "clip_high_threshold"),
    "custom": ("loss_id",),
}


# ---- passes


def admit_pass(
    request: PassRequest,
    model: str,
    facts: BaseFacts,
    limits: Limits,
    losses: Mapping[str, CreateCustomLossRequest],
) -> TrainPart:
    """A pass as the engine takes it."""
    config = check_settings(request.loss_fn, request.loss_fn_config, losses)
    data = request.data
    if not 1 <= len(data) <= limits.datums:
        raise Problem(
            400, f"data: {len(data)} examples, between 1 and {limits.datums} are allowed in a request"
        )
    needs = LOSS_INPUTS[request.loss_fn]
    # A loss's bounds may be given for each token too.
    aligned = frozenset((TARGETS, "weights", *needs, *LOSS_SETTINGS[request.loss_fn]))
    rows = [_datum(index, datum, needs, aligned, facts.context) for index, datum in enumerate(data)]
    if request.loss_fn == "cross_entropy":
        _check_weights(rows)
    total = sum(len(row.tokens) for row in rows)
    if total > limits.tokens:
        raise Problem(400, f"data: {total} tokens in all, the limit of a request is {limits.tokens}")
    _check_ids("model_input", [row.tokens for row in rows], facts.vocab_size)
    _check_ids(
        f"loss_fn_inputs[{TARGETS!r}]", [_values(row.inputs[TARGETS]) for row in rows], facts.vocab_size
    )
    return TrainPart(model, tuple(rows), request.loss_fn, config, request.forward_only)


def check_settings(
    loss: str, config: Mapping[str, float | str] | None, losses: Mapping[str, CreateCustomLossRequest]
) -> dict[str, float | int | str | bool | None]:
    """A loss's name and settings; a custom loss's id becomes its graph."""
    try:
        check_loss(loss, config)
    except InvalidArgumentError as problem:
        raise Problem(400, str(problem)) from None
    if loss not in LOSS_INPUTS:
        offered = ", ".join(LOSS_INPUTS)
        raise Problem(
            400, f"loss_fn: {loss!r} has no public definition and is not offered here; use one of {offered}"
        )
    known = LOSS_SETTINGS[loss]
    for name, value in (config or {}).items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise Problem(400, f"loss_fn_config: loss {loss!r} has no setting {name!r}; {has}")
        if loss != "custom" and (isinstance(value, str) or value != value):
            raise Problem(400, f"loss_fn_config[{name!r}]: expected a number, got {value!r}")
    if loss != "custom":
        return {name: float(value) for name, value in (config or {}).items()}
    loss_id = (config or {}).get("loss_id")
    found = losses.get(str(loss_id))
    if found is None:
        raise Problem(400, f"loss_fn_config['loss_id']: this session has no custom loss {loss_id!r}")
    return {"graph": encode({"inputs": found.inputs, "nodes": found.graph.nodes}).decode()}


def _datum(
    index: int, datum: ClientDatum, needs: Sequence[str], aligned: frozenset[str], context: int
) -> Datum:
    tokens = _text(datum.model_input, f"data[{index}].model_input")
    length = len(tokens)
    if not length:
        raise Problem(400, f"data[{index}].model_input: it has no tokens")
    if length > context:
        raise Problem(400, f"data[{index}].model_input: {length} tokens > context {context}")
    given = datum.loss_fn_inputs
    if TARGETS not in given:
        raise Problem(400, f"data[{index}].loss_fn_inputs: {TARGETS!r} is missing; it has {_names(given)}")
    inputs: dict[str, Array | SparseRows] = {}
    for name, tensor in given.items():
        array = inputs[name] = _array(tensor)
        if name == TARGETS and tensor.dtype != "int64":
            raise Problem(
                400, f"data[{index}].loss_fn_inputs[{name!r}]: expected int64, got {tensor.dtype}"
            )
        if name in aligned:
            rows = array.shape[0] if array.shape else 0
            if rows != length:
                raise Problem(
                    400, f"data[{index}].loss_fn_inputs[{name!r}]: {rows} rows for {length} input tokens"
                )
        if tensor.dtype == "float32" and not np.isfinite(_values(array)).all():
            raise Problem(
                400, f"data[{index}].loss_fn_inputs[{name!r}]: it holds a value that is not finite"
            )
    for name in needs:
        if name not in inputs:
            raise Problem(400, f"data[{index}].loss_fn_inputs: {name!r} is missing; it has {_names(given)}")
    return Datum(tokens, inputs)


def _check_weights(rows: Sequence[Datum]) -> None:
    """Missing weights mean 1, unless the data were plainly made for another loss."""
    for index, row in enumerate(rows):
        if "weights" not in row.inputs and "advantages" in row.inputs:
            raise Problem(
                400,
                f"data[{index}].loss_fn_inputs: cross_entropy reads 'weights', it has {_names(row.inputs)};"
                " for advantages use importance_sampling, ppo or cispo",
            )


def _names(given: Mapping[str, object]) -> str:
    return ", ".join(map(repr, given)) or "nothing"


def _array(tensor: TensorData) -> Array | SparseRows:
    if not tensor.is_sparse:
        return tensor._numpy
    assert tensor.shape is not None
    rows, columns = tensor.shape
    return SparseRows(
        tensor._numpy,
        np.asarray(tensor.sparse_crow_indices, np.int64),
        np.asarray(tensor.sparse_col_indices, np.int64),
        (rows, columns),
    )


def _values(array: Array | SparseRows) -> Array:
    return array.values if isinstance(array, SparseRows) else array


def _check_ids(where: str, arrays: Sequence[Array], vocab: int) -> None:
    joined = arrays[0].ravel() if len(arrays) == 1 else np.concatenate([array.ravel() for array in arrays])
    if not joined.size or (0 <= int(joined.min()) and int(joined.max()) < vocab):
        return
    for index, each in enumerate(arrays):
        array = each.astype(np.int64)
        bad = array[(array < 0) | (array >= vocab)]
        if bad.size:
            raise Problem(400, f"data[{index}].{where}: token {int(bad[0])} is outside 0 to {vocab - 1}")


def _text(prompt: ModelInput, where: str) -> Array:
    """The tokens of an input that is text only."""
    pieces = []
    for position, chunk in enumerate(prompt.chunks):
        if not isinstance(chunk, EncodedTextChunk):
            kind = getattr(chunk, "type", type(chunk).__name__)
            raise Problem(
                400, f"{where}.chunks[{position}]: {kind} input; the models served here read text only"
            )
        pieces.append(chunk.tokens_np)
    if not pieces:
        return np.zeros(0, np.int32)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


# ---- samples


def admit_sample(
    request: SampleRequest, facts: BaseFacts, limits: Limits
) -> tuple[Array, SamplingParams, ScoreOptions]:
    """A sample's prompt, parameters and what is to be scored, as the engine takes them."""
    prompt = _text(request.prompt, "prompt")
    length, vocab = len(prompt), facts.vocab_size
    params = request.sampling_params
    if not length:
        raise Problem(400, "prompt: it has no tokens")
    wanted = params.max_tokens
    if wanted is not None and wanted < 0:
        raise Problem(400, f"sampling_params.max_tokens: {wanted} is below 0")
    if length + (wanted or 0) > facts.context:
        raise Problem(400, f"prompt {length} + max_tokens {wanted or 0} > context {facts.context}")
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab:
        raise Problem(400, f"prompt: token {low if low < 0 else high} is outside 0 to {vocab - 1}")
    _between("num_samples", request.num_samples, 1, limits.num_samples)
    _between("topk_prompt_logprobs", request.topk_prompt_logprobs, 0, min(limits.topk, vocab))
    _between("topk_sample_logprobs", request.topk_sample_logprobs, 0, min(limits.topk, vocab))
    _between("prompt_alt_tokens_k", request.prompt_alt_tokens_k, 0, min(limits.topk, vocab))
    if request.prompt_logprobs_last_n is not None:
        _between("prompt_logprobs_last_n", request.prompt_logprobs_last_n, 1, length - 1)
    if params.temperature < 0:
        raise Problem(400, f"sampling_params.temperature: {params.temperature} is below 0")
    if not 0 < params.top_p <= 1:
        raise Problem(400, f"sampling_params.top_p: {params.top_p} is not above 0 and at most 1")
    if params.top_k < -1:
        raise Problem(400, f"sampling_params.top_k: {params.top_k} is below -1 (-1 and 0 mean all tokens)")
    chosen = SamplingParams(
        wanted,
        params.temperature,
        min(params.top_k, vocab),
        params.top_p,
        _seed(params.seed),
        _stop(params.stop, vocab),
    )
    scores = ScoreOptions(
        prompt_logprobs=bool(request.prompt_logprobs),
        last_n=request.prompt_logprobs_last_n,
        topk_prompt=request.topk_prompt_logprobs,
        topk_sample=request.topk_sample_logprobs,
        alt_tokens=request.prompt_alt_tokens_k,
        targets=_targets(request.target_prompt_logprobs, length, vocab),
    )
    return prompt, chosen, scores


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Problem(400, f"{name}: {value} is not between {low} and {high}")


def _seed(seed: int | None) -> int:
    """A seed of its own for a sample without one, so that a lost engine can draw the same tokens again."""
    return secrets.randbits(62) if seed is None else seed % ((1 << 63) - 1)


def _stop(stop: str | Sequence[str] | Sequence[int] | None, vocab: int) -> tuple[int | str, ...] | None:
    if stop is None:
        return None
    items: tuple[int | str, ...] = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(items) > MOST_STOPS:
        raise Problem(400, f"sampling_params.stop: {len(items)} entries, at most {MOST_STOPS} are allowed")
    for item in items:
        if isinstance(item, str) and not 0 < len(item) <= LONGEST_STOP:
            raise Problem(
                400,
                f"sampling_params.stop: a text of {len(item)} characters; 1 to {LONGEST_STOP} are allowed",
            )
        if isinstance(item, int) and not 0 <= item < vocab:
            raise Problem(400, f"sampling_params.stop: token {item} is outside 0 to {vocab - 1}")
    return items


def _targets(tensor: TensorData | None, length: int, vocab: int) -> Array | SparseRows | None:
    if tensor is None:
        return None
    shape = tensor.shape
    if tensor.dtype != "int64" or shape is None or len(shape) != 2 or shape[0] != length - 1:
        raise Problem(
            400, f"target_prompt_logprobs: expected int64 [{length - 1}, K], got {tensor.dtype} {shape}"
        )
    array = _array(tensor)
    values = _values(array)
    if values.size and (int(values.min()) < -1 or int(values.max()) >= vocab):
        raise Problem(400, f"target_prompt_logprobs: ids must be from -1 to {vocab - 1}")
    return array
