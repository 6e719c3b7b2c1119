"""Residual addition and root-mean-square normalisation in one pass over memory, and their backward pass.

A program handles one row, or two. Sums and statistics are in float32; what is stored is rounded where
transformers rounds it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .own_ranks import own_ranks

_SPREAD = 128


@triton.jit
def _part(low, row, low_stride, r, b):
    return tl.sum(tl.load(low + row * low_stride + r).to(tl.float32)[:, None] * b, 0)


@triton.jit
def _normalise(value, more, weight, total, normed, rstd, row, at, inside, columns, eps, ADD: tl.constexpr):
    if ADD:
        summed = (value + more).to(total.dtype.element_ty)
        tl.store(total + row * columns + at, summed, mask=inside)
        value = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / columns + eps)
    tl.store(rstd + row, scale)
    unit = (value * scale).to(normed.dtype.element_ty).to(tl.float32)
    by = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * columns + at, (unit * by).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm(
    x, y, low, bt, spans, weight, total, normed, rstd,
    rows, columns, y_stride, low_stride, ranks, eps,
    ADD: tl.constexpr, LORA: tl.constexpr, MIXED: tl.constexpr, PAIR: tl.constexpr,
    STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    inside = at < columns
    each = 2 if PAIR else 1
    row = tl.program_id(0).to(tl.int64) * each
    other = tl.minimum(row + each - 1, rows - 1)
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    more, value2, more2 = value, value, value
    if ADD:
        more = tl.load(y + row * y_stride + at, mask=inside, other=0.0).to(tl.float32)
        if PAIR:
            value2 = tl.load(x + other * columns + at, mask=inside, other=0.0).to(tl.float32)
            more2 = tl.load(y + other * y_stride + at, mask=inside, other=0.0).to(tl.float32)
        if LORA:
            two = tl.minimum(row + tl.arange(0, 2), other)
            first, end = own_ranks(spans, two, two >= 0, ranks, MIXED, STEP)
            # Several ranks at a time, so that their loads are under way together.
            for start in range(first, end, STEP):
                r = start + tl.arange(0, STEP)
                b = tl.load(bt + r[:, None] * columns + at[None, :], mask=inside[None, :], other=0.0)
                b = b.to(tl.float32)
                more += _part(low, row, low_stride, r, b)
                if PAIR:
                    more2 += _part(low, other, low_stride, r, b)
    _normalise(value, more, weight, total, normed, rstd, row, at, inside, columns, eps, ADD)
    if PAIR:
        # The last of an odd number of rows is written twice, the same both times.
        _normalise(value2, more2, weight, total, normed, rstd, other, at, inside, columns, eps, ADD)


def add_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    y: torch.Tensor | None = None,
    low: torch.Tensor | None = None,
    bt: torch.Tensor | None = None,
    spans: torch.Tensor | None = None,
    pair: bool | None = None,
    step: int | None = None,
    warps: int = 16,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x + y (+ low @ bt)`, that normalised, and each row's scale; without `y`, `x` is given back."""
    rows, columns = x.shape
    total = x if y is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    lora = low is not None and bt is not None
    if pair is None:
        # Two rows a program read the Bs once for both; few rows had better be spread over the device.
        pair = rows > _SPREAD
    pair = pair and lora
    step = step or (16 if rows <= _SPREAD else 8)
    block = triton.next_power_of_2(columns)
    _add_norm[(triton.cdiv(rows, 2) if pair else rows,)](
        x, x if y is None else y, low if lora else x, bt if lora else x,
        x if spans is None else spans, weight, total, normed, rstd,
        rows, columns, 0 if y is None else y.stride(0), low.stride(0) if lora else 0,
        bt.shape[0] if lora else 0, eps,
        ADD=y is not None, LORA=lora, MIXED=spans is not None, PAIR=pair, STEP=step, BLOCK=block,
        num_warps=warps if lora else min(max(block // 512, 1), 16),
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
