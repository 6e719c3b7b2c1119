"""Training runs and lists of them."""

from __future__ import annotations

from datetime import datetime

from .checkpoint import Checkpoint, Cursor
from .record import Record

__all__ = ["TrainingRun", "TrainingRunsResponse"]


class TrainingRun(Record):
    """A model being trained, or one that was."""

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    corrupted: bool = False
    lora_rank: int | None = None
    last_request_time: datetime
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, str] | None = None


class TrainingRunsResponse(Record):
    """A page of training runs."""

    training_runs: list[TrainingRun]
    cursor: Cursor
