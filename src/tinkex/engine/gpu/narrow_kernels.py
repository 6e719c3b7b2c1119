"""Top-k and top-p without sorting: the least mass that stays is found by its bits, then a token is drawn.

A program handles one row. Masses are `exp(logit - highest)`, and the bits of such numbers are in their
order: three bits a pass over the row, the largest bound is found above which enough tokens, or enough of
the mass, lie. Of tokens of exactly that mass only as many stay as are needed, the first ones. The draw then
goes through the row in the order of the vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_CHUNK = 4096
NEVER = tl.constexpr(1 << 30)


@triton.jit
def first(found, at):
    """The first place where something was found, or `NEVER`."""
    return tl.min(tl.where(found, at, NEVER), 0)


@triton.jit
def _mass(logits, at, vocab, inverse, top):
    value = tl.load(logits + at, mask=at < vocab, other=float("-inf")) * inverse
    mass = tl.where(at < vocab, tl.exp(value - top), 0.0)
    return mass, mass.to(tl.int32, bitcast=True)


@triton.jit
def _add(total, bits, bound, amount):
    return total + tl.where(bits >= bound, amount, 0.0)


@triton.jit
def _reaches(total, need):
    return (tl.sum(total.to(tl.float64), 0) >= need).to(tl.int32)


@triton.jit
def _bound(logits, vocab, inverse, top, above, need, COUNT: tl.constexpr, CHUNK: tl.constexpr):
    """The largest bits so that tokens from there on (and beyond `above`) number, or weigh, `need`."""
    found = above + 1
    for step in range(10):
        one = 1 << (27 - 3 * step)
        # Each lane has sums of its own: within a pass over the row none waits for another.
        none = tl.zeros((CHUNK,), tl.float32)
        s1, s2, s3, s4, s5, s6, s7 = none, none, none, none, none, none, none
        for start in tl.range(0, vocab, CHUNK, loop_unroll_factor=2):
            at = start + tl.arange(0, CHUNK)
            mass, bits = _mass(logits, at, vocab, inverse, top)
            amount = tl.where(at < vocab, 1.0, 0.0) if COUNT else mass
            s1 = _add(s1, bits, found + one, amount)
            s2 = _add(s2, bits, found + 2 * one, amount)
            s3 = _add(s3, bits, found + 3 * one, amount)
            s4 = _add(s4, bits, found + 4 * one, amount)
            s5 = _add(s5, bits, found + 5 * one, amount)
            s6 = _add(s6, bits, found + 6 * one, amount)
            s7 = _add(s7, bits, found + 7 * one, amount)
        more = _reaches(s1, need) + _reaches(s2, need) + _reaches(s3, need) + _reaches(s4, need)
        more += _reaches(s5, need) + _reaches(s6, need) + _reaches(s7, need)
        found += more * one
    return found


@triton.jit
def _beyond(logits, vocab, inverse, top, bound, CHUNK: tl.constexpr):
    """How many tokens are above some bits, and what they weigh."""
    counts, weights = tl.zeros((CHUNK,), tl.float32), tl.zeros((CHUNK,), tl.float32)
    for start in tl.range(0, vocab, CHUNK, loop_unroll_factor=2):
        at = start + tl.arange(0, CHUNK)
        mass, bits = _mass(logits, at, vocab, inverse, top)
        inside = (bits > bound) & (at < vocab)
        counts += tl.where(inside, 1.0, 0.0)
        weights += tl.where(inside, mass, 0.0)
    return tl.sum(counts, 0), tl.sum(weights.to(tl.float64), 0)


@triton.jit
def _narrow(
    logits, inverse, numbers, rows, most, shares, highest, wholes, tokens, logprobs,
    vocab, stride, number_stride, WARM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    row = tl.load(rows + n)
    k, p = tl.load(most + n), tl.load(shares + n)
    warmth = 1.0
    if WARM:
        warmth = tl.load(inverse + row)
    top = tl.load(highest + row)
    logits += row * stride
    least, ties = -1, 0.0
    weight = tl.zeros((1,), tl.float64)
    if k < vocab:
        least = _bound(logits, vocab, warmth, top, -1, k.to(tl.float64), True, CHUNK)
        count, heavier = _beyond(logits, vocab, warmth, top, least, CHUNK)
        ties = k - count
        weight += heavier
    else:
        count, heavier = _beyond(logits, vocab, warmth, top, -1, CHUNK)
        weight += heavier
    # Bits -1 are below those of any mass: then there are no ties.
    tie = tl.where(least < 0, 0, least).to(tl.float32, bitcast=True).to(tl.float64)
    whole = tl.sum(weight, 0) + ties * tie
    if p < 1.0:
        need = p * whole
        if tl.sum(weight, 0) >= need:
            least = _bound(logits, vocab, warmth, top, least, need, False, CHUNK)
            count, heavier = _beyond(logits, vocab, warmth, top, least, CHUNK)
            weight = tl.zeros((1,), tl.float64) + heavier
            tie = least.to(tl.float32, bitcast=True).to(tl.float64)
            ties = 1e9
        wanted = tl.ceil((need - tl.sum(weight, 0)) / tie).to(tl.float32)
        ties = tl.minimum(tl.maximum(wanted, tl.where(tl.sum(weight, 0) > 0, 0.0, 1.0)), ties)
        whole = tl.sum(weight, 0) + ties * tie
    target = tl.load(numbers + row * number_stride) * whole
    before = tl.zeros((1,), tl.float64)
    seen, chosen, last = 0, NEVER + 0, 0
    for start in range(0, vocab, CHUNK):
        at = start + tl.arange(0, CHUNK)
        mass, bits = _mass(logits, at, vocab, warmth, top)
        equal = (bits == least) & (at < vocab)
        rank = seen + tl.cumsum(equal.to(tl.int32), 0)
        stays = (at < vocab) & ((bits > least) | (equal & (rank <= ties))) & (mass > 0)
        kept = tl.where(stays, mass, 0.0).to(tl.float64)
        ends = tl.sum(before, 0) + tl.cumsum(kept, 0)
        chosen = tl.minimum(chosen, first((ends > target) & stays, at))
        last = tl.maximum(last, tl.max(tl.where(stays, at, 0), 0))
        before += tl.sum(kept, 0)
        seen += tl.sum(equal.to(tl.int32), 0)
    chosen = tl.where(chosen == NEVER, last, chosen)
    value = tl.load(logits + chosen) * warmth
    tl.store(tokens + row, chosen.to(tl.int64))
    tl.store(logprobs + row, value - top - tl.load(wholes + row))


def draw_narrowed(
    logits_rv: torch.Tensor,
    u_r: torch.Tensor,
    inverse_temperature_r1: torch.Tensor | None,
    narrow: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    highest_r: torch.Tensor,
    wholes_r: torch.Tensor,
    tokens_r: torch.Tensor,
    logprobs_r: torch.Tensor,
) -> None:
    """Write the tokens of rows with top-k or top-p, and their logprobs in the whole distribution.

    `narrow` is which rows, and their k and p; `highest_r` the highest logit times inverse temperature of
    every row, `wholes_r` the logarithm of what all tokens weigh beside that one.
    """
    rows_n, k_n, p_n = narrow
    warm = inverse_temperature_r1 is not None
    _narrow[(len(rows_n),)](
        logits_rv, inverse_temperature_r1 if warm else highest_r, u_r, rows_n, k_n, p_n,
        highest_r, wholes_r, tokens_r, logprobs_r, logits_rv.shape[1], logits_rv.stride(0), u_r.stride(0),
        WARM=warm, CHUNK=_CHUNK, num_warps=16, enable_fp_fusion=False,
    )  # fmt: skip
