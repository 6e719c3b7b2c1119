"""Rotary positions: pairs of features turned by an angle, forward and back.

Shape letters: T tokens, N heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch

_STATIC = ("default", "linear", "llama3", "yarn")
_TABLE_BYTES = 64 << 20


class Rotary:
    """A model's angles by position, from its own module; kept in a table where they never change."""

    def __init__(self, module: Any, heads: int, positions: int) -> None:
        self.module, self.heads, self.positions = module, heads, positions
        self.static = getattr(module, "rope_type", None) in _STATIC
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None

    def at(self, x_tc: torch.Tensor, position_ids: torch.Tensor) -> Rotation:
        """The angles of one row's tokens, in the dtype of `x_tc`."""
        if self._tables is None and self.static:
            self._look_ahead(x_tc)
        if self._tables is None:
            return Rotation(*self._computed(x_tc, position_ids))
        cos, sin = (table.index_select(0, position_ids[0]) for table in self._tables)
        return Rotation(cos, sin)

    def _computed(
        self, x_tc: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos_td, sin_td = (table[0] for table in self.module(x_tc, position_ids))
        half = cos_td.shape[-1] // 2
        signed_td = torch.cat([-sin_td[:, :half], sin_td[:, half:]], dim=-1)
        # On a CPU the tables are repeated for every head, which makes the products long runs of memory.
        count = self.heads if cos_td.device.type == "cpu" else 1
        return cos_td.unsqueeze(1).repeat(1, count, 1), signed_td.unsqueeze(1).repeat(1, count, 1)

    def _look_ahead(self, x_tc: torch.Tensor) -> None:
        # Ordinary tensors even when sampling asks first: training reads them too.
        with torch.inference_mode(False), torch.no_grad():
            first = torch.zeros(1, 1, dtype=torch.int64, device=x_tc.device)
            one = torch.empty(1, device=x_tc.device, dtype=x_tc.dtype)
            size = 2 * self._computed(one, first)[0].nbytes * self.positions
            if size > _TABLE_BYTES:
                self.static = False
                return
            every = torch.arange(self.positions, device=x_tc.device)[None]
            self._tables = self._computed(one, every)


class Rotation:
    """The angles of a row's tokens; heads are turned as `x * cos + swapped(x) * sin`, halves swapped."""

    def __init__(self, cos: torch.Tensor, signed_sin: torch.Tensor) -> None:
        self.cos, self.sin = cos, signed_sin
        self.wide = cos.shape[1] > 1
        self.half = cos.shape[-1] // 2

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
