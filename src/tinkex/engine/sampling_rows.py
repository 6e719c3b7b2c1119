"""What is being sampled: requests (`Job`), their sequences (`Row`), and the batch of rows now decoded.

A job's prompt is computed once; its rows start from it, sharing its blocks. A row is decoded one token a
step: the step reads the token at `computed` and draws the one after it, unless that one is already known.
Nothing here knows the model, the clock or the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from .adapters import Adapter
from .blocks import Table
from .messages import Sample
from .prompt_scores import PromptScores
from .sampling_math import DrawParams, uniforms
from .sending import sent
from .stopping import Detokenise, StopRule, StopWatch

_AHEAD = 32


@dataclass(slots=True, eq=False)
class Job:
    """One sampling request from its arrival to its last sequence's end."""

    request: Sample
    adapter: Adapter | None
    root: bytes
    prompt: npt.NDArray[np.int32]
    budget: int
    rule: StopRule
    seed: int
    first_stream: int
    arrival: int
    detokenise: Detokenise | None = None
    scores: PromptScores | None = None
    cache_limit: int = 0
    """How many prompt tokens may come from the prefix cache."""
    waiting: list[int] = field(default_factory=list)
    """Samples not started yet, the next one last."""
    open: int = 0
    """Sequences that have not ended."""
    hit: int | None = None
    """Prompt tokens found in the cache when the job was first computed."""
    names: list[bytes] | None = None
    """The names of the prompt's full blocks, once they were needed."""
    lead: Table | None = None
    """The prompt's blocks, held until every sample has started."""
    last_hidden: torch.Tensor | None = None
    """The hidden state that the first tokens are drawn from, `[1, hidden]`."""

    def __post_init__(self) -> None:
        self.waiting = list(range(self.request.num_samples - 1, -1, -1))
        self.open = self.request.num_samples

    def start(self, index: int) -> Row:
        """The row of one sample, at the point where its first token is drawn."""
        watch = StopWatch(self.rule, self.budget, self.detokenise)
        return Row(self, index, self.first_stream + index, watch, computed=len(self.prompt))


@dataclass(slots=True, eq=False)
class Row:
    """One sequence: its tokens so far, how many of them are in the cache, and where."""

    job: Job
    index: int
    stream: int
    watch: StopWatch
    computed: int
    table: Table | None = None
    coming: Table | None = None
    """The table it will have if it goes on after its first token."""

    @property
    def home(self) -> Table:
        """Where its tokens lie, or will."""
        found = self.table or self.coming
        assert found is not None
        return found

    def holds_next(self, size: int) -> bool:
        """Whether it has a block, of this size, for the token after its computed ones."""
        found = self.table or self.coming
        return found is not None and len(found.blocks) * size > self.computed

    @property
    def adapter(self) -> Adapter | None:
        """Whose weights the row is sampled from."""
        return self.job.adapter

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.job.prompt) + len(self.watch.tokens)

    def token(self, position: int) -> int:
        """The token at a position of prompt and answer."""
        prompt = len(self.job.prompt)
        return int(self.job.prompt[position]) if position < prompt else self.watch.tokens[position - prompt]

    def tokens(self, end: int) -> npt.NDArray[np.int32]:
        """The first `end` tokens of prompt and answer."""
        drawn = self.watch.tokens[: max(0, end - len(self.job.prompt))]
        return np.concatenate([self.job.prompt[:end], np.array(drawn, np.int32)])


@dataclass(slots=True, eq=False)
class Fill:
    """A prompt (or a row's lost context) being computed piece by piece."""

    owner: Job | Row
    tokens: npt.NDArray[np.int32]
    table: Table
    done: int

    @property
    def job(self) -> Job:
        """The request it belongs to."""
        return self.owner if isinstance(self.owner, Job) else self.owner.job


class DrawRows:
    """The rows one draw serves: their parameters laid out once, their random numbers some steps ahead."""

    def __init__(self, rows: list[Row], vocab: int, device: torch.device) -> None:
        self.rows = rows
        requests = [row.job.request for row in rows]
        params = [request.params for request in requests]
        self.params = DrawParams.of(
            [p.temperature for p in params],
            [p.top_k for p in params],
            [p.top_p for p in params],
            vocab=vocab,
            raw=[r.scores.raw for r in requests],
            top=max((r.scores.topk_sample for r in requests), default=0),
            device=device,
        )
        self.streams = np.array([row.stream for row in rows], np.int64)
        self._device = device
        self._seeds = np.array([row.job.seed for row in rows], np.uint64)
        self._indices = np.array([row.index for row in rows], np.uint64)
        self._ahead: torch.Tensor | None = None
        self._from = 0

    def numbers(self) -> torch.Tensor | None:
        """One random number a row, for the token after its `computed` ones; rows advance together."""
        if self.params.all_greedy:
            return None
        step = self.rows[0].computed - self._from
        if self._ahead is None or step >= _AHEAD:
            drawn = np.array([row.computed - len(row.job.prompt) for row in self.rows])
            self._ahead = self._at((drawn[:, None] + np.arange(_AHEAD)).astype(np.uint64))
            self._from, step = self.rows[0].computed, 0
        return self._ahead[:, step]

    def _at(self, positions_rn: npt.NDArray[np.uint64]) -> torch.Tensor:
        drawn = uniforms(self._seeds[:, None], self._indices[:, None], positions_rn)
        return sent(drawn, self._device)
