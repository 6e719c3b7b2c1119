"""PEFT adapter folders: are they whole, and what do they change?"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .output import CommandError

__all__ = ["CONFIG", "WEIGHTS", "AdapterFolder", "look_at"]

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_LONGEST_HEADER = 100 << 20
_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_HEADS = {"lm_head", "unembed_tokens"}


@dataclass(frozen=True)
class AdapterFolder:
    """What a folder with an adapter holds."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, list[int]]
    """Each tensor's shape."""

    @property
    def rank(self) -> int:
        """The adapter's rank."""
        return int(self.config["r"])

    @property
    def base_model(self) -> str | None:
        """The name of the model it belongs to."""
        name = self.config.get("base_model_name_or_path")
        return name if isinstance(name, str) else None

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return sum(map(math.prod, self.tensors.values()))

    @property
    def changes_head(self) -> bool:
        """Whether it changes the unembedding, which some servers of models cannot."""
        return any(_HEADS & set(name.split(".")) for name in self.tensors)


def look_at(folder: Path) -> AdapterFolder:
    """Read a folder's config and the header of its weights, and see that they fit together."""
    if (folder / PICKLE).is_file() and not (folder / WEIGHTS).is_file():
        raise CommandError(
            f"{folder / PICKLE} is a pickle, which can hold code; only safetensors are read",
            "have whoever made it save it as safetensors",
        )
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise CommandError(f"{folder} is no PEFT adapter: it lacks {CONFIG} or {WEIGHTS}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        int(config["r"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{folder / CONFIG} cannot be read: {error!r}") from None
    return AdapterFolder(folder, config, _shapes(folder / WEIGHTS, int(config["r"])))


def _shapes(path: Path, rank: int) -> dict[str, list[int]]:
    """The tensors of a safetensors file; one that is cut off, has holes or is not LoRA is refused."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
            header.pop("__metadata__", None)
            spans = sorted((*each["data_offsets"], name) for name, each in header.items())
            shapes = {name: list(each["shape"]) for name, each in header.items()}
            sizes = {
                name: math.prod(each["shape"]) * _BYTES[each["dtype"]] for name, each in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CommandError(f"{path} is damaged: its header cannot be read") from None
    at = 0
    for begin, end, name in spans:
        if begin != at or end - begin != sizes[name]:
            raise CommandError(f"{path} is damaged at {name}")
        at = end
    if path.stat().st_size != 8 + length + at:
        raise CommandError(f"{path} is damaged: it should have {8 + length + at:,} bytes")
    for name, shape in shapes.items():
        side = -2 if ".lora_A" in name else -1 if ".lora_B" in name else None
        if side is None or len(shape) < 2 or shape[side] != rank:
            raise CommandError(f"{path} is no LoRA adapter of rank {rank}: {name} has shape {shape}")
    if not shapes:
        raise CommandError(f"{path} holds nothing")
    return shapes
