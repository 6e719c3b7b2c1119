"""A session: opened when first needed, kept alive while anyone holds it, finished at the end."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import itertools
import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, TypeVar

from .._version import SDK_VERSION
from ..errors import APIStatusError, ClientClosedError
from ..types.session import (
    ClientSessionFinishErrored,
    ClientSessionFinishInterrupted,
    ClientSessionFinishReason,
    ClientSessionFinishSuccess,
    CreateSessionRequest,
    CreateSessionResponse,
    SessionHeartbeatRequest,
)
from ..wire.bodies import FinishSessionRequest
from ..wire.jsonbody import encode
from ..wire.routes import route
from .connection import Connection
from .future import Future
from .portal import portal
from .telemetry import Telemetry

__all__ = ["FinishStatus", "Session", "task_failed"]

T = TypeVar("T")
logger: Final = logging.getLogger(__name__)

FinishStatus = Literal["success", "errored", "interrupted"]
HEARTBEAT_SECONDS = 10.0
_QUIET_SECONDS = 120.0
_OPENING_SECONDS = 5.0

_REASONS: dict[str, ClientSessionFinishReason] = {
    "success": ClientSessionFinishSuccess(),
    "errored": ClientSessionFinishErrored(),
    "interrupted": ClientSessionFinishInterrupted(),
}

_open: weakref.WeakSet[Session] = weakref.WeakSet()
_readers_loaded = False


class Session:
    """One session on a server, and the counters that number what is made in it."""

    def __init__(self, connection: Connection, *, session_id: str | None = None) -> None:
        self.connection = connection
        self.shadow: bool = session_id is not None  # opened by another process, which will finish it
        self._id = session_id
        self._opening: asyncio.Task[str] | None = None
        self._opened_in: int | None = None  # which process of a line of forks finishes it
        self._beats_in = -1
        self._models = itertools.count()
        self._samplers = itertools.count()
        self._losses = itertools.count()
        self.finished: bool = False
        self.losses: dict[str, str] = {}  # names of the custom losses made here, by what they compute
        self.telemetry: Telemetry | None = (
            Telemetry(connection, session_id) if connection.config.telemetry else None
        )

    @property
    def known_id(self) -> str | None:
        """The session's id, if it is open."""
        return self._id

    def next_model(self) -> int:
        """A number for a new model."""
        return next(self._models)

    def next_sampler(self) -> int:
        """A number for a new sampling session."""
        return next(self._samplers)

    def next_loss(self) -> int:
        """A number for a new custom loss."""
        return next(self._losses)

    def start(
        self, work: Coroutine[Any, Any, T], *, future: Future[T] | None = None,
        cleanup: Callable[[], None] | None = None,
    ) -> Future[T]:  # fmt: skip
        """Run a coroutine for the user; an error that reaches them is reported to the server too."""
        report = self.telemetry.report if self.telemetry is not None else None
        return portal().start(work, future=future, cleanup=cleanup, on_error=report)

    async def id(self) -> str:
        """The session's id, to make something in it; opens it if need be, once."""
        await self.connection.settings()
        generation = portal().generation
        if not self.shadow:
            if self._opened_in not in (None, generation):
                # Parent and child would give out the same numbers: the child has a session of its own.
                self._id = self._opening = None
            self._opened_in = generation
        if self._id is None:
            if self._opening is None or task_failed(self._opening):
                self._opening = asyncio.get_running_loop().create_task(self._create())
            await asyncio.shield(self._opening)
            if self.finished:
                raise ClientClosedError("ServiceClient is closed")
        return await self.join()

    async def join(self) -> str:
        """The session's id, to use what was made in it; from now on this process sends heartbeats too."""
        await self.connection.settings()
        await _load_readers()
        assert self._id is not None
        self._keep_alive()
        return self._id

    async def _create(self) -> str:
        config = self.connection.config
        request = CreateSessionRequest(
            tags=list(config.tags),
            user_metadata=dict(config.user_metadata),
            sdk_version=SDK_VERSION,
            project_id=config.project_id,
            display_name=config.display_name,
        )
        answer: CreateSessionResponse = await self.connection.caller.read(
            CreateSessionResponse, route("create_session"), encode(request)
        )
        for level, text in (
            (logging.INFO, answer.info_message),
            (logging.WARNING, answer.warning_message),
            (logging.ERROR, answer.error_message),
        ):
            if text:
                logger.log(level, "%s", text)
        self._id = answer.session_id
        if self.telemetry is not None:
            self.telemetry.session_started(answer.session_id)
        return answer.session_id

    # ---- heartbeats

    def _keep_alive(self) -> None:
        here = portal()
        if self._beats_in == here.generation and self in _open:
            return
        self._beats_in = here.generation
        _open.add(self)
        if _goodbyes not in here.at_exit:
            here.at_exit.append(_goodbyes)
        # The task must not hold the session: its end is the session's, not the other way round.  Nor
        # does it belong to the trace or the tags of the call that happened to be first.
        beats = _beat(weakref.ref(self), self.connection.clock)
        stop = contextvars.Context().run(here.spawn, beats)
        weakref.finalize(self, stop).atexit = False

    async def beat(self) -> bool:
        """Tell the server that we are here; False when it does not want to hear it any more."""
        body = encode(SessionHeartbeatRequest(session_id=self._id or ""))
        try:
            await self.connection.caller.once(route("session_heartbeat"), body, timeout=10.0)
        except APIStatusError as error:
            if error.status_code == 410:
                return False
            raise
        return True

    # ---- the end

    async def finish(self, status: FinishStatus, detail: str | None = None) -> None:
        """End the session on the server; only the first call says anything."""
        if self.finished:
            return
        self.finished = True
        _open.discard(self)
        if self._opening is not None and not self._opening.done():
            await asyncio.wait([self._opening], timeout=_OPENING_SECONDS)  # or it would stay open
        if self._id is None or self._opened_in != portal().generation:
            return  # never opened, or opened by another process, which will finish it
        if self.telemetry is not None:
            self.telemetry.session_ended()
        body = encode(FinishSessionRequest(reason=_REASONS[status], detail=detail))
        try:
            await self.connection.caller.once(
                route("finish_session"), body, path={"session_id": self._id}, timeout=10.0
            )
        except Exception as error:  # at the interpreter's end all kinds of things may fail
            logger.info("the session's end could not be told to the server: %s", error)


