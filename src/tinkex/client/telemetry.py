"""Telemetry: a few events per session, told to the server without ever being in the user's way.

Events wait in a bounded queue and leave in batches on a lane of their own, ten seconds after the
first or at once after an error.  What the server refuses is dropped, what it cannot take now is tried
a few times.  Nobody waits for any of it, except `drain`, for two seconds at most.

What may be in an event is listed here: the kind of an error, its text without credentials and
bodies, its status and request id, and where in this package it was raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import platform
import traceback
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from .._version import SDK_VERSION
from ..errors import (
    APIConnectionError,
    APIStatusError,
    ClientClosedError,
    RequestFailedError,
    TinkerError,
    is_user_error,
)
from ..net.caller import Caller
from ..net.clock import Clock
from ..net.policy import backoff
from ..types.telemetry import (
    GenericEvent,
    SessionEndEvent,
    SessionStartEvent,
    Severity,
    TelemetryEvent,
    TelemetrySendRequest,
    UnhandledExceptionEvent,
)
from ..wire.jsonbody import encode
from ..wire.routes import route
from .connection import Connection
from .portal import portal
from .redaction import scrub, scrub_data, secrets_of

__all__ = ["Telemetry"]

logger: Final = logging.getLogger(__name__)

MOST_EVENTS = 10_000
BATCH = 100
FLUSH_SECONDS = 10.0
SEND_SECONDS = 5.0
DRAIN_SECONDS = 2.0
_TRIES = 4  # of one batch, when the server fails or cannot be reached

_ROUTE = route("telemetry")
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


class _Sender:
    """The coroutine that empties a queue, while there is one; it never holds the telemetry."""

    def __init__(self) -> None:
        self.hurry, self.done = asyncio.Event(), asyncio.Event()
        self.refused = False  # the server does not know the route
        self._active = False
        self._generation = -1
        self._cancel: Callable[[], object] | None = None

    @property
    def running(self) -> bool:
        return self._active and self._generation == portal().generation

    def start(self, held: weakref.ref[Telemetry], clock: Clock) -> None:
        self.hurry, self.done = asyncio.Event(), asyncio.Event()
        self._active, self._generation = True, portal().generation
        self._cancel = portal().spawn(self._run(held, clock))

    def stop(self) -> None:
        cancel, self._cancel, self._active = self._cancel, None, False
        if cancel is not None and self._generation == portal().generation:
            cancel()

    async def _run(self, held: weakref.ref[Telemetry], clock: Clock) -> None:
        """Send batch after batch until the queue is empty."""
        try:
            await _rest(clock, self.hurry, FLUSH_SECONDS)
            while not self.refused and (found := _next_batch(held)) is not None:
                await self._deliver(*found, clock)
        finally:
            # In the same step as the look into the queue: whoever puts something in later starts anew.
            self._active, self._cancel = False, None
            self.done.set()

    async def _deliver(self, caller: Caller, body: bytes, clock: Clock) -> None:
        """Get one batch accepted, or give it up; nothing is ever raised."""
        for attempt in range(_TRIES):
            try:
                await caller.once(_ROUTE, body, timeout=SEND_SECONDS)
            except APIConnectionError as error:
                problem: Exception = error
            except APIStatusError as error:
                self.refused = error.status_code in (404, 405)
                if error.status_code < 500:  # it would be refused again
                    return
                problem = error
            except Exception as error:
                logger.debug("telemetry could not be sent: %s", type(error).__name__)
                return
            else:
                return
            logger.debug("telemetry was not accepted: %s", type(problem).__name__)
            if attempt + 1 < _TRIES:
                await clock.sleep(backoff(attempt, clock.random(), 1.0))


def _next_batch(held: weakref.ref[Telemetry]) -> tuple[Caller, bytes] | None:
    telemetry = held()
    body = telemetry._take() if telemetry is not None else None
    if telemetry is None or body is None:
        return None
    try:
        return telemetry._connection.caller, body
    except ClientClosedError:
        return None


async def _rest(clock: Clock, hurry: asyncio.Event, seconds: float) -> None:
    """Wait so long, or until there is a hurry."""
    waits = [asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(hurry.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


class Telemetry:
    """Reports a session's events to its server."""

    def __init__(self, connection: Connection, session_id: str | None = None) -> None:
        self._connection = connection
        self._session_id = session_id or f"sessionless-{uuid.uuid4()}"
        self._started: datetime | None = None
        self._ended = self._closed = False
        self._numbers = itertools.count()
        self._queue: deque[TelemetryEvent] = deque()
        self._generation = portal().generation
        self._sender = _Sender()
        self._last: weakref.ref[BaseException] | None = None
        self.dropped: int = 0
        weakref.finalize(self, self._sender.stop).atexit = False

    def __repr__(self) -> str:
        return f"Telemetry(session_id={self._session_id!r}, queued={len(self._queue)})"

    # ---- events, from any thread

    def session_started(self, session_id: str) -> None:
        """The session was opened; what happens from now on belongs to it."""
        self._session_id = session_id
        self._started = self._connection.clock.now()
        self._put(SessionStartEvent(**self._about("SESSION_START", "INFO")))

    def session_ended(self) -> None:
        """The session is over; said once, and only of a session that was opened here."""
        if self._started is None or self._ended:
            return
        self._ended = True
        about = self._about("SESSION_END", "INFO")
        self._put(SessionEndEvent(**about, duration=str(about["timestamp"] - self._started)))

    def log(
        self, event_name: str, event_data: Mapping[str, object] | None = None, severity: Severity = "INFO"
    ) -> bool:
        """Note something; False when the queue is full and the event was dropped."""
        data = scrub_data(event_data or {}, self._secrets())
        about = self._about("GENERIC_EVENT", severity)
        return self._put(GenericEvent(**about, event_name=event_name, event_data=data))

    def report(self, error: BaseException, severity: Severity = "ERROR") -> bool:
        """Note an error that reached the user, and send it soon; the same error is noted once."""
        if self._last is not None and self._last() is error:
            return True
        with contextlib.suppress(TypeError):  # a few builtin errors cannot be referred to weakly
            self._last = weakref.ref(error)
        if is_user_error(error):
            data = {"error_type": type(error).__name__, **self._facts(error)}
            about = self._about("GENERIC_EVENT", "WARNING")
            return self._put(GenericEvent(**about, event_name="user_error", event_data=data), hurry=True)
        return self._put(
            UnhandledExceptionEvent(
                **self._about("UNHANDLED_EXCEPTION", severity),
                error_type=type(error).__name__,
                error_message=self._text(error),
                traceback=_places(error),
            ),
            hurry=True,
        )

    async def log_exception(self, exception: BaseException, severity: Severity = "ERROR") -> bool:
        """Note an error; the name other code knows `report` by."""
        return self.report(exception, severity)

    def log_exception_sync(self, exception: BaseException, severity: Severity = "ERROR") -> bool:
        """Note an error; the name other code knows `report` by."""
        return self.report(exception, severity)

    def _about(self, kind: str, severity: Severity) -> dict[str, Any]:
        return {
            "event": kind,
            "event_id": str(uuid.uuid4()),
            "event_session_index": next(self._numbers),
            "severity": severity,
            "timestamp": self._connection.clock.now(),
        }

    def _secrets(self) -> list[str]:
        return secrets_of(self._connection.config)

    def _text(self, error: BaseException) -> str:
        if isinstance(error, APIStatusError):  # its text quotes the body of the answer
            return f"Error code: {error.status_code}"
        return scrub(str(error), self._secrets())

    def _facts(self, error: BaseException) -> dict[str, object]:
        known: dict[str, object] = {"message": self._text(error)}
        for link in (error, error.__cause__, error.__context__):
            if isinstance(link, APIStatusError):
                known.setdefault("status_code", link.status_code)
            if isinstance(link, RequestFailedError):
                known.setdefault("category", link.category.value)
            if isinstance(link, TinkerError) and link.request_id:
                known.setdefault("request_id", scrub(link.request_id, self._secrets()))
        return known

    # ---- the queue

    def _put(self, event: TelemetryEvent, *, hurry: bool = False) -> bool:
        if self._closed or self._sender.refused:
            return False
        if self._generation != portal().generation:
            self._generation = portal().generation
            self._queue.clear()  # what was waiting at a fork is sent by the parent
        if len(self._queue) >= MOST_EVENTS:
            self.dropped += 1
            if self.dropped == 1:
                logger.warning("the telemetry queue is full: events are dropped")
            return False
        self._queue.append(event)
        with contextlib.suppress(ClientClosedError):  # the process is ending
            portal().call(lambda: self._send_soon(hurry))
        return True

    def _send_soon(self, hurry: bool) -> None:
        """On the loop: make sure that a sender is under way."""
        if self._queue and not self._sender.running:
            self._sender.start(weakref.ref(self), self._connection.clock)
        if hurry:
            self._sender.hurry.set()

    def _take(self) -> bytes | None:
        events = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        if not events:
            return None
        batch = TelemetrySendRequest(
            events=events,
            platform=platform.system(),
            sdk_version=SDK_VERSION,
            session_id=self._session_id,
            process_uuid=_process_uuid(),
        )
        return encode(batch)

    async def drain(self) -> None:
        """Send what is left, for two seconds at most, and take no more."""
        self._closed = True
        self._send_soon(True)
        if self._sender.running:
            await _rest(self._connection.clock, self._sender.done, DRAIN_SECONDS)
        self._sender.stop()
        self._queue.clear()


def _places(error: BaseException) -> str | None:
    """Where in this package an error passed: files and lines, no source, no other code."""
    places = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename.startswith(_PACKAGE):
            inside = code.co_filename.removeprefix(_PACKAGE).replace(os.sep, "/")
            places.append(f'  File "tinkex/{inside}", line {line}, in {code.co_name}')
    if not places:
        return None
    return "\n".join(["Traceback (most recent call last):", *places, type(error).__name__])


_known_process: tuple[int, str] | None = None


def _process_uuid() -> str:
    """One id per process; a fork's child gets its own."""
    global _known_process
    if _known_process is None or _known_process[0] != os.getpid():
        _known_process = (os.getpid(), str(uuid.uuid4()))
    return _known_process[1]
