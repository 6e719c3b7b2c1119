"""The models known by name here, and whether their folders are whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ...errors import TinkerError
from ...models import known, resolve, shelves
from . import Check

__all__ = ["checks"]


def checks() -> Iterator[Check]:
    """Look at every model's folder."""
    for shelf in shelves():
        if not shelf.is_dir():
            yield Check(
                "models", "warn", f"{shelf} is named in TINKEX_MODELS and not there", "mend TINKEX_MODELS"
            )
    names = known()
    if not names:
        yield Check(
            "models", "warn", "none is known by name", "`tinkex serve --model NAME=FOLDER` takes any folder"
        )
    for name in names:
        yield _model(name)


def _model(name: str) -> Check:
    try:
        folder = resolve(name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (TinkerError, OSError, ValueError) as error:
        return Check("models", "fail", f"{name}: {error}", "fetch its files again")
    missing = list(_missing(folder))
    if missing:
        return Check("models", "fail", f"{name} lacks {', '.join(missing)}", "fetch its files again")
    return Check("models", "ok", f"{name} ({config.get('model_type', '?')}) in {folder}")


def _missing(folder: Path) -> Iterator[str]:
    if not any(folder.glob("*.safetensors")):
        yield "weights (*.safetensors)"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        yield from sorted(shard for shard in shards if not (folder / shard).is_file())
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        yield "a tokenizer"
