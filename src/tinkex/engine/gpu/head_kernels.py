"""What lies between the projection to q, k, v and attention: LoRA's second product, head norms, rotation.

A program handles some tokens of one head, its features as two halves, since rotation mixes these. Query
and key heads are normalised (where the model does that) and turned; value heads only get their LoRA part.

Shape letters: T tokens, H query heads, K key/value heads, N = H + 2 K, D head size, R ranks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .early_start import early, let_next_start, wait_for_previous
from .own_ranks import own_ranks


@triton.jit
def _factors(bt, column, bt_stride, first, end, HALF: tl.constexpr):
    """The Bs of the first 32 ranks, of both halves of a head."""
    r = first + tl.arange(0, 32)
    spot = bt + r[:, None] * bt_stride + (column + tl.arange(0, HALF))[None, :]
    there = (r < end)[:, None]
    return tl.load(spot, mask=there, other=0.0), tl.load(spot + HALF, mask=there, other=0.0)


@triton.jit
def _with_low(
    one, two, b_one, b_two, low, bt, rows, inside, column, shift, low_stride, bt_stride, first, end,
    HALF: tl.constexpr,
):  # fmt: skip
    """Both halves of a head with LoRA's second products, given the Bs of the first 32 ranks."""
    r = first + tl.arange(0, 32)
    spot = low + rows[:, None] * low_stride + (shift + r)[None, :]
    one, two = one.to(tl.float32), two.to(tl.float32)
    # Tokens without an adapter have no ranks, not even first ones.
    part = tl.load(spot, mask=inside[:, None] & (r < end)[None, :], other=0.0)
    for start in range(first, end, 32):
        one += tl.dot(part, b_one)
        two += tl.dot(part, b_two)
        later = start + 32
        if later < end:
            spot += 32
            part = tl.load(spot, mask=inside[:, None], other=0.0)
            b_one, b_two = _factors(bt, column, bt_stride, later, end, HALF)
    return one, two


