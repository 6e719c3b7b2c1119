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
    grouped = q_thd.shape[1] != k_tkd.shape[1]
    outs: list[torch.Tensor] = []
    for start, end in plan.spans:
        q_hnd, k_knd, v_knd = (x[start:end].transpose(0, 1).unsqueeze(0) for x in (q_thd, k_tkd, v_tkd))
        mask = None
        if window is not None and end - start > window:
            mask = _window_mask(plan, end - start, window, q_thd.device)
        out = functional.scaled_dot_product_attention(
            q_hnd, k_knd, v_knd, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        outs.append(out[0].transpose(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _window_mask(plan: Plan, length: int, window: int, device: torch.device) -> torch.Tensor:
    key = ("window", length, window)
    if key not in plan.scratch:
        at = torch.arange(length, device=device)
        back = at[:, None] - at[None, :]
        plan.scratch[key] = (back >= 0) & (back < window)
    mask: torch.Tensor = plan.scratch[key]
    return mask
