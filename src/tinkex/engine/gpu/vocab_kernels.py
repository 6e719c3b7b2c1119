"""Softmax over a vocabulary with LoRA's second product added on the way: one pass for the normaliser, one
for the gradient.

Shape letters: T rows, V vocabulary, R ranks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _COLUMNS, _PARTS = 64, 64, 64


@triton.jit
def _tile(raw, low, bt, rows, at, inside, vocab, raw_stride, low_stride, ranks, scale, LORA: tl.constexpr):
    value = tl.load(
        raw + rows[:, None] * raw_stride + at[None, :], mask=inside[None, :], other=float("-inf")
    )
    if LORA:
        for start in range(0, ranks, 32):
            r = start + tl.arange(0, 32)
            there = r < ranks
            part = tl.load(low + rows[:, None] * low_stride + r[None, :], mask=there[None, :], other=0.0)
            b = tl.load(
                bt + r[:, None].to(tl.int64) * vocab + at[None, :],
                mask=there[:, None] & inside[None, :],
                other=0.0,
            )
            value += tl.dot(part, b) * scale
    return value


@triton.jit
def _normalisers(
    raw, low, bt, highest, total, tokens, vocab, raw_stride, low_stride, ranks, scale,
    LORA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = tl.minimum(rows, tokens - 1)
    part = tl.program_id(1)
    each = tl.cdiv(tl.cdiv(vocab, PARTS), COLUMNS) * COLUMNS
    top = tl.full((ROWS,), -1e30, tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    for start in range(part * each, tl.minimum((part + 1) * each, vocab), COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        value = _tile(
            raw, low, bt, there, at, at < vocab, vocab, raw_stride, low_stride, ranks, scale, LORA
        )
        now = tl.maximum(top, tl.max(value, 1))
        mass = mass * tl.exp(top - now) + tl.sum(tl.exp(value - now[:, None]), 1)
        top = now
    tl.store(highest + rows * PARTS + part, top, mask=rows < tokens)
    tl.store(total + rows * PARTS + part, mass, mask=rows < tokens)


def normalisers(
    raw_tv: torch.Tensor, low_tr: torch.Tensor | None, bt_rv: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """`logsumexp(raw + scale * low @ bt)` of each row, `[T, 1]`."""
    tokens, vocab = raw_tv.shape
    highest, total = torch.empty(2, tokens, _PARTS, dtype=torch.float32, device=raw_tv.device)
    lora = low_tr is not None and bt_rv is not None
    _normalisers[(triton.cdiv(tokens, _ROWS), _PARTS)](
        raw_tv, low_tr if lora else raw_tv, bt_rv if lora else raw_tv, highest, total,
        tokens, vocab, raw_tv.stride(0), low_tr.stride(0) if lora else 0,
        bt_rv.shape[0] if lora else 0, scale,
        LORA=lora, ROWS=_ROWS, COLUMNS=_COLUMNS, PARTS=_PARTS, num_warps=4,
    )  # fmt: skip
    return torch.logsumexp(highest + total.log(), dim=-1, keepdim=True)


@triton.jit
def _logit_gradient(
    raw, low, bt, lse, slope, targets, out, tokens, vocab, raw_stride, low_stride, ranks, scale,
    LORA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = tl.minimum(rows, tokens - 1)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < vocab
    value = _tile(raw, low, bt, there, at, inside, vocab, raw_stride, low_stride, ranks, scale, LORA)
    value = tl.exp(value - tl.load(lse + there)[:, None])
    # The target's own part is added before rounding: near probability 1 the two nearly cancel.
    grad = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in tl.static_range(TARGETS):
        s = tl.load(slope + there * TARGETS + k)[:, None]
        grad += tl.where(at[None, :] == tl.load(targets + there * TARGETS + k)[:, None], s, 0.0) - value * s
    spot = out + rows[:, None] * vocab + at[None, :]
    tl.store(spot, grad.to(out.dtype.element_ty), mask=(rows[:, None] < tokens) & inside[None, :])


def logit_gradient(
    raw_tv: torch.Tensor,
    low_tr: torch.Tensor | None,
    bt_rv: torch.Tensor | None,
    scale: float,
    lse_t1: torch.Tensor,
    slope_tk: torch.Tensor,
    targets_tk: torch.Tensor,
    out_tv: torch.Tensor,
) -> None:
    """Write the logits' gradient, given the loss's derivative by the logprobs of few targets a row."""
    tokens, vocab = raw_tv.shape
    lora = low_tr is not None and bt_rv is not None
    _logit_gradient[(triton.cdiv(vocab, _COLUMNS), triton.cdiv(tokens, _ROWS))](
        raw_tv, low_tr if lora else raw_tv, bt_rv if lora else raw_tv, lse_t1, slope_tk, targets_tk, out_tv,
        tokens, vocab, raw_tv.stride(0), low_tr.stride(0) if lora else 0,
        bt_rv.shape[0] if lora else 0, scale,
        LORA=lora, ROWS=_ROWS, COLUMNS=_COLUMNS, TARGETS=targets_tk.shape[1], num_warps=4,
    )  # fmt: skip
