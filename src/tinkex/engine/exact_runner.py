"""Sampling passes whose results do not depend on what else runs: the determinism mode.

Sums round differently in products of different shapes, so here every product has a shape that follows from
the row alone: prompts are computed one piece at a time, cut at multiples of the piece size and padded to
it; rows are decoded in groups of one adapter and one context length class, padded to a fixed number of
rows. Keys and values made while decoding are never shared, since a prompt's piece rounds otherwise. Whether
a row's place in its group matters is tried out once for each adapter rank; where it does, rows run alone.

Shape letters: G rows of a group, C hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import torch

from .adapters import Adapter
from .base_model import BaseModel
from .decode_batch import places_of
from .kv_cache import KvCache
from .paged_attention import PagedBatch, Piece, paged_attention
from .plan import Plan, Segment
from .runner import NOTHING, Outcome, outcome, scorer
from .sampling_math import draw
from .sampling_rows import DrawRows, Job, Row
from .scheduler import Pass, PieceWork

GROUP = 8
CONTEXT = 64
log = logging.getLogger(__name__)


class ExactRunner:
    """Computes passes piece by piece and group by group."""

    def __init__(self, base: BaseModel, cache: KvCache) -> None:
        self.base, self.cache = base, cache
        self._groups: dict[tuple[int, frozenset[str]], int] = {}
        self._broken: list[Job] = []
        # How many tokens an expert sees depends on all rows of a pass.
        self._alone = bool(getattr(base.config, "num_experts", 0))

    def run(self, work: Pass) -> Outcome:
        """One pass, from block copies to drawn tokens."""
        self._broken = []
        with torch.inference_mode():
            self.cache.copy(work.copies)
            for piece in work.pieces:
                if piece.end > piece.start:
                    self._piece(piece)
            found = [self._decode(group) for group in self._grouped(work.rows)]
            found += [self._start(group) for group in self._of_one_job(work.starts)]
        return join(found)

    def broken_prompts(self) -> list[Job]:
        """The requests whose prompts' hidden states of the last pass are not finite."""
        return self._broken

    def scrub(self, blocks: Iterable[int]) -> None:
        """Clear what requests with numbers that are not finite leave behind."""
        with torch.inference_mode():
            self.cache.scrub(blocks)

    def _piece(self, piece: PieceWork) -> None:
        size, device = self.cache.block_size, self.base.device
        count, end = piece.end - piece.start, piece.start + size
        ids = np.zeros(size, np.int64)
        ids[:count] = piece.fill.tokens[piece.start : piece.end]
        places = np.full(end, self.cache.sink, np.int64)
        places[: piece.end] = places_of(piece.fill.table, size, piece.end)
        places_t = torch.from_numpy(places).to(device)
        context = places_t if piece.start else None
        paged = PagedBatch(
            self.cache, places_t[piece.start :], pieces=(Piece(0, size, piece.start, context),)
        )
        adapter = piece.fill.job.adapter
        positions = torch.arange(piece.start, end, device=device)
        hidden = self._hidden(torch.from_numpy(ids).to(device), positions, adapter, paged)[:count]
        if not bool(torch.isfinite(hidden).all()):
            self._broken.append(piece.fill.job)
        owner = piece.fill.owner
        if isinstance(owner, Job):
            if owner.scores is not None:
                owner.scores.take(piece.start, hidden, scorer(self.base, adapter))
            if piece.last:
                owner.last_hidden = hidden[-1:].clone()

    def _hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, adapter: Adapter | None, paged: PagedBatch
    ) -> torch.Tensor:
        plan = Plan(paged_attention, (Segment(adapter, 0, len(ids)),), (0, len(ids)), paged)
        return self.base.hidden_states(ids[None], positions[None], plan)

    def _grouped(self, rows: list[Row]) -> Iterable[list[Row]]:
        """Rows of one adapter and one context length class, as many as a group holds."""
        classes: dict[tuple[int, int], list[Row]] = {}
        for row in rows:
            classes.setdefault((id(row.adapter), row.computed // CONTEXT), []).append(row)
        for members in classes.values():
            size = self._group_size(members[0].adapter)
            yield from (members[i : i + size] for i in range(0, len(members), size))

    def _of_one_job(self, starts: list[Row]) -> Iterable[list[Row]]:
        jobs: dict[int, list[Row]] = {}
        for row in starts:
            jobs.setdefault(row.stream - row.index, []).append(row)
        for members in jobs.values():
            size = self._group_size(members[0].adapter)
            yield from (members[i : i + size] for i in range(0, len(members), size))

    def _decode(self, rows: list[Row]) -> Outcome:
        adapter, size = rows[0].adapter, self._group_size(rows[0].adapter)
        length = (rows[0].computed // CONTEXT + 1) * CONTEXT
        table = np.full((size, length), self.cache.blank, np.int64)
        ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
        places = np.full(size, self.cache.sink, np.int64)
        for i, row in enumerate(rows):
            assert row.table is not None
            end = row.computed + 1
            table[i, :end] = places_of(row.table, self.cache.block_size, end)
            ids[i], positions[i], places[i] = row.token(row.computed), row.computed, table[i, end - 1]
            row.computed = end
        hidden_gc = self._group_hidden(ids, positions, places, table, adapter)
        return self._draw(rows, hidden_gc, size)

    def _group_hidden(
        self,
        ids: np.ndarray[tuple[int], np.dtype[np.int64]],
        positions: np.ndarray[tuple[int], np.dtype[np.int64]],
        places: np.ndarray[tuple[int], np.dtype[np.int64]],
        table: np.ndarray[tuple[int, int], np.dtype[np.int64]],
        adapter: Adapter | None,
    ) -> torch.Tensor:
        device = self.base.device
        positions_r = torch.from_numpy(positions).to(device)
        # A shortest context of 0 keeps the mask in place even where no row needs it.
        paged = PagedBatch(
            self.cache,
            torch.from_numpy(places).to(device),
            rows=len(ids),
            positions_r=positions_r,
            shortest=0,
            longest=table.shape[1],
            table_rl=torch.from_numpy(table).to(device),
            plain=True,
        )
        return self._hidden(torch.from_numpy(ids).to(device), positions_r, adapter, paged)

    def _start(self, rows: list[Row]) -> Outcome:
        size = self._group_size(rows[0].adapter)
        state = rows[0].job.last_hidden
        assert state is not None
        return self._draw(rows, state.expand(size, -1).contiguous(), size)

    def _draw(self, rows: list[Row], hidden_gc: torch.Tensor, size: int) -> Outcome:
        draws = DrawRows(rows + rows[-1:] * (size - len(rows)), self.base.vocab_size, self.base.device)
        logits_gv = self.base.logits(hidden_gc, (Segment(rows[0].adapter, 0, size),))
        found = outcome(draws, draw(logits_gv, draws.params, draws.numbers()))
        return found.take(list(range(len(rows))))

    def _group_size(self, adapter: Adapter | None) -> int:
        shape = (0, frozenset[str]()) if adapter is None else (adapter.rank, adapter.parts)
        if shape not in self._groups:
            trial = None if adapter is None else _random_adapter(adapter)
            self._groups[shape] = GROUP if not self._alone and self._place_is_free(trial) else 1
            log.info("determinism: rank %d decodes %d rows at a time", shape[0], self._groups[shape])
        return self._groups[shape]

    def _place_is_free(self, adapter: Adapter | None) -> bool:
        """Whether rows keep their bits when they change places in a group, in short and long contexts."""
        cache = self.cache
        start, end = cache.sink, cache.sink + cache.block_size
        scratch = cache.pool_y2pkd[:, :, start:end]
        scratch.copy_(torch.randn(scratch.shape, generator=torch.Generator().manual_seed(0)))
        own = np.arange(start, start + GROUP)
        random = np.random.default_rng(0)
        ids = random.integers(0, self.base.vocab_size, GROUP)
        free = True
        for length in (CONTEXT, 8 * CONTEXT):
            last = min(length, self.base.context_length) - 1
            positions = np.maximum(last - np.arange(GROUP), 0)
            table = random.integers(start + GROUP, end, (GROUP, length))
            table[np.arange(GROUP), positions] = own
            found = []
            for turn in range(GROUP):
                order = np.roll(np.arange(GROUP), turn)
                hidden = self._group_hidden(ids[order], positions[order], own[order], table[order], adapter)
                logits = self.base.logits(hidden, (Segment(adapter, 0, GROUP),))
                found.append(logits[torch.from_numpy(np.argsort(order)).to(logits.device)])
            free = free and all(torch.equal(found[0], other) for other in found[1:])
        cache.scrub(())
        return free


def _random_adapter(like: Adapter) -> Adapter:
    """An adapter of the same shape that does something; a verdict must not depend on anyone's weights."""
    size = like.layout.per_rank * like.rank
    flat = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 0.02
    return Adapter(like.layout, like.rank, seed=0, device=like.device, dtype=like.dtype, flat=flat)


def join(found: list[Outcome]) -> Outcome:
    """Several draws as one; rows without alternatives are filled up where others have some."""
    if len(found) < 2:
        return found[0] if found else NOTHING
    whole = Outcome(
        [row for part in found for row in part.rows],
        np.concatenate([part.streams for part in found]),
        [token for part in found for token in part.tokens],
        np.concatenate([part.logprobs for part in found]),
    )
    width = max(0 if part.top_tokens is None else part.top_tokens.shape[1] for part in found)
    if width:
        whole.top_tokens = np.full((len(whole.rows), width), -1, np.int64)
        whole.top_logprobs = np.full((len(whole.rows), width), np.nan, np.float32)
        start = 0
        for part in found:
            end = start + len(part.rows)
            if part.top_tokens is not None and part.top_logprobs is not None:
                whole.top_tokens[start:end, : part.top_tokens.shape[1]] = part.top_tokens
                whole.top_logprobs[start:end, : part.top_tokens.shape[1]] = part.top_logprobs
            start = end
    return whole
