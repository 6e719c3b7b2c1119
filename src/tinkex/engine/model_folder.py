"""What a base model's folder holds, seen without loading it."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

from .faults import UserFault

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
_LONGEST_HEADER = 100 << 20


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that is no model's."""
    if not (Path(folder) / "config.json").is_file():
        raise UserFault(f"{folder} has no config.json")
    refuse_pickles(folder, "*.safetensors")


def refuse_pickles(folder: str | Path, instead: str) -> None:
    """Refuse a folder whose weights are pickles alone: reading them could run what somebody put there."""
    if any(Path(folder).glob(instead)):
        return
    for pattern in _PICKLES:
        found = next(Path(folder).glob(pattern), None)
        if found is not None:
            raise UserFault(f"{found.name} is a pickle, which can hold code; only safetensors are read")


def stored_parameters(folder: str | Path) -> int:
    """How many numbers its safetensors files hold, by their headers; unreadable ones hold none."""
    total = 0
    for path in Path(folder).glob("*.safetensors"):
        with contextlib.suppress(OSError, ValueError, KeyError, AttributeError), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
            header.pop("__metadata__", None)
            total += sum(math.prod(tensor["shape"]) for tensor in header.values())
    return total
