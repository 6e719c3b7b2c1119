"""Which rows and which pieces of prompts make up the next sampling pass.

Requests wait in order of arrival, owners in turn: one who asks for very much does not keep others from
their share of the rows. Between two steps finished rows leave and new ones join; prompts are computed in
pieces beside the rows being decoded. When blocks run out the youngest gives its own back and is computed
again later. A request whose beginning is being computed for another waits for it and then shares it. This
module decides; the runner computes, and the engine reads the answers.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import islice

from .blocks import BlockPool, Copy, OutOfBlocks, Table, chained
from .sampling_rows import Fill, Job, Row
from .waiting_line import WaitingLine

_LOOK_AHEAD = 64
"""Waiting requests looked at in one pass; those behind them wait their turn."""
_TOGETHER, _PATIENCE = 20, 6
"""On a device that works ahead, prompts fewer than one to so many decoded rows wait for so many steps.

As many are read before there are rows for them.
"""
_EVEN = 1280
"""Beside decoded rows prompts of so many tokens, or a multiple, are read: products like such sizes best."""
_FEWEST_TOKENS, _CALM = 16, 256
"""What passes shrink to at most when memory is short, and after how many good ones they grow again."""


@dataclass(slots=True)
class PieceWork:
    """Tokens `start` to `end` of a prompt are computed in this pass."""

    fill: Fill
    start: int
    end: int

    @property
    def last(self) -> bool:
        """Whether the prompt is whole after it."""
        return self.end == len(self.fill.tokens)


@dataclass(slots=True)
class Pass:
    """One pass: block copies first, then decoded rows and prompt pieces together, then first tokens."""

    rows: list[Row]
    """The same list object for as long as the rows stay the same."""
    copies: list[Copy] = field(default_factory=list)
    pieces: list[PieceWork] = field(default_factory=list)
    starts: list[Row] = field(default_factory=list)
    """Rows that draw their first token, of jobs whose prompt is whole before or after this pass."""
    moved: bool = False
    """Whether some of the copies are of what decoded rows write to."""


class Scheduler:
    """The queue, the prompts being computed and the rows being decoded."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_rows: int,
        pass_tokens: int,
        chunk: int | None = None,
        ahead: bool = False,
    ) -> None:
        """`chunk` (the determinism mode) computes prompts in pieces of exactly that many tokens.

        `ahead` gives rows their next block one step before they need it, where there are blocks.
        """
        self.ahead = ahead
        self.pool, self.max_rows, self.pass_tokens, self.chunk = pool, max_rows, pass_tokens, chunk
        self.rows: list[Row] = []
        self.jobs: dict[str, Job] = {}
        self._waiting = WaitingLine()
        self._parked: deque[Row] = deque()
        self._fills: list[Fill] = []
        self._ready: list[Job] = []
        self._unplaced: set[int] = set()
        self._starting: list[Row] = []
        self._copies: list[Copy] = []
        self._left: list[Copy] = []
        self._limits = max_rows, pass_tokens
        self._calm = 0
        self._waited = 0
        self.preemptions = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.jobs)

    @property
    def queued(self) -> int:
        """Requests that have not begun."""
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Put a request at the end of the queue."""
        self.jobs[job.request.request_id] = job
        self._waiting.add(job)

    def cancel(self, request_id: str) -> Job | None:
        """Forget a request and free what it holds, at once."""
        job = self.jobs.get(request_id)
        if job is None:
            return None
        for row in (*self.rows, *self._starting):
            if row.job is job:
                self._close(row.table)
                self._unplaced.discard(row.stream)
        for fill in self._fills:
            if fill.job is job:
                self._close(fill.table)
        if any(row.job is job for row in self.rows):
            self.rows = arrange([row for row in self.rows if row.job is not job], self.rows)
        self._parked = deque(row for row in self._parked if row.job is not job)
        self._fills = [fill for fill in self._fills if fill.job is not job]
        self._forget(job)
        return job

    def blocks_of(self, job: Job) -> set[int]:
        """Every block a request holds."""
        tables = [row.table for row in (*self.rows, *self._starting) if row.job is job]
        tables += [fill.table for fill in self._fills if fill.job is job] + [job.lead]
        return {block for table in tables if table is not None for block in table.blocks}

    def next(self) -> Pass | None:
        """The next pass, or None when there is nothing to compute."""
        if not self.jobs:
            return None
        self._copies, self._left = self._left, []
        moved, size = bool(self._copies), self.pool.size
        for row in self.rows:
            if row.computed % size == 0 or row.stream in self._unplaced:
                self._place(row)
            if self.ahead and (row.computed + 1) % size == 0:
                self._place_ahead(row)
        if any(row.table is None for row in self.rows):
            self.rows = arrange([row for row in self.rows if row.table is not None], self.rows)
        work = Pass(self.rows, self._copies, moved=moved or bool(self._copies))
        self._starting = work.starts
        share = self._fair_share()
        self._begin_ready(work, share)
        if (self._fills or self._parked or self._waiting) and not self._wait_for_more(work):
            self._admit(work)
            self._plan_pieces(work, share)
        if share < self.max_rows:
            # What others could not use now is left to whoever can.
            self._begin_ready(work, self.max_rows)
        return work

    def _fair_share(self) -> int:
        """How many rows an owner may have while another waits for some."""
        wanting = self._waiting.owners | {job.request.owner for job in self._ready if job.waiting}
        return self.max_rows if len(wanting) < 2 else max(self.max_rows // len(wanting), 1)

    def _held(self, work: Pass) -> Counter[str]:
        """How many rows each owner has, those that begin among them."""
        return Counter(row.job.request.owner for row in (*self.rows, *work.starts))

    def _begin_ready(self, work: Pass, share: int) -> None:
        for job in self._ready:
            assert job.lead is not None
            self._begin(job, job.lead, work, share)

    def _wait_for_more(self, work: Pass) -> bool:
        """Whether prompts should wait a little, because reading a few costs as much as reading many."""
        if not self.ahead or self._fills:
            return False
        could = min(len(self._waiting) + len(self._parked), self._room(work))
        few = could < (len(self.rows) + len(work.starts)) // _TOGETHER
        self._waited = self._waited + 1 if few else 0
        if few and self._waited <= _PATIENCE:
            return True
        self._waited = 0
        return False

    def take_back(self, work: Pass) -> bool:
        """Undo a pass that lacked memory and plan smaller ones; False where there is no smaller one."""
        for row in reversed(work.starts):
            self._close(row.table)
            row.job.waiting.append(row.index)
        self._starting = []
        self._left, self._calm = work.copies, 0
        tokens = sum(piece.end - piece.start for piece in work.pieces)
        if tokens > _FEWEST_TOKENS:
            self.pass_tokens = max(tokens // 2, _FEWEST_TOKENS)
            return True
        most = (len(self.rows) + len(work.starts)) // 2
        if not most:
            self._left = []
            return False
        self.max_rows = most
        youngest = sorted(self.rows, key=lambda row: (row.job.arrival, row.index))[most:]
        for row in reversed(youngest):
            self._park(row)
        if youngest:
            self.rows = arrange([row for row in self.rows if row.table is not None], self.rows)
        return True

    def _recover(self) -> None:
        """Let passes grow again some time after memory was short."""
        if (self.max_rows, self.pass_tokens) == self._limits:
            return
        self._calm += 1
        if self._calm >= _CALM:
            rows, tokens = self._limits
            self.max_rows, self.pass_tokens = (
                min(2 * self.max_rows, rows),
                min(2 * self.pass_tokens, tokens),
            )
            self._calm = 0

    def settle(self, work: Pass, ended: set[int]) -> list[Job]:
        """Take in what a pass has computed, `ended` being the streams that ended with it; jobs now over."""
        self._recover()
        joined: list[Row] = []
        over: list[Job] = []
        for piece in work.pieces:
            fill = piece.fill
            fill.done = piece.end
            self.pool.commit(fill.table, fill.tokens[: fill.done])
            if piece.last:
                self._filled(fill, joined, over)
        self._starting = []
        for row in work.starts:
            if row.stream not in ended:
                assert row.job.lead is not None
                row.table = row.table or self.pool.fork(row.job.lead)
                joined.append(row)
        for job in [job for job in self._ready if not job.waiting]:
            self._drop_lead(job)
        if ended:
            for row in (*self.rows, *work.starts):
                if row.stream in ended:
                    self._retire(row, over)
        if joined or any(row.stream in ended for row in self.rows):
            self._unplaced.update(row.stream for row in joined)
            stay = [row for row in self.rows if row.stream not in ended]
            self.rows = arrange(stay + joined, self.rows)
        return over

    def _begin(self, job: Job, table: Table, work: Pass, share: int) -> None:
        """Have as many of a request's rows begin as may, its prompt lying in `table`."""
        coming_back = sum(isinstance(fill.owner, Row) for fill in self._fills)
        room = self.max_rows - len(self.rows) - len(work.starts) - coming_back
        if share < self.max_rows:
            room = min(room, share - self._held(work)[job.request.owner])
        for _ in range(min(room, len(job.waiting)) if job.budget else 0):
            row = job.start(job.waiting.pop())
            work.starts.append(row)
            if self.ahead and job.request.num_samples == 1:
                self._show_home(row, table)
            elif self.ahead and job.lead is not None:
                self._settle_in(row, job.lead)

    def _filled(self, fill: Fill, joined: list[Row], over: list[Job]) -> None:
        self._fills.remove(fill)
        if isinstance(fill.owner, Row):
            fill.owner.table, fill.owner.computed = fill.table, len(fill.tokens)
            joined.append(fill.owner)
        else:
            fill.owner.lead = fill.table
            self._ready.append(fill.owner)
            if not fill.owner.budget:
                over.append(fill.owner)
                self._forget(fill.owner)

    def _retire(self, row: Row, over: list[Job]) -> None:
        if row.table is not None:
            if self.chunk is None:
                self.pool.commit(row.table, row.tokens(row.computed))
            self.pool.close(row.table)
        self._unplaced.discard(row.stream)
        row.job.open -= 1
        if not row.job.open:
            over.append(row.job)
            self._forget(row.job)

    def _place(self, row: Row) -> None:
        """Give a row the block its next token goes to, or park it."""
        if row.table is None:
            return
        try:
            while True:
                try:
                    self._copies += self.pool.reserve(row.table, row.computed, row.computed + 1)
                    break
                except OutOfBlocks:
                    if not self._evict(row):
                        self._park(row)
                        break
        finally:
            self._unplaced.discard(row.stream)

    def _place_ahead(self, row: Row) -> None:
        """Give a row the block after its present one, if one is free."""
        if row.table is not None:
            with contextlib.suppress(OutOfBlocks):
                self._copies += self.pool.reserve(row.table, row.computed + 1, row.computed + 2)

    def _evict(self, asker: Row | Fill) -> bool:
        """Free the blocks of the youngest holder, unless that is the one who asks."""
        holders: list[tuple[int, int, int, Job | Fill | Row]] = [
            *((job.arrival, 2, 0, job) for job in self._ready),
            *((fill.job.arrival, 1, n, fill) for n, fill in enumerate(self._fills)),
            *((row.job.arrival, 0, row.index, row) for row in self.rows if row.table is not None),
        ]
        holder = max(holders, key=lambda found: found[:3])[3]
        if holder is asker:
            return False
        if isinstance(holder, Row):
            self._park(holder)
        elif isinstance(holder, Fill):
            self._drop_fill(holder)
        else:
            self._drop_lead(holder)
            self._waiting.add_first(holder)
        return True

    def _park(self, row: Row) -> None:
        self.preemptions += 1
        self._close(row.table)
        row.table = None
        self._unplaced.discard(row.stream)
        self._parked.appendleft(row)

    def _drop_fill(self, fill: Fill) -> None:
        self.pool.close(fill.table)
        self._fills.remove(fill)
        if isinstance(fill.owner, Row):
            self._parked.appendleft(fill.owner)
        else:
            self._waiting.add_first(fill.owner)

    def _drop_lead(self, job: Job) -> None:
        self._close(job.lead)
        job.lead = job.last_hidden = None
        self._ready.remove(job)

    def _admit(self, work: Pass) -> None:
        """Open contexts for parked rows, then for waiting requests, while rows and blocks allow."""
        while self._parked and self._free(work) > 0:
            row = self._parked[0]
            end = row.length - 1 if self.chunk is None else len(row.job.prompt)
            tokens = row.tokens(end)
            table = self.pool.open(row.job.root, tokens, end)
            if not self._room_for(table, end):
                self.pool.close(table)
                return
            self._parked.popleft()
            self._fills.append(Fill(row, tokens, table, len(table.blocks) * self.pool.size))
        if self._parked or self._room(work) <= 0:
            return
        held = self._held(work) if len(self._waiting.owners) > 1 else {}
        first = list(islice(self._waiting.in_turn(held), _LOOK_AHEAD))
        room = self._even_room(first)
        for job in first:
            if self._room(work) <= 0:
                return
            if job.names is None:
                job.names = chained(job.root, job.prompt, self.pool.size)
            table = self.pool.find(job.root, job.names[: job.cache_limit // self.pool.size])
            done = len(table.blocks) * self.pool.size
            if self._computed_elsewhere(job, len(table.blocks)):
                self.pool.close(table)
                continue
            missing = len(job.prompt) - done
            if self._fills and missing > room:
                self.pool.close(table)
                continue
            if not self._room_for(table, len(job.prompt)):
                self.pool.close(table)
                return
            self._waiting.remove(job)
            if job.hit is None:
                job.hit = done
            room -= missing
            self._fills.append(Fill(job, job.prompt, table, done))

    def _even_room(self, jobs: list[Job]) -> float:
        """How many tokens of waiting prompts to take up now; the rest wait for others to come."""
        tokens = sum(len(job.prompt) for job in jobs)
        if not self.ahead or not self.rows or tokens <= _EVEN or self._fills:
            return float("inf")
        return tokens // _EVEN * _EVEN

    def _free(self, work: Pass) -> int:
        """Rows that nobody has, and no prompt is being read for."""
        return self.max_rows - len(self.rows) - len(work.starts) - len(self._fills)

    def _room(self, work: Pass) -> int:
        """How many prompts may be taken up; on a device that works ahead some before rows are free."""
        spare = self.max_rows // _TOGETHER if self.ahead else 0
        ready = sum(bool(job.waiting) for job in self._ready)
        return self._free(work) + spare - min(ready, spare)

    def _room_for(self, table: Table, tokens: int) -> bool:
        """Whether a context fits beside the rows, each of which may soon ask for one block more."""
        if not self.rows and not self._fills:
            return True
        need = self.pool.need(table, len(table.blocks) * self.pool.size, tokens)
        return need + len(self.rows) <= self.pool.free

    def _computed_elsewhere(self, job: Job, found: int) -> bool:
        """Whether a prompt now being computed begins with more of this one's blocks than were found."""
        wanted = (job.names or [])[: job.cache_limit // self.pool.size]
        # A block's name stands for everything before it too, so one comparison is enough.
        return len(wanted) > found and any(
            len(names) > found and names[found] == wanted[found]
            for names in (fill.job.names or [] for fill in self._fills)
        )

    def _plan_pieces(self, work: Pass, share: int) -> None:
        room = max(self.pass_tokens - len(self.rows), self.pass_tokens // 4)
        for fill in list(self._fills):
            if room <= 0:
                return
            if fill not in self._fills:
                continue
            end = min(len(fill.tokens), fill.done + (self.chunk or room))
            if not self._reserve_piece(fill, end, work):
                continue
            piece = PieceWork(fill, fill.done, end)
            work.pieces.append(piece)
            room -= end - fill.done
            if piece.last and isinstance(fill.owner, Job):
                self._begin(fill.owner, fill.table, work, share)

    def _show_home(self, row: Row, table: Table) -> None:
        """Tell a prompt's only row where it will go on, with a block for its next token if one is free."""
        end = len(row.job.prompt)
        with contextlib.suppress(OutOfBlocks):
            self._copies += self.pool.reserve(table, end, end + 1)
        row.coming = table

    def _settle_in(self, row: Row, lead: Table) -> None:
        """Give one of several rows of a prompt read before its own blocks now, if there are any free."""
        table, end = self.pool.fork(lead), len(row.job.prompt)
        try:
            self._copies += self.pool.reserve(table, end, end + 1)
            row.table = table
        except OutOfBlocks:
            self.pool.close(table)

    def _reserve_piece(self, fill: Fill, end: int, work: Pass) -> bool:
        while True:
            try:
                self._copies += self.pool.reserve(fill.table, fill.done, end)
                return True
            except OutOfBlocks:
                # While anything else moves blocks will come free; only else may a prompt push others out.
                if work.rows or work.starts or work.pieces or not self._evict(fill):
                    return False

    def _close(self, table: Table | None) -> None:
        if table is not None:
            self.pool.close(table)

    def _forget(self, job: Job) -> None:
        self._close(job.lead)
        job.lead = job.last_hidden = None
        if job in self._waiting:
            self._waiting.remove(job)
        if job in self._ready:
            self._ready.remove(job)
        self.jobs.pop(job.request.request_id, None)


def arrange(rows: list[Row], before: list[Row]) -> list[Row]:
    """Rows of one adapter side by side; those that can stay at their place in `before` do."""
    slots = {row.stream: slot for slot, row in enumerate(before)}
    groups: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: slots.get(row.stream, len(before))):
        groups.setdefault(id(row.adapter), []).append(row)
    placed: list[Row] = []
    for group in groups.values():
        first, end = len(placed), len(placed) + len(group)
        stay = {slots[row.stream]: row for row in group if first <= slots.get(row.stream, -1) < end}
        move = [row for row in group if not first <= slots.get(row.stream, -1) < end]
        placed += [stay[slot] if slot in stay else move.pop() for slot in range(first, end)]
    return placed
