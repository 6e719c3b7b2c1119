"""Kernels that are launched while the one before them still runs.

A launch otherwise begins when the last one has ended and its results are in memory. A kernel started early
asks for what does not change during a pass (weights, adapters, where things lie), then waits for the kernel
before it, and only then reads what that one wrote. All programs wait, so whatever came earlier has ended
as well. Some let the next one start before they wait themselves, and a pass of few tokens is a chain of
such kernels: what is read before a wait must be older than the pass's first layer.
"""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents as let_next_start
from triton.language.extra.cuda import gdc_wait as wait_for_previous

__all__ = ["ask_for", "early", "let_next_start", "wait_for_previous"]

LINE = tl.constexpr(128)
"""Bytes that come together."""


@triton.jit
def ask_for(address, wanted):
    """Have the lines at some addresses brought near, without waiting for them."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
        "=r,l,r",
        [address, wanted.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@functools.cache
def early() -> dict[str, Any]:
    """How to launch a kernel that has an `EARLY` way to begin."""
    if triton.knobs.runtime.interpret:
        return {"EARLY": False}
    target = triton.runtime.driver.active.get_current_target()
    if target.backend == "cuda" and target.arch >= 90:
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}
