"""AdamW's step on a CUDA device in one pass over memory, with the size of the change summed on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit
def _adamw(
    weights, grads, mean, square, changes, count,
    shrink, keep, toward, beta2, fresh, correction2, eps, rate, BLOCK: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    at = part.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(grads + at, mask=inside, other=0.0) * shrink
    before = tl.load(weights + at, mask=inside, other=0.0)
    m = tl.load(mean + at, mask=inside, other=0.0)
    v = tl.load(square + at, mask=inside, other=0.0)
    m += (g - m) * toward
    v = v * beta2 + g * g * fresh
    size = tl.div_rn(tl.sqrt_rn(v), correction2) + eps
    after = before * keep - rate * tl.div_rn(m, size)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)
    tl.store(weights + at, after, mask=inside)
    # Blocks beyond the end divide zero by eps, which may be zero too.
    change = tl.where(inside, (after - before).to(tl.float64), 0.0)
    tl.store(changes + part, tl.sum(change * change))


def adamw(
    weights: torch.Tensor,
    grads: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    *,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    shrink: float,
) -> torch.Tensor:
    """Change weights and moments by a step with gradients times `shrink`; the norm of the change."""
    count = weights.numel()
    changes = torch.empty(triton.cdiv(count, _BLOCK), dtype=torch.float64, device=weights.device)
    _adamw[(len(changes),)](
        weights, grads, exp_avg, exp_avg_sq, changes, count,
        shrink, 1 - learning_rate * weight_decay, 1 - beta1, beta2, 1 - beta2,
        (1 - beta2**step) ** 0.5, eps, learning_rate / (1 - beta1**step),
        BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
    return changes.sum().sqrt()
