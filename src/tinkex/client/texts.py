"""Text in and out of a model: the tokenizer of a client, and what is done with it.

Chat templates are the tokenizer's; nothing is added to what it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgumentError
from ..types.model_input import ModelInput
from ..types.rules import shown
from .session import Session
from .tokenizers import tokenizer_for

__all__ = ["Texts"]


class Texts:
    """Encodes and decodes text with a model's own tokenizer."""

    holder: Session
    _tokenizer: Any = None

    async def _tokenizer_names(self) -> tuple[str, str | None]:
        """The model's name, and its tokenizer's id if the server says it."""
        raise NotImplementedError

    def get_tokenizer(self) -> Any:
        """The model's tokenizer; loaded once per process."""
        if self._tokenizer is None:
            name, id = self.holder.start(self._tokenizer_names()).result()
            self._tokenizer = tokenizer_for(self.holder.connection, name, id)
        return self._tokenizer

    async def get_tokenizer_async(self) -> Any:
        """The model's tokenizer, loaded without blocking the event loop."""
        if self._tokenizer is None:
            name, id = await self.holder.start(self._tokenizer_names())
            self._tokenizer = await asyncio.to_thread(tokenizer_for, self.holder.connection, name, id)
        return self._tokenizer

    def encode(self, text: str, *, add_special_tokens: bool | None = None) -> ModelInput:
        """A text as the model reads it; no chat template is applied."""
        return ModelInput.from_text(text, self.get_tokenizer(), add_special_tokens=add_special_tokens)

    async def encode_async(self, text: str, *, add_special_tokens: bool | None = None) -> ModelInput:
        """A text as the model reads it; no chat template is applied."""
        tokenizer = await self.get_tokenizer_async()
        return ModelInput.from_text(text, tokenizer, add_special_tokens=add_special_tokens)

    def decode(self, tokens: Any, *, skip_special_tokens: bool = False) -> str:
        """The text of tokens: ids, an array, a `ModelInput` or a sampled sequence."""
        return _decoded(self.get_tokenizer(), tokens, skip_special_tokens)

    async def decode_async(self, tokens: Any, *, skip_special_tokens: bool = False) -> str:
        """The text of tokens: ids, an array, a `ModelInput` or a sampled sequence."""
        return _decoded(await self.get_tokenizer_async(), tokens, skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ModelInput:
        """A conversation as the model's chat template writes it; options go to the tokenizer."""
        return _templated(self.get_tokenizer(), messages, options)

    async def apply_chat_template_async(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> ModelInput:
        """A conversation as the model's chat template writes it; options go to the tokenizer."""
        return _templated(await self.get_tokenizer_async(), messages, options)


def _decoded(tokenizer: Any, tokens: Any, skip_special_tokens: bool) -> str:
    if isinstance(tokens, ModelInput):
        tokens = tokens.to_ints()
    ids = [int(each) for each in getattr(tokens, "tokens", tokens)]
    text: str = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    return text


def _templated(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> ModelInput:
    if options.get("tokenize") is False:
        raise InvalidArgumentError(
            "apply_chat_template: this returns tokens; for text call "
            "get_tokenizer().apply_chat_template(…, tokenize=False)"
        )
    made = tokenizer.apply_chat_template(messages, **options)
    if isinstance(made, Mapping) or hasattr(made, "input_ids"):
        made = made["input_ids"]
    ids = getattr(made, "ids", made)
    if len(ids) and not isinstance(ids[0], int) and getattr(ids[0], "ndim", 1) != 0:
        raise InvalidArgumentError(f"apply_chat_template: expected one conversation, got {shown(messages)}")
    return ModelInput.from_ints(ids)
