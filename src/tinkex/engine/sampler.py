"""The sampling half of the engine: requests in, one message of tokens out for each step.

It owns the key/value memory, the scheduler and the runner; it is handed adapters and never looks for them,
and it knows nothing of training.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from .adapters import Adapter
from .base_model import BaseModel
from .blocks import BlockPool, root_of
from .exact_runner import ExactRunner
from .faults import UserFault
from .kill_points import reach
from .kv_cache import KvCache, bytes_per_token
from .messages import LENGTH, Answer, Failed, Sample, SampleAccepted, SampleDone, TokenStep
from .prompt_scores import PromptScores, check_scores
from .runner import Outcome, Runner
from .sampling_rows import Job, Row
from .scheduler import Pass, Scheduler
from .stopping import Detokenise, StopRule, token_budget

log = logging.getLogger(__name__)
_KV_SHARE = 0.3
_EXACT_PIECE = 32


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How much sampling may hold at once; None is chosen from the device."""

    kv_bytes: int | None = None
    max_rows: int = 256
    max_samples: int = 1 << 14
    pass_tokens: int | None = None
    block_size: int = 16
    deterministic: bool = False
    ahead: bool | None = None
    """Whether steps begin before the last one's tokens are read."""


class Sampler:
    """Continuous batching over one base model."""

    def __init__(
        self,
        base: BaseModel,
        epoch: int = 0,
        options: SamplerOptions | None = None,
        detokenise: Detokenise | None = None,
    ) -> None:
        self.base, self.epoch, self.detokenise = base, epoch, detokenise
        self.options = options = options or SamplerOptions()
        kind = base.device.type
        budget = options.kv_bytes or _kv_bytes(base.device)
        size = _EXACT_PIECE if options.deterministic else options.block_size
        blocks = max(budget // (size * bytes_per_token(base.config, base.dtype)), 1)
        self.pool = BlockPool(blocks, size)
        self.cache = KvCache(base.config, blocks, size, base.device, base.dtype)
        ahead = kind == "cuda" if options.ahead is None else options.ahead
        self.runner: Runner | ExactRunner
        if options.deterministic:
            self.runner = ExactRunner(base, self.cache)
        else:
            self.runner = Runner(base, self.cache, dense_bytes=budget if kind == "cpu" else 0, ahead=ahead)
        tokens = options.pass_tokens or (512 if kind == "cpu" else 8192)
        self.scheduler = Scheduler(
            self.pool,
            max_rows=options.max_rows,
            pass_tokens=tokens,
            chunk=size if options.deterministic else None,
            ahead=ahead and not options.deterministic,
        )
        self._streams = count(1)
        self._arrivals = count(1)
        self.tokens_drawn = 0

    @property
    def context_length(self) -> int:
        """The longest sequence there is room for: the model's context, or what the memory holds."""
        return min(self.base.context_length, self.pool.count * self.pool.size)

    @property
    def busy(self) -> bool:
        """Whether any request is open."""
        return self.scheduler.busy

    def submit(self, request: Sample, adapter: Adapter | None) -> SampleAccepted:
        """Queue a request for frozen weights; what is wrong with it is raised as a `UserFault`."""
        if request.request_id in self.scheduler.jobs:
            raise UserFault(f"request {request.request_id} is already being sampled")
        job = self._job(request, adapter)
        self.scheduler.add(job)
        return SampleAccepted(self.epoch, request.request_id, job.first_stream, request.num_samples)

    def cancel(self, request_id: str) -> bool:
        """Drop a request and free its rows and blocks at once."""
        return self.scheduler.cancel(request_id) is not None

    def step(self) -> list[Answer]:
        """Run one pass; its tokens in one message, then what ended with it."""
        work = self.scheduler.next()
        if work is None:
            return []
        shortage = None
        try:
            found = self.runner.run(work)
        except torch.OutOfMemoryError as error:
            shortage = str(error).splitlines()[0]
        except Exception as error:
            log.exception("a sampling pass failed")
            return self._fail(_jobs(work), "server", f"sampling failed: {type(error).__name__}: {error}")
        if shortage is not None:  # only now the error is gone, and with it the tensors of the pass
            return self._short_of_memory(work, shortage)
        reach("engine: in a sample")
        answers = self._fail_broken(found)
        if self.options.deterministic:
            # Rows that catch up with what they drew before they gave up their blocks draw nothing new.
            found = found.take([i for i, row in enumerate(found.rows) if row.length == row.computed])
        ended, unreadable = self._read(found)
        answers += self._fail(unreadable, "server", "the tokens drawn could not be turned into text")
        if answers:
            found = self._leave_out_failed(work, found)
        over = self.scheduler.settle(work, set(ended))
        for job in over:
            if not job.budget:
                streams = range(job.first_stream, job.first_stream + job.request.num_samples)
                ended.update(dict.fromkeys(streams, LENGTH))
        self.tokens_drawn += len(found.tokens)
        if found.tokens or ended:
            answers.append(self._token_step(found, ended))
        answers += [self._done(job) for job in over]
        return answers

    def _short_of_memory(self, work: Pass, shortage: str) -> list[Answer]:
        """Have the pass made again in smaller ones; requests that fit in none are failed."""
        if isinstance(self.runner, Runner):
            self.runner.forget()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self.scheduler.take_back(work):
                log.warning(
                    "out of memory in a sampling pass; from now on %d prompt tokens and %d rows at most",
                    self.scheduler.pass_tokens,
                    self.scheduler.max_rows,
                )
                return []
        text = f"sampling does not fit the device's memory; leave more of it free ({shortage})"
        return self._fail(_jobs(work), "server", text)

    def _read(self, found: Outcome) -> tuple[dict[int, int], list[Job]]:
        """Append the tokens to their rows; why streams end, and requests whose text cannot be read."""
        ended: dict[int, int] = {}
        unreadable: list[Job] = []
        for row, token in zip(found.rows, found.tokens, strict=True):
            try:
                reason = row.watch.see(token)
            except Exception:
                log.exception(
                    "request %s: a token could not be turned into text", row.job.request.request_id
                )
                unreadable.append(row.job)
                continue
            if reason is not None:
                ended[row.stream] = reason
        return ended, unreadable

    def _leave_out_failed(self, work: Pass, found: Outcome) -> Outcome:
        """Forget what failed requests had in a pass."""
        alive = self.scheduler.jobs
        work.starts = [row for row in work.starts if row.job.request.request_id in alive]
        work.pieces = [piece for piece in work.pieces if piece.fill.job.request.request_id in alive]
        rows = enumerate(found.rows)
        return found.take([i for i, row in rows if row.job.request.request_id in alive])

    def _job(self, request: Sample, adapter: Adapter | None) -> Job:
        vocab, params, scores = self.base.vocab_size, request.params, request.scores
        if request.media:
            kinds = ", ".join(sorted(set(request.media)))
            raise UserFault(f"the prompt holds {kinds} input; this model reads text only")
        given = np.asarray(request.prompt)
        if given.ndim != 1:
            raise UserFault(f"the prompt has {given.ndim} dimensions, expected 1")
        budget = token_budget(len(given), params.max_tokens, self.context_length)
        if given.dtype.kind not in "iu" or int(given.min()) < 0 or int(given.max()) >= vocab:
            raise UserFault(f"the prompt holds a token outside 0 to {vocab - 1}")
        prompt = given.astype(np.int32)
        most = self.options.max_samples
        if not 1 <= request.num_samples <= most:
            raise UserFault(f"num_samples must be between 1 and {most}, got {request.num_samples}")
        if not 0.0 <= params.temperature < float("inf"):
            raise UserFault(f"temperature must be a number from 0 up, got {params.temperature}")
        if not 0.0 < params.top_p <= 1.0:
            raise UserFault(f"top_p must be above 0 and at most 1, got {params.top_p}")
        if params.top_k < -1:
            raise UserFault(f"top_k must be -1 (off) or a number of tokens, got {params.top_k}")
        check_scores(scores, len(prompt), vocab)
        seed = secrets.randbits(64) if params.seed is None else params.seed % (1 << 64)
        job = Job(
            request,
            adapter,
            root_of(request.version, request.owner),
            prompt,
            budget,
            StopRule.of(params, self.base.eos_ids, readable=self.detokenise is not None),
            seed,
            first_stream=next(self._streams),
            arrival=next(self._arrivals),
            detokenise=self.detokenise,
            cache_limit=len(prompt) - 1,
        )
        for _ in range(request.num_samples - 1):
            next(self._streams)
        if PromptScores.wanted(scores):
            job.scores = PromptScores(scores, prompt, params.temperature, seed)
            job.cache_limit = min(job.cache_limit, job.scores.first_hidden)
        return job

    def _token_step(self, found: Outcome, ended: dict[int, int]) -> TokenStep:
        top: list[np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None] = [None, None, None]
        if found.top_tokens is not None and found.top_logprobs is not None:
            wants = np.array([row.job.request.scores.topk_sample for row in found.rows])
            asked = wants > 0
            beyond = np.arange(found.top_tokens.shape[1]) >= wants[asked][:, None]
            tokens = np.where(beyond, -1, found.top_tokens[asked]).astype(np.int32)
            logprobs = np.where(beyond, np.nan, found.top_logprobs[asked]).astype(np.float32)
            top = [found.streams[asked], tokens, logprobs]
        return TokenStep(
            self.epoch,
            found.streams,
            np.array(found.tokens, np.int32),
            found.logprobs,
            np.fromiter(ended, np.int64, len(ended)),
            np.fromiter(ended.values(), np.uint8, len(ended)),
            *top,
        )

    def _done(self, job: Job) -> SampleDone:
        scores = job.scores.answer() if job.scores is not None else {}
        return SampleDone(self.epoch, job.request.request_id, job.hit or 0, **scores)

    def _fail_broken(self, found: Outcome) -> list[Answer]:
        """Fail requests whose model gives no numbers; the others' rows are not touched by it."""
        # A prompt too: requests that draw nothing, or end before they do, must leave no such blocks behind.
        jobs = [found.rows[i].job for i in np.flatnonzero(~np.isfinite(found.logprobs))]
        jobs += self.runner.broken_prompts()
        if not jobs:
            return []
        trained = [job for job in jobs if job.adapter is not None]
        text = "the model's logprobs are not finite"
        answers = self._fail(trained, "user", f"{text}: its weights have diverged")
        return answers + self._fail(jobs, "server", text)

    def _fail(self, jobs: list[Job], category: str, text: str) -> list[Answer]:
        failed: list[Answer] = []
        for name in dict.fromkeys(job.request.request_id for job in jobs):
            job = self.scheduler.jobs.get(name)
            if job is not None:
                blocks = self.scheduler.blocks_of(job)
                self.scheduler.cancel(name)
                # A block another request still reads makes that one fail too if it is not finite.
                self.runner.scrub(self.pool.forget(blocks))
                failed.append(Failed(self.epoch, name, category, text))
        return failed


def _jobs(work: Pass) -> list[Job]:
    return [row.job for row in (*work.rows, *work.starts)] + [piece.fill.job for piece in work.pieces]


def _kv_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _KV_SHARE)
    return 512 << 20


__all__ = ["Row", "Sampler", "SamplerOptions"]
