"""Copies an adapter's factors to where products find them, hundreds of tensors in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

_PIECES, _BLOCK = 64, 1024


@triton.jit(do_not_specialize=["start", "ranks"])
def _place(table, source, scale, start, ranks, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    at = table + tl.program_id(0) * 8
    begin, address, member, scaled = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    stride, across = tl.load(at + 4), tl.load(at + 5)
    # In 32 bits: every number's row and column are found by a division.
    rows, columns = tl.load(at + 6).to(tl.int32), tl.load(at + 7).to(tl.int32)
    count = rows * columns
    target = address.to(tl.pointer_type(source.dtype.element_ty)) + (member * ranks + start) * stride
    by = tl.where(scaled == 1, scale, 1.0)
    each = tl.cdiv(tl.cdiv(count, PIECES), BLOCK) * BLOCK
    first = tl.program_id(1) * each
    # Numbers that lie side by side in the target are written together.
    turned = across != 1
    length = tl.where(turned, rows, columns)
    for here in range(first, tl.minimum(first + each, count), BLOCK):
        n = here + tl.arange(0, BLOCK)
        inside = n < count
        major = n // length
        minor = n - major * length
        row, column = tl.where(turned, minor, major), tl.where(turned, major, minor)
        value = tl.load(source + begin + row * columns + column, mask=inside, other=0.0).to(tl.float32) * by
        spot = target + row * stride + column * across
        tl.store(spot, value.to(source.dtype.element_ty), mask=inside)


class Move(NamedTuple):
    """A factor at an offset of a flat buffer; it fills rows of a matrix, from `member * R + start` on."""

    begin: int
    rows: int
    target: torch.Tensor
    member: int
    scaled: bool


class Places:
    """Where the factors of adapters of one shape go."""

    def __init__(self, moves: Sequence[Move]) -> None:
        rows = [
            (
                move.begin,
                move.target.data_ptr(),
                move.member,
                int(move.scaled),
                *move.target.stride(),
                move.rows,
                move.target.shape[1],
            )
            for move in moves
        ]
        self._table = torch.tensor(rows, dtype=torch.int64).to(moves[0].target.device)

    def copy(self, flat: torch.Tensor, scale: float, start: int, ranks: int) -> None:
        """Copy an adapter's factors to its place among the ranks."""
        grid = (len(self._table), _PIECES)
        _place[grid](self._table, flat, scale, start, ranks, PIECES=_PIECES, BLOCK=_BLOCK, num_warps=4)
