"""The engine's loop: take messages in, give training and sampling their turns, hand answers out.

Operations on models run one at a time in the order they came. Sampling requests run beside them on frozen
weights, so neither waits for the other longer than one micro-batch or one decode step.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from .base_model import BaseModel
from .checkpoints import save_sampler
from .faults import EngineFault
from .memory_plan import memory_plan
from .messages import (
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
from .operations import Operations, Work, read_sampler
from .sampler import Sampler, SamplerOptions
from .sampler_weights import SamplerWeights
from .stopping import Detokenise
from .tensor_files import in_words
from .time_share import TimeShare
from .trainer import Trainer

log = logging.getLogger(__name__)
STATES = "states"
"""The part of an engine's folder that means nothing to the next engine."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine is run; None is chosen from the device."""

    deterministic: bool = False
    sampler: SamplerOptions = field(default_factory=SamplerOptions)
    train_share: float = 0.5
    token_budget: int | None = None
    checkpoint_activations: bool = False
    max_rank: int = 1024
    device_bytes: int | None = None
    host_bytes: int | None = None
    folder: Path | None = None
    """Where cold training states and ephemeral sampler weights are kept; without it, in memory."""
    keep_ephemeral: int = 8
    keep_seconds: float = 6 * 3600.0
    resident_samplers: int = 32


