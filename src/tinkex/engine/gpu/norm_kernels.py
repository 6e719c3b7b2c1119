"""Residual addition and root-mean-square normalisation in one pass over memory, and their backward pass.

A program handles one row, or a tile where LoRA's second product or parts of a sum are added first. Sums
and statistics are in float32; what is stored is rounded where transformers rounds it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .early_start import early, let_next_start, wait_for_previous
from .own_ranks import own_ranks

_ROWS, _COLUMNS = 16, 64


@triton.jit
def _add_norm(
    x, y, weight, total, normed, rstd, columns, y_stride, eps,
    ADD: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    by = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        wait_for_previous()
        let_next_start()
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(y + row * y_stride + at, mask=inside, other=0.0).to(tl.float32)
        summed = value.to(total.dtype.element_ty)
        tl.store(total + row * columns + at, summed, mask=inside)
        value = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / columns + eps)
    tl.store(rstd + row, scale)
    unit = (value * scale).to(normed.dtype.element_ty).to(tl.float32)
    tl.store(normed + row * columns + at, (unit * by).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _factors(bt, at, there, columns, first, end):
    """The Bs of the first 32 ranks."""
    r = first + tl.arange(0, 32)
    return tl.load(
        bt + r[:, None] * columns + at[None, :], mask=(r < end)[:, None] & there[None, :], other=0.0
    )


@triton.jit
def _low(low, rows, inside, low_stride, part_stride, first, end, kind: tl.constexpr, PARTS: tl.constexpr):
    """A's products of the first 32 ranks."""
    r = first + tl.arange(0, 32)
    spot = low + rows[:, None] * low_stride + r[None, :]
    # Tokens without an adapter have no ranks, not even first ones.
    there = inside[:, None] & (r < end)[None, :]
    part = tl.load(spot, mask=there, other=0.0)
    for n in tl.static_range(1, PARTS):
        part += tl.load(spot + n * part_stride, mask=there, other=0.0)
    return part.to(kind)


@triton.jit
def _add_low(
    x, y, low, bt, spans, total, tokens, columns, y_stride, low_stride, part_stride, ranks,
    LORA: tl.constexpr, MIXED: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside, there = rows < tokens, at < columns
    mask = inside[:, None] & there[None, :]
    kind: tl.constexpr = total.dtype.element_ty
    if LORA:
        first, end = own_ranks(spans, rows, inside, ranks, MIXED, 32)
        b = _factors(bt, at, there, columns, first, end)
    if EARLY:
        let_next_start()
        wait_for_previous()
    if LORA:
        part = _low(low, rows, inside, low_stride, part_stride, first, end, kind, PARTS)
    spot = y + rows[:, None] * y_stride + at[None, :]
    more = tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    for n in tl.static_range(1, PARTS):
        more += tl.load(spot + n * part_stride, mask=mask, other=0.0)
    if PARTS:
        more = more.to(kind).to(tl.float32)
    here = rows[:, None] * columns + at[None, :]
    value = tl.load(x + here, mask=mask, other=0.0).to(tl.float32)
    if LORA:
        for start in range(first, end, 32):
            more += tl.dot(part, b)
            later = start + 32
            if later < end:
                part = _low(low, rows, inside, low_stride, part_stride, later, end, kind, PARTS)
                b = _factors(bt, at, there, columns, later, end)
    tl.store(total + here, (value + more).to(kind), mask=mask)


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
    """`x + y (+ low @ bt)`, that normalised, and each row's scale; without `y`, `x` is given back.

    `y` and `low` may be several matrices each, in float32, whose sums are meant.
    """
    rows, columns = x.shape
    if y is not None and (bt is not None or y.dim() == 3):
        # Tiles of several rows share what they read of an adapter; a norm needs whole rows.
        x, y = _added(x, y, low, bt, spans), None
    total = x if y is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    _add_norm[(rows,)](
        x, x if y is None else y, weight, total, normed, rstd,
        columns, 0 if y is None else y.stride(0), eps,
        ADD=y is not None, BLOCK=block, num_warps=min(max(block // 512, 1), 16), **early(),
    )  # fmt: skip
    return total, normed, rstd


def _added(
    x: torch.Tensor,
    y: torch.Tensor,
    low: torch.Tensor | None,
    bt: torch.Tensor | None,
    spans: torch.Tensor | None,
) -> torch.Tensor:
    rows, columns = x.shape
    total = torch.empty_like(x)
    lora = low is not None and bt is not None
    parts = y.shape[0] if y.dim() == 3 else 0
    _add_low[(triton.cdiv(columns, _COLUMNS), triton.cdiv(rows, _ROWS))](
        x, y, low if lora else x, bt if lora else x, x if spans is None else spans, total,
        rows, columns, y.stride(-2), low.stride(-2) if lora else 0, y.stride(0) if parts else 0,
        bt.shape[0] if lora else 0,
        LORA=lora, MIXED=spans is not None, PARTS=parts, ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4,
        **early(),
    )  # fmt: skip
    return total


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
