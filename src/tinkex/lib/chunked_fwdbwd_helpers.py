"""Putting the results of a split batch together, under the official SDK's module path and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..client.splitting import REDUCERS, Reducer
from ..client.splitting import combine as combine_fwd_bwd_output_results

__all__ = ["REDUCE_MAP", "combine_fwd_bwd_output_results"]


def _with_equal_weights(reducer: Reducer) -> Callable[..., Any]:
    def reduce(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
        return reducer(values, [1] * len(values) if weights is None else weights)  # type: ignore[arg-type]

    return reduce


def _unique(values: Sequence[float]) -> Sequence[float]:
    return values


# Each takes the values of one metric, and optionally how much each of them counts.
REDUCE_MAP: Mapping[str, Callable[..., Any]] = {
    **{name: _with_equal_weights(reducer) for name, reducer in REDUCERS.items()},
    "unique": _unique,
}
