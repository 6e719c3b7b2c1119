"""An engine that computes nothing: every message is answered at once, in the shapes an engine answers.

Messages can be held back, fail on request, and the whole engine can break down. It needs a host as any
engine does, or a `DirectLink`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..engine.messages import (
    BASE_VERSION,
    Answer,
    AskStats,
    Cancel,
    Failed,
    Ready,
    Request,
    Sample,
    Scalar,
    Stats,
)
from .noop_operations import NoopModel, NoopOperations
from .noop_sampling import NoopSampling


class NoopEngine:
    """Stands in for an engine; `folder` is where unnamed sampler weights are written."""

    def __init__(
        self,
        epoch: int = 0,
        *,
        vocab: int = 1024,
        context: int = 8192,
        eos: Sequence[int] = (258, 256),
        folder: Path | None = None,
        max_rank: int = 1024,
        hold: Sequence[type] = (),
    ) -> None:
        self.epoch = epoch
        self.operations: NoopOperations = NoopOperations(epoch, context, max_rank, folder)
        self.sampling: NoopSampling = NoopSampling(epoch, vocab, context, tuple(eos))
        self.seen: deque[Request] = deque(maxlen=1000)
        """The latest messages, in the order they came."""
        self.wake: Callable[[], None] = lambda: None
        """Called when held messages may go on; set it to the host's."""
        self._queue: deque[Request] = deque()
        self._samples: deque[Sample] = deque()
        self._held: set[type] = set(hold)
        self._permits = 0
        self._failures: list[tuple[type, str, str]] = []
        self._broken = ""

    # ---- what tests do to it

    def hold(self, *kinds: type) -> None:
        """Hold messages of these kinds back, and operations that come after a held one."""
        self._held.update(kinds)

    def release(self, count: int | None = None) -> None:
        """Let so many held messages go on, or all of them and those to come."""
        if count is None:
            self._held.clear()
        else:
            self._permits += count
        self.wake()

    def fail_next(self, kind: type, text: str, category: str = "server") -> None:
        """Have the next message of a kind fail."""
        self._failures.append((kind, category, text))

    def break_down(self, reason: str = "broken on request") -> None:
        """Have the next step raise, as a bug in an engine would."""
        self._broken = reason
        self.wake()

    @property
    def models(self) -> dict[str, NoopModel]:
        """The models it has, by name."""
        return self.operations.models

    @property
    def versions(self) -> dict[str, NoopModel]:
        """The frozen weights it has, by version."""
        return self.operations.versions

    # ---- what a host does with it

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(
            self._broken
            or self.sampling.running
            or (self._queue and self._free(self._queue[0]))
            or (self._samples and self._free(self._samples[0]))
        )

    def ready(self) -> Ready:
        """Facts as an engine gives them."""
        facts: dict[str, Scalar] = {
            "family": "noop",
            "device": "none",
            "dtype": "float32",
            "deterministic": True,
            "threads": 1,
            "vocab_size": self.sampling.vocab,
            "context_length": self.sampling.context,
            "sample_length": self.sampling.context,
            "layers": 0,
            "hidden_size": 0,
            "parameters": 0,
            "tied": False,
            "max_rank": self.operations.max_rank,
            "stop_strings": True,
            "blocks": 0,
            "block_size": 16,
        }
        return Ready(self.epoch, facts, np.array(self.sampling.eos, np.int64))

    def submit(self, message: Request) -> list[Answer]:
        """Take a message in."""
        self.seen.append(message)
        name = message.request_id
        if message.epoch != self.epoch:
            text = f"the message is of engine epoch {message.epoch}, this engine is epoch {self.epoch}"
            return [Failed(self.epoch, name, "server", text)]
        if isinstance(message, AskStats):
            return [Stats(self.epoch, name, self.figures())]
        if isinstance(message, Cancel):
            waiting = [sample for sample in self._samples if sample.request_id == name]
            for sample in waiting:
                self._samples.remove(sample)
            if waiting or self.sampling.cancel(name):
                return [Failed(self.epoch, name, "user", "the request was cancelled")]
            return []
        if isinstance(message, Sample):
            self._samples.append(message)
        else:
            self._queue.append(message)
        return []

    def step(self) -> list[Answer]:
        """Answer everything that waits and is not held back, and draw a token for every sequence."""
        if self._broken:
            raise RuntimeError(self._broken)
        answers = []
        while self._samples and self._take(self._samples[0]):
            answers.append(self._start(self._samples.popleft()))
        while self._queue and self._take(self._queue[0]):
            answers.append(self._operate(self._queue.popleft()))
        return answers + (self.sampling.step() if self.sampling.running else [])

    def close(self) -> None:
        """Nothing runs in the background."""

    def figures(self) -> dict[str, Scalar]:
        """What it holds."""
        return {
            "models": len(self.models),
            "sampler_versions": len(self.versions),
            "operations_queued": len(self._queue),
            "samples_queued": len(self._samples),
            "rows": sum(len(job.live) for job in self.sampling.running.values()),
            "tokens_drawn": self.sampling.tokens_drawn,
        }

    def _free(self, message: Request) -> bool:
        return type(message) not in self._held or self._permits > 0

    def _take(self, message: Request) -> bool:
        if type(message) not in self._held:
            return True
        if self._permits:
            self._permits -= 1
            return True
        return False

    def _start(self, message: Sample) -> Answer:
        failure = self._failure(message)
        if failure is not None:
            return failure
        if message.version != BASE_VERSION and message.version not in self.versions:
            text = f"no sampler weights {message.version!r} here: save or load them first"
            return Failed(self.epoch, message.request_id, "user", text)
        return self.sampling.start(message)

    def _operate(self, message: Request) -> Answer:
        return self._failure(message) or self.operations.run(message)

    def _failure(self, message: Request) -> Failed | None:
        for number, (kind, category, text) in enumerate(self._failures):
            if isinstance(message, kind):
                del self._failures[number]
                return Failed(self.epoch, message.request_id, category, text)
        return None
