"""Answers about the service itself, credentials, and sessions."""

from __future__ import annotations

from typing import Any

from ..types import (
    AuthTokenResponse,
    ClientFinishedSessionStatusQuery,
    ClientSessionFinished,
    CreateSessionRequest,
    CreateSessionResponse,
    GetServerCapabilitiesResponse,
    GetSessionResponse,
    HealthResponse,
    ListSessionsResponse,
    SessionActive,
    SessionCancelled,
    SessionHeartbeatResponse,
    SessionSearchCursor,
    SessionSearchRequest,
    SessionSearchResponse,
    SessionStatus,
    SessionSummary,
    TelemetryResponse,
    UserSearchOwner,
)
from ..wire import bodies
from ..wire.headers import API_KEY, IDEMPOTENCY_KEY
from .exchange import Problem
from .handlers import Answer, Ask, answers
from .state import Session

_TRACE_POLLS = 2  # how often a trace is asked for before it is ready


@answers("health")
def _health(ask: Ask) -> Answer:
    return HealthResponse(status="ok")


@answers("get_server_capabilities")
def _capabilities(ask: Ask) -> Answer:
    return GetServerCapabilitiesResponse(supported_models=ask.service.models)


@answers("client_config")
def _config(ask: Ask) -> Answer:
    if ask.service.config is None:
        raise Problem(404, "Not Found")
    return ask.service.config


@answers("client_dynamic_config")
def _dynamic_config(ask: Ask) -> Answer:
    if ask.service.dynamic is None:
        raise Problem(404, "Not Found")
    return ask.service.dynamic


@answers("auth_token")
def _token(ask: Ask) -> Answer:
    return AuthTokenResponse(jwt=ask.service.issue_token(ask.owner))


@answers("get_api_key")
def _api_key(ask: Ask) -> Answer:
    return bodies.ApiKeyResponse(
        key_id=1,
        name="fake key",
        note="",
        details=bodies.ApiKeyDetails(
            org_details=bodies.OrganizationDetails(name="fake-org"),
            user_details=bodies.UserDetails(email=f"{ask.owner}@example.com"),
        ),
    )


@answers("delete_api_key")
def _revoke(ask: Ask) -> Answer:
    ask.service.identity.revoked.add(ask.header(API_KEY) or "")
    return {}


@answers("telemetry")
def _telemetry(ask: Ask) -> Answer:
    return TelemetryResponse(status="accepted")


# ---- a session's life


@answers("create_session")
def _create(ask: Ask) -> Answer:
    service, body = ask.service, ask.body
    assert isinstance(body, CreateSessionRequest)
    key = (ask.owner, ask.header(IDEMPOTENCY_KEY) or "")
    known = service.session_keys.get(key) if key[1] else None
    if known is None:
        known = f"sess-{len(service.world.sessions) + 1}"
        service.session_keys[key] = known
        service.world.sessions[known] = Session(
            known,
            ask.owner,
            service.clock.now(),
            list(body.tags),
            dict(body.user_metadata or {}),
            body.sdk_version,
            body.project_id,
            body.display_name,
            service.clock.monotonic(),
        )
        service.note_event("session.created", session_id=known)
    return CreateSessionResponse.model_validate({"session_id": known, **service.session_messages})


@answers("session_heartbeat")
def _heartbeat(ask: Ask) -> Answer:
    session = ask.service.world.session(ask.body.session_id, ask.owner, open=False)
    if session.ended is not None:
        raise Problem(410, f"session {session.id!r} has ended ({session.ended})")
    session.heartbeats += 1
    session.last_heartbeat = ask.service.clock.monotonic()
    return SessionHeartbeatResponse()


@answers("finish_session")
def _finish(ask: Ask) -> Answer:
    session = ask.service.world.session(ask.params["session_id"], ask.owner, open=False)
    if session.ended is None:
        session.ended, session.detail = ask.body.reason.type, ask.body.detail
        ask.service.note_event("session.finished", session_id=session.id, reason=session.ended)
    return {}


