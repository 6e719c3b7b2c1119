"""The JSON documents of commands: field -> what it holds.

A name that ends in `?` may be missing; a value that ends in `?` may be null; `*` stands for any name.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CHECKPOINT", "RUN", "SEQUENCE"]

CHECKPOINT: dict[str, Any] = {
    "checkpoint_id": "text",
    "checkpoint_type": "text",
    "time": "time",
    "tinker_path": "text",
    "size_bytes": "int?",
    "public": "bool",
    "user_metadata": "map?",
    "expires_at": "time?",
}
RUN: dict[str, Any] = {
    "training_run_id": "text",
    "base_model": "text",
    "model_owner": "text",
    "is_lora": "bool",
    "corrupted": "bool",
    "lora_rank": "int?",
    "last_request_time": "time",
    "last_checkpoint": "checkpoint?",
    "last_sampler_checkpoint": "checkpoint?",
    "user_metadata": "map?",
}
SEQUENCE: dict[str, Any] = {
    "text": "text",
    "tokens": ["int"],
    "stop_reason": "text",
    "logprobs?": ["number"],
    "topk_logprobs?": "any",
}
