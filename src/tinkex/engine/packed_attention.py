"""Causal attention over sequences that lie one after the other in a row, without padding: what training
uses.

On a GPU one kernel does all sequences. On a CPU neighbours of equal length run as one batch, and short ones
by plain products, which is twice as fast there as the fused kernel with its backward pass.

Shape letters: T tokens of the row, n tokens of a sequence, S sequences of one length, H query heads, K
key/value heads, G = H / K, D head size.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from .plan import Plan

SHORT = 128
"""Up to this length plain products win on a CPU."""

CACHED = 1 << 18
"""Scores a batch may have on a CPU, so that they stay in a core's cache from one step to the next."""

FEW = 4
"""How many batches of a row keep their heads and scores in the pass's room; others allocate them."""

_Tensors = tuple[torch.Tensor, ...]


class _Batch(NamedTuple):
    """Neighbouring sequences of one length."""

    start: int
    copies: int
    length: int

    def of(self, *tensors: torch.Tensor) -> _Tensors:
        """The batch's rows of each."""
        rows = self.copies * self.length
        if rows == tensors[0].shape[0]:
            return tensors
        return tuple(x[self.start : self.start + rows] for x in tensors)


def packed_attention(
    plan: Plan,
    layer: int,
    q_thd: torch.Tensor,
    k_tkd: torch.Tensor,
    v_tkd: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Attention within each of the plan's sequences; a window counts the token itself."""
    if q_thd.is_cuda:
        return _on_gpu(plan, q_thd, k_tkd, v_tkd, scaling, window)
    if plan.training:
        out: torch.Tensor = _OnCpu.apply(q_thd, k_tkd, v_tkd, plan, scaling, window)
        return out
    return attend(plan, q_thd, k_tkd, v_tkd, scaling, window)[0]


def attend(
    plan: Plan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    window: int | None,
    layer: int = 0,
) -> tuple[torch.Tensor, list[Any]]:
    """What `packed_attention` gives, and what `attend_backward` needs."""
    if q.is_cuda:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            graph = _on_gpu(plan, leaves[0], leaves[1], leaves[2], scaling, window)
        return graph.detach(), [*leaves, graph]
    out = plan.place((layer, "attended"), q.shape, q)
    kept = []
    for i, batch in enumerate(_batches(plan, q.shape[1])):
        mask = _mask(batch.length, window, q.shape[1] // k.shape[1], q.dtype)
        *given, into = batch.of(q, k, v, out)
        if batch.length <= SHORT:
            kept.append(_short(batch, tuple(given), scaling, mask, into, plan, (layer, i)))
        else:
            kept.append(_long(batch, tuple(given), scaling, mask, into))
    return out, kept


def attend_backward(
    plan: Plan,
    qkv: _Tensors,
    out: torch.Tensor,
    dout: torch.Tensor,
    kept: list[Any],
    scaling: float,
    window: int | None,
    dv: torch.Tensor,
) -> _Tensors:
    """The gradients of q and k, as one tensor or as two; that of v is written to `dv`."""
    if dout.is_cuda:
        *leaves, graph = kept
        dq, dk, found = torch.autograd.grad(graph, leaves, dout)
        dv.copy_(found)
        return dq, dk
    q, k, v = qkv
    heads = q.shape[1]
    dqk = plan.place("dqk", (q.shape[0], heads + k.shape[1], q.shape[2]), q)
    dq, dk = dqk[:, :heads], dqk[:, heads:]
    for batch, one in zip(_batches(plan, heads), kept, strict=True):
        given, grads = batch.of(q, k, v, out, dout), batch.of(dq, dk, dv)
        if batch.length <= SHORT:
            _short_backward(batch, given[3], given[4], one, scaling, grads, plan)
        else:
            mask = _mask(batch.length, window, heads // k.shape[1], q.dtype)
            _long_backward(batch, given[:3], given[3], given[4], one, scaling, mask, grads)
    return (dqk,)


def _on_gpu(
    plan: Plan,
    q_thd: torch.Tensor,
    k_tkd: torch.Tensor,
    v_tkd: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    if q_thd.dtype not in (torch.float16, torch.bfloat16):
        return _one_by_one(plan, q_thd, k_tkd, v_tkd, scaling, window)
    from torch.nn.attention.varlen import varlen_attn

    if "cu_seqlens" not in plan.scratch:
        bounds = torch.tensor(plan.cu_seqlens, dtype=torch.int32, device=q_thd.device)
        plan.scratch["cu_seqlens"] = (bounds, max(b - a for a, b in pairwise(plan.cu_seqlens)))
    bounds, longest = plan.scratch["cu_seqlens"]
    groups = q_thd.shape[1] // k_tkd.shape[1]
    if groups > 1:
        k_tkd, v_tkd = (x.repeat_interleave(groups, dim=1) for x in (k_tkd, v_tkd))
    back = -1 if window is None else window - 1
    out: torch.Tensor = varlen_attn(
        q_thd, k_tkd, v_tkd, bounds, bounds, longest, longest, scale=scaling, window_size=(back, 0)
    )
    return out


def _one_by_one(
    plan: Plan,
    q_thd: torch.Tensor,
    k_tkd: torch.Tensor,
    v_tkd: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Sequence after sequence, for dtypes the GPU's kernel does not know."""
    outs = []
    for start, end in pairwise(plan.cu_seqlens):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (q_thd, k_tkd, v_tkd))
        mask = None
        if window is not None and end - start > window:
            at = torch.arange(end - start, device=q.device)
            back = at[:, None] - at
            mask = (back >= 0) & (back < window)
        one = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        outs.append(one[0].transpose(0, 1))
    return torch.cat(outs)


class _OnCpu(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        plan: Plan,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        out, kept = attend(plan, q_thd, k_tkd, v_tkd, scaling, window)
        ctx.save_for_backward(q_thd, k_tkd, v_tkd, out)
        ctx.kept, ctx.plan, ctx.scaling, ctx.window = kept, plan, scaling, window
        return out

    @staticmethod
    def backward(ctx: Any, dout_thd: torch.Tensor) -> Any:
        q, k, v, out = ctx.saved_tensors
        dv = torch.empty(v.shape, dtype=v.dtype)
        (dqk,) = attend_backward(ctx.plan, (q, k, v), out, dout_thd, ctx.kept, ctx.scaling, ctx.window, dv)
        return *dqk.split([q.shape[1], k.shape[1]], dim=1), dv, None, None, None


def _batches(plan: Plan, heads: int) -> list[_Batch]:
    if "batches" not in plan.scratch:
        found: list[_Batch] = []
        for start, end in pairwise(plan.cu_seqlens):
            last = found[-1] if found else None
            size = (end - start) ** 2 * heads
            if last and last.length == end - start and size * (last.copies + 1) <= CACHED:
                found[-1] = last._replace(copies=last.copies + 1)
            else:
                found.append(_Batch(start, 1, end - start))
        plan.scratch["batches"] = found
    batches: list[_Batch] = plan.scratch["batches"]
    return batches


def _by_head(x: torch.Tensor, batch: _Batch, heads: int, plan: Plan, name: Hashable) -> torch.Tensor:
    """`[S n, heads G, D]` as `[S heads, G n, D]`."""
    size = x.shape[2]
    split = x.view(batch.copies, batch.length, heads, -1, size).permute(0, 2, 3, 1, 4)
    room = None if name is None else plan.spare(name, split.shape, x)
    if room is None:
        return split.reshape(batch.copies * heads, -1, size)
    return room.copy_(split).view(batch.copies * heads, -1, size)


def _by_token(x: torch.Tensor, batch: _Batch, heads: int, out: torch.Tensor) -> None:
    """Write `[S heads, G n, D]` to `[S n, heads G, D]`."""
    size = x.shape[2]
    split = x.view(batch.copies, heads, -1, batch.length, size).permute(0, 3, 1, 2, 4)
    out.view(split.shape).copy_(split)


def _short(
    batch: _Batch,
    given: _Tensors,
    scaling: float,
    mask: torch.Tensor | None,
    out: torch.Tensor,
    plan: Plan,
    where: tuple[int, int],
) -> _Tensors:
    heads = given[1].shape[1]
    few = where[1] < FEW
    q, k, v = (
        _by_head(x, batch, heads, plan, (where, name) if few else None)
        for x, name in zip(given, "qkv", strict=True)
    )
    room = plan.spare((where, "scores"), (*q.shape[:2], batch.length), q) if few else None
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=scaling, out=room)
    probs = torch.softmax(scores, dim=-1, out=scores)
    _by_token(torch.bmm(probs, v, out=plan.spare("heads", q.shape, q)), batch, heads, out)
    return q, k, v, probs


def _short_backward(
    batch: _Batch,
    out: torch.Tensor,
    dout: torch.Tensor,
    kept: _Tensors,
    scaling: float,
    grads: _Tensors,
    plan: Plan,
) -> None:
    q, k, v, probs = kept
    heads = grads[1].shape[1]
    along = torch.mul(out, dout, out=plan.spare("along", out.shape, out)).sum(-1, keepdim=True)
    along = _by_head(along, batch, heads, plan, None)
    dout = _by_head(dout, batch, heads, plan, "heads")
    dscores = torch.bmm(dout, v.transpose(1, 2), out=plan.spare("dscores", probs.shape, q))
    dscores.sub_(along).mul_(probs)
    dv = torch.bmm(probs.transpose(1, 2), dout, out=plan.spare("dv", v.shape, v))
    _by_token(dv, batch, heads, grads[2])
    for left, right, like, name, into in (
        (dscores.transpose(1, 2), q, k, "dv", grads[1]),
        (dscores, k, q, "heads", grads[0]),
    ):
        room = plan.place(name, like.shape, like)
        torch.baddbmm(room, left, right, beta=0, alpha=scaling, out=room)
        _by_token(room, batch, heads, into)


def _repeated(x: torch.Tensor, batch: _Batch, heads: int) -> torch.Tensor:
    """`[S n, K, D]` as `[S, heads, n, D]`."""
    x = x.view(batch.copies, batch.length, *x.shape[1:]).transpose(1, 2)
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _long(
    batch: _Batch, given: _Tensors, scaling: float, mask: torch.Tensor | None, out: torch.Tensor
) -> _Tensors:
    q, k, v = (_repeated(x, batch, given[0].shape[1]) for x in given)
    attended, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, mask is None, attn_mask=mask, scale=scaling
    )
    out.view(batch.copies, batch.length, *out.shape[1:]).copy_(attended.transpose(1, 2))
    return (lse,)


def _long_backward(
    batch: _Batch,
    given: _Tensors,
    out: torch.Tensor,
    dout: torch.Tensor,
    kept: _Tensors,
    scaling: float,
    mask: torch.Tensor | None,
    grads: _Tensors,
) -> None:
    (lse,) = kept
    q, k, v, out, dout = (_repeated(x, batch, given[0].shape[1]) for x in (*given, out, dout))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dout, q, k, v, out, lse, 0.0, mask is None, attn_mask=mask, scale=scaling
    )
    for x, into in zip(found, grads, strict=True):
        each = x.transpose(1, 2)
        place = into.view(batch.copies, batch.length, *into.shape[1:])
        if each.shape == place.shape:
            place.copy_(each)
        else:
            torch.sum(each.unflatten(2, (into.shape[1], -1)), dim=3, out=place)


def _mask(length: int, window: int | None, groups: int, dtype: torch.dtype) -> torch.Tensor | None:
    """What is added to the scores; None where the fused kernel's own causal mask is all there is."""
    if window is not None and length <= window:
        window = None
    if length <= SHORT:
        return _hidden_future(length, window, groups, dtype)
    return None if window is None else _hidden_future(length, window, 1, dtype)


@lru_cache(maxsize=256)
def _hidden_future(length: int, window: int | None, groups: int, dtype: torch.dtype) -> torch.Tensor:
    # Made once for all passes, so never as a tensor that only inference may touch.
    with torch.inference_mode(False):
        at = torch.arange(length)
        back = at[:, None] - at[None, :]
        hidden = (back < 0) if window is None else (back < 0) | (back >= window)
        return (
            torch.zeros(length, length, dtype=dtype).masked_fill_(hidden, float("-inf")).repeat(groups, 1)
        )
