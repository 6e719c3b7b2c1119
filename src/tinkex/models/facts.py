"""What a model's folder says of the model, read without loading it."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import EMBEDDED

__all__ = ["ModelFacts", "read_facts"]

_LARGEST_HEADER = 256 << 20
_MOST_DIMENSIONS, _LONGEST = 8, 1 << 48
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as its files describe it; None is what they do not say."""

    name: str
    folder: str
    embedded: bool
    """Whether it ships with the package."""
    architecture: str | None
    parameters: int | None
    dtype: str | None
    context: int | None
    vocabulary: int | None
    layers: int | None
    hidden: int | None
    tokenizer: bool
    chat_template: bool
    size_bytes: int
    source: str | None
    """Where it was added from."""
    problem: str | None
    """Why it could not be served."""


def read_facts(name: str, folder: Path) -> ModelFacts:
    """Look at a model's files; what is wrong with them is told, not raised."""
    config, problem = _config(folder)
    shapes, dtype, broken = _weights(folder)
    tokenizer = any((folder / file).is_file() for file in _TOKENIZERS)
    if not problem and not tokenizer:
        problem = "it has no tokenizer (tokenizer.json)"
    architectures = config.get("architectures")
    return ModelFacts(
        name=name,
        folder=str(folder),
        embedded=EMBEDDED in folder.parents,
        architecture=_architecture(architectures) or _text(config.get("model_type")),
        parameters=shapes,
        dtype=dtype,
        context=_whole(config.get("max_position_embeddings")),
        vocabulary=_whole(config.get("vocab_size")),
        layers=_whole(config.get("num_hidden_layers")),
        hidden=_whole(config.get("hidden_size")),
        tokenizer=tokenizer,
        chat_template=_has_template(folder),
        size_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        source=_text(_json(folder / "added.json").get("source")),
        problem=problem or broken,
    )


def _architecture(held: Any) -> str | None:
    return str(held[0]) if isinstance(held, list) and held else None


def _config(folder: Path) -> tuple[dict[str, Any], str | None]:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"its config.json cannot be read: {error}"
    return (config, None) if isinstance(config, dict) else ({}, "its config.json holds no object")


def _weights(folder: Path) -> tuple[int | None, str | None, str | None]:
    """Parameters and dtype from the heads of its safetensors files, or what is wrong with them."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None, None, "it has no weights (*.safetensors)"
    count, kinds = 0, set()
    for file in files:
        try:
            for entry in _header(file).values():
                count += math.prod(_lengths(entry["shape"]))
                kinds.add(str(entry["dtype"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error):
            return None, None, f"{file.name} is no safetensors file, or is cut off"
    return count, "+".join(sorted(kinds)) or None, None


def _lengths(shape: Any) -> list[int]:
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError("a shape is no list of lengths")
    if not all(type(each) is int and 0 <= each < _LONGEST for each in shape):
        raise ValueError("a shape is no list of lengths")
    return shape


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _LARGEST_HEADER:
            raise ValueError("the header is too large")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    ends = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if path.stat().st_size < 8 + length + ends:
        raise ValueError("the file is cut off")
    return header


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    return bool(_json(folder / "tokenizer_config.json").get("chat_template"))


def _json(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