class Engine:
    """One base model with its models, frozen versions and running samples."""

    def __init__(
        self,
        base: BaseModel,
        *,
        epoch: int = 0,
        options: EngineOptions | None = None,
        detokenise: Detokenise | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.base, self.epoch = base, epoch
        self.wake: Callable[[], None] = lambda: None
        """Called from another thread when there is something to answer."""
        self.options = options = options or EngineOptions()
        folder = options.folder
        self.weights = SamplerWeights(
            base.device,
            lambda adapter, path: save_sampler(path, adapter),
            read_sampler(base),
            folder=None if folder is None else folder / "sampler",
            keep=options.keep_ephemeral,
            keep_seconds=options.keep_seconds,
            resident=options.resident_samplers,
            clock=clock,
        )
        self.operations = Operations(
            base,
            Trainer(
                base,
                token_budget=options.token_budget,
                checkpoint_activations=options.checkpoint_activations,
                deterministic=options.deterministic,
            ),
            self.weights,
            epoch=epoch,
            max_rank=options.max_rank,
            device_bytes=options.device_bytes or _device_bytes(base.device),
            host_bytes=options.host_bytes,
            folder=None if folder is None else folder / STATES,
            wake=lambda: self.wake(),
        )
        chosen = options.sampler
        if options.deterministic != chosen.deterministic:
            chosen = replace(chosen, deterministic=options.deterministic)
        self.sampler = Sampler(base, epoch, chosen, detokenise)
        cache, pool = self.sampler.cache, self.sampler.pool
        log.info(memory_plan(base, cache.pool_y2pkd.nbytes, pool.count * pool.size))
        self._share = TimeShare(options.train_share)
        self._queue: deque[Request] = deque()
        self._running: tuple[str, Work] | None = None
        self._spent = {"train": 0.0, "sample": 0.0}
        self.doing = self._operation = ""
        """The piece of work last begun, for people; other threads may read it."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        at_work = self._running is not None or bool(self._queue) or self.sampler.busy
        return at_work or self.operations.later.has_answers

    def ready(self) -> Ready:
        """What a control plane must know of the engine before it sends anything."""
        base, pool = self.base, self.sampler.pool
        facts: dict[str, Scalar] = {
            "family": str(base.config.model_type),
            "device": str(base.device),
            "dtype": str(base.dtype).removeprefix("torch."),
            "deterministic": self.options.deterministic,
            "threads": torch.get_num_threads(),
            "vocab_size": base.vocab_size,
            "context_length": base.context_length,
            "sample_length": self.sampler.context_length,
            "layers": base.layers,
            "hidden_size": base.hidden_size,
            "parameters": sum(parameter.numel() for parameter in base.model.parameters()),
            "tied": base.tied,
            "max_rank": self.options.max_rank,
            "stop_strings": self.sampler.detokenise is not None,
            "blocks": pool.count,
            "block_size": pool.size,
        }
        return Ready(self.epoch, facts, np.array(base.eos_ids, np.int64))

    def submit(self, message: Request) -> list[Answer]:
        """Take a message in; what can be answered at once."""
        name = message.request_id
        if message.epoch != self.epoch:
            text = f"the message is of engine epoch {message.epoch}, this engine is epoch {self.epoch}"
            return [Failed(self.epoch, name, "server", text)]
        if isinstance(message, Sample):
            return [self._admit(message)]
        if isinstance(message, Cancel):
            found = self.sampler.cancel(name)
            return [Failed(self.epoch, name, "user", "the request was cancelled")] if found else []
        if isinstance(message, AskStats):
            return [Stats(self.epoch, name, self.figures())]
        self._queue.append(message)
        return []

    def _admit(self, message: Sample) -> Answer:
        try:
            adapter = None if message.version == BASE_VERSION else self.weights.get(message.version)
            return self.sampler.submit(message, adapter)
        except Exception as error:
            return self._failed(message.request_id, error)

    def step(self) -> list[Answer]:
        """One micro-batch, one operation or one decode step, whoever's turn it is."""
        if self.operations.later.has_answers:
            return self.operations.later.answers()
        training = self._running is not None or bool(self._queue)
        side = self._share.choose(train=training, sample=self.sampler.busy)
        if side is None:
            return []
        started = time.perf_counter()
        if side == "sample":
            self.doing = "sampling"
        answers = self._operate() if side == "train" else self.sampler.step()
        seconds = time.perf_counter() - started
        self._share.spent(side, seconds)
        self._spent[side] += seconds
        return answers

    def close(self) -> None:
        """Finish what is being written in the background."""
        self.operations.later.close()
        self.weights.close()

    def figures(self) -> dict[str, Scalar]:
        """What the engine holds and has done."""
        scheduler, pool = self.sampler.scheduler, self.sampler.pool
        return {
            "device": str(self.base.device),
            "dtype": str(self.base.dtype).removeprefix("torch."),
            "deterministic": self.options.deterministic,
            "models": len(self.operations.pool),
            "sampler_versions": len(self.weights),
            "sampler_versions_in_memory": self.weights.in_memory,
            "operations_queued": len(self._queue) + (self._running is not None),
            "samples_queued": scheduler.queued,
            "rows": len(scheduler.rows),
            "blocks": pool.count,
            "blocks_free": pool.free,
            "blocks_cached": pool.cached,
            "preemptions": scheduler.preemptions,
            "tokens_drawn": self.sampler.tokens_drawn,
            "train_seconds": self._spent["train"],
            "sample_seconds": self._spent["sample"],
        }

    def _operate(self) -> list[Answer]:
        """Go on with the running operation, or begin the next."""
        if self._running is None:
            message = self._queue.popleft()
            self._running = (message.request_id, self.operations.start(message))
            self._operation = f"{type(message).__name__} {message.request_id}"
        name, work = self._running
        self.doing = self._operation
        try:
            next(work)
            return []
        except StopIteration as end:
            answer: Answer | None = end.value
        except Exception as error:
            answer = self._failed(name, error)
        self._running = None
        return [] if answer is None else [answer]

    def _failed(self, name: str, error: Exception) -> Failed:
        fault = in_words(error) or error
        if isinstance(fault, EngineFault):
            return Failed(self.epoch, name, fault.category, str(fault))
        log.error("request %s failed", name, exc_info=error)
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
            asked = str(error).split(" GPU ", 1)[0]
            return Failed(self.epoch, name, "server", f"the device is out of memory: {asked}")
        return Failed(self.epoch, name, "server", f"{type(error).__name__}: {error}")


def _device_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * 0.2)
    return 8 << 30
