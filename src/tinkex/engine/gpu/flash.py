"""The framework's fused attention over packed sequences, and where these begin and end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch

from ..paged_attention import PagedBatch
from ..plan import Plan


class Spans(NamedTuple):
    """Where sequences begin and end among queries and among keys."""

    q: torch.Tensor
    k: torch.Tensor
    longest_q: int
    longest_k: int


def sequence_spans(plan: Plan) -> Spans:
    """The bounds of a pass's sequences."""
    if "spans" not in plan.scratch:
        device = plan.anchor.device if plan.anchor is not None else "cuda"
        bounds = torch.tensor(plan.cu_seqlens, dtype=torch.int32).to(device, non_blocking=True)
        longest = max(b - a for a, b in pairwise(plan.cu_seqlens))
        plan.scratch["spans"] = Spans(bounds, bounds, longest, longest)
    found: Spans = plan.scratch["spans"]
    return found


def prompt_contexts(plan: Plan, paged: PagedBatch) -> tuple[torch.Tensor, Spans]:
    """Where the keys of all prompt pieces lie, one piece after the other, and their bounds."""
    if "contexts" not in plan.scratch:
        places, q_ends, k_ends = [], [0], [0]
        for piece in paged.pieces:
            count = piece.end - piece.start
            own = paged.places_t[piece.start : piece.end]
            places.append(own if piece.places_m is None else piece.places_m)
            q_ends.append(q_ends[-1] + count)
            k_ends.append(k_ends[-1] + piece.before + count)
        device = paged.places_t.device
        ends = torch.tensor([q_ends, k_ends], dtype=torch.int32).to(device, non_blocking=True)
        longest = [max(b - a for a, b in pairwise(e)) for e in (q_ends, k_ends)]
        joined = places[0] if len(places) == 1 else torch.cat(places)
        plan.scratch["contexts"] = (joined, Spans(ends[0], ends[1], *longest))
    found: tuple[torch.Tensor, Spans] = plan.scratch["contexts"]
    return found


def block_table(plan: Plan, paged: PagedBatch) -> torch.Tensor:
    """The block table of decoded rows."""
    if paged.blocks_rw is not None:
        return paged.blocks_rw
    if "blocks" not in plan.scratch:
        assert paged.table_rl is not None
        size = paged.cache.block_size
        plan.scratch["blocks"] = (paged.table_rl[:, ::size] // size).contiguous()
    found: torch.Tensor = plan.scratch["blocks"]
    return found


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, scaling: float, window: int | None
) -> tuple[torch.Tensor, ...]:
    """Attention within each sequence, queries at the end of their keys; and what `flash_backward` needs."""
    out, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, spans.q, spans.k, spans.longest_q, spans.longest_k, 0.0, True, False, scale=scaling,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
    )  # fmt: skip
    return out, lse, seed, offset


def flash_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    kept: tuple[Any, ...],
    spans: Spans,
    scaling: float,
    window: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v."""
    lse, seed, offset = kept
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        dout, q, k, v, out, lse, spans.q, spans.k, spans.longest_q, spans.longest_k, 0.0, True,
        seed, offset,
        scale=scaling,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
    )  # fmt: skip
    return dq, dk, dv
