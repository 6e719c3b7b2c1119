"""AdamW's step on a CUDA device in one pass over memory.

On the way the change is measured, the new weights are rounded for those who compute with them, and whether
all of these are finite is found out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit
def _adamw(
    weights, grads, mean, square, rounded, found, count,
    shrink, keep, toward, beta2, fresh, correction2, eps, rate, ROUND: tl.constexpr, BLOCK: tl.constexpr,
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
    used = after
    if ROUND:
        used = after.to(rounded.dtype.element_ty)
        tl.store(rounded + at, used, mask=inside)
        used = used.to(tl.float32)
    # No comparison holds for a NaN.
    broken = tl.where(inside & ~(tl.abs(used) < float("inf")), 1, 0)
    # Blocks beyond the end divide zero by eps, which may be zero too.
    change = tl.where(inside, (after - before).to(tl.float64), 0.0)
    tl.store(found + part * 2, tl.sum(change * change))
    tl.store(found + part * 2 + 1, tl.sum(broken).to(tl.float64))


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
    rounded: torch.Tensor | None = None,
) -> tuple[float, bool]:
    """Change weights and moments by a step with gradients times `shrink`.

    The new weights are written to `rounded` too. Gives the norm of the change, and whether what was written
    last is finite.
    """
    count = weights.numel()
    found = torch.empty(triton.cdiv(count, _BLOCK), 2, dtype=torch.float64, device=weights.device)
    _adamw[(len(found),)](
        weights, grads, exp_avg, exp_avg_sq, weights if rounded is None else rounded, found, count,
        shrink, 1 - learning_rate * weight_decay, 1 - beta1, beta2, 1 - beta2,
        (1 - beta2**step) ** 0.5, eps, learning_rate / (1 - beta1**step),
        ROUND=rounded is not None, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
    squares, broken = found.sum(0)
    change, broken = torch.stack([squares.sqrt(), broken]).tolist()
    return change, not broken
