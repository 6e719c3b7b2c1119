"""`ForwardBackwardOutput`: per-example arrays and metrics of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .tensor_data import TensorData

__all__ = ["ForwardBackwardOutput", "LossFnOutput"]

LossFnOutput: TypeAlias = dict[str, TensorData]


@dataclass(frozen=True, slots=True)
class ForwardBackwardOutput:
    """One dict of arrays per example, in order, and metrics named `name:reduction`."""

    loss_fn_output_type: str
    loss_fn_outputs: list[LossFnOutput]
    metrics: dict[str, float] = field(default_factory=dict)
