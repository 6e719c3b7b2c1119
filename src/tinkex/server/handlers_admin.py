"""Answers for who keeps the books: the audit log, usage by the hour, what checkpoints take up."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta

from ..types import (
    AuditLogEntry,
    AuditLogResponse,
    BillingEventInfo,
    BillingUsageEvent,
    BillingUsageResponse,
    BillingUsageSession,
    CheckpointBillingEvent,
    CurrentCheckpointStorageUsageItem,
    CurrentCheckpointStorageUsageResponse,
    GetBillingUsageRequest,
    SamplingPrefillBillingEvent,
    SamplingSampleBillingEvent,
    TrainingBillingEvent,
)
from .asks import Answer, Ask, answers
from .dates import moment
from .handlers_runs import texts
from .problems import Problem
from .records import SessionRow, UsageRow

EVENT_TYPES = ("all", "checkpoints", "projects", "teams", "organizations")
LONGEST_WINDOW = timedelta(days=14)
HOUR = timedelta(hours=1)
DAY_SECONDS = 86400.0
GIGABYTE = 10**9
STORAGE = "storage"
"""The rate of storage: dollars for a gigabyte and month."""
_FLUSH_SECONDS = 2.0


# ---- the audit log


@answers("audit_log")
async def _audit(ask: Ask) -> Answer:
    kind, day = ask.query.event_type, ask.query.day
    if kind not in EVENT_TYPES:
        raise Problem(400, f"event_type: {kind!r} is not one of {', '.join(EVENT_TYPES)}")
    start = _midnight(ask, day)
    # The names of kinds are plural, those of events are not: `checkpoints` has `checkpoint.created`.
    prefixes = () if kind == "all" else (f"{kind.removesuffix('s')}.",)
    first = start.timestamp()  # the last day of all has no next one
    rows = await ask.service.store.audit(ask.owner, first, first + DAY_SECONDS, prefixes)
    return AuditLogResponse(
        entries=[
            AuditLogEntry(
                timestamp=moment(row.time),
                event=row.event,
                event_details=row.details,
                model_id=row.model_id,
                tinker_path=row.tinker_path,
            )
            for row in rows
        ]
    )


def _midnight(ask: Ask, day: str | None) -> datetime:
    """The start of a day in UTC; without one, of today."""
    if day is None:
        return moment(ask.service.clock.time()).replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        asked = date.fromisoformat(day)
        return datetime(asked.year, asked.month, asked.day, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Problem(400, f"day: {day!r} is no date; write it as YYYY-MM-DD") from None


# ---- usage


@answers("billing_usage")
async def _usage(ask: Ask) -> Answer:
    window, service = ask.query, ask.service
    assert isinstance(window, GetBillingUsageRequest)
    first = _hour("starting_on", window.starting_on)
    last = _hour("ending_before", window.ending_before)
    most = LONGEST_WINDOW // HOUR
    if not 0 < last - first <= most:
        raise Problem(
            400, f"ending_before: lies {last - first} hours after starting_on; it must be 1 to {most} hours"
        )
    # What is counted and not yet written; a store that cannot write must not hold up the answer.
    await asyncio.wait([service.spawn(service.usage.flush(service))], timeout=_FLUSH_SECONDS)
    rows = await service.store.usage(ask.owner, first, last)
    sessions = {}
    for id in dict.fromkeys(row.session_id for row in rows if row.session_id):
        session = await service.store.get(SessionRow, id)
        metadata = None if session is None else texts(session.user_metadata)
        sessions[id] = BillingUsageSession(user_metadata=metadata)
    now = int(service.clock.time() // 3600) * 3600
    return BillingUsageResponse(
        data=[_event(ask, row) for row in rows], sessions=sessions, cost_data_through=moment(now)
    )


def _hour(field: str, at: datetime) -> int:
    """Hours since 1970; anything but a whole hour is refused."""
    if at.tzinfo is None:
        raise Problem(400, f"{field}: {at.isoformat()} has no time zone; write it as 2026-01-31T00:00:00Z")
    try:
        at = at.astimezone(UTC)
    except OverflowError:
        raise Problem(400, f"{field}: {at.isoformat()} is no date in UTC") from None
    if at.minute or at.second or at.microsecond:
        raise Problem(400, f"{field}: {at.isoformat()} is not a whole hour in UTC")
    return round(at.timestamp()) // 3600


def _event(ask: Ask, row: UsageRow) -> BillingUsageEvent:
    rate = ask.service.options.rates.get(row.kind)
    counts_tokens = row.kind != "checkpoint"
    return BillingUsageEvent(
        bucket_start=moment(row.hour * 3600),
        bucket_end=moment((row.hour + 1) * 3600),
        base_model=row.base_model,
        user_id=row.owner,
        user_name=row.owner,
        session_id=row.session_id or None,
        project_id=row.project_id or None,
        estimated_cost_usd=(rate or 0.0) * row.count / 1e6 if counts_tokens else 0.0,
        effective_rate_usd_per_million_tokens=rate if counts_tokens else None,
        event_info=_info(row),
    )


def _info(row: UsageRow) -> BillingEventInfo:
    match row.kind:
        case "training":
            return TrainingBillingEvent(token_count=row.count)
        case "sampling_sample":
            return SamplingSampleBillingEvent(token_count=row.count)
        case "checkpoint":
            return CheckpointBillingEvent(count=row.count)
        case kind:
            return SamplingPrefillBillingEvent(
                cached=kind == "sampling_prefill_cached", token_count=row.count
            )


# ---- storage


@answers("checkpoint_storage_usage")
async def _storage(ask: Ask) -> Answer:
    rate = ask.service.options.rates.get(STORAGE)
    items = []
    for _, project, number, size in await ask.service.store.storage(ask.owner):
        if ask.query.project_id in (None, project):
            items.append(
                CurrentCheckpointStorageUsageItem(
                    project_id=project,
                    org_user_urn=f"tml:user:{ask.owner}",
                    user_name=ask.owner,
                    checkpoint_count=number,
                    size_bytes=size,
                    size_gigabytes=size / GIGABYTE,
                    estimated_monthly_cost_usd=(rate or 0.0) * size / GIGABYTE,
                )
            )
    return CurrentCheckpointStorageUsageResponse(effective_rate_usd_per_gigabyte_month=rate, data=items)
