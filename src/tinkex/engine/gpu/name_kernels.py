"""The sums that weights are named by, in one pass over them on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_BLOCK, _BLOCKS = 2048, 16


@triton.jit
def _mixed(bits, at, place, odd, spread):
    found = (at * place + bits) * odd
    found = (found ^ (found >> 31)) * spread
    return found ^ (found >> 29)


@triton.jit(do_not_specialize=["place1", "odd1", "place2", "odd2", "spread"])
def _sum_mixed(
    numbers, sums, count, place1, odd1, place2, odd2, spread, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    part = tl.program_id(0)
    first, second = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
    for block in range(BLOCKS):
        at = (part.to(tl.int64) * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        bits = tl.load(numbers + at, mask=inside, other=0).to(tl.int64)
        first += tl.where(inside, _mixed(bits, at, place1, odd1, spread), 0)
        second += tl.where(inside, _mixed(bits, at, place2, odd2, spread), 0)
    tl.store(sums + part * 2, tl.sum(first, 0))
    tl.store(sums + part * 2 + 1, tl.sum(second, 0))


def sums_of_mixed(bits: torch.Tensor, keys: Sequence[tuple[int, int]], spread: int) -> list[int]:
    """For each of two keys (for places, for bits) the sum over all numbers, as `sampler_weights` has it."""
    (place1, odd1), (place2, odd2) = keys
    parts = triton.cdiv(bits.numel(), _BLOCK * _BLOCKS)
    sums = torch.empty(parts, 2, dtype=torch.int64, device=bits.device)
    _sum_mixed[(parts,)](
        bits, sums, bits.numel(), place1, odd1, place2, odd2, spread,
        BLOCK=_BLOCK, BLOCKS=_BLOCKS, num_warps=8,
    )  # fmt: skip
    found: list[int] = sums.sum(0).tolist()
    return found
