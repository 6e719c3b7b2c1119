"""The loop of `tinkex train`: a step ahead of the results it waits for, saves and measurements in line.

A model's operations run in the order of the calls.  So a save asked for right after a step holds that step
and no more, however many are sent before its result is looked at.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .output import Output
from .training_data import Batch, Dataset, order_of
from .training_settings import Settings

if TYPE_CHECKING:
    from ..client.training import TrainingClient

__all__ = ["Loop", "Seen", "stop_on_signals"]

_AHEAD = 2
"""Steps under way at a time."""


@dataclass
class Seen:
    """What a finished step, or a measurement after the last one, has to say."""

    step: int
    values: dict[str, Any]
    checkpoint: dict[str, Any] | None = None
    warning: str | None = None

    @property
    def measured(self) -> bool:
        """Whether there is more to say than that something was saved."""
        return not {"train_mean_nll", "test/nll"}.isdisjoint(self.values)


class _Save(NamedTuple):
    """A checkpoint that was asked for."""

    name: str
    done: int
    life: int | None
    state: Any
    sampler: Any


@dataclass
class _Sent:
    """A step that was sent and whose results are still to come."""

    step: int
    values: dict[str, Any]
    batch: Batch | None = None
    passed: Any = None
    stepped: Any = None
    measured: Any = None
    saved: _Save | None = None


@dataclass
class Loop:
    """Trains from one step to the last, or until told to stop."""

    trainer: TrainingClient
    settings: Settings
    data: Dataset
    test: Dataset | None
    first: int = 0
    stopped: Callable[[], bool] = lambda: False
    done: int = field(default=0, init=False)
    """Steps whose results have been seen."""
    tokens: int = field(default=0, init=False)
    saved: int | None = field(default=None, init=False)
    """The step after which the last save was asked for."""

    def __post_init__(self) -> None:
        self.done = self.first
        size = self.settings.batch_size
        self.per_epoch = -(-len(self.data) // size)
        self.total = self.per_epoch * self.settings.num_epochs
        if self.settings.max_steps is not None:
            self.total = min(self.total, self.settings.max_steps)

    def run(self) -> Iterator[Seen]:
        """Each step as its results come in; afterwards the last measurement, with the last save."""
        sent: deque[_Sent] = deque()
        self._clock = time.perf_counter()
        step = self.first
        while step < self.total and not self.stopped():
            sent.append(self._send(step))
            step += 1
            if len(sent) >= _AHEAD:
                yield self._finish(sent.popleft())
        while sent:
            yield self._finish(sent.popleft())
        last = self._send_last(step)
        if last is not None:
            yield self._finish(last)

    # ---- sending

    def _send(self, step: int) -> _Sent:
        from ..types.optimizer import AdamParams

        settings = self.settings
        epoch, at = divmod(step, self.per_epoch)
        rate = settings.rate(step, self.total)
        places = order_of(len(self.data), settings.seed, epoch)[at * settings.batch_size :][
            : settings.batch_size
        ]
        batch = self.data.batch(places)
        values = {"epoch": epoch, "progress": (step + 1) / self.total, "learning_rate": rate}
        sent = _Sent(step, values, batch)
        every = settings.eval_every
        if step == 0 or (every and step % every == 0):
            sent.measured = self._measure()
        sent.passed = self.trainer.forward_backward(batch.data, "cross_entropy")
        sent.stepped = self.trainer.optim_step(
            AdamParams(
                learning_rate=rate,
                weight_decay=settings.weight_decay,
                grad_clip_norm=settings.grad_clip_norm,
            )
        )
        done = step + 1
        if settings.save_every and done % settings.save_every == 0 and done < self.total:
            sent.saved = self._save(f"{done:06d}", done)
        return sent

    def _send_last(self, done: int) -> _Sent | None:
        if done == self.first and done >= self.total:  # all of it was done before
            return None
        if done == self.saved:  # stopped right after a save: the name is taken, and by the same weights
            return None
        ended = done >= self.total
        sent = _Sent(done, {"epoch": done // self.per_epoch, "progress": done / self.total})
        if ended:
            sent.measured = self._measure()
        sent.saved = self._save("final" if ended else f"{done:06d}", done)
        return sent

    def _measure(self) -> Any:
        return (
            None
            if self.test is None
            else self.trainer.forward(self.test.everything().data, "cross_entropy")
        )

    def _save(self, name: str, done: int) -> _Save:
        life, self.saved = self.settings.ttl_seconds, done
        state = self.trainer.save_state(name, ttl_seconds=life)
        return _Save(name, done, life, state, self.trainer.save_weights_for_sampler(name, ttl_seconds=life))

    # ---- results

    def _finish(self, sent: _Sent) -> Seen:
        from ..errors import BadRequestError, Fault, RequestFailedError
        from .advice import told

        seen = Seen(sent.step, sent.values)
        if sent.batch is not None:
            loss = sent.passed.result().metrics["loss:sum"]
            metrics = sent.stepped.result().metrics or {}
            now = time.perf_counter()
            took, self._clock = now - self._clock, now
            seen.values |= {
                **metrics,
                "train_mean_nll": loss / sent.batch.counted,
                "num_sequences": len(sent.batch.data),
                "num_tokens": sent.batch.tokens,
                "num_loss_tokens": sent.batch.counted,
                "tokens_per_second": round(sent.batch.tokens / took, 1),
                "time/total": round(took, 4),
            }
            self.done, self.tokens = sent.step + 1, self.tokens + sent.batch.tokens
        if sent.measured is not None:
            assert self.test is not None
            seen.values["test/nll"] = (
                sent.measured.result().metrics["loss:sum"] / self.test.everything().counted
            )
        if sent.saved is not None:
            try:
                seen.checkpoint = self._saved(sent.saved)
            except (BadRequestError, RequestFailedError) as error:
                if sent.saved.life is None or error.fault != Fault.USER:
                    raise
                self._save_without_life(sent, seen, told(error).message)
        return seen

    def _save_without_life(self, sent: _Sent, seen: Seen, refusal: str) -> None:
        """Rather keep weights for good than lose them, after the server refused the life asked for them."""
        assert sent.saved is not None
        self.settings = replace(self.settings, ttl_seconds=None)
        name = sent.saved.name
        if sent.batch is None:
            seen.warning = f"{refusal}: {name} is saved for good"
            seen.checkpoint = self._saved(self._save(name, sent.saved.done))
        else:  # by now the model has made further steps
            seen.warning = f"{refusal}: {name} is not saved; later ones are, for good"
            if self.saved == sent.saved.done:
                self.saved = None

    def _saved(self, save: _Save) -> dict[str, Any]:
        name, done, _, state, sampler = save
        epoch, batch = divmod(done, self.per_epoch)
        return {
            "name": name,
            "epoch": epoch,
            "batch": batch,
            "step": done,
            "final": name == "final",
            "state_path": state.result().path,
            "sampler_path": sampler.result().path,
        }


@contextmanager
def stop_on_signals(out: Output) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or a polite kill came; the second one ends everything at once."""
    came: list[int] = []

    def note(number: int, _: Any) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        if out.stderr.isatty():
            out.stderr.write("\n")  # the terminal shows ^C where the line is
        out.warn("stopping after the steps under way, then saving; once more to leave at once")

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, note) for number in numbers]
    try:
        yield lambda: bool(came)
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
