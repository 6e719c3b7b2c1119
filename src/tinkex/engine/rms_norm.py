"""Root-mean-square normalisation with its backward pass by hand, the weights being frozen.

Statistics are taken in float32 (float64 for float64 inputs), as transformers' own modules do.
"""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised input times `weight`, and the reciprocal root mean square of each row."""
    if x.is_cuda and weight.dim() == 1:
        y, rstd = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)
        return y, rstd
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    rstd = (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()
    y = wide * rstd
    return (y.mul_(weight) if y.dtype == weight.dtype else y.to(x.dtype) * weight), rstd


def rms_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The gradient of the input, given the output's and what the forward pass returned."""
    if x.is_cuda and weight.dim() == 1:
        dx: torch.Tensor = torch.ops.aten._fused_rms_norm_backward(
            dy.contiguous(), x, [x.shape[-1]], rstd, weight, [True, False]
        )[0]
        return dx
    wide = x if x.dtype == rstd.dtype else x.to(rstd.dtype)
    unit = wide * rstd
    dunit = dy * weight if dy.dtype == rstd.dtype else dy.to(rstd.dtype) * weight
    mean = (dunit * unit).mean(-1, keepdim=True)
    return dunit.addcmul_(unit, mean, value=-1).mul_(rstd).to(x.dtype)
