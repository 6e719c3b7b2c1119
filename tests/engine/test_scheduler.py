"""The scheduler alone, over a memory that holds token numbers: always progress, right contexts, no leak."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.engine.blocks import BlockPool, root_of
from tinkex.engine.messages import Sample, SamplingParams
from tinkex.engine.sampling_rows import Job
from tinkex.engine.scheduler import Scheduler, arrange
from tinkex.engine.stopping import StopRule
from tinkex.engine.waiting_line import WaitingLine

SIZE = 4


class Machine:
    """A scheduler and what a runner would do, with tokens in place of keys and values."""

    def __init__(self, blocks, **options):
        self.pool = BlockPool(blocks, SIZE)
        self.scheduler = Scheduler(self.pool, **options)
        self.memory = np.full((blocks, SIZE), -1)
        self.arrivals = 0
        self.finished = {}

    def add(self, name, prompt, samples, budget, version="v", owner=""):
        prompt = np.array(prompt, np.int32)
        request = Sample(0, name, version, prompt, samples, SamplingParams(max_tokens=budget), owner=owner)
        self.arrivals += 1
        job = Job(
            request,
            None,
            root_of(version, owner),
            prompt,
            budget,
            StopRule(frozenset(), ()),
            seed=self.arrivals,
            first_stream=self.arrivals * 1000,
            arrival=self.arrivals,
            cache_limit=len(prompt) - 1,
        )
        self.scheduler.add(job)
        return job

    def write(self, table, position, token):
        block = table.blocks[position // SIZE]
        assert not self.pool.shared(block)
        self.memory[block, position % SIZE] = token

    def context(self, table, end):
        return [int(self.memory[table.blocks[p // SIZE], p % SIZE]) for p in range(end)]

    def step(self):
        work = self.scheduler.next()
        for source, target in work.copies:
            self.memory[target] = self.memory[source]
            assert work.moved or not any(target in row.table.blocks for row in work.rows)
        assert work.rows or work.pieces or work.starts, "an empty pass: nothing can move"
        for row in work.rows:
            assert self.context(row.table, row.computed) == row.tokens(row.computed).tolist()
            self.write(row.table, row.computed, row.token(row.computed))
            row.computed += 1
        for piece in work.pieces:
            fill = piece.fill
            if self.scheduler.chunk:
                assert piece.start % self.scheduler.chunk == 0
            assert self.context(fill.table, piece.start) == fill.tokens[: piece.start].tolist()
            for position in range(piece.start, piece.end):
                self.write(fill.table, position, fill.tokens[position])
        ended = set()
        for row in (*work.rows, *work.starts):
            if row.length == row.computed:
                token = (row.stream * 31 + row.length * 7) % 50
                if row.watch.see(token) is not None:
                    ended.add(row.stream)
                    self.finished.setdefault(row.job.request.request_id, {})[row.index] = list(
                        row.watch.tokens
                    )
        over = self.scheduler.settle(work, ended)
        assert len(self.scheduler.rows) <= self.scheduler.max_rows
        return over


jobs = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=18),
    st.integers(1, 5),
    st.integers(0, 14),
    st.sampled_from("vw"),
    st.sampled_from("abc"),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(jobs, min_size=1, max_size=9),
    st.integers(8, 30),
    st.integers(1, 6),
    st.sampled_from([3, 8, 64]),
    st.sampled_from([2, 20]),
    st.sampled_from(["plain", "exact", "ahead"]),
    st.data(),
)
def test_every_request_ends_and_every_context_is_right(
    asked, blocks, max_rows, pass_tokens, together, mode, data
):
    chunk = SIZE if mode == "exact" else None
    options = {"max_rows": max_rows, "pass_tokens": pass_tokens, "chunk": chunk, "ahead": mode == "ahead"}
    with (
        mock.patch("tinkex.engine.scheduler._EVEN", 6),
        mock.patch("tinkex.engine.scheduler._TOGETHER", together),
    ):
        check_that_all_end(Machine(blocks, **options), asked, data)


def check_that_all_end(machine, asked, data):
    """Requests that arrive and are cancelled at any time end as they should, and nothing stays behind."""
    expected = {}
    cancelled = set()
    queue = list(enumerate(asked))
    for _ in range(4000):
        if queue and data.draw(st.booleans(), label="arrives"):
            number, (prompt, samples, budget, version, owner) = queue.pop()
            machine.add(str(number), prompt, samples, budget, version, owner)
            expected[str(number)] = (samples, budget)
        if not machine.scheduler.busy:
            if not queue:
                break
            continue
        if data.draw(st.integers(0, 19), label="cancel") == 0:
            name = data.draw(st.sampled_from(sorted(machine.scheduler.jobs)))
            machine.scheduler.cancel(name)
            cancelled.add(name)
            continue
        machine.step()
    assert not machine.scheduler.busy
    assert machine.pool.free == machine.pool.count
    for name, (samples, budget) in expected.items():
        if name not in cancelled and budget:
            assert sorted(machine.finished[name]) == list(range(samples))
            assert all(len(tokens) == budget for tokens in machine.finished[name].values())


def test_prompts_are_computed_beside_rows_in_pieces():
    machine = Machine(40, max_rows=8, pass_tokens=8)
    machine.add("row", [1] * 4, 1, 20)
    machine.step()
    machine.add("long", [0] * 30, 1, 1)
    counts = []
    while "long" not in machine.finished:
        before = machine.scheduler.jobs["row"].open
        work_rows = len(machine.scheduler.rows)
        machine.step()
        counts.append((before, work_rows))
    assert len(counts) == 5
    assert all(rows == 1 for _, rows in counts), "the decoded row takes part in every pass"


def read_at_once(machine):
    """How many prompt tokens the next pass reads."""
    taken = []
    settle = machine.scheduler.settle
    machine.scheduler.settle = lambda work, ended: taken.append(work.pieces) or settle(work, ended)
    machine.step()
    machine.scheduler.settle = settle
    return sum(piece.end - piece.start for piece in taken[0])


def test_a_device_that_works_ahead_reads_even_numbers_of_prompt_tokens():
    machine = Machine(4000, max_rows=64, pass_tokens=8192, ahead=True)
    for i in range(9):
        machine.add(f"first {i}", [i] * 300, 1, 50)
    assert read_at_once(machine) == 2700, "with nothing else to do all of them"
    for i in range(9):
        machine.add(str(i), [10 + i] * 300, 1, 50)
    assert read_at_once(machine) == 2400, "as many as 2,560 hold"
    assert read_at_once(machine) == 300
    machine.add("long", [30] * 3000, 1, 50)
    assert read_at_once(machine) == 3000, "one that is longer does not wait for ever"
    for length in (1000, 600, 200):
        machine.add(f"of {length}", [31 + length % 7] * length, 1, 50)
    assert read_at_once(machine) == 1200, "one that does not fit lets shorter ones pass"
    machine.add("later", [40] * 900, 1, 50)
    assert read_at_once(machine) == 600, "but only once"


def test_a_device_that_works_ahead_has_prompts_read_before_rows_are_free():
    machine = Machine(4000, max_rows=40, pass_tokens=8192, ahead=True)
    for i in range(200):
        machine.add(str(i), [i] * 20, 1, 30 + i % 40)
    reads = []
    settle = machine.scheduler.settle
    machine.scheduler.settle = lambda work, ended: reads.append(len(work.pieces)) or settle(work, ended)
    while len(machine.scheduler.rows) < 40:
        machine.step()
    reads.clear()
    while machine.scheduler.queued:
        machine.step()
        assert len(machine.scheduler.rows) >= 38, "a row that ends is followed by the next at once"
    assert sum(reads) >= 2 * sum(map(bool, reads)), "prompts are read together"
    while machine.scheduler.busy:
        machine.step()
    assert len(machine.finished) == 200
    assert machine.pool.free == machine.pool.count


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("way", ["one request of many samples", "many requests"])
def test_one_who_asks_for_very_much_does_not_keep_others_waiting(ahead, way):
    machine = Machine(4000, max_rows=8, pass_tokens=64, ahead=ahead)
    if way == "many requests":
        for i in range(300):
            machine.add(f"much {i}", [1, i], 1, 10 + i % 5, owner="a")
    else:
        machine.add("much", [1, 2, 3], 300, 10, owner="a")
    passes, plan = [], machine.scheduler.next

    def noted():
        work = plan()
        passes.append([row.job.request.owner for row in (*work.rows, *work.starts)])
        return work

    machine.scheduler.next = noted
    while len(machine.scheduler.rows) < 8:
        machine.step()
    for i in range(20):
        machine.add(f"little {i}", [2, i], 1, 10, owner="b")
    for _ in range(16):
        machine.step()
    passes.clear()
    while not any(f"little {i}" in machine.finished for i in range(16, 20)):
        machine.step()
    assert {owners.count("a") for owners in passes} <= {3, 4, 5}, "half of the rows are one's"
    assert {owners.count("b") for owners in passes} <= {3, 4, 5}, "and half the other's"
    while machine.scheduler.busy:
        machine.step()
    assert passes[-30] == ["a"] * 8, "alone one has them all"
    assert {name.split()[0] for name in machine.finished} == {"much", "little"}


def test_owners_begin_in_turn():
    machine = Machine(4000, max_rows=4, pass_tokens=64)
    asked = [
        machine.add(f"{owner}{i}", [i], samples, 3, owner=owner)
        for owner, samples in (("a", 2), ("b", 1), ("c", 1))
        for i in range(3)
    ]
    line = WaitingLine()
    for job in asked:
        line.add(job)
    names = [job.request.request_id for job in line.in_turn({"b": 2})]
    assert names == ["a0", "c0", "c1", "a1", "b0", "c2", "b1", "a2", "b2"]
    line.remove(asked[0])
    line.add_first(asked[0])
    assert [job.request.request_id for job in line.in_turn({})][:3] == ["a0", "b0", "c0"]
    assert len(line) == 9
    assert asked[3] in line
    for job in asked:
        line.remove(job)
    assert not line.owners
    assert asked[3] not in line


@pytest.mark.parametrize("drop", [0, 2, 4])
def test_rows_keep_their_places(drop):
    machine = Machine(60, max_rows=8, pass_tokens=64)
    for i in range(5):
        machine.add(str(i), [1, i % 2], 1, 30)
    while len(machine.scheduler.rows) < 5:
        machine.step()
    before = machine.scheduler.rows
    machine.scheduler.cancel(before[drop].job.request.request_id)
    after = machine.scheduler.rows
    moved = [row for slot, row in enumerate(after) if before[slot] is not row]
    assert len(after) == 4
    assert len(moved) <= 1


def test_rows_of_one_adapter_lie_side_by_side():
    machine = Machine(60, max_rows=8, pass_tokens=64)
    rows = [machine.add(str(i), [1], 1, 3).start(0) for i in range(6)]
    kinds = [object(), object()]
    for i, row in enumerate(rows):
        row.job.adapter = kinds[i % 2]
    placed = arrange(rows, [])
    assert [row.adapter is placed[0].adapter for row in placed] == [True] * 3 + [False] * 3
