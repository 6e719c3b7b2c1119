"""Zeros where A's products are not of a token's own adapter, most of them written without a reading."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .early_start import early, wait_for_previous

_ROWS, _COLUMNS = 64, 32


@triton.jit
def _keep_own(
    low, spans, tokens, owners, stride, ranks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # Beyond the last token the last one is written again; masks would make many small stores of few large.
    rows = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), tokens - 1).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    owner = rows % owners
    begin = tl.load(spans + owner * 2)[:, None]
    end = tl.load(spans + owner * 2 + 1)[:, None]
    rank = (at % ranks)[None, :]
    own = ((rank >= begin) & (rank < end)).to(tl.int32)
    some, whole = tl.max(tl.max(own, 1), 0), tl.min(tl.min(own, 1), 0)
    spot = low + rows[:, None] * stride + at[None, :]
    if EARLY:
        wait_for_previous()
    if some == 0:
        tl.store(spot, tl.zeros((ROWS, COLUMNS), low.dtype.element_ty))
    elif whole == 0:
        tl.store(spot, tl.where(own != 0, tl.load(spot), 0.0).to(low.dtype.element_ty))


def keep_own(low: torch.Tensor, spans: torch.Tensor, ranks: int) -> None:
    """Overwrite the products `[T, M R]` of ranks outside each token's span; R is a multiple of 32.

    There may be several times as many rows as spans, one such matrix below the other.
    """
    tokens, columns = low.shape
    _keep_own[(triton.cdiv(tokens, _ROWS), columns // _COLUMNS)](
        low, spans, tokens, len(spans), low.stride(0), ranks,
        ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4, **early(),
    )  # fmt: skip
