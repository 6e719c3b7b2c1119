"""Causal attention of sequences of one length on a CPU, a block of queries at a time.

A block is multiplied with the keys it may see and no others, all its heads at once. The framework's fused
kernel computes most of what the causal mask hides, and all scores twice; these are kept for the backward
pass while there is room, and else computed again.

Shape letters: S sequences, n tokens of each, K key/value heads, G query heads to each, D head size.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple

import torch

from .plan import Plan

WHOLE = 128
"""Up to this length a sequence is one block."""

BLOCK = 96
"""Queries of a block of a longer one, at most."""

KEPT = 48 << 20
"""Bytes of scores a pass keeps for its backward pass."""

FEW = 8
"""How many batches of a row keep heads and scores in the pass's room; others allocate them."""

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_Kept = tuple[torch.Tensor, torch.Tensor, list[tuple[torch.Tensor, torch.Tensor | None]], int | None]


class Batch(NamedTuple):
    """Neighbouring sequences of one length."""

    start: int
    copies: int
    length: int

    def of(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The batch's rows of each."""
        rows = self.copies * self.length
        if rows == tensors[0].shape[0]:
            return tensors
        return tuple(x[self.start : self.start + rows] for x in tensors)


class _Block(NamedTuple):
    """Queries `start` to `end` of a sequence; they see keys from `first` on."""

    start: int
    end: int
    first: int


def attend_batch(
    batch: Batch,
    given: QKV,
    out: torch.Tensor,
    scaling: float,
    window: int | None,
    plan: Plan,
    where: tuple[int, int] | None,
) -> _Kept:
    """Write the attention of a batch to `out`; what `batch_backward` needs, if this has a place `where`."""
    heads = given[1].shape[1]
    name = where if where is not None and where[1] < FEW else None
    k, v = (
        _by_head(x, batch, heads, plan, None if name is None else (name, letter))
        for x, letter in zip(given[1:], "kv", strict=True)
    )
    kept: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for i, block in enumerate(_blocks(batch.length, window)):
        q = _by_head(given[0], batch, heads, plan, None if name is None else (name, i, "q"), block)
        shape = (*q.shape[:2], block.end - block.first)
        keep = where is not None and _room_for(shape, q, plan)
        if not keep:
            probs = plan.place("scores", shape, q)
        elif name is None:
            probs = torch.empty(shape, dtype=q.dtype)
        else:
            probs = plan.place((name, i, "scores"), shape, q)
        _probabilities(q, k, block, scaling, window, probs)
        mixed = torch.bmm(probs, v[:, block.first : block.end], out=plan.place("heads", q.shape, q))
        _by_token(mixed, batch, heads, out, block)
        if where is not None:
            kept.append((q, probs if keep else None))
    return k, v, kept, window


def batch_backward(
    batch: Batch,
    out: torch.Tensor,
    dout: torch.Tensor,
    kept: _Kept,
    grads: QKV,
    scaling: float,
    plan: Plan,
) -> None:
    """Write the gradients of a batch's q, k and v."""
    k, v, blocks, window = kept
    heads = grads[1].shape[1]
    room = plan.spare("along", out.shape, k)
    along = torch.mul(out.to(k.dtype), dout.to(k.dtype), out=room).sum(-1, keepdim=True)
    dk, dv = plan.place("dk", k.shape, k), plan.place("dv", v.shape, v)
    spans = _blocks(batch.length, window)
    added = spans[-1].first > 0
    if added:
        dk.zero_()
        dv.zero_()
    # From the last block on: where it sees all keys it writes what the others add to.
    for block, (q, probs) in zip(reversed(spans), reversed(blocks), strict=True):
        keys = slice(block.first, block.end)
        if probs is None:
            probs = plan.place("scores", (*q.shape[:2], block.end - block.first), q)
            _probabilities(q, k, block, scaling, window, probs)
        dmixed = _by_head(dout, batch, heads, plan, "dheads", block)
        inner = _by_head(along, batch, heads, plan, "inner", block)
        dv[:, keys].baddbmm_(probs.transpose(1, 2), dmixed, beta=int(added))
        dscores = plan.place("dscores", probs.shape, q)
        torch.bmm(dmixed, v[:, keys].transpose(1, 2), out=dscores).sub_(inner).mul_(probs)
        dk[:, keys].baddbmm_(dscores.transpose(1, 2), q, beta=int(added), alpha=scaling)
        dq = plan.place("heads", q.shape, q)
        torch.baddbmm(dq, dscores, k[:, keys], beta=0, alpha=scaling, out=dq)
        _by_token(dq, batch, heads, grads[0], block)
        added = True
    _by_token(dk, batch, heads, grads[1])
    _by_token(dv, batch, heads, grads[2])


@lru_cache(maxsize=1024)
def _blocks(length: int, window: int | None) -> tuple[_Block, ...]:
    count = 1 if length <= WHOLE else -(-length // BLOCK)
    size = -(-length // count)
    back = length if window is None else window - 1
    return tuple(
        _Block(start, min(start + size, length), max(start - back, 0)) for start in range(0, length, size)
    )


def _probabilities(
    q: torch.Tensor,
    k: torch.Tensor,
    block: _Block,
    scaling: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    start, end, first = block
    groups = q.shape[1] // (end - start)
    torch.baddbmm(out, q, k[:, first:end].transpose(1, 2), beta=0, alpha=scaling, out=out)
    if window is None or end <= window:
        out[:, :, start - first :].add_(_hidden(end - start, 0, None, groups, q.dtype))
    else:
        out.add_(_hidden(end - start, start - first, window, groups, q.dtype))
    torch.softmax(out, dim=-1, out=out)


@lru_cache(maxsize=256)
def _hidden(rows: int, back: int, window: int | None, groups: int, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores of queries whose keys begin so far back."""
    # Made once for all passes, so never as a tensor that only inference may touch.
    with torch.inference_mode(False):
        distance = torch.arange(back, back + rows)[:, None] - torch.arange(back + rows)
        hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
        zeros = torch.zeros(hidden.shape, dtype=dtype)
        return zeros.masked_fill_(hidden, float("-inf")).repeat(groups, 1)


def _room_for(shape: tuple[int, ...], like: torch.Tensor, plan: Plan) -> bool:
    size = shape[0] * shape[1] * shape[2] * like.dtype.itemsize
    taken: int = plan.scratch.get("scores kept", 0)
    if taken + size > KEPT:
        return False
    plan.scratch["scores kept"] = taken + size
    return True


def _by_head(
    x: torch.Tensor, batch: Batch, heads: int, plan: Plan, name: Hashable, block: _Block | None = None
) -> torch.Tensor:
    """`[S n, heads G, D]`, or a block of each sequence, as `[S heads, G n, D]`; never in half precision."""
    size = x.shape[2]
    split = x.view(batch.copies, batch.length, heads, -1, size)
    if block is not None:
        split = split[:, block.start : block.end]
    split = split.permute(0, 2, 3, 1, 4)
    wide = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    room = None if name is None or wide != x.dtype else plan.spare(name, split.shape, x)
    if room is None:
        room = torch.empty(split.shape, dtype=wide)
    return room.copy_(split).view(batch.copies * heads, -1, size)


def _by_token(
    x: torch.Tensor, batch: Batch, heads: int, out: torch.Tensor, block: _Block | None = None
) -> None:
    """Write `[S heads, G n, D]` to `[S n, heads G, D]`, or to a block of each sequence there."""
    into = out.view(batch.copies, batch.length, heads, -1, x.shape[2])
    if block is not None:
        into = into[:, block.start : block.end]
    into.copy_(x.view(batch.copies, heads, -1, into.shape[1], x.shape[2]).permute(0, 3, 1, 2, 4))
