"""Results of passes and samples as JSON, for clients that ask for it (SDK 0.24 and older) and servers
that send nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._lazy import np
from ..errors import InvalidArgumentError
from ..types.arrays import Array
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.rules import Mismatch, shown
from ..types.sample_response import PromptAltTokens, SampledSequence, SampleResponse
from ..types.tensor_data import TensorData
from ..types.topk_logprobs import topk_from_lists
from .jsonbody import encode, tensor_form

__all__ = ["output_to_json", "read_output", "read_samples", "samples_form", "samples_to_json"]


def output_to_json(output: ForwardBackwardOutput) -> bytes:
    """A pass's result as JSON; sparse outputs are made dense, as old clients know no other."""
    return encode(
        {
            "loss_fn_output_type": output.loss_fn_output_type,
            "loss_fn_outputs": [
                {name: tensor_form(_dense(tensor)) for name, tensor in one.items()}
                for one in output.loss_fn_outputs
            ],
            "metrics": output.metrics,
        }
    )


def _dense(tensor: TensorData) -> TensorData:
    return tensor if not tensor.is_sparse else TensorData.from_numpy(tensor.to_numpy())


def samples_to_json(response: SampleResponse) -> bytes:
    """A sampling result as JSON."""
    return encode(samples_form(response))


def samples_form(response: SampleResponse) -> dict[str, Any]:
    """A sampling result as JSON-ready data; what old clients cannot ask for is left out if unset."""
    form: dict[str, Any] = {
        "type": "sample",
        "sequences": [_sequence_form(sequence) for sequence in response.sequences],
        "prompt_logprobs": response.prompt_logprobs,
        "topk_prompt_logprobs": response.topk_prompt_logprobs,
    }
    if response.target_prompt_logprobs is not None:
        form["target_prompt_logprobs"] = response.target_prompt_logprobs
    if response.prompt_cache_hit_tokens:
        form["prompt_cache_hit_tokens"] = response.prompt_cache_hit_tokens
    if response.prompt_alt_tokens is not None:
        tokens, logprobs = response.prompt_alt_tokens.tokens, response.prompt_alt_tokens.logprobs
        form["prompt_alt_tokens"] = {"tokens": tokens, "logprobs": logprobs}
    return form


def _sequence_form(sequence: SampledSequence) -> dict[str, Any]:
    form: dict[str, Any] = {
        "stop_reason": sequence.stop_reason,
        "tokens": sequence.tokens,
        "logprobs": sequence.logprobs,
    }
    if sequence.topk_logprobs is not None:
        form["topk_logprobs"] = sequence.topk_logprobs
    return form


_UNREADABLE = (AttributeError, KeyError, OverflowError, TypeError, ValueError, Mismatch)


def read_output(data: Any) -> ForwardBackwardOutput:
    """Read a pass's result from decoded JSON."""
    if not isinstance(data, Mapping) or not isinstance(data.get("loss_fn_outputs"), list):
        raise InvalidArgumentError(f"not a ForwardBackwardOutput: {shown(data)}")
    outputs = []
    for index, one in enumerate(data["loss_fn_outputs"]):
        try:
            outputs.append({name: TensorData.__take__(item, True) for name, item in one.items()})
        except _UNREADABLE as problem:
            raise InvalidArgumentError(f"loss_fn_outputs[{index}]: {problem}") from None
    try:
        metrics = {
            name: float("nan") if value is None else float(value)
            for name, value in (data.get("metrics") or {}).items()
        }
    except _UNREADABLE as problem:
        raise InvalidArgumentError(f"metrics: {problem}") from None
    return ForwardBackwardOutput(str(data.get("loss_fn_output_type", "")), outputs, metrics)


def read_samples(data: Any, sequence_ids: Sequence[str] | None = None) -> SampleResponse:
    """Read a sampling result from decoded JSON; ids a server did not give are made up."""
    if not isinstance(data, Mapping) or not isinstance(data.get("sequences"), list):
        raise InvalidArgumentError(f"not a SampleResponse: {shown(data)}")
    try:
        return _samples(data, list(sequence_ids or ()))
    except _UNREADABLE as problem:
        raise InvalidArgumentError(f"not a SampleResponse: {problem}") from None


def _samples(data: Mapping[str, Any], names: list[str]) -> SampleResponse:
    sequences = []
    for index, item in enumerate(data["sequences"]):
        ranked = _pairs(item.get("topk_logprobs"))
        sequences.append(
            SampledSequence(
                item.get("stop_reason", "stop"),
                names[index] if index < len(names) else f"sequence-{index}",
                _line(item.get("tokens") or [], "tokens", np.int32),
                _floats(item.get("logprobs"), "logprobs"),
                None if ranked is None else topk_from_lists(ranked),
                None,
                None,
                ranked,
            )
        )
    topk = _pairs(data.get("topk_prompt_logprobs"))
    target = data.get("target_prompt_logprobs")
    alternatives = data.get("prompt_alt_tokens")
    return SampleResponse(
        sequences,
        _floats(data.get("prompt_logprobs"), "prompt_logprobs"),
        None if topk is None else topk_from_lists(topk),
        None if target is None else TensorData.__take__(target, True),
        int(data.get("prompt_cache_hit_tokens") or 0),
        None
        if alternatives is None
        else PromptAltTokens(
            TensorData.__take__(alternatives["tokens"], True),
            TensorData.__take__(alternatives["logprobs"], True),
        ),
        None,
        topk,
    )


def _floats(values: Any, name: str) -> Array | None:
    """Logprobs as an array; null becomes NaN."""
    return None if values is None else _line(values, name, np.float32)


def _line(values: Any, name: str, dtype: Any) -> Array:
    array: Array = np.asarray(values, dtype)
    if array.ndim != 1:
        raise InvalidArgumentError(f"{name}: {shown(values)} is not a list of numbers")
    return array


def _pairs(rows: Any) -> list[list[tuple[int, float]] | None] | None:
    if rows is None:
        return None
    return [row and [(int(token), float(logprob)) for token, logprob in row] for row in rows]
