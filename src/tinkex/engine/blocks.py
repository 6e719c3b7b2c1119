"""Which block of the paged key/value memory belongs to which sequence, and which blocks are shared.

A block holds `size` tokens. A full block may be committed: it then has a name, the hash of everything up to
its end, chained from a root that stands for (adapter version, owner), so that no owner finds another's
prompt. A committed block that nobody uses stays findable until its place is needed; the one unused for the
longest goes first. This module moves numbers only; whoever owns the tensors makes the copies it asks for.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Copy = tuple[int, int]
"""Copy the first block's contents over the second's before anything is written to it."""


class OutOfBlocks(Exception):
    """There are fewer free blocks than asked for; nothing was changed."""


@dataclass(slots=True)
class Table:
    """One sequence's blocks in order; the first `len(names)` of them are committed."""

    root: bytes
    blocks: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)


def root_of(version: str, owner: str) -> bytes:
    """The name every chain of this adapter version and owner starts from."""
    return hashlib.blake2b(f"{len(version)}:{version}{owner}".encode(), digest_size=16).digest()


def chain(parent: bytes, tokens: npt.NDArray[np.int32]) -> bytes:
    """The name of a full block from its parent's name and its tokens."""
    return hashlib.blake2b(parent + tokens.tobytes(), digest_size=16).digest()


def chained(root: bytes, tokens: Sequence[int] | npt.NDArray[np.generic], size: int) -> list[bytes]:
    """The names of all full blocks of a sequence."""
    ids = np.ascontiguousarray(tokens, np.int32)
    names: list[bytes] = []
    for end in range(size, len(ids) + 1, size):
        names.append(chain(names[-1] if names else root, ids[end - size : end]))
    return names


class BlockPool:
    """The free list, the reference counts and the names of a fixed number of blocks."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._refs = [0] * count
        self._name: list[bytes | None] = [None] * count
        self._found: dict[bytes, int] = {}
        self._blank = list(range(count - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be handed out now, cached ones included."""
        return len(self._blank) + len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks that nobody uses but that can still be found."""
        return len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold this many tokens."""
        return -(-tokens // self.size)

    def open(self, root: bytes, tokens: Sequence[int] | npt.NDArray[np.generic], limit: int) -> Table:
        """A table that holds the longest committed prefix of `tokens`, of at most `limit` tokens."""
        return self.find(root, chained(root, tokens[:limit], self.size))

    def find(self, root: bytes, names: Sequence[bytes]) -> Table:
        """A table that holds the committed blocks of these names, up to the first that is not there."""
        table = Table(root)
        for name in names:
            block = self._found.get(name)
            if block is None:
                break
            self._take(block)
            table.blocks.append(block)
            table.names.append(name)
        return table

    def need(self, table: Table, start: int, end: int) -> int:
        """How many free blocks it takes to write tokens `start` to `end`."""
        have = len(table.blocks)
        fresh = max(0, self.blocks_for(end) - have)
        return fresh + len(self._shared(table, start, end))

    def reserve(self, table: Table, start: int, end: int) -> list[Copy]:
        """Make tokens `start` to `end` writable; shared blocks among them are replaced by copies."""
        if self.need(table, start, end) > self.free:
            raise OutOfBlocks
        copies: list[Copy] = []
        for index in self._shared(table, start, end):
            old = table.blocks[index]
            table.blocks[index] = new = self._fresh()
            copies.append((old, new))
            self._give(old)
            del table.names[index:]
        while len(table.blocks) < self.blocks_for(end):
            table.blocks.append(self._fresh())
        return copies

    def fork(self, table: Table) -> Table:
        """A second table over the same blocks; each gets its own copy of a block when it writes to it."""
        for block in table.blocks:
            self._refs[block] += 1
        return Table(table.root, list(table.blocks), list(table.names))

    def commit(self, table: Table, tokens: Sequence[int] | npt.NDArray[np.generic]) -> None:
        """Name the full blocks among the first `len(tokens)` tokens, all of them written by now."""
        full = len(tokens) // self.size
        if full <= len(table.names):
            return
        ids = np.ascontiguousarray(tokens, np.int32)
        for index in range(len(table.names), full):
            parent = table.names[-1] if table.names else table.root
            name = chain(parent, ids[index * self.size : (index + 1) * self.size])
            block = table.blocks[index]
            # Of two sequences that computed the same block the first one's stays findable.
            if self._name[block] is None and name not in self._found:
                self._name[block] = name
                self._found[name] = block
            table.names.append(name)

    def close(self, table: Table) -> None:
        """Give every block back; the last ones are forgotten first: more sequences share a beginning."""
        for block in reversed(table.blocks):
            self._give(block)
        table.blocks.clear()
        table.names.clear()

    def forget(self, blocks: Iterable[int]) -> list[int]:
        """Make blocks unfindable; those that nobody uses now, whose contents may be cleared."""
        unused = []
        for block in blocks:
            name = self._name[block]
            if name is not None:
                del self._found[name]
                self._name[block] = None
            if not self._refs[block]:
                unused.append(block)
                if block in self._idle:
                    del self._idle[block]
                    self._blank.append(block)
        return unused

    def shared(self, block: int) -> bool:
        """Whether more than one sequence uses a block."""
        return self._refs[block] > 1

    def _shared(self, table: Table, start: int, end: int) -> list[int]:
        if end <= start:
            return []
        last = min(len(table.blocks), self.blocks_for(end))
        # A committed block is never written again, even by its only user: others may find it at any time.
        return [
            index
            for index in range(start // self.size, last)
            if self._refs[table.blocks[index]] > 1 or self._name[table.blocks[index]] is not None
        ]

    def _take(self, block: int) -> None:
        if not self._refs[block]:
            del self._idle[block]
        self._refs[block] += 1

    def _fresh(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            name = self._name[block]
            assert name is not None
            del self._found[name]
            self._name[block] = None
        self._refs[block] = 1
        return block

    def _give(self, block: int) -> None:
        if self._refs[block] <= 0:
            raise AssertionError(f"block {block} was given back twice")
        self._refs[block] -= 1
        if not self._refs[block]:
            if self._name[block] is None:
                self._blank.append(block)
            else:
                self._idle[block] = None
