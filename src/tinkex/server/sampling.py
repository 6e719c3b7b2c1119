"""Samples under way: tokens as they come from the engine, whole answers when they are done.

Streaming and whole answers are the same path: a stream listens to what is collected here. After the engine
died, its samples are asked for again with the same seeds; listeners hear only what they have not heard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import numpy as np

from ..engine.kill_points import reach
from ..engine.messages import (
    BASE_VERSION,
    STOP,
    Answer,
    Array,
    Cancel,
    DropSampler,
    Failed,
    LoadSampler,
    Sample,
    SampleAccepted,
    SampleDone,
    SamplingParams,
    ScoreOptions,
    SparseRows,
    TokenStep,
)
from ..types.sample_response import PromptAltTokens, SampledSequence, SampleResponse
from ..types.tensor_data import TensorData
from ..types.topk_logprobs import MASK_LOGPROB, TopkLogprobs
from .engine_room import EngineRoom, SampleAnswer
from .metrics import Metrics
from .request_ids import REQUEST
from .tickets import Bell, Ticket, sample_bytes

log = logging.getLogger(__name__)
MOST_DEATHS = 25
"""An engine that dies so often under one sample is not asked for it again."""


@dataclass(slots=True)
class Sequence:
    """One sequence as far as it has come."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: str | None = None
    top: list[tuple[Array, Array]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class RunningSample:
    """One sampling request between its acceptance and its end."""

    ticket: Ticket
    version: str
    prompt: Array
    num_samples: int
    params: SamplingParams
    scores: ScoreOptions
    owner: str
    weights: Callable[[], tuple[str, str | None] | None]
    """Where its weights can be loaded from, and whose ephemeral ones they are; None: nowhere."""
    ended: Callable[[RunningSample], None]
    """Called once, when its ticket has ended."""
    sequences: list[Sequence] = field(default_factory=list)
    first_stream: int = -1
    bell: Bell = field(default_factory=Bell)
    """Rings with every step, for those who stream."""
    watched: bool = False
    deaths: int = 0
    """How often the engine died while it had this sample."""
    cache_hits: int = 0
    seen_tokens: int = 0
    asked: float = 0.0
    """When it arrived, on the monotonic clock."""
    spoke: bool = False
    """Whether it has had a token."""
    asked_by: str = ""
    """The request it came with, for the log."""

    @property
    def id(self) -> str:
        """The ticket's id."""
        return self.ticket.id


class SamplingDesk:
    """The sampling side of one engine room."""

    def __init__(self, room: EngineRoom, now: Callable[[], float], restores: Callable[[str], bool]) -> None:
        self.room, self._now, self._restores = room, now, restores
        self._running: dict[str, RunningSample] = {}
        self._streams: dict[int, tuple[RunningSample, Sequence]] = {}
        self._versions: set[str] = set()
        """Weights this engine is known to have."""
        self._loading: dict[str, list[RunningSample]] = {}
        self._held: dict[str, list[RunningSample]] = {}
        """By model, those whose weights are frozen again when it is restored."""
        self.put_off: Callable[[], bool] = lambda: False
        """Whether nothing is to be sampled now, until `restored` is called."""
        self._put_off: list[RunningSample] = []
        self._metrics, self._monotonic = Metrics(), time.monotonic

    def count_in(self, metrics: Metrics, monotonic: Callable[[], float]) -> None:
        """Count what ends here, by this clock."""
        self._metrics, self._monotonic = metrics, monotonic

    def __len__(self) -> int:
        return len(self._running)

    def running(self, id: str) -> RunningSample | None:
        """The sample of that id, if it is under way."""
        return self._running.get(id)

    def start(self, sample: RunningSample) -> None:
        """Begin a sample, or let it wait for the engine."""
        self._running[sample.id] = sample
        sample.asked, sample.asked_by = self._monotonic(), REQUEST.get()
        if self.room.up:
            self._send(sample)

    def cancel(self, id: str) -> None:
        """Stop a sample whose answer nobody wants."""
        sample = self._running.get(id)
        if sample is not None:
            self.room.tell(Cancel(self.room.epoch, id))
            self._fail(sample, "cancelled by its client", "user")

    def cancel_of(self, samplers: Set[str], why: str) -> None:
        """Stop the samples of sampling sessions that are no more."""
        for id, sample in list(self._running.items()):
            if id.rpartition(":")[0] in samplers:
                self.room.tell(Cancel(self.room.epoch, id))
                self._fail(sample, why, "user")

    def frozen(self, version: str) -> None:
        """This engine has just frozen these weights."""
        self._versions.add(version)

    def knows(self, version: str) -> bool:
        """Whether the engine has these weights at hand."""
        return version in self._versions

    def thaw(self, version: str) -> None:
        """Have the engine forget these weights."""
        self.room.tell(DropSampler(self.room.epoch, self.room.next_name(), version))
        self._versions.discard(version)

    # ---- the engine's comings and goings

    def engine_up(self) -> None:
        """A new engine: ask again for everything."""
        for sample in list(self._running.values()):
            self._send(sample)

    def engine_lost(self, reason: str) -> None:
        """What was under way is kept and asked for again."""
        self._versions.clear()
        self._loading.clear()
        self._held.clear()
        self._put_off.clear()
        self._streams.clear()
        for sample in list(self._running.values()):
            sample.deaths += bool(sample.sequences)
            sample.sequences, sample.first_stream = [], -1
            if sample.deaths > MOST_DEATHS:
                self._fail(sample, f"the engine died {sample.deaths} times while it sampled", "server")

    def restored(self, model_id: str) -> None:
        """What can be frozen of a model has been frozen again."""
        waiting, self._put_off = self._put_off, []
        for sample in self._wanted([*self._held.pop(model_id, []), *waiting]):
            self._send(sample)

    def _wanted(self, samples: list[RunningSample]) -> list[RunningSample]:
        """Those of them that were not cancelled while they waited."""
        return [sample for sample in samples if self._running.get(sample.id) is sample]

    def _send(self, sample: RunningSample) -> None:
        if self.put_off():
            self._put_off.append(sample)
            return
        version = sample.version
        if version != BASE_VERSION and version not in self._versions:
            waiting = self._loading.get(version)
            if waiting is not None:
                waiting.append(sample)
                return
            source = sample.weights()
            if source is not None:
                self._loading[version] = [sample]
                self._load(version, *source)
                return
        sample.sequences = [Sequence() for _ in range(sample.num_samples)]
        self.room.tell(
            Sample(
                self.room.epoch, sample.id, version, sample.prompt, sample.num_samples, sample.params,
                sample.scores, sample.owner,
            )
        )  # fmt: skip

    def _load(self, version: str, folder: str, ephemeral_of: str | None) -> None:
        room = self.room

        def loaded(answer: Answer) -> None:
            waiting = self._wanted(self._loading.pop(version, []))
            if isinstance(answer, Failed):
                if answer.epoch >= 0 and ephemeral_of is not None and self._restores(ephemeral_of):
                    self._held.setdefault(ephemeral_of, []).extend(waiting)
                elif answer.epoch >= 0:
                    for sample in waiting:
                        self._fail(sample, answer.text, answer.category)
                else:  # the engine is gone, perhaps because of these weights
                    for sample in waiting:
                        sample.deaths += 1
                return
            self._versions.add(version)
            for sample in waiting:
                self._send(sample)

        message = LoadSampler(
            room.epoch, room.next_name(), folder, ephemeral_of=ephemeral_of, version=version or None
        )
        room.tell(message, loaded)

    # ---- what the engine says

    def sampled(self, answer: SampleAnswer) -> None:
        """Take in an answer about samples."""
        if isinstance(answer, TokenStep):
            self._tokens(answer)
        elif isinstance(answer, SampleAccepted):
            sample = self._running.get(answer.request_id)
            if sample is not None:
                sample.first_stream = answer.first_stream
                for index, sequence in enumerate(sample.sequences):
                    self._streams[answer.first_stream + index] = (sample, sequence)
        elif answer.request_id in self._running:
            sample = self._running[answer.request_id]
            if isinstance(answer, Failed):
                self._fail(sample, answer.text, answer.category)
            else:
                self._finish(sample, answer)

    def _tokens(self, step: TokenStep) -> None:
        streams = self._streams
        rung: dict[int, RunningSample] = {}
        for stream, token, logprob in zip(
            step.streams.tolist(), step.tokens.tolist(), step.logprobs.tolist(), strict=True
        ):
            found = streams.get(stream)
            if found is None:
                continue
            sample, sequence = found
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            if not sample.spoke:
                sample.spoke = True
                self._metrics.first_token.see(self._monotonic() - sample.asked)
            if sample.watched:
                rung[id(sample)] = sample
        if step.top_streams is not None and step.top_tokens is not None and step.top_logprobs is not None:
            for stream, ids, values in zip(
                step.top_streams.tolist(), step.top_tokens, step.top_logprobs, strict=True
            ):
                if stream in streams:
                    streams[stream][1].top.append((ids, values))
        for stream, reason in zip(step.ended.tolist(), step.reasons.tolist(), strict=True):
            if stream in streams:
                streams[stream][1].stop_reason = "stop" if reason == STOP else "length"
        for sample in rung.values():
            sample.bell.ring()

    def _finish(self, sample: RunningSample, answer: SampleDone) -> None:
        self._let_go(sample)
        sample.cache_hits = answer.cache_hit_tokens
        sample.seen_tokens = sum(len(sequence.tokens) for sequence in sample.sequences)
        self._count(sample)
        reach("sample: before its end")
        sample.ticket.done(sample_bytes(response_of(sample, answer)), "sample", self._now())
        self._over(sample)

    def _count(self, sample: RunningSample) -> None:
        metrics = self._metrics
        metrics.samples["done"] += 1
        metrics.sampled.see(self._monotonic() - sample.asked)
        metrics.tokens["prompt"] += len(sample.prompt)
        metrics.tokens["prompt_cached"] += sample.cache_hits
        metrics.tokens["sampled"] += sample.seen_tokens

    def _fail(self, sample: RunningSample, text: str, category: str) -> None:
        self._let_go(sample)
        category = "user" if category == "user" else "server"
        self._metrics.samples[category] += 1
        level = logging.DEBUG if category == "user" else logging.ERROR
        log.log(level, "sample %s of request %s failed: %s", sample.id, sample.asked_by or "-", text)
        sample.ticket.failed(text, category, self._now())
        self._over(sample)

    def _over(self, sample: RunningSample) -> None:
        sample.bell.ring()
        sample.ended(sample)

    def _let_go(self, sample: RunningSample) -> None:
        self._running.pop(sample.id, None)
        if sample.first_stream >= 0:
            for index in range(sample.num_samples):
                self._streams.pop(sample.first_stream + index, None)


def response_of(sample: RunningSample, done: SampleDone) -> SampleResponse:
    """The public result of a sample."""
    return SampleResponse(
        [
            SampledSequence(
                "stop" if sequence.stop_reason == "stop" else "length",
                f"{sample.id}:{index}",
                np.asarray(sequence.tokens, np.int32),
                np.asarray(sequence.logprobs, np.float32),
                _top(sequence.top) if sample.scores.topk_sample else None,
            )
            for index, sequence in enumerate(sample.sequences)
        ],
        done.prompt_logprobs if sample.scores.prompt_logprobs else None,
        _prompt_top(done) if sample.scores.topk_prompt else None,
        _targets(done.target_logprobs),
        done.cache_hit_tokens,
        None
        if done.alt_tokens is None or done.alt_logprobs is None
        else PromptAltTokens(_tensor(done.alt_tokens, "<i8"), _tensor(done.alt_logprobs, "<f4")),
    )


def _tensor(array: Array, dtype: str) -> TensorData:
    return TensorData.from_numpy(array.astype(dtype, copy=False))


def _targets(found: Array | SparseRows | None) -> TensorData | None:
    if found is None or not isinstance(found, SparseRows):
        return None if found is None else _tensor(found, "<f4")
    return TensorData(
        found.values.astype("<f4"), "float32", list(found.shape), found.crow.tolist(), found.col.tolist()
    )


def _prompt_top(done: SampleDone) -> TopkLogprobs | None:
    if done.topk_prompt_tokens is None or done.topk_prompt_logprobs is None:
        return None
    missing = ~np.isfinite(done.topk_prompt_logprobs.astype(np.float32))
    return _masked(done.topk_prompt_tokens, done.topk_prompt_logprobs, missing)


def _top(rows: list[tuple[Array, Array]]) -> TopkLogprobs | None:
    if not rows:
        return None
    ids = np.stack([ids for ids, _ in rows])
    return _masked(ids, np.stack([values for _, values in rows]), ids.astype(np.int64) < 0)


def _masked(ids: Array, logprobs: Array, missing: Array) -> TopkLogprobs:
    """The matrices with empty cells as the wire has them."""
    return TopkLogprobs(
        np.where(missing, 0, ids).astype(np.int32),
        np.where(missing, MASK_LOGPROB, logprobs).astype(np.float32),
    )