@answers("get_session")
def _get(ask: Ask) -> Answer:
    session = ask.service.world.session(ask.params["session_id"], ask.owner, open=False)
    return GetSessionResponse(
        training_run_ids=session.models,
        sampler_ids=session.samplers,
        user_metadata=_texts(session.user_metadata),
        display_name=session.display_name,
    )


@answers("list_sessions")
def _list(ask: Ask) -> Answer:
    owned = [each.id for each in ask.service.world.sessions.values() if each.owner == ask.owner]
    page = owned[::-1][ask.query.offset :][: ask.query.limit]
    return ListSessionsResponse(sessions=page)


@answers("assign_session_project")
def _assign(ask: Ask) -> Answer:
    session = ask.service.world.session(ask.params["session_id"], ask.owner, open=False)
    session.project_id = ask.body.project_id
    return {}


@answers("session_trace_export")
def _trace(ask: Ask) -> Answer:
    session = ask.service.world.session(ask.params["session_id"], ask.owner, open=False)
    session.trace_polls += 1
    if session.trace_polls < _TRACE_POLLS:
        return bodies.TraceExportResponse(status="pending")
    host = ask.header("host") or "localhost"
    return bodies.TraceExportResponse(status="ready", url=f"http://{host}/files/{session.id}/trace.json")


# ---- searching


@answers("search_sessions")
def _search(ask: Ask) -> Answer:
    body = ask.body
    assert isinstance(body, SessionSearchRequest)
    found = [each for each in ask.service.world.sessions.values() if _matches(each, body, ask.owner)]
    found.sort(key=lambda each: (each.created, each.id), reverse=True)
    if body.cursor is not None:
        last = (body.cursor.last_created_at, body.cursor.last_session_id)
        found = [each for each in found if (each.created, each.id) < last]
    page = found[: body.limit]
    cursor = None
    if len(found) > len(page):
        cursor = SessionSearchCursor(last_created_at=page[-1].created, last_session_id=page[-1].id)
    return SessionSearchResponse(sessions=[_summary(ask, each) for each in page], next_cursor=cursor)


def _matches(session: Session, body: SessionSearchRequest, owner: str) -> bool:
    owners = body.owner.owner_urns if isinstance(body.owner, UserSearchOwner) else [owner]
    metadata = _texts(session.user_metadata) or {}
    return (
        session.owner in owners
        and body.session_id in (None, session.id)
        and (body.project_ids is None or session.project_id in body.project_ids)
        and (body.display_name is None or body.display_name in (session.display_name or ""))
        and all(metadata.get(key) == value for key, value in body.user_metadata.items())
        and (body.statuses is None or any(_has_status(session, each) for each in body.statuses))
    )


def _has_status(session: Session, query: Any) -> bool:
    status = _status(session)
    if isinstance(query, ClientFinishedSessionStatusQuery) and isinstance(status, ClientSessionFinished):
        return query.reasons is None or session.ended in query.reasons
    return bool(status.type == query.type)


def _status(session: Session) -> SessionStatus:
    if session.ended is None:
        return SessionActive()
    if session.ended == "expired":
        return SessionCancelled(detail=session.detail)
    return ClientSessionFinished.model_validate(
        {"reason": {"type": session.ended}, "detail": session.detail}
    )


def _summary(ask: Ask, session: Session) -> SessionSummary:
    now = ask.service.clock.now()
    saved = [
        each for each in ask.service.world.checkpoints_of(session.owner, now) if each.run in session.models
    ]
    return SessionSummary(
        session_id=session.id,
        created_at=session.created,
        owner=session.owner,
        project_id=session.project_id or "default",
        status=_status(session),
        checkpoints_count=len(saved),
        display_name=session.display_name,
        user_metadata=_texts(session.user_metadata),
        checkpoint_storage_bytes=sum(each.size for each in saved),
    )


def _texts(metadata: dict[str, Any] | None) -> dict[str, str] | None:
    return None if metadata is None else {key: str(value) for key, value in metadata.items()}
