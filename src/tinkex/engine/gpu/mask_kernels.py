"""Zeros where A's products are not of a token's own adapter, written without reading what is there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _COLUMNS = 64, 128


@triton.jit
def _keep_own(low, spans, tokens, columns, stride, ranks, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = rows < tokens
    begin = tl.load(spans + rows * 2, mask=inside, other=0)[:, None]
    end = tl.load(spans + rows * 2 + 1, mask=inside, other=0)[:, None]
    rank = (at % ranks)[None, :]
    foreign = ((rank < begin) | (rank >= end)) & inside[:, None] & (at < columns)[None, :]
    zeros = tl.zeros((ROWS, COLUMNS), low.dtype.element_ty)
    tl.store(low + rows[:, None] * stride + at[None, :], zeros, mask=foreign)


def keep_own(low: torch.Tensor, spans: torch.Tensor, ranks: int) -> None:
    """Overwrite the products `[T, M R]` of ranks outside each token's span; rows may lie apart."""
    tokens, columns = low.shape
    _keep_own[(triton.cdiv(tokens, _ROWS), triton.cdiv(columns, _COLUMNS))](
        low, spans, tokens, columns, low.stride(0), ranks, ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4
    )
