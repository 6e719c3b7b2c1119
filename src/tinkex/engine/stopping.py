"""When a sequence ends: at a stop token, at a stop string, or at its length.

The token that ends a sequence stays in it, once. A stop string may end inside a token; that token is the
last one. Strings are looked for in the generated text only, which `Detokenise`, given by whoever has the
tokenizer, makes from token ids (special tokens spelled out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .faults import UserFault
from .messages import LENGTH, STOP, SamplingParams

Detokenise = Callable[[Sequence[int]], str]
_INCOMPLETE = "\ufffd"
_MOST_BYTES, _LONGEST_WAIT = 4, 16
"""Tokens that one character may be spread over, and those without a whole one that are read again."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """The tokens and strings that end a request's sequences."""

    tokens: frozenset[int]
    strings: tuple[str, ...]

    @classmethod
    def of(cls, params: SamplingParams, eos_ids: Sequence[int], *, readable: bool) -> StopRule:
        """Without `stop` the model's end-of-text tokens; with it exactly what it lists, even if nothing."""
        if params.stop is None:
            return cls(frozenset(eos_ids), ())
        strings = tuple(item for item in params.stop if isinstance(item, str))
        if "" in strings:
            raise UserFault("a stop string is empty")
        if strings and not readable:
            raise UserFault("stop strings need a tokenizer, and this engine was started without one")
        return cls(frozenset(item for item in params.stop if isinstance(item, int)), strings)


def token_budget(prompt: int, max_tokens: int | None, context: int) -> int:
    """How many tokens may be drawn; without `max_tokens` as many as the context has room for."""
    if prompt < 1:
        raise UserFault("the prompt has no tokens")
    if max_tokens is not None and max_tokens < 0:
        raise UserFault(f"max_tokens must not be negative, got {max_tokens}")
    if prompt + (max_tokens or 0) > context:
        raise UserFault(f"prompt {prompt} + max_tokens {max_tokens or 0} > context {context}")
    return context - prompt if max_tokens is None else max_tokens


class StopWatch:
    """Looks at one sequence's tokens as they come; only sequences with stop strings pay for text."""

    __slots__ = ("_budget", "_read", "_start", "_tail", "detokenise", "rule", "tokens")

    def __init__(self, rule: StopRule, budget: int, detokenise: Detokenise | None) -> None:
        self.rule, self._budget, self.detokenise = rule, budget, detokenise
        self.tokens: list[int] = []
        self._start = 0
        self._read = 0
        self._tail = ""

    def see(self, token: int) -> int | None:
        """Take the next token; STOP or LENGTH if the sequence ends with it."""
        self.tokens.append(token)
        if token in self.rule.tokens or (self.rule.strings and self._string_ended()):
            return STOP
        return LENGTH if len(self.tokens) >= self._budget else None

    def _string_ended(self) -> bool:
        # Tokens between `_start` and `_read` are decoded again only to give the new ones their context
        # (byte pieces of a character, spaces that a decoder drops at the start).
        assert self.detokenise is not None
        before = self.detokenise(self.tokens[self._start : self._read])
        now = self.detokenise(self.tokens[self._start :])
        complete = not now.endswith(_INCOMPLETE)
        seen = self._tail + (now if complete else now.rstrip(_INCOMPLETE))[len(before) :]
        if any(string in seen for string in self.rule.strings):
            return True
        if complete and len(now) > len(before):
            self._move_on(len(self.tokens), seen)
        elif not complete and len(self.tokens) - self._read > _LONGEST_WAIT:
            # Bytes that are no text may go on for ever; only the last few can still become a character.
            for end in range(len(self.tokens) - _MOST_BYTES, self._read, -1):
                known = self.detokenise(self.tokens[self._start : end])
                if now.startswith(known) and len(known) > len(before):
                    self._move_on(end, self._tail + known[len(before) :])
                    break
        return False

    def _move_on(self, end: int, seen: str) -> None:
        """Take the text of the tokens before `end` as read."""
        keep = max(map(len, self.rule.strings)) - 1
        self._tail = seen[-keep:] if keep else ""
        self._start, self._read = self._read, end
