"""Log-probabilities of target tokens, chunk by chunk: the `[tokens, vocabulary]` matrix never exists.

A loss that looks at one token at a time is differentiated in the same sweep (`score_and_backward`): a
chunk's softmax is turned into its gradient while it is there. Any other loss takes two sweeps: `score`
keeps the normaliser of each token, `backward` computes the chunks again. The unembedding's LoRA is part of
both.

Shape letters: T rows (tokens), K targets a row, C hidden size, V vocabulary, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from .adapters import Adapter, LoraTensors
from .lora import HEAD, add_product, wide_product

Slope = Callable[[torch.Tensor, slice], torch.Tensor]
"""From the logprobs `[n, K]` of some rows and where those rows are, the loss's derivative by each."""

SMALL = 1e-30
"""Down to here a softmax has all its digits, in float32 too."""

_CHUNK = {"cpu": 1 << 19, "cuda": 5 << 24}


class Rows(NamedTuple):
    """Rows of hidden states that share an adapter, with the targets to score at each."""

    hidden_tc: torch.Tensor
    targets_tk: torch.Tensor
    adapter: Adapter | None = None
    grads: LoraTensors | None = None
    fold: bool = False
    """Add the adapter's product to the unembedding first, as `Plan.fold` does for the layers."""

    @property
    def lora(self) -> bool:
        """Whether the adapter changes the unembedding."""
        return self.adapter is not None and HEAD in self.adapter.layout.paths


