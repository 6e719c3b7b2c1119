"""Rotary positions: pairs of features turned by an angle, forward and back.

Shape letters: T tokens, N heads, D head size; cosines and sines are `[T, 1, D / 2]`.
"""

from __future__ import annotations

import torch


def rotate(x_tnd: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out_tnd: torch.Tensor) -> None:
    """Write to `out_tnd` the heads turned by their positions' angles."""
    half = x_tnd.shape[-1] // 2
    first, second = x_tnd[..., :half], x_tnd[..., half:]
    torch.mul(first, cos, out=out_tnd[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_tnd[..., half:]).addcmul_(first, sin)


def rotate_back(x_tnd: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out_tnd: torch.Tensor) -> None:
    """Write to `out_tnd` the heads turned the other way: the gradient of `rotate`."""
    half = x_tnd.shape[-1] // 2
    first, second = x_tnd[..., :half], x_tnd[..., half:]
    torch.mul(first, cos, out=out_tnd[..., :half]).addcmul_(second, sin)
    torch.mul(second, cos, out=out_tnd[..., half:]).addcmul_(first, sin, value=-1)
