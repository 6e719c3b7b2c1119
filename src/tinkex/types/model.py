"""Creating a model, asking about it, unloading it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .identifiers import ModelID
from .optimizer import AdamOptimizerConfig, OptimizerConfig
from .record import Record

__all__ = [
    "CreateModelRequest",
    "CreateModelResponse",
    "GetInfoRequest",
    "GetInfoResponse",
    "LoraConfig",
    "ModelData",
    "UnloadModelRequest",
    "UnloadModelResponse",
]


class LoraConfig(Record):
    """Which parts of a model get a LoRA adapter, and of what rank."""

    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class CreateModelRequest(Record):
    """Creates a model to train in a session."""

    session_id: str
    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = msgspec.field(default_factory=AdamOptimizerConfig)
    type: Literal["create_model"] = "create_model"


class CreateModelResponse(Record):
    """The id of a new model."""

    model_id: ModelID
    type: Literal["create_model"] = "create_model"


class GetInfoRequest(Record):
    """Asks about a model."""

    model_id: ModelID
    type: Literal["get_info"] = "get_info"


class ModelData(Record):
    """A model's architecture, name and tokenizer."""

    arch: str | None = None
    model_name: str | None = None
    tokenizer_id: str | None = None


class GetInfoResponse(Record):
    """What a model is."""

    type: Literal["get_info"] | None = None
    model_data: ModelData
    model_id: ModelID
    optimizer_config: OptimizerConfig = msgspec.field(default_factory=AdamOptimizerConfig)
    is_lora: bool | None = None
    lora_rank: int | None = None
    model_name: str | None = None


class UnloadModelRequest(Record):
    """Frees a model."""

    model_id: ModelID
    type: Literal["unload_model"] = "unload_model"


class UnloadModelResponse(Record):
    """A model was freed."""

    model_id: ModelID
    type: Literal["unload_model"] | None = None
