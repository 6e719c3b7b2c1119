"""Causal attention over sequences that lie one after the other in a row, without padding: what training
uses.

Shape letters: T tokens of the row, n tokens of one sequence, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from .plan import Plan


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
    starts = plan.cu_seqlens
    lengths = [end - start for start, end in zip(starts[:-1], starts[1:], strict=True)]
    grouped = q_thd.shape[1] != k_tkd.shape[1]
    # Sequences of one length are one batch; others are split, which autograd undoes in one step.
    count = len(lengths) if len(set(lengths)) == 1 else 1
    pieces = [lengths[0] * count] if count > 1 else lengths
    outs: list[torch.Tensor] = []
    rows = (x.split(pieces) for x in (q_thd, k_tkd, v_tkd))
    for length, parts in zip(lengths, zip(*rows, strict=True), strict=False):
        q, k, v = (x.unflatten(0, (count, length)).transpose(1, 2) for x in parts)
        mask = _window_mask(plan, length, window, q.device) if window and length > window else None
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        outs.append(out.transpose(1, 2).flatten(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _window_mask(plan: Plan, length: int, window: int, device: torch.device) -> torch.Tensor:
    key = ("window", length, window)
    if key not in plan.scratch:
        at = torch.arange(length, device=device)
        back = at[:, None] - at[None, :]
        plan.scratch[key] = (back >= 0) & (back < window)
    mask: torch.Tensor = plan.scratch[key]
    return mask
