"""One base model's engine: started, told what to do, started again when it dies.

`EngineRoom` owns the link and who waits for which answer. It knows nothing of HTTP or of what operations
mean; the scheduler, the sampling desk and the recovery use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from ..engine.messages import (
    Answer,
    Failed,
    Request,
    SampleAccepted,
    SampleDone,
    TokenStep,
)
from .clock import Clock
from .engine_link import EngineLink, EngineStartFailed, LinkClosed, PulsingLink
from .options import Times
from .problems import Failure
from .watchdog import Watchdog

log = logging.getLogger(__name__)

State: TypeAlias = Literal["starting", "up", "down", "closed"]
Waiter: TypeAlias = Callable[[Answer], None]
MakeLink: TypeAlias = Callable[[Path, int, Callable[[Answer], None], Callable[[str], None]], EngineLink]
SampleAnswer: TypeAlias = SampleAccepted | TokenStep | SampleDone | Failed
LONGEST_PAUSE = 120.0
"""Seconds between two starts of an engine that does not come up, or does not stay up, in the end."""
AT_ONCE = 5
"""Engines in a row that may die before they have answered anything and be started again at once."""


class Listener(Protocol):
    """Who is told what happens in an engine room."""

    def engine_up(self) -> None:
        """A new engine is ready, and knows no model yet."""

    def engine_lost(self, reason: str) -> None:
        """The engine died; everything it was told is forgotten."""


class EngineRoom:
    """The engine of one model folder."""

    def __init__(
        self, folder: Path, make_link: MakeLink, clock: Clock, first_epoch: int, times: Times | None = None
    ) -> None:
        self.folder, self._make_link, self._clock = folder, make_link, clock
        times = times or Times()
        self._watchdog = Watchdog(clock, times.stall, times.loading, self._hung)
        self.epoch = first_epoch
        self.state: State = "starting"
        self.reason = "the engine is loading the model"
        """Why work waits, for people."""
        self.restarts = 0
        self.listeners: list[Listener] = []
        self.sampled: Callable[[SampleAnswer], None] = lambda answer: None
        """Told everything about samples."""
        self._link: EngineLink | None = None
        self._waiters: dict[str, Waiter] = {}
        self._answered = False
        """Whether this engine has answered anything."""
        self._idle_deaths = 0
        """Engines in a row that died before they had."""
        self._numbers = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def facts(self) -> dict[str, float | int | str | bool | None]:
        """What the engine said of itself."""
        return {} if self._link is None else self._link.facts

    @property
    def pid(self) -> int | None:
        """The engine's process, if it has one of its own."""
        return getattr(self._link, "pid", None)

    @property
    def up(self) -> bool:
        """Whether messages can be sent."""
        return self.state == "up"

    def start(self) -> None:
        """Start the engine in the background."""
        self._task = asyncio.get_running_loop().create_task(self._start())

    async def _start_later(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self._start()

    async def close(self) -> None:
        """Stop the engine for good."""
        self.state = "closed"
        self._watchdog.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        self._forget("the server is stopping")

    async def _start(self) -> None:
        pause = 1.0
        while self.state != "closed":
            try:
                link = self._make_link(self.folder, self.epoch, self._deliver, self._lost)
                self._link, self._answered = link, False
                if isinstance(link, PulsingLink):
                    link.pulse = self._watchdog.beat
                    self._watchdog.begin()
                await link.start()
            except Exception as problem:
                self._watchdog.end()
                why = str(problem).partition("\n")[0].replace(str(self.folder), self.folder.name)
                self.reason = f"the engine cannot start: {why}"
                known = isinstance(problem, EngineStartFailed)
                text = "the engine cannot start: %s; trying again in %.0f s"
                log.error(text, problem, pause, exc_info=None if known else problem)
                self.state = "down"
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                self.epoch += 1
                continue
            self.state, self.reason = "up", ""
            log.info("engine ready: %s", ", ".join(f"{k} {v}" for k, v in link.facts.items()))
            for listener in self.listeners:
                listener.engine_up()
            return

    def _hung(self, reason: str) -> None:
        log.error("the engine of %s hangs: %s; it is killed", self.folder.name, reason)
        if self._link is not None:
            self._link.kill(reason)

    def _lost(self, reason: str) -> None:
        self._watchdog.end()
        if self.state == "closed":
            return
        log.error("the engine of %s died: %s; starting it again", self.folder.name, reason)
        # What follows the first line is the engine's own log: not for clients.
        reason = reason.partition("\n")[0]
        self.state = "starting"
        self.reason = f"the engine died ({reason}) and is being started again"
        self.epoch += 1
        self.restarts += 1
        self._idle_deaths = 0 if self._answered else self._idle_deaths + 1
        self._forget(reason)
        for listener in self.listeners:
            listener.engine_lost(reason)
        if self._idle_deaths <= AT_ONCE:
            self.start()
            return
        pause = min(2.0 ** (self._idle_deaths - AT_ONCE - 1), LONGEST_PAUSE)
        log.error("the engine of %s does not stay up; trying again in %.0f s", self.folder.name, pause)
        self.state = "down"
        self._task = asyncio.get_running_loop().create_task(self._start_later(pause))

    def _forget(self, reason: str) -> None:
        """Nobody will answer those who wait: calls are told, operations are begun anew."""
        waiters, self._waiters = self._waiters, {}
        for name, waiter in waiters.items():
            waiter(Failed(-1, name, "server", f"the engine stopped: {reason}"))

    # ---- messages

    def next_name(self) -> str:
        """A request id for a message of the server's own."""
        self._numbers += 1
        return f"server-{self.epoch}-{self._numbers}"

    def tell(self, message: Request, waiter: Waiter | None = None) -> bool:
        """Send a message; whether the engine was there to take it."""
        if self.state != "up" or self._link is None:
            return False
        if waiter is not None:
            self._waiters[message.request_id] = waiter
        try:
            self._link.submit(message)
        except LinkClosed:
            self._waiters.pop(message.request_id, None)
            return False
        self._watchdog.told()
        return True

    async def call(self, message: Request) -> Answer:
        """Send a message and wait for its answer; a failure is raised."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def settle(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        if not self.tell(message, settle):
            raise Failure(self.reason or "the engine is not there", "server")
        answer = await future
        if isinstance(answer, Failed):
            raise Failure(answer.text, answer.category)
        return answer

    def _deliver(self, answer: Answer) -> None:
        self._watchdog.answered()
        self._answered = True
        if isinstance(answer, (TokenStep, SampleAccepted, SampleDone)):
            if answer.epoch == self.epoch:
                self.sampled(answer)
            return
        if answer.epoch != self.epoch:
            return
        waiter = self._waiters.pop(answer.request_id, None)
        if waiter is not None:
            waiter(answer)
        elif isinstance(answer, Failed):
            self.sampled(answer)
