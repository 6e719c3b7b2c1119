"""Checkpoints, the `tinker://` paths that name them, and lists of them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from ..errors import InvalidArgumentError
from .record import Record
from .rules import shown

__all__ = [
    "Checkpoint",
    "CheckpointType",
    "CheckpointsListResponse",
    "Cursor",
    "ExternalWeightsUrlsResponse",
    "ParsedCheckpointTinkerPath",
]

CheckpointType: TypeAlias = Literal["training", "sampler", "external"]

SCHEME = "tinker://"
KINDS: dict[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}


class Checkpoint(Record):
    """A saved checkpoint."""

    checkpoint_id: str
    checkpoint_type: CheckpointType
    time: datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None


class ParsedCheckpointTinkerPath(Record):
    """The parts of `tinker://<run>/<weights|sampler_weights|external_weights>/<name>`."""

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> ParsedCheckpointTinkerPath:
        """Take a path apart, or say what is wrong with it."""
        if not isinstance(tinker_path, str) or not tinker_path.startswith(SCHEME):
            raise InvalidArgumentError(
                f"Invalid tinker path: {shown(tinker_path)} does not start with {SCHEME}"
            )
        run, *rest = tinker_path.removeprefix(SCHEME).split("/")
        if len(rest) != 2 or not run or not rest[1] or rest[0] not in KINDS:
            raise InvalidArgumentError(
                f"Invalid tinker path: {shown(tinker_path)}; "
                f"expected {SCHEME}<run>/<{'|'.join(KINDS)}>/<name>"
            )
        return cls(
            tinker_path=tinker_path,
            training_run_id=run,
            checkpoint_type=KINDS[rest[0]],
            checkpoint_id="/".join(rest),
        )


class Cursor(Record):
    """Where a page of a list lies."""

    offset: int
    limit: int
    total_count: int


class CheckpointsListResponse(Record):
    """A page of checkpoints."""

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class ExternalWeightsUrlsResponse(Record):
    """A download address for each file of an exported checkpoint."""

    urls: dict[str, str]
    expires: datetime
