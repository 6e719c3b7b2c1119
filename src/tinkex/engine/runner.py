"""Runs sampling passes: lays a pass out as tensors, calls the model, scores prompts and draws tokens.

Everything that depends on which rows are in the batch is made once and kept while the rows stay the same,
so that a decode step is the model's own work and a handful of small operations. Which rows those are is the
scheduler's decision.

Shape letters: T tokens of the pass, R decoded rows, C hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .adapters import Adapter
from .base_model import BaseModel
from .blocks import Table
from .kv_cache import DenseRows, KvCache
from .paged_attention import PagedBatch, Piece, paged_attention
from .plan import Plan, Segment, join_segments
from .sampling_math import Drawn, draw
from .sampling_rows import DrawRows, Job, Row
from .scheduler import Pass, PieceWork

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Outcome:
    """What a pass drew, in the order of its rows and then its starts."""

    rows: list[Row]
    streams: npt.NDArray[np.int64]
    tokens: list[int]
    logprobs: npt.NDArray[np.float32]
    top_tokens: npt.NDArray[np.int64] | None = None
    top_logprobs: npt.NDArray[np.float32] | None = None

    def take(self, keep: list[int]) -> Outcome:
        """The outcome of some of the rows."""
        if len(keep) == len(self.rows):
            return self
        return Outcome(
            [self.rows[i] for i in keep],
            self.streams[keep],
            [self.tokens[i] for i in keep],
            self.logprobs[keep],
            None if self.top_tokens is None else self.top_tokens[keep],
            None if self.top_logprobs is None else self.top_logprobs[keep],
        )


NOTHING = Outcome([], np.empty(0, np.int64), [], np.empty(0, np.float32))


def places_of(table: Table, size: int, end: int, start: int = 0) -> Ints:
    """The places of tokens `start` to `end` of a sequence."""
    at = np.arange(start, end)
    return np.asarray(table.blocks, np.int64)[at // size] * size + at % size


class DecodeBatch:
    """The rows of a decode step and the tensors that stay the same from step to step."""

    def __init__(self, rows: list[Row], cache: KvCache, base: BaseModel) -> None:
        self.rows, self.cache, self.device = rows, cache, base.device
        self.draws = DrawRows(rows, base.vocab_size, base.device)
        self.segments = join_segments([Segment(row.adapter, i, i + 1) for i, row in enumerate(rows)])
        self.slots_r = torch.arange(len(rows), device=base.device)
        self.positions = np.array([row.computed for row in rows], np.int64)
        self.bases = np.zeros(len(rows), np.int64)
        self._fresh = True
        self.ids_r: torch.Tensor | None = None

    def places(self) -> Ints:
        """Where each row's token goes; rows that enter a new block look it up."""
        size = self.cache.block_size
        offsets = self.positions % size
        entering = range(len(self.rows)) if self._fresh else np.flatnonzero(offsets == 0).tolist()
        for i in entering:
            table = self.rows[i].table
            assert table is not None
            self.bases[i] = table.blocks[self.positions[i] // size] * size
        self._fresh = False
        return self.bases + offsets

    def ids(self) -> torch.Tensor:
        """The token each row reads; the last draw's tensor when the rows are still the same."""
        if self.ids_r is None:
            self.ids_r = torch.tensor([row.token(row.computed) for row in self.rows], device=self.device)
        return self.ids_r

    def advance(self) -> None:
        """One more token of every row is in the cache."""
        self.positions += 1
        self.ids_r = None
        for row in self.rows:
            row.computed += 1


class Runner:
    """Computes passes for one base model and one cache."""

    def __init__(self, base: BaseModel, cache: KvCache, *, dense_bytes: int = 0) -> None:
        self.base, self.cache = base, cache
        self.dense = DenseRows(cache, dense_bytes) if dense_bytes else None
        self._batch: DecodeBatch | None = None
        self._occupants: list[Row] = []

    def run(self, work: Pass) -> Outcome:
        """One pass, from block copies to drawn tokens."""
        with torch.inference_mode():
            self.cache.copy(work.copies)
            batch = self._decode_batch(work.rows)
            ids, positions, plan = self._lay_out(batch, work.pieces)
            hidden_tc = None
            if ids is not None:
                hidden_tc = self.base.hidden_states(ids[None], positions[None], plan)
                self._read_prompts(work.pieces, hidden_tc, len(work.rows))
            if batch is not None:
                batch.advance()
            return self._draw(work, batch, hidden_tc)

    def scrub(self, blocks: Iterable[int]) -> None:
        """Clear what requests with numbers that are not finite leave behind."""
        self.cache.scrub(blocks)
        if self.dense is not None:
            self.dense.scrub()
        self._occupants = []

    def _decode_batch(self, rows: list[Row]) -> DecodeBatch | None:
        if not rows:
            self._batch, self._occupants = None, []
        elif self._batch is None or self._batch.rows is not rows:
            self._batch = DecodeBatch(rows, self.cache, self.base)
        return self._batch

    def _lay_out(
        self, batch: DecodeBatch | None, pieces: list[PieceWork]
    ) -> tuple[torch.Tensor | None, torch.Tensor, Plan]:
        device, size = self.base.device, self.cache.block_size
        ids: list[torch.Tensor] = []
        positions: list[Ints] = []
        places: list[Ints] = []
        segments: list[Segment] = []
        if batch is not None:
            ids.append(batch.ids())
            positions.append(batch.positions)
            places.append(batch.places())
            segments += batch.segments
        start = len(batch.rows) if batch else 0
        laid_out: list[Piece] = []
        for piece in pieces:
            count = piece.end - piece.start
            if not count:
                continue
            ids.append(torch.from_numpy(piece.fill.tokens[piece.start : piece.end]).long().to(device))
            positions.append(np.arange(piece.start, piece.end))
            whole = places_of(piece.fill.table, size, piece.end)
            places.append(whole[piece.start :])
            context = torch.from_numpy(whole).to(device) if piece.start else None
            laid_out.append(Piece(start, start + count, piece.start, context))
            segments.append(Segment(piece.fill.job.adapter, start, start + count))
            start += count
        joined = join_segments(segments) if laid_out else tuple(segments)
        if not ids:
            return None, torch.empty(0), Plan(paged_attention, joined, (0, 0))
        places_t = torch.from_numpy(places[0] if len(places) == 1 else np.concatenate(places)).to(device)
        # The arrays behind these tensors change before the next step only, after this pass has run.
        positions_t = torch.from_numpy(positions[0] if len(positions) == 1 else np.concatenate(positions))
        paged = PagedBatch(self.cache, places_t, pieces=tuple(laid_out))
        if batch is not None:
            self._place_rows(batch, paged)
        ids_t = ids[0] if len(ids) == 1 else torch.cat(ids)
        return ids_t, positions_t.to(device), Plan(paged_attention, joined, (0, start), paged)

    def _place_rows(self, batch: DecodeBatch, paged: PagedBatch) -> None:
        """Say where the decoded rows' contexts are: in dense rows, or scattered over the pool."""
        positions = batch.positions
        paged.rows = len(batch.rows)
        paged.shortest, paged.longest = int(positions.min()) + 1, int(positions.max()) + 1
        paged.positions_r = torch.from_numpy(positions).to(self.base.device)
        dense = self.dense
        if dense is not None and dense.fits(paged.rows, paged.longest):
            self._load_slots(dense, batch.rows, paged.longest)
            paged.dense = dense
            paged.targets = dense.targets(batch.slots_r, paged.positions_r)
        else:
            self._occupants = []
            paged.table_rl = self._table(batch, paged.longest)

    def _load_slots(self, dense: DenseRows, rows: list[Row], longest: int) -> None:
        if dense.grow(len(rows), longest):
            self._occupants = []
        if self._occupants is rows:
            return
        for slot, row in enumerate(rows):
            if slot < len(self._occupants) and self._occupants[slot] is row:
                continue
            assert row.table is not None
            at = places_of(row.table, self.cache.block_size, row.computed)
            dense.load(slot, torch.from_numpy(at).to(self.base.device))
        self._occupants = rows

    def _table(self, batch: DecodeBatch, longest: int) -> torch.Tensor:
        size = self.cache.block_size
        width = -(-longest // size)
        table = np.full((len(batch.rows), width), self.cache.blocks, np.int64)
        for i, row in enumerate(batch.rows):
            assert row.table is not None
            count = min(width, len(row.table.blocks))
            table[i, :count] = row.table.blocks[:count]
        places = table[:, :, None] * size + np.arange(size)
        return torch.from_numpy(places.reshape(len(table), -1)).to(self.base.device)

    def _read_prompts(self, pieces: list[PieceWork], hidden_tc: torch.Tensor, start: int) -> None:
        """Score prompts, and keep the state that first tokens are drawn from."""
        for piece in pieces:
            end = start + piece.end - piece.start
            owner = piece.fill.owner
            if isinstance(owner, Job):
                if owner.scores is not None:
                    owner.scores.take(piece.start, hidden_tc[start:end], scorer(self.base, owner.adapter))
                if piece.last:
                    owner.last_hidden = hidden_tc[end - 1 : end].clone()
            start = end

    def _draw(self, work: Pass, batch: DecodeBatch | None, hidden_tc: torch.Tensor | None) -> Outcome:
        rows = len(work.rows)
        if not rows and not work.starts:
            return NOTHING
        if not work.starts:
            assert batch is not None
            assert hidden_tc is not None
            draws, segments = batch.draws, batch.segments
            hidden_rc = hidden_tc if len(hidden_tc) == rows else hidden_tc[:rows]
        else:
            draws = DrawRows([*work.rows, *work.starts], self.base.vocab_size, self.base.device)
            firsts = [Segment(row.adapter, rows + i, rows + i + 1) for i, row in enumerate(work.starts)]
            segments = join_segments([*(batch.segments if batch else ()), *firsts])
            states = [row.job.last_hidden for row in work.starts]
            decoded = [hidden_tc[:rows]] if hidden_tc is not None else []
            hidden_rc = torch.cat([*decoded, *(state for state in states if state is not None)])
        drawn = draw(self.base.logits(hidden_rc, segments), draws.params, draws.numbers())
        if batch is not None:
            batch.ids_r = drawn.tokens_r[:rows]
        return outcome(draws, drawn)


def scorer(base: BaseModel, adapter: Adapter | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """What turns hidden states of one adapter's tokens into logits."""
    return lambda hidden_nc: base.logits(hidden_nc, (Segment(adapter, 0, len(hidden_nc)),))


def outcome(draws: DrawRows, drawn: Drawn) -> Outcome:
    """Bring a draw to the host."""
    found = Outcome(draws.rows, draws.streams, drawn.tokens_r.tolist(), drawn.logprobs_r.cpu().numpy())
    if drawn.top_tokens_rk is not None and drawn.top_logprobs_rk is not None:
        found.top_tokens = drawn.top_tokens_rk.cpu().numpy()
        found.top_logprobs = drawn.top_logprobs_rk.cpu().numpy()
    return found
