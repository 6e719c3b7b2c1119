"""Which ranks the tokens of a program use: other adapters' are zeros and need not be read."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def own_ranks(spans, rows, inside, ranks, MIXED: tl.constexpr, STEP: tl.constexpr):
    """The first (rounded down to a step) and the end of the ranks of some tokens."""
    first, end = 0, ranks
    if MIXED:
        begins = tl.load(spans + rows * 2, mask=inside, other=1 << 20)
        ends = tl.load(spans + rows * 2 + 1, mask=inside, other=0)
        first = tl.min(tl.where(ends > 0, begins, 1 << 20), 0) // STEP * STEP
        end = tl.max(ends, 0)
    return first, end
