"""AdamW over flat buffers: torch.optim.AdamW's arithmetic, hyperparameters given anew at every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from .faults import UserFault
from .gpu import kernels_at_hand

_SMALLEST_EPS = 2.0**-126


@dataclass(frozen=True, slots=True)
class AdamParams:
    """One step's hyperparameters; the defaults are those of the public API."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Largest global norm of the gradient; zero or less: no clipping."""

    @classmethod
    def given(cls, values: Mapping[str, Any]) -> AdamParams:
        """Read and check the hyperparameters of a request."""
        kind = values.get("type", "adamw")
        if kind not in ("adamw", "adam"):
            raise UserFault(f"optimizer {kind!r} is not offered here; use adamw")
        numbers = {key: value for key, value in values.items() if key != "type" and value is not None}
        if unknown := sorted(numbers.keys() - set(cls.__slots__)):
            raise UserFault(f"adamw has no parameter {unknown[0]!r}; it has {', '.join(cls.__slots__)}")
        for key, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UserFault(f"{key} must be a finite number, got {value!r}")
        params = cls(**{key: float(value) for key, value in numbers.items()})
        for key in ("learning_rate", "eps", "weight_decay"):
            if getattr(params, key) < 0:
                raise UserFault(f"{key} must not be negative, got {getattr(params, key)}")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(params, key) < 1:
                raise UserFault(f"{key} must be in [0, 1), got {getattr(params, key)}")
        # Weights that never had a gradient (all of A at first) would become 0 / 0, and the model be lost.
        return replace(params, eps=max(params.eps, _SMALLEST_EPS))


@dataclass(slots=True)
class AdamState:
    """The moments of one adapter's weights, and how many steps they have seen."""

    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    step: int = 0

    @classmethod
    def zeros_like(cls, weights: torch.Tensor) -> AdamState:
        """The state before the first step."""
        return cls(torch.zeros_like(weights), torch.zeros_like(weights))

    def move(self, device: torch.device | str) -> None:
        """Bring the moments to a device."""
        self.exp_avg, self.exp_avg_sq = self.exp_avg.to(device), self.exp_avg_sq.to(device)


def global_norm(flat: torch.Tensor) -> float:
    """The norm of all numbers together, also where their squares are beyond float32."""
    norm = float(torch.linalg.vector_norm(flat))
    if math.isinf(norm) and bool(torch.isfinite(flat).all()):
        norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    return norm


def shrinkage(norm: float, largest: float) -> float:
    """What gradients are scaled by to a global norm, as torch.nn.utils.clip_grad_norm_ does; at most 1."""
    return 1.0 if largest <= 0 else min(1.0, largest / (norm + 1e-6))


class Step(NamedTuple):
    """The norm of a step's change and, where the rounded weights followed, whether all are finite."""

    change: float
    sound: bool | None = None


def take_step(
    weights: torch.Tensor,
    grads: torch.Tensor,
    norm: float,
    state: AdamState,
    params: AdamParams,
    rounded: torch.Tensor | None = None,
) -> Step:
    """Change weights and moments by a step with gradients of this norm, clipped.

    `rounded` holds the weights in the dtype they are used in, if another; it may be made to follow at once.
    """
    shrink = shrinkage(norm, params.grad_clip_norm)
    if weights.is_cuda and weights.dtype == torch.float32 and kernels_at_hand():
        return _fused_step(weights, grads, shrink, state, params, rounded)
    before = weights.clone()
    adamw_step(weights, grads if shrink == 1.0 else grads * shrink, state, params)
    return Step(global_norm(before.sub_(weights)))


def _fused_step(
    weights: torch.Tensor,
    grads: torch.Tensor,
    shrink: float,
    state: AdamState,
    params: AdamParams,
    rounded: torch.Tensor | None,
) -> Step:
    from .gpu.adamw_kernels import adamw

    state.step += 1
    change, sound = adamw(
        weights,
        grads,
        state.exp_avg,
        state.exp_avg_sq,
        step=state.step,
        learning_rate=params.learning_rate,
        beta1=params.beta1,
        beta2=params.beta2,
        eps=params.eps,
        weight_decay=params.weight_decay,
        shrink=shrink,
        rounded=rounded,
    )
    return Step(change, None if rounded is None else sound)


def adamw_step(weights: torch.Tensor, grads: torch.Tensor, state: AdamState, params: AdamParams) -> None:
    """Change weights and moments in place by one step."""
    state.step += 1
    b1, b2 = params.beta1, params.beta2
    if params.weight_decay:
        weights.mul_(1 - params.learning_rate * params.weight_decay)
    state.exp_avg.lerp_(grads, 1 - b1)
    state.exp_avg_sq.mul_(b2).addcmul_(grads, grads, value=1 - b2)
    correction1 = 1 - b1**state.step
    correction2 = (1 - b2**state.step) ** 0.5
    denominator = (state.exp_avg_sq.sqrt() / correction2).add_(params.eps)
    weights.addcdiv_(state.exp_avg, denominator, value=-params.learning_rate / correction1)
