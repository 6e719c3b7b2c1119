"""The block manager: whatever is opened, forked, written and closed, sequences read back their tokens."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tinkex.engine.blocks import BlockPool, OutOfBlocks, root_of

SIZE = 4


class Sequence:
    """A table, the tokens it should read back, and which of them have been written."""

    def __init__(self, owner, tokens, table):
        self.owner, self.tokens, self.table = owner, list(tokens), table
        self.written = len(table.blocks) * SIZE


class Blocks(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(12, SIZE)
        self.memory = np.full((12, SIZE), -1)
        self.live = []

    def write(self, row, end):
        try:
            copies = self.pool.reserve(row.table, row.written, end)
        except OutOfBlocks:
            assert self.pool.need(row.table, row.written, end) > self.pool.free
            return False
        for source, target in copies:
            self.memory[target] = self.memory[source]
        for position in range(row.written, end):
            block = row.table.blocks[position // SIZE]
            assert not self.pool.shared(block)
            self.memory[block, position % SIZE] = row.tokens[position]
        row.written = end
        return True

    @rule(
        target=sequences,
        owner=st.sampled_from(["ann", "bob"]),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    )
    def start(self, owner, tokens):
        table = self.pool.open(root_of("v", owner), tokens, len(tokens) - 1)
        row = Sequence(owner, tokens, table)
        self.live.append(row)
        return row

    @rule(row=sequences, more=st.lists(st.integers(0, 1), max_size=6))
    def extend(self, row, more):
        if self.write(row, len(row.tokens)) and more:
            row.tokens += more
            self.write(row, len(row.tokens))
        self.pool.commit(row.table, row.tokens[: row.written])

    @rule(target=sequences, row=sequences)
    def fork(self, row):
        twin = Sequence(row.owner, row.tokens, self.pool.fork(row.table))
        twin.written = row.written
        self.live.append(twin)
        return twin

    @rule(row=consumes(sequences))
    def close(self, row):
        self.pool.close(row.table)
        self.live.remove(row)

    @rule(data=st.data())
    def forget(self, data):
        blocks = data.draw(st.sets(st.integers(0, 11), max_size=3))
        unused = self.pool.forget(blocks)
        held = {block for row in self.live for block in row.table.blocks}
        assert set(unused) == blocks - held
        self.memory[unused] = -7

    @invariant()
    def every_sequence_reads_its_own_tokens(self):
        for row in self.live:
            for position in range(row.written):
                block = row.table.blocks[position // SIZE]
                assert self.memory[block, position % SIZE] == row.tokens[position]

    @invariant()
    def nothing_leaks(self):
        pool = self.pool
        counts = np.bincount([b for row in self.live for b in row.table.blocks], minlength=12).tolist()
        assert pool._refs == counts
        assert pool.free == counts.count(0)
        assert sorted([*pool._blank, *pool._idle]) == [b for b in range(12) if not counts[b]]
        assert all(pool._name[block] == name for name, block in pool._found.items())
        assert len(pool._found) == sum(name is not None for name in pool._name)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def written(pool, table, tokens):
    pool.reserve(table, len(table.blocks) * pool.size, len(tokens))
    pool.commit(table, tokens)
    return table


def test_equal_prefixes_share_full_blocks_and_leave_one_token_to_compute():
    pool = BlockPool(10, SIZE)
    tokens = list(range(8))
    first = written(pool, pool.open(root_of("v", "ann"), tokens, 7), tokens)
    again = pool.open(root_of("v", "ann"), tokens, 7)
    assert again.blocks == first.blocks[:1]
    longer = pool.open(root_of("v", "ann"), [*tokens, 9], 8)
    assert longer.blocks == first.blocks


@pytest.mark.parametrize(("version", "owner"), [("v", "bob"), ("w", "ann"), ("", "vann"), ("va", "nn")])
def test_neither_another_owner_nor_another_version_finds_a_prefix(version, owner):
    pool = BlockPool(10, SIZE)
    tokens = list(range(8))
    written(pool, pool.open(root_of("v", "ann"), tokens, 7), tokens)
    assert not pool.open(root_of(version, owner), tokens, 8).blocks


def test_closed_prefixes_stay_findable_until_their_place_is_needed():
    pool = BlockPool(4, SIZE)
    root = root_of("v", "")
    old = written(pool, pool.open(root, [1] * 8, 0), [1] * 8)
    pool.close(old)
    new = written(pool, pool.open(root, [2] * 4, 0), [2] * 4)
    pool.close(new)
    assert (pool.free, pool.cached) == (4, 3)
    big = pool.open(root, [3] * 8, 0)
    pool.reserve(big, 0, 8)
    assert len(pool.open(root, [1] * 8, 8).blocks) == 1, "the end of the oldest prefix goes first"
    assert len(pool.open(root, [2] * 4, 4).blocks) == 1


def test_a_failed_reservation_changes_nothing():
    pool = BlockPool(2, SIZE)
    table = pool.open(root_of("v", ""), [1], 0)
    pool.reserve(table, 0, 4)
    with pytest.raises(OutOfBlocks):
        pool.reserve(table, 4, 16)
    assert (len(table.blocks), pool.free) == (1, 1)


def test_forks_copy_the_partial_block_on_the_first_write():
    pool = BlockPool(8, SIZE)
    table = pool.open(root_of("v", ""), [1] * 6, 0)
    pool.reserve(table, 0, 6)
    twin = pool.fork(table)
    assert pool.free == 6
    copies = pool.reserve(twin, 6, 7)
    assert copies == [(table.blocks[1], twin.blocks[1])]
    assert twin.blocks[0] == table.blocks[0]
    assert pool.reserve(table, 6, 7) == [], "the last user writes in place"


def test_giving_a_block_back_twice_is_caught():
    pool = BlockPool(2, SIZE)
    table = pool.open(root_of("v", ""), [1], 0)
    pool.reserve(table, 0, 1)
    copy = list(table.blocks)
    pool.close(table)
    table.blocks = copy
    with pytest.raises(AssertionError, match="twice"):
        pool.close(table)
