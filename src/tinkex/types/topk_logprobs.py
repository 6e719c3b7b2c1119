"""Top-k logprobs as dense matrices."""

from __future__ import annotations

from dataclasses import dataclass

from .arrays import Array

__all__ = ["MASK_LOGPROB", "TopkLogprobs", "topk_to_lists"]

MASK_LOGPROB = -99999.0


@dataclass(frozen=True, slots=True)
class TopkLogprobs:
    """Token ids and logprobs, both [length, k]; an empty cell is token 0 with `MASK_LOGPROB`."""

    token_ids: Array
    logprobs: Array


def topk_to_lists(topk: TopkLogprobs) -> list[list[tuple[int, float]] | None]:
    """Per position the (token, logprob) pairs, or None where nothing was computed."""
    rows: list[list[tuple[int, float]] | None] = []
    for ids, logprobs in zip(topk.token_ids.tolist(), topk.logprobs.tolist(), strict=True):
        pairs = list(zip(ids, logprobs, strict=True))
        while pairs and pairs[-1] == (0, MASK_LOGPROB):
            pairs.pop()
        rows.append(pairs or None)
    return rows
