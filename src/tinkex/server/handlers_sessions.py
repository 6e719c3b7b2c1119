"""Answers about sessions that were or are: lists, searches, projects, traces."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..types import (
    ClientFinishedSessionStatusQuery,
    ClientSessionFinished,
    GetSessionResponse,
    ListSessionsResponse,
    SessionActive,
    SessionCancelled,
    SessionSearchCursor,
    SessionSearchRequest,
    SessionSearchResponse,
    SessionStatus,
    SessionSummary,
    UserSearchOwner,
)
from ..wire.bodies import TraceExportResponse
from .asks import Answer, Ask, answers
from .dates import moment
from .handlers_runs import texts
from .problems import NotFound, Problem
from .records import AuditRow, CheckpointRow, SessionRow
from .records import SessionStatus as StoredStatus
from .store import Change, Note, Page, Put, SessionFilter
from .traces import write_trace

DEFAULT_PROJECT = "default"
"""The project of sessions that were put into none."""
LONGEST_PROJECT = 255
_STORED: dict[str, StoredStatus] = {
    "active": "active",
    "cancelled": "expired",
    "client_finished": "finished",
}
"""Session states as clients name them; nothing here is ever in the state `failed`."""


async def owned(ask: Ask) -> SessionRow:
    """The session a request's path names, open or not."""
    id = ask.params["session_id"]
    live = ask.service.world.sessions.get(id)
    row = live.row if live is not None else await ask.service.store.get(SessionRow, id)
    if row is None or row.owner != ask.owner:
        raise NotFound("session", id)
    return row


@answers("list_sessions")
async def _list(ask: Ask) -> Answer:
    rows = await ask.service.store.sessions(ask.owner, Page(ask.query.limit, ask.query.offset))
    return ListSessionsResponse(sessions=[row.id for row in rows])


@answers("get_session")
async def _get(ask: Ask) -> Answer:
    row, store = await owned(ask), ask.service.store
    return GetSessionResponse(
        training_run_ids=[each.id for each in await store.models_of([row.id])],
        sampler_ids=[each.id for each in await store.samplers_of([row.id])],
        user_metadata=texts(row.user_metadata),
        display_name=row.display_name,
    )


@answers("assign_session_project")
async def _assign(ask: Ask) -> Answer:
    service, project = ask.service, ask.body.project_id
    if not 1 <= len(project) <= LONGEST_PROJECT:
        raise Problem(400, f"project_id: {len(project)} characters are not between 1 and {LONGEST_PROJECT}")
    row, now = await owned(ask), service.clock.time()
    async with service.turns.of(ask.owner):
        saved = await service.store.checkpoints_of([row.id], now=now)
        moved: list[Change] = [Put(replace(each, project_id=project)) for each in saved]
        details = {"session_id": row.id, "project_id": project}
        note = Note(AuditRow(now, ask.owner, "project.session_assigned", details=details))
        before, row.project_id = row.project_id, project
        try:
            await service.write(Put(row), *moved, note)
        except Problem:
            row.project_id = before
            raise
    return {}


@answers("session_trace_export")
async def _trace(ask: Ask) -> Answer:
    folder, name = await write_trace(ask.service, await owned(ask))
    url, _ = ask.service.downloads.sign(folder, name)
    return TraceExportResponse(status="ready", url=url)


# ---- searching


@answers("search_sessions")
async def _search(ask: Ask) -> Answer:
    body, store = ask.body, ask.service.store
    assert isinstance(body, SessionSearchRequest)
    wanted = await _filter(ask, body)
    if wanted is None:
        return SessionSearchResponse(sessions=[])
    found = await store.search_sessions(wanted, body.limit + 1)
    page = found[: body.limit]
    saved: defaultdict[str, list[CheckpointRow]] = defaultdict(list)
    for each in await store.checkpoints_of([row.id for row in page], now=ask.service.clock.time()):
        saved[each.session_id].append(each)
    cursor = None
    if len(found) > len(page):
        cursor = SessionSearchCursor(last_created_at=moment(page[-1].created), last_session_id=page[-1].id)
    return SessionSearchResponse(
        sessions=[_summary(row, saved[row.id]) for row in page], next_cursor=cursor
    )


async def _filter(ask: Ask, body: SessionSearchRequest) -> SessionFilter | None:
    """What a search is for; None: something nobody has."""
    if isinstance(body.owner, UserSearchOwner) and not {ask.owner, f"tml:user:{ask.owner}"} & {
        *body.owner.owner_urns
    }:
        return None
    statuses: list[tuple[StoredStatus, tuple[str, ...]]] = []
    seen: set[tuple[StoredStatus, tuple[str, ...]]] = set()
    for query in body.statuses or ():
        reasons = query.reasons if isinstance(query, ClientFinishedSessionStatusQuery) else None
        wanted = (_STORED[query.type], tuple(sorted(set(reasons or ())))) if query.type in _STORED else None
        if wanted is not None and wanted not in seen:
            seen.add(wanted)
            statuses.append(wanted)
    if body.statuses and not statuses:
        return None
    if body.project_ids is not None and not body.project_ids:
        return None
    return SessionFilter(
        ask.owner,
        body.session_id,
        tuple(body.project_ids or ()),
        body.display_name,
        tuple(statuses),
        body.user_metadata,
        await _before(ask, body.cursor),
    )


async def _before(ask: Ask, cursor: SessionSearchCursor | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    # A date has microseconds, a stored time is finer: the row itself knows.
    row = await ask.service.store.get(SessionRow, cursor.last_session_id)
    if row is not None and row.owner == ask.owner:
        return row.created, row.id
    return cursor.last_created_at.timestamp(), cursor.last_session_id


def _summary(row: SessionRow, saved: list[CheckpointRow]) -> SessionSummary:
    return SessionSummary(
        session_id=row.id,
        created_at=moment(row.created),
        owner=row.owner,
        project_id=row.project_id or DEFAULT_PROJECT,
        status=_status(row),
        checkpoints_count=len(saved),
        display_name=row.display_name,
        user_metadata=texts(row.user_metadata),
        checkpoint_storage_bytes=sum(each.size for each in saved),
    )


def _status(row: SessionRow) -> SessionStatus:
    if row.status == "active":
        return SessionActive()
    if row.status == "expired":
        return SessionCancelled(detail=row.detail)
    return ClientSessionFinished.model_validate(
        {"reason": {"type": row.reason or "success"}, "detail": row.detail}
    )
