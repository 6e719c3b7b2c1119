"""What a server counts while it works: requests, operations, samples, tokens, and how long they took.

Counting is a few additions on the loop; how the figures are told is known elsewhere. Labels are names of
routes, kinds of operations and statuses: never owners, ids, or anything a client chose.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

__all__ = ["SHORT", "Histogram", "Metrics"]

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of buckets, in seconds."""


class Histogram:
    """How many of what was seen was how large."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SHORT) + 1)
        """By bucket; the last is for what is larger than all bounds."""
        self.total = 0.0

    def see(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(SHORT, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many were seen."""
        return sum(self.counts)


class Metrics:
    """The figures of one server since its start."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        """By route and status; 499: the client left before it was answered."""
        self.request_seconds: dict[str, float] = defaultdict(float)
        """By route, all together."""
        self.operations: dict[tuple[str, str], int] = defaultdict(int)
        """That have ended, by kind and outcome: done, user (its fault), server."""
        self.queued: dict[str, Histogram] = defaultdict(Histogram)
        """From arrival to the engine, by kind."""
        self.worked: dict[str, Histogram] = defaultdict(Histogram)
        """From the engine being told to its answer, by kind; a step told with its pass waits for that."""
        self.samples: dict[str, int] = defaultdict(int)
        """That have ended, by outcome."""
        self.first_token = Histogram()
        self.sampled = Histogram()
        """From arrival to the last token."""
        self.tokens: dict[str, int] = dict.fromkeys(("trained", "prompt", "prompt_cached", "sampled"), 0)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request has its answer."""
        self.requests[route, status] += 1
        self.request_seconds[route] += seconds

    def ended(self, kind: str, outcome: str, queued: float, worked: float) -> None:
        """An operation on a model has ended."""
        self.operations[kind, outcome] += 1
        if worked >= 0.0:  # else it never came to the engine
            self.queued[kind].see(queued)
            self.worked[kind].see(worked)
