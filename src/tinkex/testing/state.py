"""What a fake service remembers: sessions, models, samplers, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ..types import Checkpoint, CheckpointType, CreateCustomLossRequest, LoraConfig, OptimizerConfig
from ..wire.paths import SEGMENTS, tinker_path
from .exchange import Problem
from .tickets import Completions
from .training_line import TrainingLine

__all__ = ["Model", "Sampler", "SavedCheckpoint", "Session", "World"]

_BYTES_PER_RANK = 1000


@dataclass(slots=True)
class Session:
    """An open or ended session."""

    id: str
    owner: str
    created: datetime
    tags: list[str]
    user_metadata: dict[str, Any]
    sdk_version: str
    project_id: str | None
    display_name: str | None
    last_heartbeat: float
    heartbeats: int = 0
    ended: str | None = None  # success, errored, interrupted or expired
    detail: str | None = None
    models: list[str] = field(default_factory=list)
    samplers: list[str] = field(default_factory=list)
    losses: dict[str, CreateCustomLossRequest] = field(default_factory=dict)
    trace_polls: int = 0


@dataclass(slots=True)
class Model:
    """A model being trained."""

    id: str
    session_id: str
    owner: str
    base_model: str
    lora: LoraConfig
    optimizer_config: OptimizerConfig
    user_metadata: dict[str, Any] | None
    line: TrainingLine
    last_request: datetime
    steps: int = 0  # optimizer steps taken
    passes: int = 0  # backward passes since the last one
    tokens: int = 0  # tokens trained on
    unloaded: bool = False


@dataclass(slots=True)
class Sampler:
    """A sampling session: a base model, or the weights of one moment."""

    id: str
    session_id: str
    owner: str
    base_model: str
    model_path: str | None
    steps: int
    joined: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    completions: dict[int, Completions] = field(default_factory=dict)

    def clone(self, number: int) -> Completions:
        """The completions of one clone."""
        known = self.completions.get(number)
        if known is None:
            known = self.completions[number] = Completions()
        return known


@dataclass(slots=True)
class SavedCheckpoint:
    """Weights saved under a path."""

    run: str
    kind: CheckpointType
    name: str
    owner: str
    base_model: str
    lora: LoraConfig
    optimizer_config: OptimizerConfig
    steps: int
    created: datetime
    user_metadata: dict[str, str] | None = None
    public: bool = False
    expires: datetime | None = None
    project_id: str | None = None

    @property
    def path(self) -> str:
        """Its `tinker://` path."""
        return tinker_path(self.run, self.kind, self.name)

    @property
    def size(self) -> int:
        """Its size in bytes, made up from its rank."""
        return _BYTES_PER_RANK * self.lora.rank

    def expire_after(self, seconds: int | None, now: datetime) -> None:
        """Let it expire so long from now, or never."""
        self.expires = None if seconds is None else now + timedelta(seconds=seconds)

    def listed(self) -> Checkpoint:
        """How lists show it."""
        return Checkpoint(
            checkpoint_id=f"{SEGMENTS[self.kind]}/{self.name}",
            checkpoint_type=self.kind,
            time=self.created,
            tinker_path=self.path,
            size_bytes=self.size,
            public=self.public,
            user_metadata=self.user_metadata,
            expires_at=self.expires,
        )


class World:
    """Everything, by id; looking for what is not there, or is someone else's, is a 404."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, Model] = {}
        self.samplers: dict[str, Sampler] = {}
        self.checkpoints: dict[str, SavedCheckpoint] = {}

    def session(self, id: str | None, owner: str, *, open: bool = True) -> Session:
        """A session of this owner, still open unless that does not matter."""
        found = self.sessions.get(id or "")
        if found is None or found.owner != owner:
            raise Problem(404, f"session {id!r} not found")
        if open and found.ended is not None:
            raise Problem(400, f"session {id!r} has ended ({found.ended})")
        return found

    def model(self, id: str, owner: str) -> Model:
        """A model of this owner, loaded or not."""
        found = self.models.get(id)
        if found is None or found.owner != owner:
            raise Problem(404, f"model {id!r} not found")
        return found

    def sampler(self, id: str, owner: str) -> Sampler:
        """A sampling session of this owner."""
        found = self.samplers.get(id)
        if found is None or found.owner != owner:
            raise Problem(404, f"sampling session {id!r} not found")
        return found

    def checkpoint(self, path: str, owner: str, now: datetime, *, own: bool = False) -> SavedCheckpoint:
        """A checkpoint this owner may read (or, with `own`, change)."""
        found = self.checkpoints.get(path)
        if found is not None and found.expires is not None and found.expires <= now:
            del self.checkpoints[path]
            found = None
        if found is None or (found.owner != owner and (own or not found.public)):
            raise Problem(404, f"checkpoint {path!r} not found")
        return found

    def checkpoints_of(self, owner: str, now: datetime) -> list[SavedCheckpoint]:
        """An owner's checkpoints that have not expired, newest first."""
        live = [
            each
            for each in self.checkpoints.values()
            if each.owner == owner and (each.expires is None or each.expires > now)
        ]
        return live[::-1]
