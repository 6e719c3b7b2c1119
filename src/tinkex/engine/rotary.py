"""Rotary positions: pairs of features turned by an angle, forward and back.

Shape letters: T tokens, N heads, D head size.
"""

from __future__ import annotations

import torch


class Rotation:
    """The angles of a row's tokens; heads are turned as `x * cos + swapped(x) * sin`, halves swapped.

    On a CPU the tables are repeated for every head, which makes the products long runs of memory.
    """

    def __init__(self, cos_td: torch.Tensor, sin_td: torch.Tensor, heads: int) -> None:
        half = cos_td.shape[-1] // 2
        signed = torch.cat([-sin_td[:, :half], sin_td[:, half:]], dim=-1)
        self.wide = cos_td.device.type == "cpu"
        count = heads if self.wide else 1
        self.cos = cos_td.unsqueeze(1).repeat(1, count, 1)
        self.sin = signed.unsqueeze(1).repeat(1, count, 1)
        self.half = half

    def turn(self, x_tnd: torch.Tensor, out_tnd: torch.Tensor) -> None:
        """Write to `out_tnd` the heads turned by their positions' angles."""
        cos, sin = self._tables(x_tnd.shape[1])
        torch.mul(x_tnd, cos, out=out_tnd).addcmul_(self._swapped(x_tnd), sin)

    def turn_back(self, x_tnd: torch.Tensor, out_tnd: torch.Tensor) -> None:
        """Write to `out_tnd` the heads turned the other way: the gradient of `turn`."""
        cos, sin = self._tables(x_tnd.shape[1])
        torch.mul(x_tnd, cos, out=out_tnd).addcmul_(self._swapped(x_tnd), sin, value=-1)

    def _tables(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.cos[:, :heads], self.sin[:, :heads]) if self.wide else (self.cos, self.sin)

    def _swapped(self, x_tnd: torch.Tensor) -> torch.Tensor:
        return x_tnd.roll(self.half, dims=-1)
