"""Who gets how much of a device's memory, told when an engine starts."""

from __future__ import annotations

from typing import Any

import torch

from .base_model import BaseModel


def memory_plan(base: BaseModel, kv_bytes: int, kv_tokens: int) -> str:
    """One line: weights, room for adapters beside them, keys and values, and what is left for training."""
    border: Any = None if base.decoder is None else base.decoder.border
    beside = 0 if border is None else border.nbytes()
    weights = sum(x.nbytes for x in {x.data_ptr(): x for x in base.model.parameters()}.values())
    parts = [f"weights {_gb(weights)}"]
    if beside:
        parts.append(f"adapters beside them {_gb(beside)}")
    parts.append(f"keys and values {_gb(kv_bytes)} ({kv_tokens:,} tokens)")
    if base.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(base.device)
        parts.append(f"left for training {_gb(free)} of {_gb(total)}")
    return "memory: " + ", ".join(parts)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
