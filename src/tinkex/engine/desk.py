"""Calls that wait for an engine's answers: what tests, scripts and benchmarks use in front of a host."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from .host import Host, Steppable
from .messages import (
    STOP,
    Answer,
    Cancel,
    Failed,
    Request,
    Sample,
    SampleAccepted,
    SampleDone,
    StopReason,
    TokenStep,
)


@dataclass(slots=True)
class SampledSequence:
    """One finished sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: StopReason = "length"
    top: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = field(default_factory=list)


class SampleCall:
    """A sampling request under way: iterate for (sample, token, logprob), or wait for the result."""

    def __init__(self, request_id: str, num_samples: int, cancel: Callable[[], None]) -> None:
        self.request_id = request_id
        self.sequences = [SampledSequence() for _ in range(num_samples)]
        self.done: SampleDone | None = None
        self.cancel = cancel
        self._events: queue.SimpleQueue[tuple[int, int, float] | SampleDone | Failed] = queue.SimpleQueue()

    def put(self, event: tuple[int, int, float] | SampleDone | Failed) -> None:
        """Take what the engine's thread has for this call."""
        self._events.put(event)

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        while self.done is None:
            event = self._events.get()
            if isinstance(event, Failed):
                raise fault(event)
            if isinstance(event, SampleDone):
                self.done = event
            else:
                yield event

    def result(self) -> list[SampledSequence]:
        """Wait for the end; every sequence."""
        for _ in self:
            pass
        return self.sequences


class Desk:
    """One engine, its host, and the calls now waiting for answers."""

    def __init__(self, engine: Steppable, *, as_bytes: bool = False) -> None:
        self.host = Host(engine, self._deliver, as_bytes=as_bytes)
        self._ids = count(1)
        self._calls: dict[str, queue.SimpleQueue[Answer]] = {}
        self._samples: dict[str, SampleCall] = {}
        self._streams: dict[int, tuple[SampleCall, int]] = {}

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self.host.close()

    def next_id(self) -> str:
        """A request id nobody has used."""
        return f"call-{next(self._ids)}"

    def call(self, message: Request, timeout: float | None = None) -> Answer:
        """Send a message and wait for its answer; a failure is raised."""
        waiting: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._calls[message.request_id] = waiting
        self.host.submit(message)
        answer = waiting.get(timeout=timeout)
        if isinstance(answer, Failed):
            raise fault(answer)
        return answer

    def sample(self, message: Sample) -> SampleCall:
        """Start sampling."""
        name = message.request_id
        call = SampleCall(name, message.num_samples, lambda: self.cancel(name))
        self._samples[name] = call
        self.host.submit(message)
        return call

    def cancel(self, request_id: str) -> None:
        """Stop a sampling request; whoever waits for it is told."""
        self.host.submit(Cancel(self.host.epoch, request_id))

    def _deliver(self, answer: Answer) -> None:
        if isinstance(answer, TokenStep):
            self._tokens(answer)
        elif isinstance(answer, SampleAccepted):
            call = self._samples[answer.request_id]
            for index in range(answer.num_samples):
                self._streams[answer.first_stream + index] = (call, index)
        elif answer.request_id in self._samples:
            call = self._samples.pop(answer.request_id)
            self._streams = {k: v for k, v in self._streams.items() if v[0] is not call}
            assert isinstance(answer, (SampleDone, Failed))
            call.put(answer)
        elif answer.request_id in self._calls:
            self._calls.pop(answer.request_id).put(answer)

    def _tokens(self, step: TokenStep) -> None:
        for stream, token, logprob in zip(
            step.streams.tolist(), step.tokens.tolist(), step.logprobs.tolist(), strict=True
        ):
            call, index = self._streams[stream]
            call.sequences[index].tokens.append(token)
            call.sequences[index].logprobs.append(logprob)
            call.put((index, token, logprob))
        if step.top_streams is not None and step.top_tokens is not None and step.top_logprobs is not None:
            for stream, tokens, logprobs in zip(
                step.top_streams.tolist(), step.top_tokens, step.top_logprobs, strict=True
            ):
                call, index = self._streams[stream]
                call.sequences[index].top.append((tokens, logprobs))
        for stream, reason in zip(step.ended.tolist(), step.reasons.tolist(), strict=True):
            call, index = self._streams[stream]
            call.sequences[index].stop_reason = "stop" if reason == STOP else "length"


class CallFailed(Exception):
    """The engine answered that an operation failed."""

    def __init__(self, category: str, text: str) -> None:
        super().__init__(text)
        self.category = category


def fault(answer: Failed) -> CallFailed:
    """A failure as an exception."""
    return CallFailed(answer.category, answer.text)
