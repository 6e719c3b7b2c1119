"""Target logprobs on a CUDA device: a chunk of logits is read twice and its gradient written once.

Shape letters: T rows (tokens), K targets a row, C hidden size, V vocabulary, R rank.
"""

from __future__ import annotations

import torch

from ..logprobs import Head, Rows, Slope
from ..lora import HEAD
from .vocab_kernels import logit_gradient, normalisers

FEW_TARGETS = 8


class FusedHead(Head):
    """The unembedding matrix in half precision; logits in float32, their gradient in half precision."""

    _half: torch.Tensor | None = None

    def score(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs `[T, K]` of the targets, and each row's log-normaliser `[T, 1]`."""
        lp_tk = self._empty(rows.targets_tk.shape)
        lse_t1 = self._empty((lp_tk.shape[0], 1))
        for span in self._spans(lp_tk.shape[0]):
            chunk = _Chunk(self, rows, span)
            lse_t1[span] = chunk.normalisers()
            lp_tk[span] = chunk.targets() - lse_t1[span]
        return lp_tk, lse_t1

    def score_and_backward(self, rows: Rows, slope: Slope, dhidden_tc: torch.Tensor) -> torch.Tensor:
        """Logprobs `[T, K]`; the hidden states' gradient is written to `dhidden_tc`, the factors' added."""
        lp_tk = self._empty(rows.targets_tk.shape)
        for span in self._spans(lp_tk.shape[0]):
            chunk = _Chunk(self, rows, span)
            lse_n1 = chunk.normalisers()
            lp_nk = torch.sub(chunk.targets(), lse_n1, out=lp_tk[span])
            chunk.backward(lse_n1, slope(lp_nk, span), dhidden_tc)
        return lp_tk

    def backward(
        self, rows: Rows, lse_t1: torch.Tensor, slope_tk: torch.Tensor, dhidden_tc: torch.Tensor
    ) -> None:
        """The gradients that `score_and_backward` gives, from a loss's derivative known by now."""
        for span in self._spans(slope_tk.shape[0]):
            _Chunk(self, rows, span).backward(lse_t1[span], slope_tk[span], dhidden_tc)

    def half_buffer(self, rows: int) -> torch.Tensor:
        """A place for the gradient of a chunk's logits."""
        if self._half is None:
            self._half = torch.empty(
                self.chunk_rows, self.vocab, dtype=self.weight_vc.dtype, device=self.weight_vc.device
            )
        return self._half[:rows]


class _Chunk:
    """Some rows' logits without their LoRA part, which is added wherever they are read."""

    def __init__(self, head: FusedHead, rows: Rows, span: slice) -> None:
        self.head, self.rows, self.span = head, rows, span
        hidden_nc = rows.hidden_tc[span]
        self.raw_nv = head._buffer(0, len(hidden_nc))
        torch.mm(hidden_nc, head.weight_vc.t(), out_dtype=torch.float32, out=self.raw_nv)
        self.low_nr = self.bt_rv = None
        self.scale = 0.0
        if rows.lora:
            assert rows.adapter is not None
            self.scale = rows.adapter.scale
            self.low_nr = hidden_nc @ rows.adapter.compute.a[HEAD].t()
            self.bt_rv = rows.adapter.compute.bt[HEAD]

    def normalisers(self) -> torch.Tensor:
        return normalisers(self.raw_nv, self.low_nr, self.bt_rv, self.scale)

    def targets(self) -> torch.Tensor:
        """The targets' logits `[n, K]`."""
        targets_nk = self.rows.targets_tk[self.span]
        found = self.raw_nv.gather(1, targets_nk)
        if self.low_nr is None or self.bt_rv is None:
            return found
        b_nkr = self.bt_rv.t()[targets_nk].float()
        return found.add_((b_nkr * self.low_nr.float()[:, None]).sum(-1), alpha=self.scale)

    def backward(self, lse_n1: torch.Tensor, slope_nk: torch.Tensor, dhidden_tc: torch.Tensor) -> None:
        targets_nk = self.rows.targets_tk[self.span].contiguous()
        slope_nk, lse_n1 = slope_nk.float().contiguous(), lse_n1.contiguous()
        given = (self.raw_nv, self.low_nr, self.bt_rv, self.scale, lse_n1)
        out_nv = self.head.half_buffer(len(targets_nk))
        if targets_nk.shape[1] <= FEW_TARGETS:
            logit_gradient(*given, slope_nk, targets_nk, out_nv)
        else:
            total_n1 = slope_nk.sum(-1, keepdim=True)
            none_n1 = torch.full_like(targets_nk[:, :1], -1)
            logit_gradient(*given, total_n1, none_n1, self.raw_nv)
            out_nv.copy_(self.raw_nv.scatter_add_(1, targets_nk, slope_nk))
        low_rt = None if self.low_nr is None else self.low_nr.t()
        self.head._products(self.rows, self.span, low_rt, out_nv, dhidden_tc)
