"""Where the tokens of a datum came from: runs of sampled or prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..errors import InvalidArgumentError
from .arrays import INT64_MAX

__all__ = ["PromptProvenanceSpan", "ProvenanceSpans", "SampledProvenanceSpan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span:
    sequence_id: str
    offset: int = 0
    length: int

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.sequence_id, str) or not self.sequence_id:
            raise InvalidArgumentError(
                f"{name}.sequence_id: must be text and not empty, got {self.sequence_id!r}"
            )
        for field in ("offset", "length"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
                raise InvalidArgumentError(
                    f"{name}.{field}: must be a whole number, 0 or more and within int64, got {value!r}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptProvenanceSpan(_Span):
    """A run of tokens from the prompt of a sampled sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledProvenanceSpan(_Span):
    """A run of tokens that a sampled sequence produced."""


ProvenanceSpans: TypeAlias = list[PromptProvenanceSpan | SampledProvenanceSpan]
