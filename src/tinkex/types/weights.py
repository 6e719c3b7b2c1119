"""Saving, loading, copying and describing weights."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .checkpoint import ParsedCheckpointTinkerPath
from .console import checkpoint_url, playground_url
from .identifiers import ModelID
from .optimizer import AdamOptimizerConfig, OptimizerConfig
from .record import Record

__all__ = [
    "CopyWeightsRequest",
    "CopyWeightsResponse",
    "LoadWeightsRequest",
    "LoadWeightsResponse",
    "SaveWeightsExternalRequest",
    "SaveWeightsExternalResponse",
    "SaveWeightsExternalResponseInternal",
    "SaveWeightsForSamplerRequest",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsForSamplerResponseInternal",
    "SaveWeightsRequest",
    "SaveWeightsResponse",
    "WeightsInfoResponse",
]


class SaveWeightsRequest(Record):
    """Saves weights and optimizer state under a name."""

    model_id: ModelID
    path: str | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights"] = "save_weights"


def _console_url(path: str) -> str:
    parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
    return checkpoint_url(parsed.training_run_id, parsed.checkpoint_id)


class SaveWeightsResponse(Record):
    """Where a training checkpoint was saved."""

    path: str
    type: Literal["save_weights"] | None = None

    def get_console_url(self) -> str:
        """The checkpoint's page in the hosted console."""
        return _console_url(self.path)


class SaveWeightsForSamplerRequest(Record):
    """Saves weights for sampling: named by `path`, or ephemeral with a sampling session."""

    model_id: ModelID
    path: str | None = None
    sampling_session_seq_id: int | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class SaveWeightsForSamplerResponseInternal(Record):
    """The result as it travels: a path, or a sampling session."""

    path: str | None = None
    sampling_session_id: str | None = None
    type: Literal["save_weights_for_sampler"] | None = None


class SaveWeightsForSamplerResponse(Record):
    """Where sampler weights were saved."""

    path: str
    type: Literal["save_weights_for_sampler"] | None = None

    def get_console_url(self) -> str:
        """The checkpoint's page in the hosted console."""
        return _console_url(self.path)

    def get_playground_url(self) -> str:
        """A page of the hosted console to talk to this checkpoint."""
        return playground_url(self.path)


class SaveWeightsExternalRequest(Record):
    """Saves weights in a format other tools read."""

    model_id: ModelID
    path: str
    seq_id: int | None = None
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None
    type: Literal["save_weights_external"] = "save_weights_external"


class SaveWeightsExternalResponse(Record):
    """Where exported weights were saved."""

    path: str
    type: Literal["save_weights_external"] | None = None


class SaveWeightsExternalResponseInternal(Record):
    """The result as it travels."""

    path: str | None = None
    size_bytes: int | None = None
    type: Literal["save_weights_external"] | None = None


class LoadWeightsRequest(Record):
    """Loads weights into a model, or (by session and model number) creates one from them."""

    model_id: ModelID | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    type: Literal["load_weights"] = "load_weights"


class LoadWeightsResponse(Record):
    """Weights were loaded."""

    path: str | None = None
    model_id: str | None = None
    type: Literal["load_weights"] | None = None


class WeightsInfoResponse(Record):
    """What a checkpoint was trained from, and how."""

    base_model: str
    optimizer_config: OptimizerConfig = msgspec.field(default_factory=AdamOptimizerConfig)
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None


class CopyWeightsRequest(Record):
    """Copies a checkpoint into a project or a session."""

    session_id: str | None = None
    model_seq_id: int | None = None
    destination_project_id: str | None = None
    source_path: str
    ttl_seconds: int | None = None
    weights_access_token: str | None = None


class CopyWeightsResponse(Record):
    """Where the copy is."""

    tinker_path: str
