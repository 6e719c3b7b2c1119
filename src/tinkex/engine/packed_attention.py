"""Causal attention over sequences that lie one after the other in a row, without padding: what training
uses.

On a GPU one kernel does all sequences. On a CPU neighbours of equal length run as one batch, by plain
products of blocks of queries with the keys they see (`query_blocks`).

Shape letters: T tokens of the row, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from .plan import Plan
from .query_blocks import Batch, attend_batch, batch_backward

CACHED = 1 << 18
"""Scores a batch may have on a CPU, so that they stay in a core's cache from one step to the next."""

_Tensors = tuple[torch.Tensor, ...]


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
    return attend(plan, q_thd, k_tkd, v_tkd, scaling, window, keep=False)[0]


def attend(
    plan: Plan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    window: int | None,
    layer: int = 0,
    keep: bool = True,
) -> tuple[torch.Tensor, list[Any]]:
    """What `packed_attention` gives, and, where it is to be kept, what `attend_backward` needs."""
    if q.is_cuda:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            graph = _on_gpu(plan, leaves[0], leaves[1], leaves[2], scaling, window)
        return graph.detach(), [*leaves, graph]
    out = plan.place((layer, "attended"), q.shape, q)
    kept = []
    for i, batch in enumerate(_batches(plan, q.shape[1])):
        *given, into = batch.of(q, k, v, out)
        where = (layer, i) if keep else None
        kept.append(attend_batch(batch, (given[0], given[1], given[2]), into, scaling, window, plan, where))
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
    q, k, _ = qkv
    heads = q.shape[1]
    dqk = plan.place("dqk", (q.shape[0], heads + k.shape[1], q.shape[2]), q)
    dq, dk = dqk[:, :heads], dqk[:, heads:]
    for batch, one in zip(_batches(plan, heads), kept, strict=True):
        x, dx = batch.of(out, dout)
        into = batch.of(dq, dk, dv)
        batch_backward(batch, x, dx, one, (into[0], into[1], into[2]), scaling, plan)
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


def _batches(plan: Plan, heads: int) -> list[Batch]:
    if "batches" not in plan.scratch:
        found: list[Batch] = []
        for start, end in pairwise(plan.cu_seqlens):
            last = found[-1] if found else None
            size = (end - start) ** 2 * heads
            if last and last.length == end - start and size * (last.copies + 1) <= CACHED:
                found[-1] = last._replace(copies=last.copies + 1)
            else:
                found.append(Batch(start, 1, end - start))
        plan.scratch["batches"] = found
    batches: list[Batch] = plan.scratch["batches"]
    return batches
