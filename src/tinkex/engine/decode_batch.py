"""The rows of a decode step, laid out once as tensors that move on by one token a step.

While the rows stay the same a step needs no new index: positions, places and targets all grow by one, and
only a row that enters a new block is looked up again. Which rows those are is decided elsewhere.

Shape letters: R decoded rows, L longest context among them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from .adapter_stack import AdapterStacks
from .base_model import BaseModel
from .blocks import Table
from .kv_cache import DenseRows, KvCache
from .paged_attention import PagedBatch, paged_attention
from .plan import Plan, Segment, join_segments
from .sampling_rows import DrawRows, Row
from .sending import send_into, sent

Ints = npt.NDArray[np.int64]


def places_of(table: Table, size: int, end: int, start: int = 0) -> Ints:
    """The places of tokens `start` to `end` of a sequence."""
    at = np.arange(start, end)
    return np.asarray(table.blocks, np.int64)[at // size] * size + at % size


class Slots:
    """Who is in which dense row, if dense rows are kept."""

    def __init__(self, dense: DenseRows | None) -> None:
        self.dense = dense
        self.occupants: list[Row] = []

    def hold(self, rows: list[Row], longest: int) -> DenseRows | None:
        """Bring every row's context into its slot; None when they do not fit."""
        dense = self.dense
        if dense is None or not dense.fits(len(rows), longest):
            self.occupants = []
            return None
        if dense.grow(len(rows), longest):
            self.occupants = []
        if self.occupants is not rows:
            for slot, row in enumerate(rows):
                if slot >= len(self.occupants) or self.occupants[slot] is not row:
                    assert row.table is not None
                    at = places_of(row.table, dense.cache.block_size, row.computed)
                    dense.load(slot, sent(at, dense.device))
            self.occupants = rows
        return dense


class DecodeBatch:
    """Rows, their draw, and the plan of their next step."""

    def __init__(
        self,
        rows: list[Row],
        cache: KvCache,
        slots: Slots,
        stacks: AdapterStacks,
        base: BaseModel,
        ids_r: torch.Tensor | None = None,
    ) -> None:
        """`ids_r` are the rows' last tokens, where the host does not know them yet."""
        self.rows, self.cache, self.slots, self.device = rows, cache, slots, base.device
        self._vocab = base.vocab_size
        stacked = stacks.segment([row.adapter for row in rows])
        each = [Segment(row.adapter, i, i + 1) for i, row in enumerate(rows)]
        segments = join_segments(each) if stacked is None else (stacked,)
        self.positions = computed = np.array([row.computed for row in rows], np.int64)
        """Where each row's token stands, on the host; `positions_r` is the same on the device."""
        if ids_r is None:
            ids_r = sent(np.array([row.token(row.computed) for row in rows], np.int64), base.device)
        self.ids_r = ids_r
        self.positions_r = sent(computed, base.device)
        self.paged = PagedBatch(
            cache,
            torch.zeros_like(self.positions_r),
            rows=len(rows),
            positions_r=self.positions_r,
            shortest=int(computed.min()) + 1,
            longest=int(computed.max()) + 1,
        )
        self.plan = Plan(paged_attention, segments, (0, len(rows)), self.paged)
        self._until_block = 0

    @cached_property
    def draws(self) -> DrawRows:
        """How the rows' tokens are drawn; laid out while the device computes what they are drawn from."""
        return DrawRows(self.rows, self._vocab, self.device)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Which adapter each row uses."""
        return self.plan.segments

    def places(self) -> Ints:
        """Where each row's token goes, on the host."""
        size = self.cache.block_size
        blocks = np.array([_block(row, size) for row in self.rows], np.int64)
        return blocks * size + self.positions % size

    def prepare(self, *, contexts: bool = True) -> None:
        """Make the plan fit the step that comes; without `contexts`, only where its tokens are written."""
        self.plan.scratch.clear()
        paged = self.paged
        if not contexts:
            paged.table_rl = None
        if self._until_block == 0:
            self._look_up()
        if not contexts:
            return
        if paged.table_rl is None and (paged.dense is None or paged.longest > paged.dense.capacity):
            paged.dense = self.slots.hold(self.rows, paged.longest)
            if paged.dense is not None:
                rows_r = torch.arange(len(self.rows), device=self.device)
                paged.targets = paged.dense.targets(rows_r, self.positions_r)
            else:
                paged.table_rl, paged.targets = self._table(), None

    def advance(self, ids_r: torch.Tensor) -> None:
        """One more token of every row is in the cache, and `ids_r` comes after it."""
        self.ids_r = ids_r
        paged = self.paged
        self.positions += 1
        torch._foreach_add_([self.positions_r, paged.places_t], 1)
        if paged.targets is not None:
            paged.targets.add_(1)
        paged.shortest += 1
        paged.longest += 1
        self._until_block -= 1

    def _look_up(self) -> None:
        """Find the block each row writes to, and how many steps from now the next row needs another."""
        send_into(self.paged.places_t, self.places())
        size = self.cache.block_size
        self._until_block = int((size - self.positions % size).min())
        if self.paged.table_rl is not None:
            self.paged.table_rl = self._table()

    def _table(self) -> torch.Tensor:
        size = self.cache.block_size
        width = -(-self.paged.longest // size)
        table = np.full((len(self.rows), width), self.cache.blocks, np.int64)
        for i, row in enumerate(self.rows):
            blocks = row.home.blocks[:width]
            table[i, : len(blocks)] = blocks
        places = table[:, :, None] * size + np.arange(size)
        return sent(places.reshape(len(table), -1), self.device)


def _block(row: Row, size: int) -> int:
    return row.home.blocks[row.computed // size]
