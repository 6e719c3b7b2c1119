"""Runs an engine in a thread of this process: messages in, messages out.

A host in another process has the same interface and moves the same messages as bytes (`as_bytes` makes this
one do so too). It knows neither HTTP nor what the messages ask for.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol, cast

from .codec import decode, encode
from .faults import ServerFault
from .messages import Answer, Cancel, Failed, Request, SampleAccepted, TokenStep

log = logging.getLogger(__name__)
Deliver = Callable[[Answer], None]


class Steppable(Protocol):
    """What a host needs of an engine."""

    epoch: int

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""

    def submit(self, message: Request) -> list[Answer]:
        """Take a message in; what can be answered at once."""

    def step(self) -> list[Answer]:
        """Do one piece of work."""

    def close(self) -> None:
        """Finish what runs in the background."""


class Host:
    """An engine's thread; `deliver` is called in it with every answer, in order."""

    def __init__(self, engine: Steppable, deliver: Deliver, *, as_bytes: bool = False) -> None:
        self.engine, self._deliver, self._as_bytes = engine, deliver, as_bytes
        self._inbox: queue.SimpleQueue[Request | bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tinkex-engine", daemon=True)
        self._closed = False
        self._open: dict[str, None] = {}
        self._thread.start()

    @property
    def epoch(self) -> int:
        """The epoch messages must carry."""
        return self.engine.epoch

    def submit(self, message: Request) -> None:
        """Hand a message to the engine; its answers come through `deliver`."""
        if self._closed:
            raise ServerFault("the engine is closed")
        self._inbox.put(encode(message) if self._as_bytes else message)

    def close(self) -> None:
        """Stop after the step now running; what is still open is answered as failed."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_in():
                if self.engine.busy:
                    self._answer(self.engine.step())
        except Exception:
            log.exception("the engine's thread ended")
        finally:
            self._closed = True
            for name in list(self._open):
                self._answer([Failed(self.engine.epoch, name, "server", "the engine was stopped")])
            self.engine.close()

    def _take_in(self) -> bool:
        """Everything that has arrived, waiting for it only when there is nothing else to do."""
        while True:
            try:
                message = self._inbox.get(block=not self.engine.busy)
            except queue.Empty:
                return True
            if message is None:
                return False
            asked = decode(message) if isinstance(message, bytes) else message
            if not isinstance(asked, Cancel):
                self._open[cast("Request", asked).request_id] = None
            self._answer(self.engine.submit(cast("Request", asked)))

    def _answer(self, answers: list[Answer]) -> None:
        for answer in answers:
            if not isinstance(answer, (TokenStep, SampleAccepted)):
                self._open.pop(answer.request_id, None)
            self._deliver(cast("Answer", decode(encode(answer))) if self._as_bytes else answer)
