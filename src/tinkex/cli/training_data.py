"""Conversations from a JSONL file as examples to train on, and the order in which they are taken."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chats import ChatFormat, TrainOn
from .output import CommandError

if TYPE_CHECKING:
    from ..types.datum import Datum

__all__ = ["Chat", "Dataset", "digest_of", "order_of", "read_chats", "split"]


_HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair: no tokenizer takes it


@dataclass(frozen=True)
class Chat:
    """One line of a file: a conversation."""

    line: int
    messages: list[dict[str, Any]]


def read_chats(path: Path) -> list[Chat]:
    """The conversations of a file, `{"messages": [{"role": …, "content": …}, …]}` on each line."""
    found = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(Chat(number, _messages(line, f"{path}, line {number}")))
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8: {error}") from None
    if not found:
        raise CommandError(f"{path} holds no conversations")
    return found


def _messages(line: str, where: str) -> list[dict[str, Any]]:
    try:
        held = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{where} is not JSON: {error}") from None
    messages = held.get("messages") if isinstance(held, dict) else None
    if not isinstance(messages, list) or not messages:
        raise CommandError(f'{where} is not {{"messages": [{{"role": …, "content": …}}, …]}}')
    for each in messages:
        if not (isinstance(each, dict) and isinstance(each.get("role"), str)):
            raise CommandError(f"{where} has a message without a role")
        if not isinstance(each.get("content"), str) or _HALF.search(each["role"] + each["content"]):
            raise CommandError(f"{where} has a message whose content is no text")
    return messages


def digest_of(path: Path) -> str:
    """What tells a file from every other."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def split(chats: Sequence[Chat], share: float, seed: int) -> tuple[list[Chat], list[Chat]]:
    """Those to train on and those held out: a share of all below 1, from 1 on their number."""
    count = round(share * len(chats)) if share < 1 else int(share)
    count = max(count, 1)
    if count >= len(chats):
        raise CommandError(f"holding out {count} of {len(chats)} conversations leaves none to train on")
    held = set(random.Random(f"split {seed}").sample(range(len(chats)), count))  # noqa: S311
    return [c for i, c in enumerate(chats) if i not in held], [c for i, c in enumerate(chats) if i in held]


@functools.lru_cache(maxsize=2)
def order_of(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order of an epoch, the same whenever it is asked for."""
    places = list(range(count))
    random.Random(f"epoch {seed} {epoch}").shuffle(places)  # noqa: S311
    return tuple(places)


@dataclass
class Dataset:
    """Conversations as examples; one conversation may be several."""

    examples: list[list[Datum]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)
    """Weights of each conversation, summed up."""
    cut: int = 0
    """How many were longer than allowed and lost their end."""
    dropped: int = 0
    """How many had nothing to train on."""

    @classmethod
    def of(cls, chats: Sequence[Chat], format: ChatFormat, train_on: TrainOn, most: int | None) -> Dataset:
        """Render conversations; those longer than `most` tokens are cut there."""
        made = cls()
        for chat in chats:
            try:
                rendered = format.examples(chat.messages, train_on)
            except CommandError as error:
                raise CommandError(f"line {chat.line}: {error.message}", error.hint) from None
            made._add(rendered, most)
        return made

    def _add(self, rendered: Sequence[tuple[list[int], list[float]]], most: int | None) -> None:
        from ..types.datum import Datum
        from ..types.model_input import ModelInput

        limit = None if most is None else most + 1  # the last token is only predicted
        self.cut += any(limit is not None and len(tokens) > limit for tokens, _ in rendered)
        examples, length, counted = [], 0, 0.0
        for tokens, weights in rendered:
            tokens, targets = tokens[:limit], weights[1:limit]
            if any(targets):
                inputs = {"target_tokens": tokens[1:], "weights": targets}
                examples.append(Datum(ModelInput.from_ints(tokens[:-1]), inputs))
                length += len(targets)
                counted += sum(targets)
        if not examples:
            self.dropped += 1
            return
        self.examples.append(examples)
        self.tokens.append(length)
        self.counted.append(counted)

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, places: Sequence[int]) -> Batch:
        """The examples of some conversations."""
        return Batch(
            [datum for at in places for datum in self.examples[at]],
            sum(self.tokens[at] for at in places),
            sum(self.counted[at] for at in places),
        )

    def everything(self) -> Batch:
        """All of them."""
        return self.batch(range(len(self)))


@dataclass(frozen=True)
class Batch:
    """Examples that go together."""

    data: list[Datum]
    tokens: int
    counted: float
