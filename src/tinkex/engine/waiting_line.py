"""Requests that wait to begin: one owner's in the order they came, and owners in turn."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping

from .sampling_rows import Job


class WaitingLine:
    """A line for each owner."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Job]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, job: Job) -> bool:
        return job in self._lines.get(job.request.owner, ())

    @property
    def owners(self) -> set[str]:
        """Who has requests here."""
        return set(self._lines)

    def add(self, job: Job) -> None:
        """Put a request at the end of its owner's line."""
        self._lines.setdefault(job.request.owner, deque()).append(job)

    def add_first(self, job: Job) -> None:
        """Put a request that had begun back to the front."""
        self._lines.setdefault(job.request.owner, deque()).appendleft(job)

    def remove(self, job: Job) -> None:
        """Take a request out."""
        line = self._lines[job.request.owner]
        line.remove(job)
        if not line:
            del self._lines[job.request.owner]

    def in_turn(self, held: Mapping[str, int]) -> Iterator[Job]:
        """All requests in the order they should begin: always one of whoever has the fewest rows."""
        lines = {owner: iter(line) for owner, line in self._lines.items()}
        heads: list[tuple[int, int, str, Job]] = []

        def push(owner: str, rows: int) -> None:
            job = next(lines[owner], None)
            if job is not None:
                heapq.heappush(heads, (rows, job.arrival, owner, job))

        for owner in lines:
            push(owner, held.get(owner, 0))
        while heads:
            rows, _, owner, job = heapq.heappop(heads)
            yield job
            push(owner, rows + job.open)
