"""The sampling half of `NoopEngine`: sequences of the right shapes, a token a step, drawn from a hash."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.messages import (
    LENGTH,
    STOP,
    Answer,
    Array,
    Failed,
    Sample,
    SampleAccepted,
    SampleDone,
    ScoreOptions,
    SparseRows,
    TokenStep,
)

LOGPROB = -0.5
NATURAL = 16
"""Tokens after which a sequence without `max_tokens` ends by itself."""
Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Running:
    request: Sample
    first: int
    seeds: Words
    live: Ints
    budget: int
    stops: Ints
    drawn: int = 0


@dataclass(slots=True)
class NoopSampling:
    """The requests being sampled."""

    epoch: int
    vocab: int
    context: int
    eos: tuple[int, ...]
    tokens_drawn: int = 0
    running: dict[str, _Running] = field(default_factory=dict)
    _streams: int = 1

    def start(self, request: Sample) -> Answer:
        """Take a request in, or refuse it."""
        problem = self._problem(request)
        if problem:
            return Failed(self.epoch, request.request_id, "user", problem)
        size, params = len(request.prompt), request.params
        stops = self.eos if params.stop is None else [s for s in params.stop if isinstance(s, int)]
        seed = zlib.crc32(request.request_id.encode()) if params.seed is None else params.seed
        live = np.arange(request.num_samples)
        self.running[request.request_id] = _Running(
            request,
            self._streams,
            mixed(live.astype(np.uint64) + np.uint64(seed & 0xFFFFFFFF)),
            live,
            self.context - size if params.max_tokens is None else params.max_tokens,
            np.array(list(stops), np.int64),
        )
        self._streams += request.num_samples
        first = self._streams - request.num_samples
        return SampleAccepted(self.epoch, request.request_id, first, request.num_samples)

    def cancel(self, request_id: str) -> bool:
        """Drop a request; whether it was there."""
        return self.running.pop(request_id, None) is not None

    def step(self) -> list[Answer]:
        """One token for every sequence, all in one message, and the requests that end with it."""
        streams, tokens, ended, reasons, over = [], [], [], [], []
        top: list[tuple[Array, Array]] = []
        for job in self.running.values():
            last = job.drawn + 1 >= job.budget
            here = job.first + job.live
            if job.budget:
                found = (mixed(job.seeds[job.live] + np.uint64(job.drawn)) % np.uint64(self.vocab)).astype(
                    np.int64
                )
                job.drawn += 1
                if job.request.params.max_tokens is None and job.drawn == NATURAL and len(job.stops):
                    found[:] = job.stops[0]
                streams.append(here)
                tokens.append(found)
                if job.request.scores.topk_sample:
                    top.append((here, _top(found, job.request.scores.topk_sample, self.vocab)))
                stopped = np.isin(found, job.stops)
            else:
                stopped = np.zeros(len(here), np.bool_)
            done = np.ones(len(here), np.bool_) if last else stopped
            ended.append(here[done])
            reasons.append(np.where(stopped[done], STOP, LENGTH))
            job.live = job.live[~done]
            if not len(job.live):
                over.append(job)
        answers: list[Answer] = []
        drawn = np.concatenate([np.empty(0, np.int64), *tokens])
        self.tokens_drawn += len(drawn)
        if streams or ended:
            answers.append(
                TokenStep(
                    self.epoch,
                    np.concatenate([np.empty(0, np.int64), *streams]),
                    drawn.astype(np.int32),
                    np.full(len(drawn), LOGPROB, np.float32),
                    np.concatenate(ended),
                    np.concatenate(reasons).astype(np.uint8),
                    *_joined_top(top),
                )
            )
        for job in over:
            del self.running[job.request.request_id]
            answers.append(self._done(job.request))
        return answers

    def _problem(self, request: Sample) -> str:
        size, params = len(request.prompt), request.params
        if request.request_id in self.running:
            return f"request {request.request_id} is already being sampled"
        if request.media:
            kinds = ", ".join(sorted(set(request.media)))
            return f"the prompt holds {kinds} input; this model reads text only"
        if not size:
            return "the prompt has no tokens"
        if request.num_samples < 1:
            return f"num_samples must be at least 1, got {request.num_samples}"
        if size + (params.max_tokens or 0) > self.context:
            return f"prompt {size} + max_tokens {params.max_tokens or 0} > context {self.context}"
        if int(request.prompt.min()) < 0 or int(request.prompt.max()) >= self.vocab:
            return f"the prompt holds a token outside 0 to {self.vocab - 1}"
        return ""

    def _done(self, request: Sample) -> SampleDone:
        return SampleDone(
            self.epoch, request.request_id, 0, **_scores(request.scores, len(request.prompt), self.vocab)
        )


def mixed(values: Words) -> Words:
    """Numbers that look random, from numbers that do not (splitmix64)."""
    x = values * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _top(first: Ints, count: int, vocab: int) -> Array:
    return ((first[:, None] + np.arange(count)) % vocab).astype(np.int32)


def _joined_top(top: list[tuple[Array, Array]]) -> tuple[Array | None, Array | None, Array | None]:
    if not top:
        return None, None, None
    width = max(tokens.shape[1] for _, tokens in top)
    padded = [np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1) for _, x in top]
    tokens: Any = np.concatenate(padded)
    logprobs = np.where(tokens >= 0, LOGPROB - np.arange(width), np.nan).astype(np.float32)
    return np.concatenate([streams for streams, _ in top]), tokens, logprobs


def _scores(options: ScoreOptions, size: int, vocab: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    first = 1 if options.last_n is None else size - options.last_n
    if options.prompt_logprobs:
        found["prompt_logprobs"] = np.full(size, np.nan, np.float32)
        found["prompt_logprobs"][first:] = LOGPROB
    if options.topk_prompt:
        tokens = np.full((size, options.topk_prompt), -1, np.int32)
        tokens[first:] = np.arange(options.topk_prompt) % vocab
        found["topk_prompt_tokens"] = tokens
        found["topk_prompt_logprobs"] = np.where(
            tokens >= 0, LOGPROB - np.arange(options.topk_prompt), np.nan
        ).astype(np.float32)
    targets: Any = options.targets
    if isinstance(targets, SparseRows):
        values: Any = targets.values
        values = np.where(values >= 0, LOGPROB, 0.0).astype(np.float32)
        found["target_logprobs"] = SparseRows(values, targets.crow, targets.col, targets.shape)
    elif targets is not None:
        found["target_logprobs"] = np.where(targets >= 0, LOGPROB, 0.0).astype(np.float32)
    if options.alt_tokens:
        shape = (size - 1, options.alt_tokens)
        found["alt_tokens"] = np.zeros(shape, np.int64)
        found["alt_logprobs"] = np.full(shape, LOGPROB, np.float32)
    return found