@triton.jit
def _heads(
    raw, low, bt, spans, q_norm, k_norm, cos, sin, q_out, k_out, v_out, k_places,
    tokens, raw_stride, low_stride, bt_stride, ranks, kv_stride, eps,
    Q: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, LORA: tl.constexpr,
    MIXED: tl.constexpr, NORM: tl.constexpr, PLACED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = SIZE // 2
    head = tl.program_id(1)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = rows < tokens
    member = (head >= Q).to(tl.int32) + (head >= Q + KV).to(tl.int32)
    column = head * SIZE
    at = tl.arange(0, HALF)
    if LORA:
        first, end = own_ranks(spans, rows, inside, ranks, MIXED, 32)
        b_one, b_two = _factors(bt, column, bt_stride, first, end, HALF)
    if EARLY:
        let_next_start()
        wait_for_previous()
    spot = raw + rows[:, None] * raw_stride + (column + at)[None, :]
    one = tl.load(spot, mask=inside[:, None], other=0.0)
    two = tl.load(spot + HALF, mask=inside[:, None], other=0.0)
    if LORA:
        one, two = _with_low(
            one, two, b_one, b_two, low, bt, rows, inside, column, member * ranks, low_stride, bt_stride,
            first, end, HALF,
        )  # fmt: skip
    kind = q_out.dtype.element_ty
    one, two = one.to(kind).to(tl.float32), two.to(kind).to(tl.float32)
    if PLACED:
        places = tl.load(k_places + rows, mask=inside, other=0).to(tl.int64)
    else:
        places = rows
    if member == 2:
        spot = v_out + places[:, None] * kv_stride + ((head - Q - KV) * SIZE + at)[None, :]
        tl.store(spot, one.to(kind), mask=inside[:, None])
        tl.store(spot + HALF, two.to(kind), mask=inside[:, None])
    else:
        if NORM:
            scale = tl.rsqrt((tl.sum(one * one, 1) + tl.sum(two * two, 1)) / SIZE + eps)[:, None]
            if member == 0:
                by_one, by_two = tl.load(q_norm + at), tl.load(q_norm + HALF + at)
            else:
                by_one, by_two = tl.load(k_norm + at), tl.load(k_norm + HALF + at)
            one = (one * scale).to(kind).to(tl.float32) * by_one[None, :].to(tl.float32)
            two = (two * scale).to(kind).to(tl.float32) * by_two[None, :].to(tl.float32)
            one, two = one.to(kind).to(tl.float32), two.to(kind).to(tl.float32)
        turn = rows[:, None] * SIZE + at[None, :]
        cos_one = tl.load(cos + turn, mask=inside[:, None], other=0.0).to(tl.float32)
        cos_two = tl.load(cos + turn + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
        sin_one = tl.load(sin + turn, mask=inside[:, None], other=0.0).to(tl.float32)
        sin_two = tl.load(sin + turn + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
        turned_one = (one * cos_one + two * sin_one).to(kind)
        turned_two = (two * cos_two + one * sin_two).to(kind)
        if member == 0:
            spot = q_out + rows[:, None] * (Q * SIZE) + (column + at)[None, :]
        else:
            spot = k_out + places[:, None] * kv_stride + ((head - Q) * SIZE + at)[None, :]
        tl.store(spot, turned_one, mask=inside[:, None])
        tl.store(spot + HALF, turned_two, mask=inside[:, None])


def split_heads(
    raw: torch.Tensor,
    low: torch.Tensor | None,
    bt: torch.Tensor | None,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    turn: tuple[torch.Tensor, torch.Tensor],
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    q_heads: int,
    kv_heads: int,
    eps: float,
    places: torch.Tensor | None = None,
    spans: torch.Tensor | None = None,
) -> None:
    """Write q `[T, H, D]`, k and v of `raw` `[T, N D + …]`; k and v at `places` of a pool if given.

    `low` holds A's products of q, k and v side by side, `bt` the scaled B of all outputs `[R, N D]`,
    `turn` the cosines and the sines (signed, first half negative) of each token.
    """
    tokens = raw.shape[0]
    q_out, k_out, v_out = out
    size = q_out.shape[-1]
    lora = low is not None and bt is not None
    rows = 16 if tokens <= 512 else 64
    _heads[(triton.cdiv(tokens, rows), q_heads + 2 * kv_heads)](
        raw, low if lora else raw, bt if lora else raw, raw if spans is None else spans,
        norms[0] if norms else raw, norms[1] if norms else raw, *turn, q_out, k_out, v_out,
        raw if places is None else places,
        tokens, raw.stride(0), low.stride(0) if lora else 0, bt.stride(0) if lora else 0,
        bt.shape[0] if lora else 0, k_out.stride(0), eps,
        Q=q_heads, KV=kv_heads, SIZE=size, ROWS=rows, LORA=lora, MIXED=spans is not None,
        NORM=norms is not None,
        PLACED=places is not None, num_warps=4, **early(),
    )  # fmt: skip


@triton.jit
def _heads_backward(
    dq, dk, dv, raw, low, bt, spans, q_norm, k_norm, cos, sin, out,
    tokens, raw_stride, low_stride, bt_stride, ranks, out_stride, eps,
    Q: tl.constexpr, KV: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    LORA: tl.constexpr, MIXED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = SIZE // 2
    head = tl.program_id(1)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = rows < tokens
    at = tl.arange(0, HALF)
    column = head * SIZE
    spot = out + rows[:, None] * out_stride + (column + at)[None, :]
    if head >= Q + KV:
        given = dv + rows[:, None] * (KV * SIZE) + ((head - Q - KV) * SIZE + at)[None, :]
        tl.store(spot, tl.load(given, mask=inside[:, None], other=0.0), mask=inside[:, None])
        given += HALF
        tl.store(spot + HALF, tl.load(given, mask=inside[:, None], other=0.0), mask=inside[:, None])
    else:
        member = (head >= Q).to(tl.int32)
        if member == 0:
            given = dq + rows[:, None] * (Q * SIZE) + (column + at)[None, :]
        else:
            given = dk + rows[:, None] * (KV * SIZE) + ((head - Q) * SIZE + at)[None, :]
        one = tl.load(given, mask=inside[:, None], other=0.0).to(tl.float32)
        two = tl.load(given + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
        turn = rows[:, None] * SIZE + at[None, :]
        cos_one = tl.load(cos + turn, mask=inside[:, None], other=0.0).to(tl.float32)
        cos_two = tl.load(cos + turn + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
        sin_one = tl.load(sin + turn, mask=inside[:, None], other=0.0).to(tl.float32)
        sin_two = tl.load(sin + turn + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
        back_one = one * cos_one + two * sin_two
        back_two = two * cos_two + one * sin_one
        if NORM:
            spot_raw = raw + rows[:, None] * raw_stride + (column + at)[None, :]
            x_one = tl.load(spot_raw, mask=inside[:, None], other=0.0)
            x_two = tl.load(spot_raw + HALF, mask=inside[:, None], other=0.0)
            if LORA:
                first, end = own_ranks(spans, rows, inside, ranks, MIXED, 32)
                b_one, b_two = _factors(bt, column, bt_stride, first, end, HALF)
                x_one, x_two = _with_low(
                    x_one, x_two, b_one, b_two, low, bt, rows, inside, column, member * ranks,
                    low_stride, bt_stride, first, end, HALF,
                )  # fmt: skip
            kind = raw.dtype.element_ty
            x_one, x_two = x_one.to(kind).to(tl.float32), x_two.to(kind).to(tl.float32)
            scale = tl.rsqrt((tl.sum(x_one * x_one, 1) + tl.sum(x_two * x_two, 1)) / SIZE + eps)[:, None]
            if member == 0:
                by_one, by_two = tl.load(q_norm + at), tl.load(q_norm + HALF + at)
            else:
                by_one, by_two = tl.load(k_norm + at), tl.load(k_norm + HALF + at)
            d_one = back_one * by_one[None, :].to(tl.float32)
            d_two = back_two * by_two[None, :].to(tl.float32)
            x_one, x_two = x_one * scale, x_two * scale
            along = ((tl.sum(d_one * x_one, 1) + tl.sum(d_two * x_two, 1)) / SIZE)[:, None]
            back_one = (d_one - x_one * along) * scale
            back_two = (d_two - x_two * along) * scale
        tl.store(spot, back_one.to(out.dtype.element_ty), mask=inside[:, None])
        tl.store(spot + HALF, back_two.to(out.dtype.element_ty), mask=inside[:, None])


def split_heads_backward(
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    raw: torch.Tensor,
    low: torch.Tensor | None,
    bt: torch.Tensor | None,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    turn: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    eps: float,
    spans: torch.Tensor | None = None,
) -> None:
    """Write the gradient of `raw`, given those of q, k and v; rows of `out` may lie apart."""
    dq, dk, dv = grads
    tokens, q_heads, size = dq.shape
    lora = low is not None and bt is not None
    rows = 16 if tokens <= 512 else 64
    _heads_backward[(triton.cdiv(tokens, rows), q_heads + 2 * dk.shape[1])](
        dq, dk, dv, raw, low if lora else raw, bt if lora else raw, raw if spans is None else spans,
        norms[0] if norms else raw, norms[1] if norms else raw, *turn, out,
        tokens, raw.stride(0), low.stride(0) if lora else 0, bt.stride(0) if lora else 0,
        bt.shape[0] if lora else 0, out.stride(0), eps,
        Q=q_heads, KV=dk.shape[1], SIZE=size, ROWS=rows, LORA=lora,
        MIXED=spans is not None, NORM=norms is not None, num_warps=4,
    )  # fmt: skip
