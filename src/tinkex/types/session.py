"""Sessions: opening, keeping alive, finding, and how they ended."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from .compounds import OneOf
from .identifiers import ModelID
from .record import Record
from .variant import UnknownVariant

__all__ = [
    "AccessibleSearchOwner",
    "ActiveSessionStatusQuery",
    "CancelledSessionStatusQuery",
    "ClientFinishedSessionStatusQuery",
    "ClientSessionFinishErrored",
    "ClientSessionFinishInterrupted",
    "ClientSessionFinishReason",
    "ClientSessionFinishReasonType",
    "ClientSessionFinishSuccess",
    "ClientSessionFinished",
    "CreateSessionRequest",
    "CreateSessionResponse",
    "FailedSessionStatusQuery",
    "GetSessionResponse",
    "ListSessionsResponse",
    "OwnSearchOwner",
    "SearchOwner",
    "SessionActive",
    "SessionCancelled",
    "SessionFailed",
    "SessionFailedReason",
    "SessionFailedRequestReason",
    "SessionFailedSamplingSessionReason",
    "SessionFailedTrainingRunReason",
    "SessionHeartbeatRequest",
    "SessionHeartbeatResponse",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "SessionSearchResponse",
    "SessionStatus",
    "SessionStatusQuery",
    "SessionSummary",
    "UserSearchOwner",
]

_by_type = OneOf("type", unknown=UnknownVariant)


class CreateSessionRequest(Record):
    """Opens a session; metadata that is None is sent as null, since the field is required."""

    writes_null: ClassVar[frozenset[str]] = frozenset({"user_metadata"})
    tags: list[str]
    user_metadata: dict[str, Any] | None
    sdk_version: str
    project_id: str | None = None
    display_name: str | None = None
    type: Literal["create_session"] = "create_session"

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> CreateSessionRequest:
        if lenient and isinstance(value, dict):
            value = {"user_metadata": None, "tags": [], **value}
        return super().__take__(value, lenient)


class CreateSessionResponse(Record):
    """The id of a new session, and messages for the user."""

    type: Literal["create_session"] = "create_session"
    info_message: str | None = None
    warning_message: str | None = None
    error_message: str | None = None
    session_id: str


class SessionHeartbeatRequest(Record):
    """Keeps a session alive."""

    session_id: str
    type: Literal["session_heartbeat"] = "session_heartbeat"


class SessionHeartbeatResponse(Record):
    """The session is alive."""

    type: Literal["session_heartbeat"] = "session_heartbeat"


class ListSessionsResponse(Record):
    """A page of session ids."""

    sessions: list[str]


class GetSessionResponse(Record):
    """What a session holds."""

    training_run_ids: list[ModelID]
    sampler_ids: list[str]
    user_metadata: dict[str, str] | None = None
    display_name: str | None = None


class ClientSessionFinishSuccess(Record):
    """The client finished its work."""

    type: Literal["success"] = "success"
    __tag__ = "success"


class ClientSessionFinishErrored(Record):
    """The client gave up on an error."""

    type: Literal["errored"] = "errored"
    __tag__ = "errored"


class ClientSessionFinishInterrupted(Record):
    """The client was interrupted."""

    type: Literal["interrupted"] = "interrupted"
    __tag__ = "interrupted"


ClientSessionFinishReason: TypeAlias = Annotated[
    ClientSessionFinishSuccess | ClientSessionFinishErrored | ClientSessionFinishInterrupted,
    OneOf("type", infer=lambda value: "success", unknown=UnknownVariant),
]


class ClientSessionFinished(Record):
    """The client ended the session."""

    type: Literal["client_finished"] = "client_finished"
    reason: ClientSessionFinishReason
    detail: str | None = None
    __tag__ = "client_finished"


class SessionActive(Record):
    """The session goes on."""

    type: Literal["active"] = "active"
    __tag__ = "active"


class SessionCancelled(Record):
    """The session was cancelled."""

    type: Literal["cancelled"] = "cancelled"
    detail: str | None = None
    __tag__ = "cancelled"


class SessionFailedRequestReason(Record):
    """A request brought the session down."""

    type: Literal["request"] = "request"
    request_id: str
    request_type: str
    __tag__ = "request"


class SessionFailedTrainingRunReason(Record):
    """A training run brought the session down."""

    type: Literal["training_run"] = "training_run"
    training_run_id: str
    __tag__ = "training_run"


class SessionFailedSamplingSessionReason(Record):
    """A sampling session brought the session down."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    __tag__ = "sampling_session"