class Head:
    """The unembedding matrix and the two chunk-sized buffers its sweeps work in."""

    def __init__(self, weight_vc: torch.Tensor, *, chunk_rows: int | None = None) -> None:
        self.weight_vc = weight_vc
        self.vocab = weight_vc.shape[0]
        limit = _CHUNK.get(weight_vc.device.type, _CHUNK["cpu"])
        rows = max(limit // self.vocab, 32)
        # Matrix products want their inner size in multiples of this on a GPU.
        self.chunk_rows = chunk_rows or (rows // 64 * 64 or rows if weight_vc.is_cuda else rows)
        self.wide = torch.float64 if weight_vc.dtype == torch.float64 else torch.float32
        self._buffers: list[torch.Tensor] = []

    def score(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs `[T, K]` of the targets, and each row's log-normaliser `[T, 1]`."""
        lp_tk = self._empty(rows.targets_tk.shape)
        lse_t1 = self._empty((lp_tk.shape[0], 1))
        for span in self._spans(lp_tk.shape[0]):
            logits_tv, _ = self._logits(rows, span)
            lse_t1[span] = torch.logsumexp(logits_tv, dim=-1, keepdim=True)
            lp_tk[span] = logits_tv.gather(1, rows.targets_tk[span]) - lse_t1[span]
        return lp_tk, lse_t1

    def score_and_backward(self, rows: Rows, slope: Slope, dhidden_tc: torch.Tensor) -> torch.Tensor:
        """Logprobs `[T, K]`; the hidden states' gradient is written to `dhidden_tc`, the factors' added."""
        lp_tk = self._empty(rows.targets_tk.shape)
        for span in self._spans(lp_tk.shape[0]):
            logits_tv, low_rt = self._logits(rows, span)
            probs_tv = torch.softmax(logits_tv, dim=-1, out=self._buffer(1, logits_tv.shape[0]))
            lp_nk = lp_tk[span]
            _log(probs_tv, logits_tv, rows.targets_tk[span], lp_nk)
            self._chunk_backward(rows, span, low_rt, probs_tv, slope(lp_nk, span), dhidden_tc)
        return lp_tk

    def backward(
        self, rows: Rows, lse_t1: torch.Tensor, slope_tk: torch.Tensor, dhidden_tc: torch.Tensor
    ) -> None:
        """The gradients that `score_and_backward` gives, from a loss's derivative known by now."""
        for span in self._spans(slope_tk.shape[0]):
            logits_tv, low_rt = self._logits(rows, span)
            probs_tv = logits_tv.sub_(lse_t1[span]).exp_()
            self._chunk_backward(rows, span, low_rt, probs_tv, slope_tk[span], dhidden_tc)

    def _logits(self, rows: Rows, span: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden_tc = rows.hidden_tc[span]
        logits_tv = self._buffer(0, hidden_tc.shape[0])
        wide_product(hidden_tc, self._weight(rows), logits_tv)
        if not rows.lora:
            return logits_tv, None
        adapter = rows.adapter
        assert adapter is not None
        low_rt = adapter.compute.a[HEAD] @ hidden_tc.t()
        if not rows.fold:
            add_product(logits_tv, low_rt.t(), adapter.compute.bt[HEAD], adapter.scale)
        return logits_tv, low_rt

    def _weight(self, rows: Rows) -> torch.Tensor:
        adapter = rows.adapter
        if adapter is None or not (rows.fold and rows.lora):
            return self.weight_vc
        if HEAD not in adapter.folded:
            a, bt = adapter.compute.a[HEAD], adapter.compute.bt[HEAD]
            adapter.folded[HEAD] = torch.addmm(self.weight_vc, bt.t(), a, alpha=adapter.scale)
        return adapter.folded[HEAD]

    def _chunk_backward(
        self,
        rows: Rows,
        span: slice,
        low_rt: torch.Tensor | None,
        probs_tv: torch.Tensor,
        slope_tk: torch.Tensor,
        dhidden_tc: torch.Tensor,
    ) -> None:
        dlogits_tv = probs_tv.mul_(slope_tk.sum(-1, keepdim=True).neg_())
        dlogits_tv.scatter_add_(1, rows.targets_tk[span], slope_tk.to(dlogits_tv.dtype))
        self._products(rows, span, low_rt, dlogits_tv.to(self.weight_vc.dtype), dhidden_tc)

    def _products(
        self,
        rows: Rows,
        span: slice,
        low_rt: torch.Tensor | None,
        dlogits_tv: torch.Tensor,
        dhidden_tc: torch.Tensor,
    ) -> None:
        """What follows from the gradient of a chunk's logits."""
        dhidden_nc = torch.mm(dlogits_tv, self._weight(rows), out=dhidden_tc[span])
        if low_rt is not None:
            adapter = rows.adapter
            assert adapter is not None
            dlow_rt = (adapter.compute.bt[HEAD] @ dlogits_tv.t()).mul_(adapter.scale)
            if rows.grads is not None:
                add_product(rows.grads.bt[HEAD], low_rt, dlogits_tv, adapter.scale)
                add_product(rows.grads.a[HEAD], dlow_rt, rows.hidden_tc[span], 1.0)
            if not rows.fold:
                dhidden_nc.addmm_(dlow_rt.t(), adapter.compute.a[HEAD])

    def _spans(self, rows: int) -> Iterator[slice]:
        for start in range(0, rows, self.chunk_rows):
            yield slice(start, min(start + self.chunk_rows, rows))

    def _buffer(self, index: int, rows: int) -> torch.Tensor:
        # Kept from call to call: fresh pages of this size cost as much as a pass over them.
        while len(self._buffers) <= index:
            self._buffers.append(self._empty((self.chunk_rows, self.vocab)))
        return self._buffers[index][:rows]

    def _empty(self, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
        return torch.empty(shape, dtype=self.wide, device=self.weight_vc.device)


def _log(
    probs_tv: torch.Tensor, logits_tv: torch.Tensor, targets_tk: torch.Tensor, out_tk: torch.Tensor
) -> None:
    """Write the logarithms of the targets' probabilities."""
    if not probs_tv.is_cuda:
        torch.gather(probs_tv, 1, targets_tk, out=out_tk)
        if float(out_tk.min()) > SMALL:
            out_tk.log_()
            return
    # The largest probability is at least 1/V, so its logarithm is exact where a tiny one's is not.
    lse_t1 = logits_tv.amax(-1, keepdim=True).sub_(probs_tv.amax(-1, keepdim=True).log_())
    torch.sub(logits_tv.gather(1, targets_tk), lse_t1, out=out_tk)
