"""Conversations as a model reads them: its tokenizer's chat template, for prompts and for training.

Prompts and answers are tokenized apart, as they are when a model is sampled from: what is trained is what
will be sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from .output import CommandError

__all__ = ["ChatFormat", "Message", "TextStream", "TrainOn"]

Message: TypeAlias = Mapping[str, Any]
TrainOn: TypeAlias = Literal["all", "last"]
Example: TypeAlias = tuple[list[int], list[float]]
_PROBE = "zq"


class ChatFormat:
    """Turns conversations into tokens."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise CommandError(
                "this model's tokenizer has no chat template",
                "it is a plain language model: `tinkex sample` continues a text",
            )
        self.tokenizer = tokenizer
        self.end = self._end()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """A conversation up to where the model answers."""
        return self._encoded(self._text(messages, reply=True))

    def stops(self, texts: Sequence[str]) -> list[str] | list[int]:
        """What ends an answer: its end, and texts; a request has one kind, so the end is then a text."""
        if not texts:
            return self.end
        return [*texts, *(self.tokenizer.decode([each], skip_special_tokens=False) for each in self.end)]

    def examples(self, messages: Sequence[Message], train_on: TrainOn = "all") -> list[Example]:
        """Tokens and weights to train on a conversation.

        It is one example, or one for each answer if the template writes earlier ones unlike the last.
        """
        turns = [at for at, each in enumerate(messages) if each["role"] == "assistant"]
        if train_on == "last":
            turns = turns[-1:]
        cuts = [(self._text(messages[:at], reply=True), self._text(messages[: at + 1])) for at in turns]
        for prompt, whole in cuts:
            if not whole.startswith(prompt):
                raise CommandError("the chat template does not let an answer follow its prompt")
        if not cuts:
            return []
        last = cuts[-1][1]
        if all(last.startswith(text) for cut in cuts for text in cut):
            return [self._joined(cuts)]
        return [self._joined([cut]) for cut in cuts]

    def _joined(self, cuts: Sequence[tuple[str, str]]) -> Example:
        tokens: list[int] = []
        weights: list[float] = []
        at = 0
        for prompt, whole in cuts:
            before, answer = (
                self._encoded(cuts[-1][1][at : len(prompt)]),
                self._answer(whole[len(prompt) :]),
            )
            tokens += before + answer[0]
            weights += [0.0] * len(before) + answer[1]
            at = len(whole)
        return tokens, weights

    def _answer(self, text: str) -> Example:
        """An answer's tokens; what the template writes after its end is not for the model to say."""
        tokens = self._encoded(text)
        ends = [at for at, token in enumerate(tokens) if token in self.end]
        counted = ends[-1] + 1 if ends else len(tokens)
        return tokens, [1.0] * counted + [0.0] * (len(tokens) - counted)

    def _end(self) -> list[int]:
        """The tokens that end an answer."""
        text = self._text([{"role": "user", "content": _PROBE}, {"role": "assistant", "content": _PROBE}])
        special = set(self.tokenizer.get_added_vocab().values())
        after = [each for each in self._encoded(text.rpartition(_PROBE)[2]) if each in special]
        end = self.tokenizer.eos_token_id
        return list(dict.fromkeys([*after[:1], *([] if end is None else [int(end)])]))

    def _text(self, messages: Sequence[Message], *, reply: bool = False) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=reply
            )
        except Exception as error:  # a template is foreign code and may raise anything
            raise CommandError(f"the chat template does not take this conversation: {error}") from error
        return text

    def _encoded(self, text: str) -> list[int]:
        return [int(each) for each in self.tokenizer.encode(text, add_special_tokens=False)]


class TextStream:
    """Tokens in, text out, as soon as whole characters are there."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._begin = self._told = 0

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text these tokens add; of a character in the making nothing, unless nothing more comes."""
        self._tokens += tokens
        # Decoded together with the tokens before them: how a token reads may hang on its neighbours.
        before = self._text(self._begin, self._told)
        text = self._text(self._begin, len(self._tokens))
        if text.endswith("\ufffd") and not last:
            return ""
        self._begin, self._told = self._told, len(self._tokens)
        return text[len(before) :]

    def _text(self, begin: int, end: int) -> str:
        text: str = self._tokenizer.decode(self._tokens[begin:end], skip_special_tokens=True)
        return text
