"""The gate of an MLP with LoRA's second product, forward and backward, each one pass over memory.

Shape letters: T tokens, I inner size (a multiple of 64), R ranks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .early_start import early, let_next_start, wait_for_previous
from .own_ranks import own_ranks

_COLUMNS = 64


def _rows(tokens: int) -> int:
    """Tokens of a tile: few when there are few, so that every part of the device has some."""
    return 16 if tokens <= 16 else 32 if tokens <= 128 else 64


@triton.jit
def _factors(bt, at, inner, bt_stride, first, end):
    """The Bs of the first 32 ranks, of the gate and of what it gates."""
    r = first + tl.arange(0, 32)
    spot = bt + r[:, None] * bt_stride + at[None, :]
    there = (r < end)[:, None]
    return tl.load(spot, mask=there, other=0.0), tl.load(spot + inner, mask=there, other=0.0)


@triton.jit
def _with_low(gate, up, b_gate, b_up, low, bt, rows, at, inner, low_stride, bt_stride, ranks, first, end):
    """Both with LoRA's second products, given the Bs of the first 32 ranks."""
    r = first + tl.arange(0, 32)
    spot = low + rows[:, None] * low_stride + r[None, :]
    # Tokens without an adapter have no ranks, not even first ones.
    there = (r < end)[None, :]
    gate, up = gate.to(tl.float32), up.to(tl.float32)
    low_gate = tl.load(spot, mask=there, other=0.0)
    low_up = tl.load(spot + ranks, mask=there, other=0.0)
    for start in range(first, end, 32):
        gate += tl.dot(low_gate, b_gate)
        up += tl.dot(low_up, b_up)
        later = start + 32
        if later < end:
            spot += 32
            low_gate, low_up = tl.load(spot), tl.load(spot + ranks)
            b_gate, b_up = _factors(bt, at, inner, bt_stride, later, end)
    return gate, up


@triton.jit
def _gated(
    raw, low, bt, spans, out, tokens, inner, raw_stride, low_stride, bt_stride, ranks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LORA: tl.constexpr, MIXED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = tl.minimum(rows, tokens - 1)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if LORA:
        first, end = own_ranks(spans, there, there < tokens, ranks, MIXED, 32)
        b_gate, b_up = _factors(bt, at, inner, bt_stride, first, end)
    if EARLY:
        wait_for_previous()
        let_next_start()
    spot = raw + there[:, None] * raw_stride + at[None, :]
    gate, up = tl.load(spot), tl.load(spot + inner)
    if LORA:
        gate, up = _with_low(
            gate, up, b_gate, b_up, low, bt, there, at, inner, low_stride, bt_stride, ranks, first, end
        )
    kind = out.dtype.element_ty
    gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
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
        **early(),
    )  # fmt: skip
    return out


@triton.jit
def _gated_backward(
    dout, raw, low, bt, spans, draw, out,
    tokens, inner, raw_stride, low_stride, bt_stride, draw_stride, ranks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LORA: tl.constexpr, MIXED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = rows[:, None] < tokens
    there = tl.minimum(rows, tokens - 1)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if LORA:
        first, end = own_ranks(spans, there, there < tokens, ranks, MIXED, 32)
        b_gate, b_up = _factors(bt, at, inner, bt_stride, first, end)
    if EARLY:
        wait_for_previous()
    spot = raw + there[:, None] * raw_stride + at[None, :]
    gate, up = tl.load(spot), tl.load(spot + inner)
    d = tl.load(dout + there[:, None] * inner + at[None, :])
    if LORA:
        gate, up = _with_low(
            gate, up, b_gate, b_up, low, bt, there, at, inner, low_stride, bt_stride, ranks, first, end
        )
    kind = out.dtype.element_ty
    gate, up, d = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32), d.to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = (gate * sigmoid).to(kind).to(tl.float32)
    tl.store(out + rows[:, None] * inner + at[None, :], (silu * up).to(kind), mask=inside)
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
        ROWS=rows, COLUMNS=_COLUMNS, LORA=lora, MIXED=spans is not None, num_warps=8 if rows == 64 else 4,
        num_stages=2,
        **early(),
    )  # fmt: skip
    return out
