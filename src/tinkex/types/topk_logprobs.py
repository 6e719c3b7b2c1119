"""Top-k logprobs as dense matrices."""

from __future__ import annotations

from dataclasses import dataclass

from .._lazy import np
from .arrays import Array

__all__ = ["MASK_LOGPROB", "TopkLogprobs", "topk_from_lists", "topk_to_lists"]

MASK_LOGPROB = -99999.0


@dataclass(frozen=True, slots=True)
class TopkLogprobs:
    """Token ids and logprobs, both [length, k]; an empty cell is token 0 with `MASK_LOGPROB`."""

    token_ids: Array
    logprobs: Array


def topk_to_lists(topk: TopkLogprobs) -> list[list[tuple[int, float]] | None]:
    """Per position the (token, logprob) pairs; a row that starts empty was not computed and is None."""
    empty = (0, MASK_LOGPROB)
    rows: list[list[tuple[int, float]] | None] = []
    if 0 in topk.token_ids.shape:
        return rows
    for ids, logprobs in zip(topk.token_ids.tolist(), topk.logprobs.tolist(), strict=True):
        pairs = list(zip(ids, logprobs, strict=True))
        while pairs[-1] == empty and len(pairs) > 1:
            pairs.pop()
        rows.append(None if pairs[0] == empty else pairs)
    return rows


def topk_from_lists(rows: list[list[tuple[int, float]] | None]) -> TopkLogprobs | None:
    """The matrices of rows of pairs; None if no row has any."""
    k = max((len(row) for row in rows if row is not None), default=0)
    if not k:
        return None
    ids = np.zeros((len(rows), k), np.int32)
    logprobs = np.full((len(rows), k), MASK_LOGPROB, np.float32)
    for index, row in enumerate(rows):
        for place, (token, logprob) in enumerate(row or ()):
            ids[index, place], logprobs[index, place] = token, logprob
    return TopkLogprobs(ids, logprobs)
