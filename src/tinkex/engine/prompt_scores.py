"""The logprobs of a prompt's own tokens, and what else can be asked of its positions.

Position p (from 1 on) is scored from the hidden state at p - 1, always at temperature 1; alternatives are
drawn at the request's temperature and scored at temperature 1 too. Logits exist for a few positions at a
time only.

Shape letters: P prompt tokens, n positions at hand, V vocabulary, k alternatives a position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .faults import UserFault
from .messages import SampleDone, ScoreOptions, SparseRows
from .sampling_math import COLDEST, PROMPT, pick, uniforms

ROWS = 64
"""Positions whose logits exist at a time."""


class PromptScores:
    """Collects what one request asked about its prompt, piece by piece."""

    def __init__(
        self,
        options: ScoreOptions,
        prompt: npt.NDArray[np.int32],
        temperature: float,
        seed: int,
    ) -> None:
        self.options, self.prompt, self.temperature, self.seed = options, prompt, temperature, seed
        size = len(prompt)
        first = 1 if options.last_n is None else size - options.last_n
        self._first_scored = first
        everywhere = options.targets is not None or options.alt_tokens > 0
        self.first_hidden = 0 if everywhere else first - 1
        """The first position whose hidden state is needed."""
        self.logprobs = np.full(size, np.nan, np.float32)
        self.top_tokens = np.full((size, options.topk_prompt), -1, np.int32)
        self.top_logprobs = np.full((size, options.topk_prompt), np.nan, np.float32)
        self.alt_tokens = np.zeros((max(size - 1, 0), options.alt_tokens), np.int64)
        self.alt_logprobs = np.zeros((max(size - 1, 0), options.alt_tokens), np.float32)
        self._targets = _flat_targets(options.targets)
        self._target_logprobs = np.zeros(len(self._targets[0]), np.float32)

    @staticmethod
    def wanted(options: ScoreOptions) -> bool:
        """Whether a request asks anything about its prompt."""
        return bool(
            options.prompt_logprobs
            or options.topk_prompt
            or options.alt_tokens
            or options.targets is not None
        )

    def take(
        self, start: int, hidden_nc: torch.Tensor, logits: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Score from the hidden states of positions `start` and following."""
        first = max(start, self.first_hidden)
        last = min(start + len(hidden_nc), len(self.prompt) - 1)
        for begin in range(first, last, ROWS):
            end = min(begin + ROWS, last)
            logits_nv = logits(hidden_nc[begin - start : end - start]).float()
            self._score(begin, end, logits_nv, torch.logsumexp(logits_nv, -1, keepdim=True))

    def _score(self, begin: int, end: int, logits_nv: torch.Tensor, lse_n1: torch.Tensor) -> None:
        here, options = slice(begin + 1, end + 1), self.options
        skip = max(0, self._first_scored - (begin + 1))
        if skip < end - begin:
            scored = slice(here.start + skip, here.stop)
            if options.prompt_logprobs:
                ids_n1 = torch.from_numpy(self.prompt[here].astype(np.int64))[:, None].to(logits_nv.device)
                found = (logits_nv.gather(1, ids_n1) - lse_n1)[:, 0]
                self.logprobs[scored] = found.cpu().numpy()[skip:]
            if options.topk_prompt:
                values, ids = logits_nv.topk(options.topk_prompt, dim=-1)
                self.top_tokens[scored] = ids.cpu().numpy()[skip:]
                self.top_logprobs[scored] = (values - lse_n1).cpu().numpy()[skip:]
        if options.targets is not None:
            ids, rows = self._targets
            low, high = np.searchsorted(rows, [begin, end]).tolist()
            ids_here = torch.from_numpy(np.maximum(ids[low:high], 0)).to(logits_nv.device)
            rows_here = torch.from_numpy(rows[low:high] - begin).to(logits_nv.device)
            found = (logits_nv - lse_n1)[rows_here, ids_here].cpu().numpy()
            self._target_logprobs[low:high] = np.where(ids[low:high] >= 0, found, 0.0)
        if options.alt_tokens:
            tokens_nk = self._alternatives(begin, end, logits_nv)
            self.alt_tokens[begin:end] = tokens_nk.cpu().numpy()
            self.alt_logprobs[begin:end] = (logits_nv.gather(1, tokens_nk) - lse_n1).cpu().numpy()

    def _alternatives(self, begin: int, end: int, logits_nv: torch.Tensor) -> torch.Tensor:
        count = self.options.alt_tokens
        if self.temperature <= 0:
            return logits_nv.argmax(-1, keepdim=True).expand(-1, count)
        mass_nv = torch.softmax(logits_nv / max(self.temperature, COLDEST), -1)
        u_nk = uniforms(
            np.full((1, 1), self.seed, np.uint64),
            np.arange(count, dtype=np.uint64)[None],
            np.arange(begin + 1, end + 1, dtype=np.uint64)[:, None],
            PROMPT,
        )
        return pick(mass_nv, torch.from_numpy(u_nk).to(logits_nv.device))

    def answer(self) -> dict[str, Any]:
        """The fields of `SampleDone` that were asked for."""
        options = self.options
        found: dict[str, Any] = {}
        if options.prompt_logprobs:
            found["prompt_logprobs"] = self.logprobs
        if options.topk_prompt:
            found["topk_prompt_tokens"] = self.top_tokens
            found["topk_prompt_logprobs"] = self.top_logprobs
        if isinstance(options.targets, SparseRows):
            sparse = options.targets
            found["target_logprobs"] = SparseRows(
                self._target_logprobs, sparse.crow, sparse.col, sparse.shape
            )
        elif options.targets is not None:
            found["target_logprobs"] = self._target_logprobs.reshape(options.targets.shape)
        if options.alt_tokens:
            found["alt_tokens"], found["alt_logprobs"] = self.alt_tokens, self.alt_logprobs
        assert found.keys() <= set(SampleDone.__slots__)
        return found


