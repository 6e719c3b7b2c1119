"""Which sequences share a forward pass: ragged data in order, cut into micro-batches by a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Datums `first` to `end` of one part: neighbours in the same micro-batch."""

    part: int
    first: int
    end: int


def micro_batches(lengths: Sequence[Sequence[int]], token_budget: int) -> list[list[Run]]:
    """Cut the parts' datums, in order, into batches of at most `token_budget` tokens.

    A datum that is longer than the budget goes alone; order is kept, so the same call is always cut the
    same.
    """
    batches: list[list[Run]] = []
    room = 0
    for part, sizes in enumerate(lengths):
        for index, size in enumerate(sizes):
            if not batches or size > room:
                batches.append([])
                room = token_budget
            room -= size
            batch = batches[-1]
            if batch and batch[-1].part == part:
                batch[-1] = batch[-1]._replace(end=index + 1)
            else:
                batch.append(Run(part, index, index + 1))
    return batches
