"""From logits to tokens: temperature, top-k, top-p, greedy, and the logprobs that go with them.

A token's randomness is one number, a hash of (seed, sample index, position), so it depends on nothing else
that runs. The number picks the token by inverting the cumulative distribution. Top-k keeps the k
likeliest tokens; top-p then keeps the smallest set of what is left whose share reaches p; both only narrow
the choice. Logprobs are those of the whole tempered distribution (greedy rows: temperature 1), or at
temperature 1 for rows that ask for raw ones.

Shape letters: R rows, V vocabulary, k draws a row, C tokens of a chunk of the vocabulary, N chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from .sending import sent

TOKEN, PROMPT = 1, 2
"""What a number is drawn for: a sampled token, or an alternative to a prompt token."""

Narrow: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Which rows have top-k or top-p, and their k and p."""
FastDraw: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, Narrow | None],
    tuple[torch.Tensor, torch.Tensor],
]
"""Tokens and logprobs of logits, numbers, inverse temperatures, greedy and narrowed rows."""

COLDEST = 1e-30
"""Temperatures below it draw what this one does: logits divided by it are still finite."""
_BELOW_ONE = 1.0 - 2.0**-50
_SMALL = 1 << 16
_FEW = 256


def uniforms(
    seeds: npt.NDArray[np.uint64],
    indices: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.uint64],
    purpose: int = TOKEN,
) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), each a function of its (seed, sample index, position) and the purpose alone."""
    x = _mix(seeds + np.uint64(0x9E3779B97F4A7C15 * purpose & 0xFFFFFFFFFFFFFFFF))
    x = _mix(x ^ _mix(indices + np.uint64(0xD1B54A32D192ED03)))
    x = _mix(x ^ _mix(positions + np.uint64(0x8CB92BA72F3D8DD7)))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64 bits in which every input bit changes half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class DrawParams:
    """The per-row parameters of a batch, as tensors; made once and used while the batch stays the same."""

    rows: int
    inverse_temperature_r1: torch.Tensor | None
    """None when every row has temperature 1 (or is greedy)."""
    greedy_r: torch.Tensor | None
    all_greedy: bool
    narrowed: tuple[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor], ...]
    """(width, rows, top-k, top-p) of the rows with top-k or top-p, grouped by how many tokens to sort."""
    narrow: Narrow | None
    """The same rows in one group."""
    raw_rows: torch.Tensor | None
    top: int
    """How many of the likeliest tokens to report."""

    @classmethod
    def of(
        cls,
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        *,
        vocab: int,
        raw: Sequence[bool] = (),
        top: int = 0,
        device: torch.device | str = "cpu",
    ) -> DrawParams:
        """Lay out one value a row of each parameter."""
        t_r = np.asarray(temperature, np.float64)
        greedy = t_r <= 0.0
        k_r = np.asarray(top_k, np.int64)
        k_r = np.where((k_r <= 0) | (k_r > vocab), vocab, k_r)
        p_r = np.asarray(top_p, np.float64)
        inverse = np.where(greedy, 1.0, 1.0 / np.maximum(t_r, COLDEST)).astype(np.float32)
        narrowed = []
        narrow = ~greedy & ((k_r < vocab) | (p_r < 1.0))
        chosen = np.flatnonzero(narrow)
        for width in np.unique(k_r[narrow]).tolist():
            rows = np.flatnonzero(narrow & (k_r == width))
            narrowed.append(
                (
                    int(width),
                    sent(rows, device),
                    sent(k_r[rows], device),
                    sent(p_r[rows], device),
                )
            )
        raw_rows = np.flatnonzero(np.asarray(raw, bool) & (inverse != 1.0)) if len(raw) else np.empty(0)
        return cls(
            rows=len(t_r),
            inverse_temperature_r1=(sent(inverse[:, None], device) if (inverse != 1.0).any() else None),
            greedy_r=sent(greedy, device) if greedy.any() else None,
            all_greedy=bool(greedy.all()),
            narrowed=tuple(narrowed),
            narrow=(
                (sent(chosen, device), sent(k_r[chosen], device), sent(p_r[chosen], device))
                if chosen.size
                else None
            ),
            raw_rows=sent(raw_rows, device) if raw_rows.size else None,
            top=top,
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token a row, its logprob, and the likeliest tokens if asked for."""

    tokens_r: torch.Tensor
    logprobs_r: torch.Tensor
    top_tokens_rk: torch.Tensor | None = None
    top_logprobs_rk: torch.Tensor | None = None