SessionFailedReason: TypeAlias = Annotated[
    SessionFailedRequestReason | SessionFailedTrainingRunReason | SessionFailedSamplingSessionReason,
    _by_type,
]


class SessionFailed(Record):
    """The session failed."""

    type: Literal["failed"] = "failed"
    category: Literal["user", "internal"]
    reason: SessionFailedReason
    message: str
    __tag__ = "failed"


SessionStatus: TypeAlias = Annotated[
    SessionFailed | SessionCancelled | ClientSessionFinished | SessionActive, _by_type
]


class SessionSummary(Record):
    """A session found by a search."""

    session_id: str
    created_at: datetime
    owner: str
    project_id: str
    status: SessionStatus | None = None
    checkpoints_count: int
    display_name: str | None = None
    user_metadata: dict[str, str] | None = None
    checkpoint_storage_bytes: int | None = None


class OwnSearchOwner(Record):
    """The caller's own sessions."""

    type: Literal["own"] = "own"
    __tag__ = "own"


class AccessibleSearchOwner(Record):
    """All sessions the caller may see."""

    type: Literal["accessible"] = "accessible"
    __tag__ = "accessible"


class UserSearchOwner(Record):
    """Sessions of the given users."""

    type: Literal["user"] = "user"
    owner_urns: Annotated[list[str], Meta(min_length=1, max_length=10)]
    __tag__ = "user"


SearchOwner: TypeAlias = Annotated[
    OwnSearchOwner | AccessibleSearchOwner | UserSearchOwner,
    OneOf("type", infer=lambda value: "user" if value.get("owner_urns") else "own"),
]

ClientSessionFinishReasonType: TypeAlias = Literal["success", "errored", "interrupted"]


class ActiveSessionStatusQuery(Record):
    """Finds sessions that go on."""

    type: Literal["active"] = "active"
    __tag__ = "active"


class CancelledSessionStatusQuery(Record):
    """Finds sessions that were cancelled."""

    type: Literal["cancelled"] = "cancelled"
    __tag__ = "cancelled"


class FailedSessionStatusQuery(Record):
    """Finds sessions that failed."""

    type: Literal["failed"] = "failed"
    __tag__ = "failed"


class ClientFinishedSessionStatusQuery(Record):
    """Finds sessions their client ended, for some or any reason."""

    type: Literal["client_finished"] = "client_finished"
    reasons: Annotated[list[ClientSessionFinishReasonType], Meta(min_length=1)] | None = None
    __tag__ = "client_finished"


SessionStatusQuery: TypeAlias = Annotated[
    ActiveSessionStatusQuery
    | CancelledSessionStatusQuery
    | FailedSessionStatusQuery
    | ClientFinishedSessionStatusQuery,
    OneOf("type", infer=lambda value: "client_finished" if value.get("reasons") else "active"),
]


class SessionSearchCursor(Record):
    """Where the next page of a search starts."""

    last_created_at: Annotated[datetime, Meta(tz=True)]
    last_session_id: str


class SessionSearchRequest(Record):
    """Finds sessions."""

    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = {}
    display_name: Annotated[str, Meta(min_length=1)] | None = None
    owner: SearchOwner = msgspec.field(default_factory=OwnSearchOwner)
    statuses: Annotated[list[SessionStatusQuery], Meta(min_length=1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: SessionSearchCursor | None = None


class SessionSearchResponse(Record):
    """A page of found sessions."""

    sessions: list[SessionSummary]
    next_cursor: SessionSearchCursor | None = None
