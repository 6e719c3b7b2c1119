"""Events a client reports to its server."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from .compounds import OneOf
from .record import OpenRecord, Record

__all__ = [
    "EventType",
    "GenericEvent",
    "SessionEndEvent",
    "SessionStartEvent",
    "Severity",
    "TelemetryBatch",
    "TelemetryEvent",
    "TelemetryResponse",
    "TelemetrySendRequest",
    "UnhandledExceptionEvent",
]

EventType: TypeAlias = Literal["SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION", "GENERIC_EVENT"]
Severity: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class SessionStartEvent(Record):
    """A session was opened."""

    event: EventType
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    __tag__ = "SESSION_START"


class SessionEndEvent(Record):
    """A session was ended."""

    duration: str
    event: EventType
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    __tag__ = "SESSION_END"


class UnhandledExceptionEvent(Record):
    """An operation raised."""

    error_message: str
    error_type: str
    event: EventType
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    traceback: str | None = None
    __tag__ = "UNHANDLED_EXCEPTION"


class GenericEvent(Record):
    """Something worth knowing happened."""

    event: EventType
    event_id: str
    event_name: str
    event_session_index: int
    severity: Severity
    timestamp: datetime
    event_data: dict[str, object] = {}
    __tag__ = "GENERIC_EVENT"


class UnknownEvent(OpenRecord):
    """An event this version does not know."""

    event: str


TelemetryEvent: TypeAlias = Annotated[
    SessionStartEvent | SessionEndEvent | UnhandledExceptionEvent | GenericEvent,
    OneOf("event", unknown=UnknownEvent),
]


class TelemetryBatch(Record):
    """Events of one process."""

    events: list[TelemetryEvent]
    platform: str
    sdk_version: str
    session_id: str
    process_uuid: str


class TelemetrySendRequest(TelemetryBatch):
    """Reports events to the server."""


class TelemetryResponse(Record):
    """The events were taken."""

    status: Literal["accepted"]
