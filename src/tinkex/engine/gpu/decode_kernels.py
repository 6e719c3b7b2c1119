"""Attention of one new token a row to its paged keys and values, read once and where they lie.

A program handles the query heads of one key/value head of one row, and one of several parts of its
context; the parts are then joined. How far a row's context reaches is read on the device, so that one
recorded launch serves all lengths.

Shape letters: R rows, H query heads, K key/value heads, G = H / K, D head size, W blocks a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .early_start import LINE, ask_for, early, let_next_start, wait_for_previous

_MANY = 1024
"""From so many rows and heads on, small programs that run side by side read faster than larger ones."""


@triton.jit
def _ask_for_some(
    k, v, blocks, head, begin, end, place_stride,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, TOKENS * LINES)
    token = begin + n // LINES
    seen = token < end
    block = tl.load(blocks + token // BLOCK, mask=seen, other=0).to(tl.int64)
    place = (block * BLOCK + token % BLOCK) * place_stride + head * SIZE + n % LINES * (SIZE // LINES)
    ask_for(k + place, seen)
    ask_for(v + place, seen)


@triton.jit
def _attend(
    q, k, v, blocks, positions, out, parts, stats,
    width, scaling, window, place_stride,
    KV: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    TOKENS: tl.constexpr, PARTS: tl.constexpr, WINDOWED: tl.constexpr, EARLY: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    head, row, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row).to(tl.int32) + 1
    first = 0
    if WINDOWED:
        first = tl.maximum(length - window, 0)
    each = tl.cdiv(tl.cdiv(length - first, PARTS), TOKENS) * TOKENS
    begin = first + part * each
    end = tl.minimum(begin + each, length)
    at = tl.arange(0, SIZE)
    group = tl.arange(0, 16)
    own = group[:, None] < GROUP
    if EARLY:
        # What earlier steps left is on its way while the kernel before still makes this step's tokens.
        _ask_for_some(
            k, v, blocks + row * width, head, begin, end, place_stride, SIZE, BLOCK, TOKENS, LINES
        )
        if PARTS > 1:
            let_next_start()
        wait_for_previous()
        if PARTS == 1:
            let_next_start()
    q_at = (row * KV * GROUP + head * GROUP + group[:, None]) * SIZE + at[None, :]
    query = tl.load(q + q_at, mask=own, other=0.0)
    highest = tl.full((16,), -1e30, tl.float32)
    total = tl.zeros((16,), tl.float32)
    mixed = tl.zeros((16, SIZE), tl.float32)
    for start in range(begin, end, TOKENS):
        token = start + tl.arange(0, TOKENS)
        seen = token < end
        block = tl.load(blocks + row * width + token // BLOCK, mask=seen, other=0).to(tl.int64)
        place = (block * BLOCK + token % BLOCK) * place_stride + head * SIZE
        keys = tl.load(k + place[None, :] + at[:, None], mask=seen[None, :], other=0.0)
        scores = tl.dot(query, keys) * scaling
        scores = tl.where(seen[None, :], scores, float("-inf"))
        top = tl.maximum(highest, tl.max(scores, 1))
        weight = tl.exp(scores - top[:, None])
        fade = tl.exp(highest - top)
        values = tl.load(v + place[:, None] + at[None, :], mask=seen[:, None], other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(values.dtype), values)
        total = total * fade + tl.sum(weight, 1)
        highest = top
    if PARTS == 1:
        tl.store(out + q_at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=own)
    else:
        slot = ((row * KV + head) * PARTS + part) * 16 + group
        tl.store(parts + slot[:, None] * SIZE + at[None, :], mixed, mask=own)
        tl.store(stats + slot * 2, highest, mask=group < GROUP)
        tl.store(stats + slot * 2 + 1, total, mask=group < GROUP)


@triton.jit
def _join(
    parts, stats, out,
    KV: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        wait_for_previous()
        let_next_start()
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, SIZE)
    slot = ((row * KV + head // GROUP) * PARTS + tl.arange(0, PARTS)) * 16 + head % GROUP
    highest, total = tl.load(stats + slot * 2), tl.load(stats + slot * 2 + 1)
    weight = tl.exp(highest - tl.max(highest, 0))
    mixed = tl.load(parts + slot[:, None] * SIZE + at[None, :])
    mixed = tl.sum(mixed * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (row * KV * GROUP + head) * SIZE + at, mixed.to(out.dtype.element_ty))


def _parts(programs: int, tiles: int) -> int:
    """Parts of a context: one program a row and head leaves most of the device idle when rows are few."""
    found = 1
    while found < 16 and programs * found < _MANY // 2 and tiles > found:
        found *= 2
    return found


def decode_attention(
    q_rhd: torch.Tensor,
    k_pkd: torch.Tensor,
    v_pkd: torch.Tensor,
    blocks_rw: torch.Tensor,
    positions_r: torch.Tensor,
    block_size: int,
    scaling: float,
    window: int | None,
    *,
    tokens: int | None = None,
    warps: int | None = None,
    stages: int = 2,
) -> torch.Tensor:
    """What each row's token sees: places `block * size + offset` of the pool, up to its own position."""
    rows, heads, size = q_rhd.shape
    kv_heads = k_pkd.shape[1]
    width = blocks_rw.shape[1]
    many = rows * kv_heads >= _MANY
    tokens, warps = tokens or (32 if many else 64), warps or (1 if many else 2)
    parts = _parts(rows * kv_heads, width * block_size // tokens)
    out = torch.empty_like(q_rhd)
    shape = (rows, kv_heads, parts, 16)
    room = torch.empty((*shape, size) if parts > 1 else (1,), dtype=torch.float32, device=q_rhd.device)
    stats = torch.empty((*shape, 2) if parts > 1 else (1,), dtype=torch.float32, device=q_rhd.device)
    constants = {"KV": kv_heads, "GROUP": heads // kv_heads, "SIZE": size, "PARTS": parts}
    # Heads first: a token's heads lie side by side, and programs that run together then read whole lines.
    _attend[(kv_heads, rows, parts)](
        q_rhd, k_pkd, v_pkd, blocks_rw, positions_r, out, room, stats,
        width, scaling, window or 0, k_pkd.stride(0),
        **constants, BLOCK=block_size, TOKENS=tokens, WINDOWED=window is not None,
        LINES=max(size * k_pkd.element_size() // LINE.value, 1), **early(),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if parts > 1:
        _join[(rows, heads)](room, stats, out, **constants, num_warps=1, **early())
    return out
