"""A server's link to an engine that runs on the server's own loop: no thread, no process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from ..engine.codec import decode, encode
from ..engine.messages import Answer, Ready, Request, Scalar
from ..server.engine_link import EngineStartFailed, LinkClosed


class Engine(Protocol):
    """What a link needs of an engine."""

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""

    def ready(self) -> Ready:
        """Its facts."""

    def submit(self, message: Request) -> list[Answer]:
        """Take a message in."""

    def step(self) -> list[Answer]:
        """Do one piece of work."""

    def close(self) -> None:
        """Finish what runs in the background."""


class DirectLink:
    """Runs an engine on the loop; answers come in later turns of it, never inside `submit`."""

    epoch: int

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        epoch: int,
        deliver: Callable[[Answer], None],
        lost: Callable[[str], None],
        *,
        as_bytes: bool = False,
    ) -> None:
        self.epoch = epoch
        self.facts: dict[str, Scalar] = {}
        self.eos: tuple[int, ...] = ()
        self.engine: Engine | None = None
        self._make_engine, self._deliver, self._lost = make_engine, deliver, lost
        self._as_bytes = as_bytes
        self._inbox: deque[Request] = deque()
        self._turn: asyncio.Handle | None = None
        self._closed = False

    async def start(self) -> None:
        """Make the engine; raises `EngineStartFailed`."""
        try:
            self.engine = self._make_engine()
        except Exception as error:
            raise EngineStartFailed(f"{type(error).__name__}: {error}") from error
        if hasattr(self.engine, "wake"):
            self.engine.wake = self.wake
        ready = self.engine.ready()
        self.epoch, self.facts, self.eos = ready.epoch, ready.facts, tuple(ready.eos.tolist())

    def submit(self, message: Request) -> None:
        """Take a message; raises `LinkClosed`."""
        if self.engine is None or self._closed:
            raise LinkClosed("the engine is gone" if self._closed else "the engine is not started")
        self._inbox.append(cast("Request", decode(encode(message))) if self._as_bytes else message)
        self.wake()

    def wake(self) -> None:
        """Have the engine look for work in the loop's next turn."""
        if self._turn is None and not self._closed:
            self._turn = asyncio.get_running_loop().call_soon(self._work)

    async def close(self) -> None:
        """Drop the engine; nothing is delivered from now on."""
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()
        if self.engine is not None:
            self.engine.close()

    def kill(self, reason: str) -> None:
        """End the engine at once."""
        self.die(reason)

    def die(self, reason: str) -> None:
        """End the engine at once, as a killed process would."""
        if not self._closed:
            self._closed = True
            self._lost(reason)

    def _work(self) -> None:
        self._turn = None
        if self._closed or self.engine is None:
            return
        answers: list[Answer] = []
        try:
            while self._inbox:
                answers += self.engine.submit(self._inbox.popleft())
            if self.engine.busy:
                answers += self.engine.step()
        except Exception as error:
            self.die(f"the engine ended: {type(error).__name__}: {error}")
            return
        for answer in answers:
            if not self._closed:
                self._deliver(cast("Answer", decode(encode(answer))) if self._as_bytes else answer)
        if not self._closed and (self._inbox or self.engine.busy):
            self.wake()
