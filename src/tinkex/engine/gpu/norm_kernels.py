"""Residual addition and root-mean-square normalisation in one pass over memory, and their backward pass.

A program handles one row. Sums and statistics are in float32; what is stored is rounded where transformers
rounds it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .own_ranks import own_ranks


@triton.jit
def _add_norm(
    x, y, low, bt, spans, weight, total, normed, rstd,
    columns, y_stride, low_stride, ranks, eps,
    ADD: tl.constexpr, LORA: tl.constexpr, MIXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        more = tl.load(y + row * y_stride + at, mask=inside, other=0.0).to(tl.float32)
        if LORA:
            one = row + tl.zeros((1,), tl.int64)
            first, end = own_ranks(spans, one, one >= 0, ranks, MIXED, 8)
            # Eight ranks at a time, so that their loads are under way together.
            for start in range(first, end, 8):
                r = start + tl.arange(0, 8)
                part = tl.load(low + row * low_stride + r).to(tl.float32)
                b = tl.load(bt + r[:, None] * columns + at[None, :], mask=inside[None, :], other=0.0)
                more += tl.sum(part[:, None] * b.to(tl.float32), 0)
        summed = (value + more).to(total.dtype.element_ty)
        tl.store(total + row * columns + at, summed, mask=inside)
        value = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / columns + eps)
    tl.store(rstd + row, scale)
    unit = (value * scale).to(normed.dtype.element_ty).to(tl.float32)
    by = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * columns + at, (unit * by).to(normed.dtype.element_ty), mask=inside)


def add_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    y: torch.Tensor | None = None,
    low: torch.Tensor | None = None,
    bt: torch.Tensor | None = None,
    spans: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x + y (+ low @ bt)`, that normalised, and each row's scale; without `y`, `x` is given back."""
    rows, columns = x.shape
    total = x if y is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    lora = low is not None and bt is not None
    block = triton.next_power_of_2(columns)
    _add_norm[(rows,)](
        x, x if y is None else y, low if lora else x, bt if lora else x,
        x if spans is None else spans, weight, total, normed, rstd,
        columns, 0 if y is None else y.stride(0), low.stride(0) if lora else 0,
        bt.shape[0] if lora else 0, eps,
        ADD=y is not None, LORA=lora, MIXED=spans is not None, BLOCK=block,
        num_warps=16 if lora else min(max(block // 512, 1), 16),
    )  # fmt: skip
    return total, normed, rstd


@triton.jit
def _norm_backward(
    dy, x, rstd, weight, dres, out,
    columns, dy_stride, dres_stride, out_stride,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    scale = tl.load(rstd + row)
    unit = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32) * scale
    by = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    dunit = tl.load(dy + row * dy_stride + at, mask=inside, other=0.0).to(tl.float32) * by
    dx = (dunit - unit * (tl.sum(dunit * unit) / columns)) * scale
    if ADD:
        dx += tl.load(dres + row * dres_stride + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, dx.to(out.dtype.element_ty), mask=inside)


def norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    dres: torch.Tensor | None = None,
) -> None:
    """Write the gradient of a norm's input, plus `dres`, to `out`; rows of all may lie apart."""
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    _norm_backward[(rows,)](
        dy, x, rstd, weight, x if dres is None else dres, out,
        columns, dy.stride(0), 0 if dres is None else dres.stride(0), out.stride(0),
        ADD=dres is not None, BLOCK=block, num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip


def norm_again(x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The output of a norm once more."""
    normed = torch.empty_like(x)
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    _normed[(rows,)](x, rstd, weight, normed, columns, BLOCK=block, num_warps=min(max(block // 512, 1), 16))
    return normed


@triton.jit
def _normed(x, rstd, weight, normed, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    unit = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32) * tl.load(rstd + row)
    by = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    rounded = unit.to(normed.dtype.element_ty).to(tl.float32)
    tl.store(normed + row * columns + at, (rounded * by).to(normed.dtype.element_ty), mask=inside)
