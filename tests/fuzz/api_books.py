"""What a stateful fuzzer knows: what each owner has made, and which words belong to whom.

Every text an owner sends holds a word nobody else uses, and ids of sessions are drawn at random: a word of
one owner in an answer to another, who did not send it, has leaked, unless it was published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.server.client import Client

MARK = re.compile(rb"s-[0-9a-f]{16}|copy-[0-9a-f]{16}|mk[a-z]+\d+x")


@dataclass
class ModelBook:
    """A model as its owner remembers it."""

    id: str
    session: str
    mark: str
    next: int = 1
    """The number of its next operation."""
    steps: int = 0
    """Optimizer steps that were accepted, those of what it was loaded from included."""
    sure: bool = True
    """Whether the order and outcome of everything so far is known."""
    ended: bool = False


@dataclass
class CheckpointBook:
    """Saved weights as their owner remembers them."""

    path: str
    kind: str
    marks: set[str]
    steps: int | None = None
    """Optimizer steps in a training checkpoint, if they are known."""
    public: bool = False
    expires: float | None = None
    sure: bool = True


@dataclass
class Ticket:
    """Work that was accepted."""

    id: str
    kind: str
    model: ModelBook | None = None
    steps: int | None = None
    """What a step's result must say."""
    path: str | None = None
    """What a save's result must say."""
    answer: bytes | None = None
    """Its result, once it was seen."""
    route: str = ""
    """The route it was asked for by."""


@dataclass
class Owner:
    """Somebody with a key, and everything that is theirs."""

    name: str
    client: Client
    sessions: dict[str, float] = field(default_factory=dict)
    """When each was last known to be open."""
    finished: set[str] = field(default_factory=set)
    models: dict[str, ModelBook] = field(default_factory=dict)
    samplers: dict[str, int] = field(default_factory=dict)
    """The next sample's number of each."""
    checkpoints: dict[str, CheckpointBook] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)
    """Paths of saves whose outcome was not seen."""
    tickets: dict[str, Ticket] = field(default_factory=dict)
    losses: dict[str, str] = field(default_factory=dict)
    urls: dict[str, bytes | None] = field(default_factory=dict)
    """Download addresses and what was behind them."""
    known: set[str] = field(default_factory=set)
    """Words of others that were given to this owner in public."""
    count: int = 0

    def word(self) -> str:
        """A new word of this owner's."""
        return f"mk{self.name}{self.number()}x"

    def number(self) -> int:
        """A number this owner has not used yet, from 10 on."""
        self.count += 1
        return self.count + 9


class Words:
    """Which word is whose, and which of them are public."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.public: set[str] = set()

    def learn(self, owner: Owner, data: bytes) -> None:
        """Words that stand in something an owner sends or is answered are that owner's, if nobody's yet."""
        for found in MARK.findall(data):
            self.owners.setdefault(found.decode(), owner.name)

    def leaked(self, owner: Owner, sent: bytes, answer: bytes) -> set[str]:
        """Words of others in an answer which this owner did not send and was never given."""
        said = {each.decode() for each in MARK.findall(sent)}
        found = set()
        for each in {each.decode() for each in MARK.findall(answer)}:
            whose = self.owners.get(each, owner.name)
            if whose == owner.name or each in said or each in owner.known:
                continue
            if each in self.public:
                owner.known.add(each)
            else:
                found.add(each)
        return found


def marks_in(*texts: Any) -> set[str]:
    """The words in some texts."""
    return {each.decode() for text in texts for each in MARK.findall(str(text).encode())}
