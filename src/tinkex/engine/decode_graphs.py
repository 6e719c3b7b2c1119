"""Decode steps as recorded CUDA graphs: one launch replays a whole pass over the layers.

A graph is recorded for a number of rows and a context width, both rounded up; padding rows write to the
cache's sink and read its blank place. Everything a graph reads that changes from step to step lies in
buffers it was recorded with: tokens, positions, block tables, and the adapters. Where the weights have a
border these lie there, any mixture of them; elsewhere one adapter's factors are copied into a slot of its
shape when another one (or another version) is decoded, and batches that mix adapters run without a graph,
as do models with experts.

Shape letters: R rows of the graph, W blocks a row, C hidden size, N ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from .adapters import Adapter, LoraTensors
from .base_model import BaseModel
from .graph_recording import Recorder, Recordings
from .kv_cache import KvCache
from .paged_attention import PagedBatch, paged_attention
from .plan import Plan, Segment
from .sending import send_into

if TYPE_CHECKING:
    from .decode_batch import DecodeBatch
    from .gpu.border import Stack
    from .sampling_rows import Row

_FEWEST_BLOCKS, _MOST_GRAPHS = 16, 192


class AdapterSlot:
    """A buffer of an adapter's shape that stands in for whichever adapter was copied into it last."""

    def __init__(self, adapter: Adapter) -> None:
        self.layout, self.rank, self.scale = adapter.layout, adapter.rank, adapter.scale
        flat = adapter.compute.flat
        self.compute = LoraTensors(self.layout, self.rank, torch.empty_like(flat))
        self._held: tuple[int, int] | None = None

    def take(self, adapter: Adapter) -> None:
        """Copy an adapter's factors in, unless they are there already."""
        name = (id(adapter), adapter.version)
        if self._held != name:
            self.compute.flat.copy_(adapter.compute.flat)
            self._held = name


@dataclass(slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    ids_r: torch.Tensor
    positions_r: torch.Tensor
    places_r: torch.Tensor
    blocks_rw: torch.Tensor
    stack: Stack | None
    hidden_rc: torch.Tensor


class DecodeGraphs:
    """The graphs of one base model and cache, recorded when first needed."""

    def __init__(self, base: BaseModel, cache: KvCache, recorder: Recorder) -> None:
        self.base, self.cache, self.recorder = base, cache, recorder
        self._slots: dict[tuple[int, int, float], AdapterSlot] = {}
        self._graphs: Recordings[_Recorded] = Recordings(_MOST_GRAPHS)
        # What graphs read must outlive their recording.
        self._offsets = torch.arange(cache.block_size, device=base.device)
        self._rows: list[Row] | None = None
        self._filled: _Recorded | None = None
        self._table: npt.NDArray[np.int64] = np.empty((0, 0), np.int64)
        decoder = base.decoder
        self.border = decoder.border if decoder is not None else None
        self.usable = (
            recorder.usable and decoder is not None and all(layer.dense for layer in decoder.layers)
        )

    def fits(self, batch: DecodeBatch) -> bool:
        """Whether these rows can be decoded by a graph: their adapters in the border, or all of one."""
        if not self.usable:
            return False
        if self.border is not None:
            return self.border.stack(batch.segments, len(batch.rows)) is not None
        return len(batch.segments) == 1

    def run(self, batch: DecodeBatch) -> torch.Tensor:
        """Hidden states of a decode step of rows that fit, good until the next step."""
        rows = _rounded(len(batch.rows))
        width = max(_rounded(-(-batch.paged.longest // self.cache.block_size)), _FEWEST_BLOCKS)
        slot, stack = None, None
        if self.border is not None:
            stack = self.border.stack(batch.segments, len(batch.rows))
            assert stack is not None
            key: tuple[int, int, object] = (rows, width, (stack.ranks, stack.spans_t2 is not None))
        else:
            slot = self._slot(batch.segments[0].adapter)
            key = (rows, width, None if slot is None else id(slot))
        recorded = self._graphs.get(key, lambda: self._record(rows, width, slot, stack))
        self._fill(recorded, batch, width, stack)
        recorded.graph.replay()
        return recorded.hidden_rc[: len(batch.rows)]

    def _slot(self, adapter: Adapter | None) -> AdapterSlot | None:
        if adapter is None:
            return None
        key = (id(adapter.layout), adapter.rank, adapter.scale)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = AdapterSlot(adapter)
        slot.take(adapter)
        return slot

    def _fill(self, recorded: _Recorded, batch: DecodeBatch, width: int, stack: Stack | None) -> None:
        """Put this step's numbers where the graph reads them."""
        count = len(batch.rows)
        torch._foreach_copy_(
            [recorded.ids_r[:count], recorded.positions_r[:count], recorded.places_r[:count]],
            [batch.ids_r, batch.positions_r, batch.paged.places_t],
        )
        same = self._filled is recorded and self._rows is batch.rows
        entering = np.flatnonzero(batch.positions % self.cache.block_size == 0) if same else None
        if entering is not None and not entering.size:
            return
        if not same:
            # Padding rows read the blank block at position 0 and write to the sink.
            self._rows, self._filled = batch.rows, recorded
            self._table = np.full((len(recorded.ids_r), width), self.cache.blocks, np.int64)
            recorded.positions_r[count:].zero_()
            recorded.places_r[count:].fill_(self.cache.sink)
            if recorded.stack is not None and stack is not None:
                recorded.stack.take_spans(stack)
        for i in range(count) if entering is None else entering.tolist():
            blocks = batch.rows[i].home.blocks[:width]
            self._table[i, : len(blocks)] = blocks
        send_into(recorded.blocks_rw, self._table)

    def _record(self, rows: int, width: int, slot: AdapterSlot | None, stack: Stack | None) -> _Recorded:
        device = self.base.device
        whole = torch.int64
        ids_r = torch.zeros(rows, dtype=whole, device=device)
        positions_r = torch.zeros(rows, dtype=whole, device=device)
        places_r = torch.full((rows,), self.cache.sink, dtype=whole, device=device)
        blocks_rw = torch.full((rows, width), self.cache.blocks, dtype=whole, device=device)
        offsets = self._offsets
        stack = None if stack is None else stack.apart(rows)

        def once() -> torch.Tensor:
            table_rl = None
            if stack is None:
                table_rl = (blocks_rw[:, :, None] * self.cache.block_size + offsets).view(rows, -1)
            paged = PagedBatch(
                self.cache,
                places_r,
                rows=rows,
                positions_r=positions_r,
                shortest=1,
                longest=width * self.cache.block_size,
                table_rl=table_rl,
                blocks_rw=blocks_rw,
            )
            plan = Plan(paged_attention, (Segment(slot, 0, rows),), (0, rows), paged)  # type: ignore[arg-type]
            if stack is not None:
                plan.scratch["stack"] = stack
            return self.base.hidden_states(ids_r[None], positions_r[None], plan)

        graph, hidden_rc = self.recorder.record(once)
        return _Recorded(graph, ids_r, positions_r, places_r, blocks_rw, stack, hidden_rc)


def _rounded(count: int) -> int:
    """The next power of two, or beyond 64 the next multiple of 32: few graphs, little padding."""
    if count > 64:
        return -(-count // 32) * 32
    return 1 << max(count - 1, 0).bit_length()
