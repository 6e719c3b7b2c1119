"""Runs sampling passes: lays a pass out as tensors, calls the model, scores prompts and draws tokens.

Everything that depends on which rows are in the batch is made once and kept while the rows stay the same,
so that a decode step is the model's own work and a handful of small operations. Which rows those are is the
scheduler's decision.

Shape letters: T tokens of the pass, R decoded rows, C hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from .adapter_stack import AdapterStacks
from .adapters import Adapter
from .base_model import BaseModel
from .decode_batch import DecodeBatch, Ints, Slots, places_of
from .decode_graphs import DecodeGraphs
from .graph_recording import Recorder
from .kv_cache import DenseRows, KvCache
from .paged_attention import PagedBatch, Piece, paged_attention
from .plan import Plan, Segment, join_segments
from .prompt_graphs import PromptGraphs
from .sampling_math import Drawn, draw
from .sampling_rows import DrawRows, Job, Row
from .scheduler import Pass, PieceWork
from .sending import Coming, sent


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


class Runner:
    """Computes passes for one base model and one cache."""

    def __init__(
        self, base: BaseModel, cache: KvCache, *, dense_bytes: int = 0, ahead: bool = False
    ) -> None:
        """`ahead` starts a decode step's successor on the device before its tokens are read."""
        self.base, self.cache, self.ahead = base, cache, ahead
        self.slots = Slots(DenseRows(cache, dense_bytes) if dense_bytes else None)
        self.stacks = AdapterStacks(base)
        recorder = Recorder(base.device)
        self.graphs = DecodeGraphs(base, cache, recorder)
        self.prompt_graphs = PromptGraphs(base, cache, recorder)
        self.fast_draw = base.fast_draw()
        self._batch: DecodeBatch | None = None
        self._begun: tuple[DecodeBatch, torch.Tensor] | None = None
        self._prompts: tuple[list[PieceWork], Coming] | None = None

    def run(self, work: Pass) -> Outcome:
        """One pass, from block copies to drawn tokens."""
        with torch.inference_mode():
            self._prompts = None
            self.cache.copy(work.copies)
            work.copies.clear()
            batch = self._decode_batch(work.rows)
            pieces = [piece for piece in work.pieces if piece.end > piece.start]
            hidden_tc = self._take_begun(batch) if batch is not None and not work.moved else None
            self._begun = None
            if pieces:
                if hidden_tc is None and batch is not None and self.graphs.fits(batch):
                    hidden_tc = self._decode(batch)
                if hidden_tc is not None:
                    hidden_tc = torch.cat([hidden_tc, self._mixed(None, pieces)])
                else:
                    if batch is not None:
                        batch.prepare()
                    hidden_tc = self._mixed(batch, pieces)
                self._read_prompts(pieces, hidden_tc, len(work.rows))
            elif hidden_tc is None and batch is not None:
                hidden_tc = self._decode(batch)
            for row in work.rows:
                row.computed += 1
            try:
                return self._draw(work, batch, hidden_tc)
            except BaseException:
                for row in work.rows:
                    row.computed -= 1
                raise

    def broken_prompts(self) -> list[Job]:
        """The requests whose prompts' hidden states of the last pass are not finite."""
        if self._prompts is None:
            return []
        (pieces, coming), self._prompts = self._prompts, None
        finite_t = coming.arrived()
        if bool(finite_t.all()):
            return []
        each = finite_t.split([piece.end - piece.start for piece in pieces])
        return [
            piece.fill.job for piece, finite in zip(pieces, each, strict=True) if not bool(finite.all())
        ]

    def scrub(self, blocks: Iterable[int]) -> None:
        """Clear what requests with numbers that are not finite leave behind."""
        with torch.inference_mode():
            self.cache.scrub(blocks)
            if self.slots.dense is not None:
                self.slots.dense.scrub()
        self.forget()

    def forget(self) -> None:
        """Let go of what was laid out for the rows of the last pass."""
        self._batch, self._begun, self.slots.occupants = None, None, []

    def _decode_batch(self, rows: list[Row]) -> DecodeBatch | None:
        if not rows:
            self._batch, self.slots.occupants = None, []
            return None
        if self._batch is None or self._batch.rows is not rows:
            self._batch = DecodeBatch(rows, self.cache, self.slots, self.stacks, self.base)
        return self._batch

    def _decode(self, batch: DecodeBatch) -> torch.Tensor:
        if self.graphs.fits(batch):
            batch.prepare(contexts=False)
            return self.graphs.run(batch)
        batch.prepare()
        return self.base.hidden_states(batch.ids_r[None], batch.positions_r[None], batch.plan)

    def _mixed(self, batch: DecodeBatch | None, pieces: list[PieceWork]) -> torch.Tensor:
        """Decoded rows and prompt pieces in one pass; hidden states in that order."""
        device, size = self.base.device, self.cache.block_size
        paged = PagedBatch(self.cache, torch.empty(0)) if batch is None else batch.paged
        segments = [] if batch is None else [*batch.segments]
        prompts = np.empty((3, sum(piece.end - piece.start for piece in pieces)), np.int64)
        laid_out: list[Piece] = []
        start = paged.rows
        for piece in pieces:
            end = start + piece.end - piece.start
            whole = places_of(piece.fill.table, size, piece.end)
            here = prompts[:, start - paged.rows : end - paged.rows]
            here[0] = piece.fill.tokens[piece.start : piece.end]
            here[1] = np.arange(piece.start, piece.end)
            here[2] = whole[piece.start :]
            laid_out.append(Piece(start, end, piece.start, sent(whole, device) if piece.start else None))
            segments.append(Segment(piece.fill.job.adapter, start, end))
            start = end
        if batch is None and not any(piece.start for piece in pieces):
            recorded = self._recorded(prompts, pieces, join_segments(segments))
            if recorded is not None:
                return recorded
        given = sent(prompts, device)
        if batch is not None:
            rows = torch.stack([batch.ids_r, batch.positions_r, paged.places_t])
            given = torch.cat([rows, given], 1)
        paged = replace(paged, places_t=given[2], pieces=tuple(laid_out))
        plan = Plan(paged_attention, join_segments(segments), (0, start), paged)
        return self.base.hidden_states(given[0][None], given[1][None], plan)

    def _recorded(
        self, prompts: Ints, pieces: list[PieceWork], segments: tuple[Segment, ...]
    ) -> torch.Tensor | None:
        """Hidden states of prompts that begin here, by a recorded graph where one can serve them."""
        if not self.prompt_graphs.fits(prompts.shape[1], len(pieces)):
            return None
        return self.prompt_graphs.run(prompts, [piece.end for piece in pieces], segments)

    def _read_prompts(self, pieces: list[PieceWork], hidden_tc: torch.Tensor, start: int) -> None:
        """Score prompts, and keep the state that first tokens are drawn from."""
        # Looked at before a step ahead, which may use the same memory, and known without waiting for it.
        self._prompts = (pieces, Coming(torch.isfinite(hidden_tc[start:]).all(-1)))
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
        logits_rv = self.base.logits(hidden_rc, segments)
        drawn = draw(logits_rv, draws.params, draws.numbers(), self.fast_draw)
        if batch is not None:
            batch.advance(drawn.tokens_r if len(drawn.tokens_r) == rows else drawn.tokens_r[:rows])
        if not self.ahead:
            return outcome(draws, drawn)
        coming = _OnTheWay(drawn)
        following = self._following(work, batch, drawn.tokens_r)
        if following is not None:
            self._begin_next(following)
        return coming.arrived(draws)

    def _following(self, work: Pass, batch: DecodeBatch | None, ids_r: torch.Tensor) -> DecodeBatch | None:
        """The rows of the next pass if none ends now; None where they cannot be told."""
        if any(piece.last and isinstance(piece.fill.owner, Row) for piece in work.pieces):
            return None
        if not work.starts or not self.graphs.usable:
            return batch
        rows = [*work.rows, *work.starts]
        if not all(row.holds_next(self.cache.block_size) for row in rows):
            return None
        return DecodeBatch(rows, self.cache, self.slots, self.stacks, self.base, ids_r)

    def _take_begun(self, batch: DecodeBatch) -> torch.Tensor | None:
        """The hidden states of a step begun ahead, for those of its rows that went on."""
        if self._begun is None:
            return None
        before, hidden_rc = self._begun
        if before is batch:
            return hidden_rc
        at = {row.stream: i for i, row in enumerate(before.rows)}
        chosen = [at.get(row.stream) for row in batch.rows]
        if any(i is None for i in chosen):
            return None
        batch.prepare(contexts=False)
        return hidden_rc[sent(np.array(chosen, np.int64), hidden_rc.device)]

    def _begin_next(self, batch: DecodeBatch) -> None:
        """Start the step after this one, for the case that all its rows go on.

        What it writes lies behind every row's tokens, in blocks the rows hold; if a row does not go on, the
        next owner of its block writes before it reads.
        """
        held = all(row.holds_next(self.cache.block_size) for row in batch.rows)
        if held and batch.paged.longest <= self.base.context_length and self.graphs.fits(batch):
            self._begun = (batch, self._decode(batch))


