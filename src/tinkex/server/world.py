"""What is alive, in memory: sessions, models and sampling sessions; what has ended is in the store.

Looking for what is not there, or is somebody else's, is the same 404.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from ..types import CreateCustomLossRequest
from .completions import Completions
from .line import Line
from .problems import NotFound, Problem
from .records import ModelRow, SamplerRow, SessionRow

if TYPE_CHECKING:
    from .operations import Operation


MOST_CLONES = 1024
"""Clones of one sampling session that are remembered, besides those that joined it; their numbers are the
client's."""


@dataclass(slots=True, eq=False)
class LiveSession:
    """An open session."""

    row: SessionRow
    heard: float
    """When its client was last heard of, on the monotonic clock."""
    written: float
    """When that was last written down."""
    models: dict[str, LiveModel] = field(default_factory=dict)
    samplers: dict[str, LiveSampler] = field(default_factory=dict)
    losses: dict[str, CreateCustomLossRequest] = field(default_factory=dict)
    freezing: set[str] = field(default_factory=set)
    """Ids of sampling sessions that operations in line are going to make."""
    opening: set[str] = field(default_factory=set)
    """Ids of sampling sessions that are being written down."""


@dataclass(slots=True, eq=False)
class LiveModel:
    """A model that can be trained: its place in the world and its operations in line."""

    row: ModelRow
    session: LiveSession
    line: Line[Operation]
    open: bool = False
    """Whether the engine has it: operations of others wait until it does."""
    under_way: int = 0
    """Operations the engine has and has not answered."""
    steps_since: int = 0
    """Optimizer steps since the last snapshot."""
    snapshot_at: float = -inf
    """When that was taken, on the monotonic clock."""
    bytes_since: int = 0
    """Bytes of the operations since the last snapshot."""
    saving: set[str] = field(default_factory=set)
    """Paths that operations in line are going to save."""
    saved: dict[str, str] = field(default_factory=dict)
    """Where the files of its checkpoints lie, by path, for those that may be saved over."""
    deaths: int = 0
    """How often in a row the engine died while this model was restored."""
    watching: int | None = None
    """The missing number a timer is out for."""
    known_upto: int | None = None
    """The last number that is known, where a machine that went down may have taken higher ones along."""
    paused: str = ""
    """Why it waits for the disk, if it does."""
    pauses: int = 0
    """How often in a row it had to."""
    writing: Operation | None = None
    """The save the engine has: what comes after it waits, should it have to be done again."""
    snapshot_due: bool = False
    """Whether a timer is out for a snapshot that could not be written."""
    unloading: str | None = None
    """The operation that is going to unload it."""

    @property
    def id(self) -> str:
        """The model's id, which is its training run's."""
        return self.row.id


@dataclass(slots=True, eq=False)
class LiveSampler:
    """A sampling session."""

    row: SamplerRow
    session: LiveSession | None
    start: int
    """Where the numbers of its completions begin."""
    used: float = 0.0
    """When it was last sampled from, on the monotonic clock."""
    clones: dict[int, Completions] = field(default_factory=dict)

    def clone(self, number: int) -> Completions:
        """The completions of one clone."""
        known = self.clones.get(number)
        if known is None:
            if len(self.clones) >= MOST_CLONES + self.row.joined:
                self._forget_one()
            known = self.clones[number] = Completions(self.start)
        return known

    def _forget_one(self) -> None:
        """Forget the oldest clone nobody waits for and that has nothing to tell, or else the oldest."""
        idle = (number for number, each in self.clones.items() if each.idle)
        del self.clones[next(idle, next(iter(self.clones)))]

    def wake(self) -> None:
        """Answer the polls that are held here."""
        for completions in self.clones.values():
            completions.bell.ring()


class World:
    """Everything alive, by id."""

    def __init__(self) -> None:
        self.sessions: dict[str, LiveSession] = {}
        self.models: dict[str, LiveModel] = {}
        self.samplers: dict[str, LiveSampler] = {}

    def session(self, id: str | None, owner: str) -> LiveSession:
        """An open session of this owner."""
        found = self.sessions.get(id or "")
        if found is None or found.row.owner != owner:
            raise NotFound("open session", id)
        return found

    def model(self, id: str, owner: str) -> LiveModel:
        """A model of this owner that can be trained."""
        found = self.models.get(id)
        if found is None or found.row.owner != owner:
            raise NotFound("model", id)
        return found

    def sampler(self, id: str, owner: str) -> LiveSampler:
        """A sampling session of this owner."""
        found = self.samplers.get(id)
        if found is None or found.row.owner != owner:
            raise NotFound("sampling session", id)
        return found

    def count(self, owner: str, limit: int, what: str) -> None:
        """Refuse one more open session of this owner than is allowed."""
        number = sum(each.row.owner == owner for each in self.sessions.values())
        if number >= limit:
            raise Problem(429, f"{number} {what} are open, the limit is {limit}; finish some first")


def loose_name(owner: str, what: str = "") -> str:
    """A sampling session for samples that name none: an owner has one for each base model or path."""
    return f"loose~{owner}~{what.replace('/', '-')}"
