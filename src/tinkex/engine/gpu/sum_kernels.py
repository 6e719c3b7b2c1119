"""Many additions of one tensor to another in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from ..sending import sent

_PIECES, _BLOCK = 32, 2048


@triton.jit
def _add_all(table, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    at = table + tl.program_id(0) * 4
    into = tl.load(at).to(tl.pointer_type(tl.float32))
    given = tl.load(at + 1).to(tl.pointer_type(tl.float32))
    count = tl.load(at + 2)
    scale = tl.load(at + 3).to(tl.float64, bitcast=True).to(tl.float32)
    each = tl.cdiv(tl.cdiv(count, PIECES), BLOCK) * BLOCK
    first = tl.program_id(1) * each
    for here in range(first, tl.minimum(first + each, count), BLOCK):
        n = here + tl.arange(0, BLOCK)
        inside = n < count
        total = tl.load(into + n, mask=inside, other=0.0)
        tl.store(into + n, total + tl.load(given + n, mask=inside, other=0.0) * scale, mask=inside)


def add_all(additions: Sequence[tuple[torch.Tensor, torch.Tensor, float]]) -> None:
    """Add to each first tensor the second times the number, all of float32 and in one piece."""
    table = np.array(
        [(into.data_ptr(), given.data_ptr(), into.numel(), 0) for into, given, _ in additions], np.int64
    )
    table[:, 3] = np.array([scale for *_, scale in additions], np.float64).view(np.int64)
    rows = sent(table, additions[0][0].device)
    _add_all[(len(table), _PIECES)](rows, PIECES=_PIECES, BLOCK=_BLOCK, num_warps=4)
