"""Answers about the service itself and about a session's life."""

from __future__ import annotations

import json
import logging
import secrets

from ..types import (
    ClientConfigResponse,
    ClientDynamicConfigResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    GetServerCapabilitiesResponse,
    HealthResponse,
    SessionHeartbeatResponse,
    SupportedModel,
    TelemetryResponse,
)
from ..wire.headers import IDEMPOTENCY_KEY
from .asks import Answer, Ask, answers
from .endings import end_session
from .problems import NotFound, Problem
from .records import AnswerRow, AuditRow, SessionRow
from .store import Note, Put
from .works import check_metadata

log = logging.getLogger(__name__)


@answers("health")
async def _health(ask: Ask) -> Answer:
    return HealthResponse(status="ok")


@answers("get_server_capabilities")
async def _capabilities(ask: Ask) -> Answer:
    return GetServerCapabilitiesResponse(
        supported_models=[
            SupportedModel(
                model_name=facts.name, max_context_length=facts.context, trainable=True, sampleable=True
            )
            for facts in ask.service.catalogue.by_name.values()
        ]
    )


@answers("client_config")
async def _config(ask: Ask) -> Answer:
    options = ask.service.options
    told = ClientConfigResponse(
        pjwt_auth_enabled=options.jwt,
        parallel_fwdbwd_chunks=options.parallel_chunks,
        sample_use_retrieve_futures=True,
        sample_join_sampling_session=True,
        custom_loss_server_side=options.server_losses,
    )
    # Read by SDK 0.19 to 0.24 alone: passes as JSON, forward passes on their own route.
    older = {"proto_write_fwdbwd": False, "fwd_via_fwdbwd": False}
    return {**told.model_dump(exclude_none=True), **older}


@answers("client_dynamic_config")
async def _dynamic_config(ask: Ask) -> Answer:
    return ClientDynamicConfigResponse(sample_cancel_enabled=True)


@answers("telemetry")
async def _telemetry(ask: Ask) -> Answer:
    # Reports of failures hold request headers, the key among them: nothing of them is kept.
    return TelemetryResponse(status="accepted")


# ---- a session's life


@answers("create_session")
async def _create(ask: Ask) -> Answer:
    service, body = ask.service, ask.body
    assert isinstance(body, CreateSessionRequest)
    if service.draining:
        raise Problem(503, "the server is stopping", headers={"retry-after": "5"})
    key = ask.header(IDEMPOTENCY_KEY)
    if not key:
        return await _open(ask, body, None)
    again = f"create_session {ask.owner} {key}"
    async with service.turns.of(again):  # the same may come twice at once
        known = await service.store.answer(again)
        if known is not None:
            return CreateSessionResponse(session_id=json.loads(known))
        return await _open(ask, body, again)


async def _open(ask: Ask, body: CreateSessionRequest, again: str | None) -> Answer:
    """A new session; with `again` the answer is kept under this name."""
    service = ask.service
    service.world.count(ask.owner, service.options.limits.sessions, "sessions")
    given = (body.tags, body.user_metadata, body.sdk_version, body.project_id, body.display_name)
    check_metadata(service, *given)
    now = service.clock.time()
    row = SessionRow(
        f"s-{secrets.token_hex(8)}", ask.owner, now, now, list(body.tags), dict(body.user_metadata or {}),
        body.sdk_version, body.project_id, body.display_name,
    )  # fmt: skip
    changes = [AnswerRow(again, json.dumps(row.id), now)] if again else []
    await service.write(
        Put(row),
        *(Put(each) for each in changes),
        Note(AuditRow(now, ask.owner, "session.created", details={"session_id": row.id})),
    )
    service.open_session(row)
    log.info("session %s of %s opened (SDK %s)", row.id, row.owner, row.sdk_version[:32])
    return CreateSessionResponse(session_id=row.id)


@answers("session_heartbeat")
async def _heartbeat(ask: Ask) -> Answer:
    service, id = ask.service, ask.body.session_id
    session = service.world.sessions.get(id)
    if session is not None and session.row.owner == ask.owner:
        service.heard(session)
        return SessionHeartbeatResponse()
    row = await service.store.get(SessionRow, id)
    if row is None or row.owner != ask.owner:
        raise NotFound("session", id)
    raise Problem(410, f"session {id!r} has ended ({row.reason or row.status})")


@answers("finish_session")
async def _finish(ask: Ask) -> Answer:
    service, id = ask.service, ask.params["session_id"]
    session = service.world.sessions.get(id)
    if session is not None and session.row.owner == ask.owner:
        await end_session(service, session, "finished", ask.body.reason.type, ask.body.detail)
        return {}
    row = await service.store.get(SessionRow, id)
    if row is None or row.owner != ask.owner:
        raise NotFound("session", id)
    return {}