async def _load_readers() -> None:
    """Import what results are read with: in a thread, before the first of them would hold up the loop."""
    global _readers_loaded
    if not _readers_loaded:
        await asyncio.to_thread(_import_readers)
        _readers_loaded = True


def _import_readers() -> None:
    importlib.import_module("numpy")
    importlib.import_module("..wire.tinker_public_pb2", __package__)


def task_failed(task: asyncio.Task[Any]) -> bool:
    """Whether a task is over and brought nothing."""
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _beat(held: weakref.ref[Session], clock: Any) -> None:
    last = refreshed = told = clock.monotonic()
    while True:
        await clock.sleep(HEARTBEAT_SECONDS)
        session = held()
        if session is None or session.finished:
            return
        now = clock.monotonic()
        try:
            if not await session.beat():
                return
            last = now
        except Exception as error:  # whatever it is, the next beat may get through
            if now - last >= _QUIET_SECONDS and now - told >= _QUIET_SECONDS:
                told = now
                logger.warning("no heartbeat has reached the server for %.0f s: %s", now - last, error)
        if now - refreshed >= max(session.connection.dynamic.refresh_interval_sec, 10):
            refreshed = now
            with contextlib.suppress(Exception):
                await session.connection.refresh_dynamic()
        del session


async def _goodbyes() -> None:
    """At the process's end: whoever forgot to close is finished as interrupted."""
    await asyncio.gather(*(_goodbye(session) for session in list(_open)), return_exceptions=True)


async def _goodbye(session: Session) -> None:
    finished = session.finish("interrupted")
    telemetry = session.telemetry
    await asyncio.gather(finished, *([telemetry.drain()] if telemetry is not None else []))
