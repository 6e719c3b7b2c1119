"""Adds the factors' gradients of a layer to their buffers, all in a few launches.

A product with all adapters of a pass gives all their gradients as rows; which rows are whose is known from
their places in the border.
"""

from __future__ import annotations

import torch

from ..adapters import LoraTensors
from ..lora import LoraGroup
from .border import Entry, Share, Stack


class Sums:
    """What is to be added where, until `add` does it."""

    def __init__(self) -> None:
        self._additions: list[tuple[torch.Tensor, torch.Tensor, float]] = []

    def wants(self, stack: Stack, group: LoraGroup) -> bool:
        """Whether anybody's gradient of a group is asked for."""
        return any(_buffer(entry, group.name) is not None for entry in stack.entries)

    def take_a(self, stack: Stack, group: LoraGroup, product: torch.Tensor) -> None:
        """The As' gradients, `[M R, I]`, scales in them."""
        for entry in stack.entries:
            total = _buffer(entry, group.name)
            if total is None:
                continue
            own = entry.adapter.rank
            if own == stack.ranks:
                self._take(1.0, total.group_a[group.name], product)
                continue
            into = total.group_a[group.name].view(group.members, own, -1)
            rows = product.view(group.members, stack.ranks, -1)[:, entry.start : entry.start + own]
            for member in range(group.members):
                self._take(1.0, into[member], rows[member])

    def take_b(self, share: Share, group: LoraGroup, member: int, product: torch.Tensor) -> None:
        """The gradients of one member's Bs, of a share's ranks `[R, O]`, not yet scaled."""
        for entry in share.entries:
            total = _buffer(entry, group.name)
            if total is not None:
                first = entry.start - share.ranks.start
                rows = product[first : first + entry.adapter.rank]
                self._take(entry.adapter.scale, total.group_bt[group.name][member], rows)

    def add(self) -> None:
        """Add everything taken."""
        if self._additions and self._additions[0][0].is_cuda:
            from .sum_kernels import add_all

            add_all(self._additions)
        else:
            for into, rows, scale in self._additions:
                into.add_(rows, alpha=scale)
        self._additions.clear()

    def _take(self, scale: float, into: torch.Tensor, rows: torch.Tensor) -> None:
        self._additions.append((into, rows, scale))


def _buffer(entry: Entry, group: str) -> LoraTensors | None:
    grads = entry.segments[0].grads
    return grads if grads is not None and group in entry.adapter.layout.groups else None
