"""`ModelInput`: what a model reads, as a list of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

from ..errors import InvalidArgumentError
from ..notices import notice
from .chunks import EncodedTextChunk, ModelInputChunk
from .compounds import Items, rule_for
from .frozen import Frozen
from .record import Duck, refusal, refuse_unknown
from .rules import Mismatch, Schema, shown

__all__ = ["ModelInput", "TextEncoder"]

_CHUNKS = Items(rule_for(ModelInputChunk))


def _look_at_text(text: str, tokenizer: Any) -> None:
    """Warn about raw text for a model that was trained on conversations."""
    if not getattr(tokenizer, "chat_template", None):
        return
    marks = {*getattr(tokenizer, "all_special_tokens", ())}
    if hasattr(tokenizer, "get_added_vocab"):
        marks.update(tokenizer.get_added_vocab())
    if not any(mark in text for mark in marks):
        notice(
            "raw-text",
            "this model's tokenizer has a chat template, and the text has none of its special tokens: a "
            "chat model answers best to apply_chat_template(messages, add_generation_prompt=True).",
        )


class TextEncoder(Protocol):
    """Anything that turns text into token ids: a Hugging Face tokenizer, or one of your own."""

    def encode(self, text: str, /) -> Any:
        """The token ids of a text."""


class ModelInput(Frozen, Duck):
    """What a model reads; every method that changes it returns a new one."""

    __slots__ = ("chunks",)
    chunks: list[ModelInputChunk]

    def __init__(self, *, chunks: Any, **unknown: Any) -> None:
        if unknown:
            refuse_unknown("ModelInput", unknown, ("chunks",))
        try:
            self._set(chunks=_CHUNKS.take(chunks))
        except Mismatch as problem:
            raise refusal("ModelInput", problem.inside("chunks")) from None

    @classmethod
    def from_ints(cls, tokens: Any) -> ModelInput:
        """Make one from token ids: a list or any integer array."""
        return cls._of([EncodedTextChunk(tokens=tokens)])

    @classmethod
    def from_text(
        cls, text: str, tokenizer: TextEncoder, *, add_special_tokens: bool | None = None
    ) -> ModelInput:
        """Make one from text with a tokenizer; no chat template is applied."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"ModelInput.from_text: expected text, got {shown(text)}")
        _look_at_text(text, tokenizer)
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        encoded = tokenizer.encode(text, **options)
        return cls.from_ints(getattr(encoded, "ids", encoded))

    @classmethod
    def empty(cls) -> ModelInput:
        """One without chunks."""
        return cls._of([])

    @classmethod
    def _of(cls, chunks: list[Any]) -> Self:
        self = object.__new__(cls)
        self._set(chunks=chunks)
        return self

    def to_ints(self) -> list[int]:
        """All token ids; refuses input that is not text alone."""
        ids: list[int] = []
        for chunk in self.chunks:
            if not isinstance(chunk, EncodedTextChunk):
                raise InvalidArgumentError(
                    f"ModelInput.to_ints: only text chunks hold token ids, got {type(chunk).__name__}"
                )
            ids += chunk.tokens
        return ids

    @property
    def length(self) -> int:
        """How much of the context this takes, in tokens."""
        return sum(chunk.length for chunk in self.chunks)

    def append(self, chunk: ModelInputChunk) -> ModelInput:
        """The same with one more chunk."""
        return ModelInput(chunks=[*self.chunks, chunk])

    def append_int(self, token: int) -> ModelInput:
        """The same with one more token."""
        return self.append(EncodedTextChunk(tokens=[token]))

    def _items(self) -> Iterator[tuple[str, Any]]:
        yield "chunks", self.chunks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelInput) and self.chunks == other.chunks

    def __hash__(self) -> int:
        return hash(tuple(self.chunks))

    def __repr__(self) -> str:
        return f"ModelInput(chunks={self.chunks!r})"

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or "chunks" not in value:
            raise Mismatch(f"expected ModelInput or a mapping with chunks, got {shown(value)}")
        try:
            return cls._of(_CHUNKS.take(value["chunks"], lenient))
        except Mismatch as problem:
            raise problem.inside("chunks") from None

    @classmethod
    def __schema__(cls, definitions: Schema) -> Schema:
        return {
            "type": "object",
            "title": "ModelInput",
            "properties": {"chunks": _CHUNKS.schema(definitions)},
            "required": ["chunks"],
        }
