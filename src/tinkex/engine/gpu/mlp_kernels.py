"""The gate of an MLP with LoRA's second product, forward and backward, each one pass over memory.

Shape letters: T tokens, I inner size (a multiple of 64), R ranks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .own_ranks import own_ranks

_COLUMNS = 64


def _rows(tokens: int) -> int:
    """Tokens of a tile: few when there are few, so that every part of the device has some."""
    return 16 if tokens <= 16 else 32 if tokens <= 128 else 64


@triton.jit
def _tile(raw, low, bt, rows, at, shift, raw_stride, low_stride, bt_stride, first, end, LORA: tl.constexpr):
    value = tl.load(raw + rows[:, None] * raw_stride + at[None, :]).to(tl.float32)
    if LORA:
        for start in range(first, end, 32):
            r = start + tl.arange(0, 32)
            part = tl.load(low + rows[:, None] * low_stride + (shift + r)[None, :])
            value += tl.dot(part, tl.load(bt + r[:, None] * bt_stride + at[None, :]))
    return value.to(raw.dtype.element_ty).to(tl.float32)


@triton.jit
def _gated(
    raw, low, bt, spans, out, tokens, inner, raw_stride, low_stride, bt_stride, ranks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LORA: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = tl.minimum(rows, tokens - 1)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first, end = own_ranks(spans, there, there < tokens, ranks, MIXED, 32)
    gate = _tile(raw, low, bt, there, at, 0, raw_stride, low_stride, bt_stride, first, end, LORA)
    up = _tile(raw, low, bt, there, inner + at, ranks, raw_stride, low_stride, bt_stride, first, end, LORA)
    kind = out.dtype.element_ty
    silu = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32)
    tl.store(out + rows[:, None] * inner + at[None, :], (silu * up).to(kind), mask=rows[:, None] < tokens)


def gated(
    raw: torch.Tensor,
    low: torch.Tensor | None,
    bt: torch.Tensor | None,
    inner: int,
    spans: torch.Tensor | None = None,
) -> torch.Tensor:
    """`silu(gate) * up` of `raw` `[T, 2 I + …]` with its LoRA part `low @ bt`, gate's ranks before up's."""
    tokens = raw.shape[0]
    out = torch.empty(tokens, inner, dtype=raw.dtype, device=raw.device)
    lora = low is not None and bt is not None
    rows = _rows(tokens)
    _gated[(inner // _COLUMNS, triton.cdiv(tokens, rows))](
        raw, low if lora else raw, bt if lora else raw, raw if spans is None else spans, out,
        tokens, inner, raw.stride(0), low.stride(0) if lora else 0, bt.stride(0) if lora else 0,
        bt.shape[0] if lora else 0,
        ROWS=rows, COLUMNS=_COLUMNS, LORA=lora, MIXED=spans is not None, num_warps=8 if rows == 64 else 4,
    )  # fmt: skip
    return out


@triton.jit
def _gated_backward(
    dout, raw, low, bt, spans, draw, out,
    tokens, inner, raw_stride, low_stride, bt_stride, draw_stride, ranks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LORA: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = rows[:, None] < tokens
    there = tl.minimum(rows, tokens - 1)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first, end = own_ranks(spans, there, there < tokens, ranks, MIXED, 32)
    gate = _tile(raw, low, bt, there, at, 0, raw_stride, low_stride, bt_stride, first, end, LORA)
    up = _tile(raw, low, bt, there, inner + at, ranks, raw_stride, low_stride, bt_stride, first, end, LORA)
    kind = out.dtype.element_ty
    sigmoid = tl.sigmoid(gate)
    silu = (gate * sigmoid).to(kind).to(tl.float32)
    tl.store(out + rows[:, None] * inner + at[None, :], (silu * up).to(kind), mask=inside)
    d = tl.load(dout + there[:, None] * inner + at[None, :]).to(tl.float32)
    spot = draw + rows[:, None] * draw_stride + at[None, :]
    tl.store(spot + inner, (d * silu).to(kind), mask=inside)
    tl.store(spot, (d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))).to(kind), mask=inside)


def gated_backward(
    dout: torch.Tensor,
    raw: torch.Tensor,
    low: torch.Tensor | None,
    bt: torch.Tensor | None,
    draw: torch.Tensor,
    spans: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write the gradient of `raw` to `draw`, whose rows may lie apart; the output of `gated` once more."""
    tokens, inner = dout.shape
    out = torch.empty_like(dout)
    lora = low is not None and bt is not None
    rows = _rows(tokens)
    _gated_backward[(inner // _COLUMNS, triton.cdiv(tokens, rows))](
        dout, raw, low if lora else raw, bt if lora else raw, raw if spans is None else spans,
        draw, out,
        tokens, inner, raw.stride(0), low.stride(0) if lora else 0, bt.stride(0) if lora else 0,
        draw.stride(0), bt.shape[0] if lora else 0,
        ROWS=rows, COLUMNS=_COLUMNS, LORA=lora, MIXED=spans is not None, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _add_low(
    y,
    low,
    bt,
    spans,
    tokens,
    columns,
    y_stride,
    low_stride,
    ranks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MIXED: tl.constexpr,
):
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = tl.minimum(rows, tokens - 1)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows[:, None] < tokens) & (at[None, :] < columns)
    spot = y + rows[:, None] * y_stride + at[None, :]
    value = tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    first, end = own_ranks(spans, there, there < tokens, ranks, MIXED, 32)
    for start in range(first, end, 32):
        r = start + tl.arange(0, 32)
        part = tl.load(low + there[:, None] * low_stride + r[None, :])
        b = tl.load(
            bt + r[:, None].to(tl.int64) * columns + at[None, :], mask=at[None, :] < columns, other=0.0
        )
        value += tl.dot(part, b)
    tl.store(spot, value.to(y.dtype.element_ty), mask=mask)


def add_low(
    y: torch.Tensor, low: torch.Tensor, bt: torch.Tensor, spans: torch.Tensor | None = None
) -> None:
    """Add `low @ bt` to `y` in place."""
    tokens, columns = y.shape
    rows = 16 if tokens <= 64 else 64
    _add_low[(triton.cdiv(columns, 128), triton.cdiv(tokens, rows))](
        y, low, bt, y if spans is None else spans, tokens, columns, y.stride(0), low.stride(0), bt.shape[0],
        ROWS=rows, COLUMNS=128, MIXED=spans is not None, num_warps=4,
    )  # fmt: skip
