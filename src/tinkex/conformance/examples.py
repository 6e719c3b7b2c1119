"""The small data all checks use: every token is below 64, so any vocabulary has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..types import AdamParams, Datum, ModelInput

__all__ = [
    "ADAM",
    "CLONE",
    "EXAMPLES",
    "PROMPT",
    "RANK",
    "SAMPLE",
    "SEED",
    "Example",
    "datums",
    "logprobs",
    "pass_json",
    "policy_datums",
    "scaled",
    "weighted_loss",
]

Example: TypeAlias = tuple[list[int], list[int], list[float]]
"""Tokens, the target of each, and the weight of each."""

EXAMPLES: list[Example] = [
    ([2, 3, 5, 7], [3, 5, 7, 11], [0.0, 1.0, 1.0, 0.5]),
    ([4, 6, 8], [6, 8, 10], [1.0, 1.0, 2.0]),
    ([9, 1, 9, 1, 9], [1, 9, 1, 9, 1], [0.0, 0.0, 1.0, 1.0, 1.0]),
    ([20, 21, 22, 23], [21, 22, 23, 24], [1.0, 0.25, 1.0, 0.25]),
]
PROMPT = [5, 6, 7, 8, 9]
SAMPLE: dict[str, Any] = {
    "prompt": {"chunks": [{"tokens": [5, 6, 7], "type": "encoded_text"}]},
    "num_samples": 1,
    "sampling_params": {"max_tokens": 4, "seed": 3, "stop": []},
}
RANK = 4
SEED = 5
ADAM = AdamParams(learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-8)
CLONE = 1_000_000_000  # samples of a cloned sampler are numbered from its id times this


def datums(examples: Sequence[Example] = EXAMPLES) -> list[Datum]:
    """Examples for cross-entropy."""
    return [
        Datum(ModelInput.from_ints(tokens), {"target_tokens": targets, "weights": weights})
        for tokens, targets, weights in examples
    ]


def policy_datums(
    old: Sequence[Sequence[float]],
    advantages: Sequence[Sequence[float]],
    examples: Sequence[Example] = EXAMPLES,
) -> list[Datum]:
    """Examples for losses of policies: the logprobs they were sampled with, and an advantage for each."""
    return [
        Datum(
            ModelInput.from_ints(tokens),
            {"target_tokens": targets, "logprobs": list(before), "advantages": list(gains)},
        )
        for (tokens, targets, _), before, gains in zip(examples, old, advantages, strict=True)
    ]


def scaled(examples: Sequence[Example], factor: float) -> list[Example]:
    """The same examples with every weight multiplied."""
    return [(tokens, targets, [factor * each for each in weights]) for tokens, targets, weights in examples]


def logprobs(output: Any) -> list[list[float]]:
    """The logprobs in a pass's result."""
    return [[float(value) for value in one["logprobs"].data] for one in output.loss_fn_outputs]


def weighted_loss(rows: Sequence[Sequence[float]], examples: Sequence[Example] = EXAMPLES) -> float:
    """Cross-entropy by its definition: minus the sum of weight times logprob."""
    return -sum(
        weight * logprob
        for (_, _, weights), row in zip(examples, rows, strict=True)
        for weight, logprob in zip(weights, row, strict=True)
    )


def pass_json(examples: Sequence[Example] = EXAMPLES, *, tagged: bool = True) -> dict[str, Any]:
    """A pass's input as SDKs up to 0.24 send it; up to 0.16 nothing has a `type`."""
    tag = {"type": "encoded_text"} if tagged else {}
    data = [
        {
            "model_input": {"chunks": [{"tokens": tokens, **tag}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": targets, "dtype": "int64", "shape": [len(targets)]},
                "weights": {"data": weights, "dtype": "float32", "shape": [len(weights)]},
            },
        }
        for tokens, targets, weights in examples
    ]
    return {"data": data, "loss_fn": "cross_entropy", "loss_fn_config": None}
