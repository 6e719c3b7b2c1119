"""What the server remembers, as plain rows; nothing here knows how they are stored or sent.

Times are seconds since 1970. Every row belongs to an owner: the one whose key made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

SessionStatus: TypeAlias = Literal["active", "finished", "expired"]
ModelState: TypeAlias = Literal["live", "unloaded", "corrupted"]
OperationState: TypeAlias = Literal["queued", "done", "failed"]
CheckpointKind: TypeAlias = Literal["training", "sampler", "external"]
UsageKind: TypeAlias = Literal[
    "training", "sampling_prefill", "sampling_prefill_cached", "sampling_sample", "checkpoint"
]


@dataclass(slots=True)
class SessionRow:
    """One client's stay: models and sampling sessions are made in it."""

    id: str
    owner: str
    created: float
    last_seen: float
    tags: list[str] = field(default_factory=list)
    user_metadata: dict[str, Any] = field(default_factory=dict)
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None
    status: SessionStatus = "active"
    reason: str | None = None
    """Why it was finished: success, errored or interrupted."""
    detail: str | None = None
    ended: float | None = None


@dataclass(slots=True)
class ModelRow:
    """A model being trained (a training run) and how far its operations have come."""

    id: str
    session_id: str
    owner: str
    base_model: str
    created: float
    last_request: float
    rank: int
    seed: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    optimizer: dict[str, Any] = field(default_factory=lambda: {"type": "adamw"})
    user_metadata: dict[str, Any] | None = None
    state: ModelState = "live"
    note: str = ""
    """Why it is corrupted or unloaded, for people."""
    watermark: int = -1
    """Operations up to this number have ended; 0 is the creation."""
    snapshot: int = -1
    """The operation after which the newest snapshot was taken; -1: none, replay from the start."""
    skipped: list[int] = field(default_factory=list)
    """Numbers that never came and were given up."""


@dataclass(slots=True)
class SamplerRow:
    """A sampling session: a base model, or the weights of one moment."""

    id: str
    session_id: str
    owner: str
    base_model: str
    created: float
    model_path: str | None = None
    """The `tinker://` path it was opened on, if it was."""
    model_id: str | None = None
    """The model its unnamed weights were frozen from."""
    version: str = ""
    """What the engine calls its weights; empty: the base model itself."""
    folder: str = ""
    """Where the weights of a named checkpoint lie, relative to the state folder."""
    joined: int = 0
    """How many other processes have joined it."""


@dataclass(slots=True)
class CheckpointRow:
    """Weights saved under a name; the files are in `folder`, relative to the state folder."""

    path: str
    run_id: str
    kind: CheckpointKind
    name: str
    owner: str
    base_model: str
    rank: int
    created: float
    size: int
    folder: str
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    optimizer: dict[str, Any] = field(default_factory=lambda: {"type": "adamw"})
    version: str = ""
    public: bool = False
    expires: float | None = None
    user_metadata: dict[str, str] | None = None
    project_id: str | None = None
    session_id: str = ""


@dataclass(slots=True)
class OperationRow:
    """One operation on a model: what came in and, once it has ended, what came out."""

    id: str
    """The request id: `<model id>:<number>`."""
    model_id: str
    seq: int
    kind: str
    """The name of its route."""
    owner: str
    arrived: float
    body: bytes = field(default=b"", repr=False)
    content: str = "json"
    """How the body is written: json or protobuf."""
    state: OperationState = "queued"
    result: bytes = field(default=b"", repr=False)
    form: str = "json"
    """How the result is written: json, or pass (protobuf of a ForwardBackwardOutput)."""
    error: str = ""
    category: str = ""
    ended: float | None = None
    lost: str = field(default="", compare=False)
    """What of it was stored and can no longer be read, for people; it is never stored itself."""


@dataclass(slots=True)
class LossRow:
    """A custom loss a session registered."""

    id: str
    session_id: str
    owner: str
    created: float
    name: str
    definition: str
    """Its inputs and graph as JSON text."""


@dataclass(slots=True)
class UsageRow:
    """What was used in one hour, by what it is counted by."""

    hour: int
    """Hours since 1970."""
    owner: str
    kind: UsageKind
    session_id: str
    base_model: str
    project_id: str
    count: int
    """Tokens, or pieces for checkpoints."""


@dataclass(slots=True)
class AuditRow:
    """Something that was done to models, checkpoints, projects or keys."""

    time: float
    owner: str
    event: str
    model_id: str | None = None
    tinker_path: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class AnswerRow:
    """An answer kept for a client that asks the same again: by owner, route and idempotency key."""

    id: str
    answer: str
    created: float


Row: TypeAlias = SessionRow | ModelRow | SamplerRow | CheckpointRow | OperationRow | LossRow | AnswerRow
"""Rows that have an identity: `id`, or a checkpoint's `path`."""
