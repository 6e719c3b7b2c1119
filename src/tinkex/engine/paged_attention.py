"""Causal attention over paged keys and values: what sampling uses.

A pass's row of T tokens begins with one token for each decoded row; after them come pieces of prompts
(`Piece`). Decoded rows read their keys from dense rows where those are kept (on a CPU), and gather them
from the pool elsewhere. A window counts the token itself.

Shape letters: T tokens of the pass, R decoded rows, L longest context among them, n tokens of a piece, m
its context with itself, H query heads, K key/value heads, G = H / K, X = R * K, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from .kv_cache import DenseRows, KvCache
from .plan import Plan

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `start` to `end` of the pass continue a prompt of which `before` tokens are in the cache."""

    start: int
    end: int
    before: int
    places_m: torch.Tensor | None
    """Where the whole context lies, with the piece itself; None when nothing comes before it."""


@dataclass(slots=True)
class PagedBatch:
    """What attention must know about a sampling pass."""

    cache: KvCache
    places_t: torch.Tensor
    rows: int = 0
    positions_r: torch.Tensor | None = None
    """Each decoded row's position, on the device."""
    shortest: int = 0
    longest: int = 0
    """The least and greatest context length among decoded rows, the new token counted."""
    table_rl: torch.Tensor | None = None
    """Where each row's context lies in the pool; None when dense rows hold it."""
    blocks_rw: torch.Tensor | None = None
    """The blocks of each row's context, where a recorded graph reads them."""
    dense: DenseRows | None = None
    targets: torch.Tensor | None = None
    pieces: tuple[Piece, ...] = ()
    reads_prompts: bool = False
    """Whether all tokens after the decoded rows are prompts whose bounds are on the device alone."""
    plain: bool = False
    """Decode by plain products: a fused kernel may round a row otherwise at another place in the batch."""


def paged_attention(
    plan: Plan,
    layer: int,
    q_thd: torch.Tensor,
    k_tkd: torch.Tensor,
    v_tkd: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of every token to its own context, the pass's tokens stored on the way."""
    batch: PagedBatch = plan.paged
    batch.cache.write(layer, batch.places_t, k_tkd, v_tkd)
    outs: list[torch.Tensor] = []
    if batch.rows:
        rows = slice(0, batch.rows)
        outs.append(_decode(plan, batch, layer, q_thd[rows], k_tkd[rows], v_tkd[rows], scaling, window))
    for piece in batch.pieces:
        span = slice(piece.start, piece.end)
        outs.append(
            _piece(plan, batch, piece, layer, q_thd[span], k_tkd[span], v_tkd[span], scaling, window)
        )
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _decode(
    plan: Plan,
    batch: PagedBatch,
    layer: int,
    q_rhd: torch.Tensor,
    k_rkd: torch.Tensor,
    v_rkd: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    rows, heads, size = q_rhd.shape
    kv_heads = k_rkd.shape[1]
    # Keys that every row's window has passed are not read at all.
    first = max(0, batch.shortest - window) if window else 0
    if batch.dense is not None:
        assert batch.targets is not None
        batch.dense.write(layer, batch.targets, k_rkd, v_rkd)
        k_rkld = batch.dense.k_yskn[layer][:rows, :, first : batch.longest]
        v_rkld = batch.dense.v_yskn[layer][:rows, :, first : batch.longest]
    else:
        assert batch.table_rl is not None
        k_rlkd, v_rlkd = batch.cache.read(layer, batch.table_rl[:, first:])
        k_rkld, v_rkld = k_rlkd.transpose(1, 2), v_rlkd.transpose(1, 2)
    mask_rl = _decode_mask(plan, batch, first, window)
    if batch.plain or (batch.dense is not None and q_rhd.dtype == torch.float32):
        # Two batched products: on a CPU also faster than the fused kernel at one token a row.
        q_xgd = (q_rhd * scaling).view(rows * kv_heads, -1, size)
        scores_xgl = torch.bmm(q_xgd, k_rkld.flatten(0, 1).transpose(1, 2)).float()
        if mask_rl is not None:
            scores_xgl.view(rows, -1, scores_xgl.shape[-1]).add_(mask_rl[:, None])
        weights_xgl = torch.softmax(scores_xgl, -1).to(v_rkd.dtype)
        return torch.bmm(weights_xgl, v_rkld.flatten(0, 1)).view(rows, heads, size)
    # The query heads of a group stand where several tokens of a sequence would: no key is repeated.
    out_rkgd = functional.scaled_dot_product_attention(
        q_rhd.reshape(rows, kv_heads, -1, size),
        k_rkld,
        v_rkld,
        attn_mask=None if mask_rl is None else mask_rl[:, None, None].to(q_rhd.dtype),
        scale=scaling,
    )
    return out_rkgd.reshape(rows, heads, size)


def _decode_mask(plan: Plan, batch: PagedBatch, first: int, window: int | None) -> torch.Tensor | None:
    windowed = window is not None and batch.longest > window
    columns = batch.longest if batch.table_rl is None else batch.table_rl.shape[1]
    if batch.shortest == columns and (not windowed or batch.shortest == batch.longest):
        return None
    key = ("decode", first, window if windowed else None)
    if key not in plan.scratch:
        assert batch.positions_r is not None
        at_l = torch.arange(first, columns, device=batch.positions_r.device)
        position_r1 = batch.positions_r[:, None]
        hidden = at_l > position_r1
        if windowed:
            assert window is not None
            hidden |= at_l <= position_r1 - window
        plan.scratch[key] = torch.where(hidden, _NEVER, 0.0)
    mask: torch.Tensor = plan.scratch[key]
    return mask


def _piece(
    plan: Plan,
    batch: PagedBatch,
    piece: Piece,
    layer: int,
    q_nhd: torch.Tensor,
    k_nkd: torch.Tensor,
    v_nkd: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    if piece.places_m is not None:
        k_mkd, v_mkd = batch.cache.read(layer, piece.places_m)
    else:
        k_mkd, v_mkd = k_nkd, v_nkd
    length = piece.before + piece.end - piece.start
    windowed = window if window is not None and length > window else None
    mask = None
    if piece.before or windowed:
        mask = _piece_mask(plan, piece, windowed, q_nhd.device)
    out_hnd = functional.scaled_dot_product_attention(
        q_nhd.transpose(0, 1)[None],
        k_mkd.transpose(0, 1)[None],
        v_mkd.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=q_nhd.shape[1] != k_nkd.shape[1],
    )
    return out_hnd[0].transpose(0, 1)


def _piece_mask(plan: Plan, piece: Piece, window: int | None, device: torch.device) -> torch.Tensor:
    key = ("piece", piece.start, window)
    if key not in plan.scratch:
        count = piece.end - piece.start
        at_n1 = torch.arange(piece.before, piece.before + count, device=device)[:, None]
        back_nm = at_n1 - torch.arange(piece.before + count, device=device)
        plan.scratch[key] = (back_nm >= 0) if window is None else (back_nm >= 0) & (back_nm < window)
    mask: torch.Tensor = plan.scratch[key]
    return mask
