"""Root-mean-square normalisation with its backward pass by hand, the weights being frozen.

Statistics are taken in float32 (float64 for float64 inputs), as transformers' own modules do.
"""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised input times `weight`, and the reciprocal root mean square of each row.

    `out`, a place for the result, is for float32 and float64 inputs only.
    """
    if _fused(x, weight):
        y, rstd = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)
        return y, rstd
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    rstd = torch.mul(wide, wide, out=out).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return _weighted(torch.mul(wide, rstd, out=out), x.dtype, weight), rstd


def rms_norm_again(
    x: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    unit: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of `rms_norm` once more, and what `rms_norm_backward` wants of the input."""
    unit = torch.mul(x if x.dtype == rstd.dtype else x.to(rstd.dtype), rstd, out=unit)
    if _fused(x, weight):
        return unit.to(x.dtype) * weight, x
    return torch.mul(unit if unit.dtype == x.dtype else unit.to(x.dtype), weight, out=out), unit


def rms_norm_backward(
    dy: torch.Tensor,
    kept: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    work: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of the input, given the output's and what `rms_norm_again` gave.

    `out`, which may be `dy` itself, and `work` are places for the result and for what is needed on the way.
    """
    if _fused(kept, weight):
        dx: torch.Tensor = torch.ops.aten._fused_rms_norm_backward(
            dy.contiguous(), kept, [kept.shape[-1]], rstd, weight, [True, False]
        )[0]
        return dx
    dunit = torch.mul(dy, weight, out=out) if dy.dtype == rstd.dtype else dy.to(rstd.dtype) * weight
    along = torch.mul(dunit, kept, out=work).sum(-1, keepdim=True)
    return dunit.addcmul_(kept, along, value=-1 / kept.shape[-1]).mul_(rstd).to(dy.dtype)


def _fused(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return bool(x.is_cuda) and weight.dim() == 1


def _weighted(unit: torch.Tensor, dtype: torch.dtype, weight: torch.Tensor) -> torch.Tensor:
    return unit.mul_(weight) if unit.dtype == weight.dtype else unit.to(dtype) * weight
