"""One token a row, drawn in two launches: masses of chunks of the vocabulary, then the chunk and the token.

The same draw as `sampling_math.pick`: a number in [0, 1) is looked up in running sums, and a token without
mass is never found. Logits are read once, and those of the chosen chunk once more. Rows with top-k or top-p
are drawn by `narrow_kernels`. Products with inverse temperatures are rounded before anything is subtracted
(no fused multiply-add): the highest one must be exactly the highest.

Shape letters: R rows, V vocabulary, N chunks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .early_start import early, let_next_start, wait_for_previous
from .narrow_kernels import NEVER, draw_narrowed, first

_CHUNK = 1024


@triton.jit
def _masses(
    logits, inverse, highest, total, vocab, stride,
    WARM: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        let_next_start()
        wait_for_previous()
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    value = tl.load(logits + row * stride + at, mask=at < vocab, other=float("-inf"))
    if WARM:
        value *= tl.load(inverse + row)
    top = tl.max(value, 0)
    # A chunk of impossible tokens: 0 is as good a reference as any and makes no NaN.
    top = tl.where(top == float("-inf"), 0.0, top)
    slot = row * tl.num_programs(1) + chunk
    tl.store(highest + slot, top)
    tl.store(total + slot, tl.sum(tl.exp(value - top), 0))


@triton.jit
def _search(mass, at, share):
    """Where the running sum first exceeds a share of the whole, and how far into what lies there."""
    ends = tl.cumsum(mass, 0)
    target = share * tl.max(ends, 0)
    found = first((ends > target) & (mass > 0), at)
    # Rounding may leave the target at the very end.
    found = tl.where(found == NEVER, tl.max(tl.where(mass > 0, at, 0), 0), found)
    here = at == found
    own = tl.sum(tl.where(here, mass, 0.0), 0)
    into = (target - (tl.sum(tl.where(here, ends, 0.0), 0) - own)) / own
    return found, tl.minimum(tl.maximum(into, 0.0), 1.0)


@triton.jit
def _choose(
    logits, inverse, greedy, numbers, highest, total, tokens, logprobs, tops_r, wholes_r,
    vocab, stride, number_stride, chunks,
    WARM: tl.constexpr, DRAWN: tl.constexpr, GREEDY: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    n, at = tl.arange(0, CHUNKS), tl.arange(0, CHUNK)
    tops = tl.load(highest + row * chunks + n, mask=n < chunks, other=float("-inf"))
    sums = tl.load(total + row * chunks + n, mask=n < chunks, other=0.0)
    possible = sums > 0
    top = tl.max(tl.where(possible, tops, float("-inf")), 0)
    mass = tl.where(possible, sums * tl.exp(tops - top), 0.0).to(tl.float64)
    chunk = first((tops == top) & possible, n)
    likeliest, into = True, 0.0
    if DRAWN:
        drawn, into = _search(mass, n, tl.load(numbers + row * number_stride))
        likeliest = False
        if GREEDY:
            likeliest = tl.load(greedy + row) != 0
        chunk = tl.where(likeliest, chunk, drawn)
    chunk = tl.minimum(chunk, chunks - 1)
    inside = chunk * CHUNK + at < vocab
    value = tl.load(logits + row * stride + chunk * CHUNK + at, mask=inside, other=float("-inf"))
    if WARM:
        value *= tl.load(inverse + row)
    token = first((value == top) & inside, at)
    if DRAWN:
        own = tl.exp(value - tl.sum(tl.where(n == chunk, tops, 0.0), 0))
        drawn, _ = _search(own.to(tl.float64), at, into)
        token = tl.where(likeliest, token, drawn)
    token = tl.minimum(token, CHUNK - 1)
    score = tl.sum(tl.where(at == token, value, 0.0), 0)
    tl.store(tokens + row, tl.minimum(chunk * CHUNK + token, vocab - 1).to(tl.int64))
    whole = tl.log(tl.sum(mass, 0)).to(tl.float32)
    tl.store(logprobs + row, score - top - whole)
    tl.store(tops_r + row, top)
    tl.store(wholes_r + row, whole)


def draw_tokens(
    logits_rv: torch.Tensor,
    u_r: torch.Tensor | None,
    inverse_temperature_r1: torch.Tensor | None = None,
    greedy_r: torch.Tensor | None = None,
    narrow: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token a row and its logprob in the tempered distribution.

    Without `u_r` all rows take the likeliest token. `narrow` is which rows have top-k or top-p, and these.
    """
    rows, vocab = logits_rv.shape
    chunks = triton.cdiv(vocab, _CHUNK)
    device = logits_rv.device
    highest, total = torch.empty(2, rows, chunks, dtype=torch.float32, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    logprobs, tops, wholes = torch.empty(3, rows, dtype=torch.float32, device=device)
    warm, drawn, greedy = (x is not None for x in (inverse_temperature_r1, u_r, greedy_r))
    inverse = inverse_temperature_r1 if warm else highest
    stride = logits_rv.stride(0)
    _masses[(rows, chunks)](
        logits_rv, inverse, highest, total, vocab, stride,
        WARM=warm, CHUNK=_CHUNK, num_warps=4, enable_fp_fusion=False, **early(),
    )  # fmt: skip
    _choose[(rows,)](
        logits_rv, inverse, greedy_r if greedy else highest, u_r if drawn else highest,
        highest, total, tokens, logprobs, tops, wholes,
        vocab, stride, u_r.stride(0) if drawn else 0, chunks,
        WARM=warm, DRAWN=drawn, GREEDY=greedy,
        CHUNK=_CHUNK, CHUNKS=triton.next_power_of_2(chunks), num_warps=4, enable_fp_fusion=False,
        **early(),
    )  # fmt: skip
    if narrow is not None and u_r is not None:
        draw_narrowed(logits_rv, u_r, inverse_temperature_r1, narrow, tops, wholes, tokens, logprobs)
    return tokens, logprobs