def _flat_targets(
    targets: Any,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The ids to score and the row of each, rows rising."""
    if targets is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if isinstance(targets, SparseRows):
        counts: npt.NDArray[np.int64] = np.diff(targets.crow).astype(np.int64)
        rows = np.repeat(np.arange(targets.shape[0]), counts)
        return targets.values.astype(np.int64), rows
    rows = np.repeat(np.arange(targets.shape[0]), targets.shape[1])
    return targets.astype(np.int64).reshape(-1), rows


def check_scores(options: ScoreOptions, size: int, vocab: int) -> None:
    """Refuse what cannot be asked of a prompt of `size` tokens."""
    for name, count in (
        ("topk_prompt_logprobs", options.topk_prompt),
        ("topk_sample_logprobs", options.topk_sample),
        ("prompt_alt_tokens_k", options.alt_tokens),
    ):
        if not 0 <= count <= vocab:
            raise UserFault(f"{name} must be between 0 and the vocabulary's {vocab}, got {count}")
    if options.last_n is not None and not 1 <= options.last_n <= size - 1:
        raise UserFault(f"prompt_logprobs_last_n must be between 1 and {size - 1}, got {options.last_n}")
    targets = options.targets
    if targets is None:
        return
    shape = tuple(targets.shape)
    if len(shape) != 2 or shape[0] != size - 1:
        raise UserFault(f"target_prompt_logprobs must be [{size - 1}, K], got {list(shape)}")
    if isinstance(targets, SparseRows):
        crow = targets.crow
        sound = crow.shape == (shape[0] + 1,) and targets.values.ndim == 1
        sound = sound and int(crow[0]) == 0 and int(crow[-1]) == len(targets.values)
        if not sound or bool((np.diff(crow.astype(np.int64)) < 0).any()):
            raise UserFault("target_prompt_logprobs: the row offsets do not match the values")
    ids = _flat_targets(targets)[0]
    if ids.size and (int(ids.max()) >= vocab or int(ids.min()) < -1):
        raise UserFault(f"target_prompt_logprobs holds ids outside -1 to {vocab - 1}")