def draw(
    logits_rv: torch.Tensor, params: DrawParams, u_r: torch.Tensor | None, fast: FastDraw | None = None
) -> Drawn:
    """Choose one token a row; `u_r` (float64) may be None when every row is greedy."""
    logits_rv = logits_rv.float()
    inverse = params.inverse_temperature_r1
    if fast is not None:
        tokens_r, logprobs_r = fast(logits_rv, u_r, inverse, params.greedy_r, params.narrow)
        if params.top:
            scores_rv = torch.log_softmax(logits_rv if inverse is None else logits_rv * inverse, -1)
    elif params.all_greedy:
        scores_rv = torch.log_softmax(logits_rv, -1)
        logprobs_r, tokens_r = scores_rv.max(-1)
    else:
        assert u_r is not None
        scores_rv = torch.log_softmax(logits_rv if inverse is None else logits_rv * inverse, -1)
        mass_rv = scores_rv.exp()
        tokens_r = pick(mass_rv, u_r[:, None])[:, 0]
        for width, rows, k_n, p_n in params.narrowed:
            tokens_r[rows] = pick_narrowed(mass_rv[rows], width, k_n, p_n, u_r[rows])
        if params.greedy_r is not None:
            tokens_r = torch.where(params.greedy_r, scores_rv.argmax(-1), tokens_r)
        logprobs_r = scores_rv.gather(1, tokens_r[:, None])[:, 0]
    if params.raw_rows is not None:
        rows = params.raw_rows
        raw_nv = torch.log_softmax(logits_rv[rows], -1)
        logprobs_r[rows] = raw_nv.gather(1, tokens_r[rows][:, None])[:, 0]
        if params.top:
            scores_rv[rows] = raw_nv
    if not params.top:
        return Drawn(tokens_r, logprobs_r)
    values_rk, ids_rk = scores_rv.topk(min(params.top, scores_rv.shape[-1]), dim=-1)
    return Drawn(tokens_r, logprobs_r, ids_rk, values_rk)


def pick(mass_rv: torch.Tensor, u_rk: torch.Tensor) -> torch.Tensor:
    """Tokens `[R, k]` drawn in proportion to unnormalised masses.

    Every search ends at the first running sum above its target, which is never a token without mass (masses
    that are not finite give some token of the vocabulary).
    """
    rows, vocab = mass_rv.shape
    if rows * vocab <= _SMALL:
        ends_rv = mass_rv.cumsum(-1, dtype=torch.float64)
        target_rk = u_rk.clamp(max=_BELOW_ONE) * ends_rv[:, -1:]
        return torch.searchsorted(ends_rv, target_rk, right=True).clamp_(max=vocab - 1)
    size = _chunk(vocab)
    if vocab % size:
        mass_rv = torch.nn.functional.pad(mass_rv, (0, size - vocab % size))
    mass_rnc = mass_rv.view(rows, -1, size)
    # Two levels: the chunk by the running sum of chunk sums, then the token by the running sum inside it.
    sums_rn = mass_rnc.sum(-1).double()
    ends_rn = sums_rn.cumsum(-1)
    target_rk = u_rk.clamp(max=_BELOW_ONE) * ends_rn[:, -1:]
    chunk_rk = torch.searchsorted(ends_rn, target_rk, right=True).clamp_(max=ends_rn.shape[1] - 1)
    sum_rk = sums_rn.gather(1, chunk_rk)
    share_rk = (target_rk - (ends_rn.gather(1, chunk_rk) - sum_rk)) / sum_rk
    inside_rkc = mass_rnc.gather(1, chunk_rk[:, :, None].expand(-1, -1, size)).double().cumsum(-1)
    target_rk1 = share_rk.clamp(0.0, _BELOW_ONE)[:, :, None] * inside_rkc[:, :, -1:]
    token_rk = torch.searchsorted(inside_rkc, target_rk1, right=True)[:, :, 0]
    return (chunk_rk * size + token_rk).clamp_(max=vocab - 1)


