"""Token rows: chats padded to a length, stories packed to a length, and which tokens are answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizer import CONTROL, EMPTY_THOUGHT, MARKUP
from tokenizers import Tokenizer

SHORT, LONG, PACK = 64, 384, 1024


@dataclass(frozen=True)
class Marks:
    """The ids that frame a chat, and how many tokens an empty thought has."""

    end_of_text: int
    start: int
    end: int
    think: int
    assistant: int
    newline: int
    thought: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Marks":
        """The marks of a tokenizer in which the role and the line end are one token each."""
        ids = [tokenizer.token_to_id(t) for t in (*CONTROL, MARKUP[4])]
        (assistant,), (newline,) = tokenizer.encode("assistant").ids, tokenizer.encode("\n").ids
        return cls(*ids, assistant, newline, len(tokenizer.encode(EMPTY_THOUGHT).ids))


def pad(rows: Iterable[Sequence[int]], length: int, fill: int) -> np.ndarray:
    """Rows no longer than `length` as one matrix."""
    kept = [r for r in rows if len(r) <= length]
    out = np.full((len(kept), length), fill, dtype=np.uint16)
    for i, row in enumerate(kept):
        out[i, : len(row)] = row
    return out


def pack(documents: Iterable[Sequence[int]], length: int, end_of_text: int) -> np.ndarray:
    """Documents after one another; each row starts with the start of a document and is cut at its end."""
    done: list[np.ndarray] = []
    row: list[np.ndarray] = []
    filled = 0
    for document in documents:
        row.append(np.append(np.asarray(document, dtype=np.uint16), np.uint16(end_of_text)))
        filled += len(row[-1])
        if filled >= length:
            done.append(np.concatenate(row)[:length])
            row, filled = [], 0
    return np.stack(done) if done else np.zeros((0, length), dtype=np.uint16)


def answers(rows: np.ndarray, marks: Marks) -> np.ndarray:
    """True where a token belongs to an answer of the assistant, its end mark included."""
    n, length = rows.shape
    if n == 0:
        return np.zeros(rows.shape, dtype=bool)
    at = np.arange(length, dtype=np.int32)[None]
    opens = np.zeros(rows.shape, dtype=bool)
    opens[:, 2:] = rows[:, 2:] == marks.newline
    opens[:, 2:] &= (rows[:, 1:-1] == marks.assistant) & (rows[:, :-2] == marks.start)
    opened = np.maximum.accumulate(np.where(opens, at, -1), axis=1)
    closed = np.maximum.accumulate(np.where(rows == marks.end, at, 0), axis=1)
    inside = np.zeros(rows.shape, dtype=bool)
    inside[:, 1:] = opened[:, :-1] > closed[:, :-1]
    # An empty thought is part of the prompt, not of the answer.
    for i, j in zip(*np.nonzero((rows == marks.think) & inside), strict=True):
        inside[i, j : j + marks.thought] = False
    return inside
