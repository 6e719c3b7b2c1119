"""Cutting a batch into requests, and putting their results together again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..types.datum import Datum
from ..types.forward_backward_output import ForwardBackwardOutput
from ..wire.passes import estimate_bytes

__all__ = ["REDUCERS", "combine", "split"]

logger: Final = logging.getLogger(__name__)

_MASK = 2**64 - 1


def split(data: Sequence[Datum], most_datums: int, most_bytes: int) -> list[list[Datum]]:
    """Consecutive pieces within both limits; a datum larger than the byte limit goes alone."""
    pieces: list[list[Datum]] = []
    held: list[Datum] = []
    size = 0
    for datum in data:
        more = estimate_bytes(datum)
        if held and (len(held) >= most_datums or size + more > most_bytes):
            pieces.append(held)
            held, size = [], 0
        held.append(datum)
        size += more
    if held:
        pieces.append(held)
    return pieces


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(weights)
    if total == 0:
        # Results without outputs (the server dropped them) count alike.
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total


def _nan_first(value: float) -> tuple[bool, float]:
    """What to order by, so that no number hides one that is none."""
    return (not math.isnan(value), value)


Reducer = Callable[[Sequence[float], Sequence[int]], float]

REDUCERS: Mapping[str, Reducer] = {
    "sum": lambda values, weights: float(sum(values)),
    "min": lambda values, weights: min(values, key=_nan_first),
    "max": lambda values, weights: -min((-value for value in values), key=_nan_first),
    "mean": _mean,
    "slack": lambda values, weights: max(values) - _mean(values, weights),
    "hash2": lambda values, weights: sum(int(value) & _MASK for value in values) & _MASK,
}


def combine(results: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """One result for several requests: outputs in order, metrics reduced as their names say."""
    return ForwardBackwardOutput(
        results[0].loss_fn_output_type if results else "",
        [output for result in results for output in result.loss_fn_outputs],
        _reduced(results) if results else {},
    )


def _reduced(results: Sequence[ForwardBackwardOutput]) -> dict[str, float]:
    weights = [len(result.loss_fn_outputs) for result in results]
    reduced: dict[str, float] = {}
    for name in results[0].metrics:
        values = [result.metrics[name] for result in results if name in result.metrics]
        if len(values) < len(results):
            continue
        suffix = name.rpartition(":")[2]
        if suffix == "unique":
            reduced[name] = values[0]
            reduced |= {f"{name}_{index}": value for index, value in enumerate(values[1:], 1)}
        elif suffix in REDUCERS:
            reduced[name] = REDUCERS[suffix](values, weights)
        else:
            logger.debug("metric %s names no reduction this version knows", name)
    return reduced
