"""What can be said of a base model from its folder alone, before any engine has loaded it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..wire.bodies import TOKENIZER_FILES
from .options import ModelSpec
from .problems import Problem


class BadModelFolder(Exception):
    """A folder that cannot be served."""


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """A base model on offer."""

    name: str
    folder: Path
    arch: str
    vocab_size: int
    context: int

    @property
    def tokenizer_files(self) -> list[str]:
        """The files of its tokenizer that are there."""
        return [name for name in TOKENIZER_FILES if (self.folder / name).is_file()]


def read_facts(spec: ModelSpec) -> BaseFacts:
    """Read a model folder's config; what is missing is named."""
    path = spec.folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadModelFolder(
            f"{spec.folder} has no config.json: give a folder in Hugging Face layout"
        ) from None
    except (OSError, ValueError) as problem:
        raise BadModelFolder(f"{path} cannot be read: {problem}") from None
    try:
        vocab, context = int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (KeyError, TypeError, ValueError):
        raise BadModelFolder(f"{path} does not say vocab_size and max_position_embeddings") from None
    return BaseFacts(spec.name, spec.folder.resolve(), str(config.get("model_type", "")), vocab, context)


class Catalogue:
    """The base models of one server by name."""

    def __init__(self, specs: tuple[ModelSpec, ...]) -> None:
        if not specs:
            raise BadModelFolder("no base model: give --model NAME=FOLDER")
        self.by_name: dict[str, BaseFacts] = {}
        for spec in specs:
            if spec.name in self.by_name:
                raise BadModelFolder(f"model name {spec.name!r} is given twice")
            self.by_name[spec.name] = read_facts(spec)

    def get(self, name: str, field: str = "base_model") -> BaseFacts:
        """The model of that name; an unknown one is refused with what is there."""
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(map(repr, self.by_name))
            raise Problem(400, f"{field}: {name!r} is not served here; this server has {known}")
        return found

    @property
    def folders(self) -> list[Path]:
        """Every folder once: one engine each."""
        return list(dict.fromkeys(facts.folder for facts in self.by_name.values()))
