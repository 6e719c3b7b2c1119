"""Root-mean-square normalisation with its backward pass by hand, the weights being frozen.

Statistics are taken in float32 (float64 for float64 inputs), as transformers' own modules do.
"""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised input times `weight`, and the reciprocal root mean square of each row."""
    if _fused(x, weight):
        y, rstd = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)
        return y, rstd
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    rstd = (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return _weighted(wide * rstd, x.dtype, weight), rstd


def rms_norm_again(
    x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of `rms_norm` once more, and what `rms_norm_backward` wants of the input."""
    unit = (x if x.dtype == rstd.dtype else x.to(rstd.dtype)) * rstd
    if _fused(x, weight):
        return unit.to(x.dtype) * weight, x
    return (unit if unit.dtype == x.dtype else unit.to(x.dtype)) * weight, unit


def rms_norm_backward(
    dy: torch.Tensor, kept: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The gradient of the input, given the output's and what `rms_norm_again` gave."""
    if _fused(kept, weight):
        dx: torch.Tensor = torch.ops.aten._fused_rms_norm_backward(
            dy.contiguous(), kept, [kept.shape[-1]], rstd, weight, [True, False]
        )[0]
        return dx
    dunit = dy * weight if dy.dtype == rstd.dtype else dy.to(rstd.dtype) * weight
    mean = (dunit * kept).mean(-1, keepdim=True)
    return dunit.addcmul_(kept, mean, value=-1).mul_(rstd).to(dy.dtype)


def _fused(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return bool(x.is_cuda) and weight.dim() == 1


def _weighted(unit: torch.Tensor, dtype: torch.dtype, weight: torch.Tensor) -> torch.Tensor:
    return unit.mul_(weight) if unit.dtype == weight.dtype else unit.to(dtype) * weight
