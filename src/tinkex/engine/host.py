"""Runs an engine in a thread of this process: messages in, messages out.

`Loop` is the part that a host in another process has too (`child`), which moves the same messages as bytes;
`as_bytes` makes this one do so as well. Neither knows HTTP nor what the messages ask for.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, cast

from .codec import decode, encode
from .faults import ServerFault
from .messages import Answer, Cancel, Failed, Ready, Request, SampleAccepted, TokenStep

log = logging.getLogger(__name__)
Deliver = Callable[[Answer], None]


class Steppable(Protocol):
    """What a host needs of an engine."""

    epoch: int

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""

    def ready(self) -> Ready:
        """The engine's facts, once it takes messages."""

    def submit(self, message: Request) -> list[Answer]:
        """Take a message in; what can be answered at once."""

    def step(self) -> list[Answer]:
        """Do one piece of work."""

    def close(self) -> None:
        """Finish what runs in the background."""


class _Word(Enum):
    STOP = auto()
    WAKE = auto()


class Loop:
    """Feeds an engine what arrives and hands out its answers, those of one step together."""

    def __init__(self, engine: Steppable, answer: Callable[[list[Answer]], None]) -> None:
        self.engine, self._answer = engine, answer
        self.steps = self.taken = 0
        """Steps done and messages taken in; other threads may read them."""
        self.busy = False
        """Whether the engine is at work; else it waits for messages."""
        self._inbox: queue.SimpleQueue[Request | _Word] = queue.SimpleQueue()
        if hasattr(engine, "wake"):
            engine.wake = self.wake

    @property
    def doing(self) -> str:
        """What the engine is at, for people."""
        return str(getattr(self.engine, "doing", "")) if self.busy else ""

    def put(self, message: Request) -> None:
        """Hand over a message, from any thread."""
        self._inbox.put(message)

    def wake(self) -> None:
        """Have the engine look for work again, from any thread."""
        self._inbox.put(_Word.WAKE)

    def stop(self) -> None:
        """End after the step now running, from any thread."""
        self._inbox.put(_Word.STOP)

    def run(self) -> None:
        """Work until told to stop; what the engine raises ends it."""
        while self._take_in():
            if self.engine.busy:
                answers = self.engine.step()
                self.steps += 1
                if answers:
                    self._answer(answers)

    def _take_in(self) -> bool:
        """Everything that has arrived, waiting for it only when there is nothing else to do."""
        answers: list[Answer] = []
        while True:
            message: Request | _Word | None = None
            self.busy = bool(answers) or self.engine.busy
            with contextlib.suppress(queue.Empty):
                message = self._inbox.get(block=not self.busy)
            self.busy = True
            if message is None or message is _Word.STOP:
                if answers:
                    self._answer(answers)
                return message is None
            if not isinstance(message, _Word):
                answers += self.engine.submit(message)
                self.taken += 1


class Host:
    """An engine's thread; `deliver` is called in it with every answer, in order.

    `ended` is told why, should the thread end by itself. What is open then is left to it; without it, and
    when the host is closed, it is answered as failed.
    """

    def __init__(
        self,
        engine: Steppable,
        deliver: Deliver,
        *,
        as_bytes: bool = False,
        ended: Callable[[str], None] | None = None,
    ) -> None:
        self.engine, self._deliver, self._as_bytes, self._ended = engine, deliver, as_bytes, ended
        self._loop = Loop(engine, self._answer)
        self._lock = threading.Lock()
        self._closed = False
        self._open: dict[str, None] = {}
        self._thread = threading.Thread(target=self._run, name="tinkex-engine", daemon=True)
        self._thread.start()

    @property
    def epoch(self) -> int:
        """The epoch messages must carry."""
        return self.engine.epoch

    def ready(self) -> Ready:
        """The engine's facts."""
        return self.engine.ready()

    def submit(self, message: Request) -> None:
        """Hand a message to the engine; its answers come through `deliver`."""
        if self._as_bytes:
            message = cast("Request", decode(encode(message)))
        with self._lock:
            if self._closed:
                raise ServerFault("the engine is closed")
            if not isinstance(message, Cancel):
                self._open[message.request_id] = None
            self._loop.put(message)

    def wake(self) -> None:
        """Have the engine look for work again."""
        self._loop.wake()

    def close(self) -> None:
        """Stop after the step now running; what is still open is answered as failed."""
        with self._lock:
            self._closed = True
        self._loop.stop()
        self._thread.join()

    def _run(self) -> None:
        reason = ""
        try:
            self._loop.run()
        except Exception as error:
            log.exception("the engine's thread ended")
            reason = f"the engine's thread ended: {type(error).__name__}: {error}"
        with self._lock:
            self._closed = True
            left = list(self._open)
        if reason and self._ended is not None:
            self._ended(reason)
        else:
            epoch = self.engine.epoch
            self._answer([Failed(epoch, name, "server", "the engine was stopped") for name in left])
        self.engine.close()

    def _answer(self, answers: list[Answer]) -> None:
        for answer in answers:
            if not isinstance(answer, (TokenStep, SampleAccepted)):
                self._open.pop(answer.request_id, None)
            self._deliver(cast("Answer", decode(encode(answer))) if self._as_bytes else answer)