def scorer(base: BaseModel, adapter: Adapter | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """What turns hidden states of one adapter's tokens into logits."""
    return lambda hidden_nc: base.logits(hidden_nc, (Segment(adapter, 0, len(hidden_nc)),))


class _OnTheWay:
    """A draw on its way to the host, while the device goes on."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.tokens_r, self.logprobs_r = Coming(drawn.tokens_r), Coming(drawn.logprobs_r)

    def arrived(self, draws: DrawRows) -> Outcome:
        """The outcome, as soon as it is there."""
        tokens, logprobs = self.tokens_r.arrived().tolist(), self.logprobs_r.arrived().numpy()
        found = Outcome(draws.rows, draws.streams, tokens, logprobs.astype(np.float32))
        return _with_top(found, self.drawn)


def outcome(draws: DrawRows, drawn: Drawn) -> Outcome:
    """Bring a draw to the host."""
    found = Outcome(draws.rows, draws.streams, drawn.tokens_r.tolist(), drawn.logprobs_r.cpu().numpy())
    return _with_top(found, drawn)


def _with_top(found: Outcome, drawn: Drawn) -> Outcome:
    if drawn.top_tokens_rk is not None and drawn.top_logprobs_rk is not None:
        found.top_tokens = drawn.top_tokens_rk.cpu().numpy()
        found.top_logprobs = drawn.top_logprobs_rk.cpu().numpy()
    return found
