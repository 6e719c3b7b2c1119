"""What sampling returns: sequences, and logprobs of the prompt when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from .arrays import Array
from .identifiers import StopReason
from .tensor_data import TensorData
from .topk_logprobs import TopkLogprobs, topk_to_lists

__all__ = ["PromptAltTokens", "SampleResponse", "SampledSequence"]

_TopkLists = list[list[tuple[int, float]] | None]


def _same(left: TensorData | None, right: TensorData | None) -> bool:
    return left is right if left is None or right is None else left.equals(right)


@dataclass(frozen=True, slots=True)
class PromptAltTokens:
    """Tokens drawn at every prompt position after the first: two [len(prompt) - 1, k] tensors."""

    tokens: TensorData
    logprobs: TensorData


@dataclass(frozen=True, slots=True, eq=False)
class SampledSequence:
    """One sampled sequence; `*_np` fields are arrays, the plain names are lists made on demand."""

    stop_reason: StopReason
    sequence_id: str
    tokens_np: Array | None = field(default=None, repr=False)
    logprobs_np: Array | None = field(default=None, repr=False)
    topk_logprobs_np: TopkLogprobs | None = field(default=None, repr=False)
    _tokens_list: list[int] | None = field(default=None, repr=False)
    _logprobs_list: list[float] | None = field(default=None, repr=False)
    _topk_logprobs_list: _TopkLists | None = field(default=None, repr=False)

    @property
    def tokens(self) -> list[int]:
        """The sampled token ids."""
        if self._tokens_list is None:
            made = [] if self.tokens_np is None else self.tokens_np.tolist()
            object.__setattr__(self, "_tokens_list", made)
        assert self._tokens_list is not None
        return self._tokens_list

    @property
    def logprobs(self) -> list[float] | None:
        """The logprob of each sampled token, if the server gave them."""
        if self._logprobs_list is None and self.logprobs_np is not None:
            object.__setattr__(self, "_logprobs_list", self.logprobs_np.tolist())
        return self._logprobs_list

    @property
    def topk_logprobs(self) -> _TopkLists | None:
        """Per sampled token its k likeliest alternatives, if asked for."""
        if self._topk_logprobs_list is None and self.topk_logprobs_np is not None:
            object.__setattr__(self, "_topk_logprobs_list", topk_to_lists(self.topk_logprobs_np))
        return self._topk_logprobs_list

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SampledSequence)
            and self.stop_reason == other.stop_reason
            and self.sequence_id == other.sequence_id
            and self.tokens == other.tokens
            and self.logprobs == other.logprobs
            and self.topk_logprobs == other.topk_logprobs
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class SampleResponse:
    """The sampled sequences, and what was asked about the prompt."""

    sequences: Sequence[SampledSequence]
    prompt_logprobs_np: Array | None = field(default=None, repr=False)
    topk_prompt_logprobs_np: TopkLogprobs | None = field(default=None, repr=False)
    target_prompt_logprobs: TensorData | None = None
    prompt_cache_hit_tokens: int = 0
    prompt_alt_tokens: PromptAltTokens | None = None
    _prompt_logprobs_list: list[float | None] | None = field(default=None, repr=False)
    _topk_prompt_logprobs_list: _TopkLists | None = field(default=None, repr=False)

    @property
    def prompt_logprobs(self) -> list[float | None] | None:
        """The logprob of each prompt token, None where there is none (always at the first)."""
        if self._prompt_logprobs_list is None and self.prompt_logprobs_np is not None:
            values = [None if value != value else value for value in self.prompt_logprobs_np.tolist()]
            object.__setattr__(self, "_prompt_logprobs_list", values)
        return self._prompt_logprobs_list

    @property
    def topk_prompt_logprobs(self) -> _TopkLists | None:
        """Per prompt token its k likeliest alternatives, if asked for."""
        if self._topk_prompt_logprobs_list is None and self.topk_prompt_logprobs_np is not None:
            lists = topk_to_lists(self.topk_prompt_logprobs_np)
            object.__setattr__(self, "_topk_prompt_logprobs_list", lists)
        return self._topk_prompt_logprobs_list

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SampleResponse)
            and list(self.sequences) == list(other.sequences)
            and self.prompt_logprobs == other.prompt_logprobs
            and self.topk_prompt_logprobs == other.topk_prompt_logprobs
            and _same(self.target_prompt_logprobs, other.target_prompt_logprobs)
            and self.prompt_cache_hit_tokens == other.prompt_cache_hit_tokens
            and _same_alternatives(self.prompt_alt_tokens, other.prompt_alt_tokens)
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]


def _same_alternatives(left: PromptAltTokens | None, right: PromptAltTokens | None) -> bool:
    if left is None or right is None:
        return left is right
    return _same(left.tokens, right.tokens) and _same(left.logprobs, right.logprobs)
