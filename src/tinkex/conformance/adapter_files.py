"""An exported adapter on disk: its settings and its tensors, read without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._lazy import np
from ..types.arrays import Array
from .checks import Failed

__all__ = ["Adapter", "read_adapter"]

_WEIGHTS = "adapter_model.safetensors"
_SETTINGS = "adapter_config.json"
_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True, slots=True)
class Adapter:
    """Settings and tensors, as PEFT reads them."""

    settings: dict[str, Any]
    tensors: dict[str, Array]

    def pairs(self) -> dict[str, set[str]]:
        """Which halves (A, B) each adapted module has."""
        halves: dict[str, set[str]] = {}
        for name in self.tensors:
            for half in ("A", "B"):
                module, mark, _ = name.partition(f".lora_{half}")
                module, mark = (module, mark) if mark else name.partition(f".lora_embedding_{half}")[:2]
                if mark:
                    halves.setdefault(module, set()).add(half)
        return halves


def read_adapter(folder: Path) -> Adapter:
    """The adapter in a folder."""
    for name in (_SETTINGS, _WEIGHTS):
        if not (folder / name).is_file():
            there = sorted(each.name for each in folder.iterdir())
            raise Failed(f"the export has no {name}, only {', '.join(there) or 'nothing'}")
    settings = json.loads((folder / _SETTINGS).read_bytes())
    return Adapter(settings, _read_tensors((folder / _WEIGHTS).read_bytes()))


def _read_tensors(data: bytes) -> dict[str, Array]:
    length = int.from_bytes(data[:8], "little")
    start = 8 + length
    tensors = {}
    for name, about in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        raw = data[start + begin : start + end]
        tensors[name] = _numbers(raw, about["dtype"]).reshape(about["shape"])
    return tensors


def _numbers(raw: bytes, dtype: str) -> Array:
    if dtype == "BF16":
        # The upper half of a float32.
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype not in _PLAIN:
        raise Failed(f"the export has tensors of type {dtype}")
    return np.frombuffer(raw, _PLAIN[dtype]).astype(np.float32)