def pick_narrowed(
    mass_rv: torch.Tensor, width: int, k_r: torch.Tensor, p_r: torch.Tensor, u_r: torch.Tensor
) -> torch.Tensor:
    """One token a row among those that top-k and top-p leave, drawn in proportion to their masses."""
    if width == mass_rv.shape[1] > _FEW and mass_rv.device.type == "cpu":
        return _pick_among_few(mass_rv, p_r, u_r)
    return _pick_kept(*narrow(mass_rv, width, k_r, p_r), u_r)


def _pick_kept(kept_rw: torch.Tensor, ids_rw: torch.Tensor, u_r: torch.Tensor) -> torch.Tensor:
    ends_rw = kept_rw.cumsum(-1)
    target_r1 = u_r.clamp(max=_BELOW_ONE)[:, None] * ends_rw[:, -1:]
    at_r1 = torch.searchsorted(ends_rw, target_r1, right=True).clamp_(max=ends_rw.shape[1] - 1)
    return ids_rw.gather(1, at_r1)[:, 0]


def _pick_among_few(mass_rv: torch.Tensor, p_r: torch.Tensor, u_r: torch.Tensor) -> torch.Tensor:
    """Top-p alone: sorting a whole vocabulary is slow, and the likeliest few nearly always reach p."""
    values_rw, ids_rw = mass_rv.topk(_FEW, dim=-1)
    mass_rw = values_rw.double()
    before_rw = mass_rw.cumsum(-1) - mass_rw
    bound_r1 = p_r[:, None] * mass_rv.sum(-1, keepdim=True, dtype=torch.float64)
    cut_rw = before_rw >= bound_r1
    cut_rw[:, 0] = False
    tokens_r = _pick_kept(mass_rw.masked_fill(cut_rw, 0.0), ids_rw, u_r)
    rest = torch.nonzero(~cut_rw[:, -1])[:, 0]
    if len(rest):
        width_r = torch.full_like(rest, mass_rv.shape[1])
        kept = narrow(mass_rv[rest], mass_rv.shape[1], width_r, p_r[rest])
        tokens_r[rest] = _pick_kept(*kept, u_r[rest])
    return tokens_r


def narrow(
    mass_rv: torch.Tensor, width: int, k_r: torch.Tensor, p_r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masses (float64) in falling order, 0 where top-k or top-p removes them, and their token ids."""
    if width < mass_rv.shape[-1]:
        values_rw, ids_rw = mass_rv.topk(width, dim=-1)
    else:
        values_rw, ids_rw = mass_rv.sort(dim=-1, descending=True, stable=True)
    mass_rw = values_rw.double()
    mass_rw = mass_rw.masked_fill(torch.arange(width, device=mass_rv.device) >= k_r[:, None], 0.0)
    ends_rw = mass_rw.cumsum(-1)
    reached_rw = (ends_rw - mass_rw) >= p_r[:, None] * ends_rw[:, -1:]
    cut_rw = reached_rw & (p_r < 1.0)[:, None]
    cut_rw[:, 0] = False
    return mass_rw.masked_fill(cut_rw, 0.0), ids_rw


def _chunk(vocab: int) -> int:
    """Near the square root, so that both levels are short; rather a divisor of the vocabulary."""
    size = 16
    while size * size < vocab:
        size *= 2
    for smaller in (size, size // 2, size // 4):
        if vocab % smaller == 0:
            return smaller
    return size
