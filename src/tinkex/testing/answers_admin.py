"""Answers for administrators: the audit log, usage, storage."""

from __future__ import annotations

from datetime import timedelta

from ..types import (
    AuditLogResponse,
    BillingEventInfo,
    BillingUsageEvent,
    BillingUsageResponse,
    BillingUsageSession,
    CurrentCheckpointStorageUsageItem,
    CurrentCheckpointStorageUsageResponse,
    GetBillingUsageRequest,
    SamplingPrefillBillingEvent,
    SamplingSampleBillingEvent,
    TrainingBillingEvent,
)
from .exchange import Problem
from .handlers import Answer, Ask, answers

_LONGEST_WINDOW = timedelta(days=14)
_HOUR = timedelta(hours=1)


@answers("audit_log")
def _audit(ask: Ask) -> Answer:
    kind, day = ask.query.event_type, ask.query.day
    entries = [
        entry
        for entry in ask.service.events
        if (kind == "all" or f"{entry.event.split('.')[0]}s" == kind)
        and day in (None, entry.timestamp.date().isoformat())
    ]
    return AuditLogResponse(entries=entries)


@answers("billing_usage")
def _usage(ask: Ask) -> Answer:
    window = ask.query
    assert isinstance(window, GetBillingUsageRequest)
    start, end = window.starting_on, window.ending_before
    if not timedelta(0) < end - start <= _LONGEST_WINDOW:
        raise Problem(400, "ending_before: must lie after starting_on, by 14 days at most")
    if any(moment.minute or moment.second or moment.microsecond for moment in (start, end)):
        raise Problem(400, "starting_on, ending_before: must be whole hours")
    hour = ask.service.clock.now().replace(minute=0, second=0, microsecond=0)
    world = ask.service.world
    events = _used(ask) if start <= hour < end else []
    sessions = {
        id: BillingUsageSession(
            user_metadata={key: str(value) for key, value in world.sessions[id].user_metadata.items()}
        )
        for id in {session_id for session_id, _, _ in events}
    }
    return BillingUsageResponse(
        data=[
            BillingUsageEvent(
                bucket_start=hour,
                bucket_end=hour + _HOUR,
                base_model=base_model,
                user_id=ask.owner,
                session_id=session_id,
                project_id=world.sessions[session_id].project_id,
                event_info=info,
            )
            for session_id, base_model, info in events
        ],
        sessions=sessions,
        cost_data_through=hour,
    )


def _used(ask: Ask) -> list[tuple[str, str, BillingEventInfo]]:
    world = ask.service.world
    events: list[tuple[str, str, BillingEventInfo]] = [
        (model.session_id, model.base_model, TrainingBillingEvent(token_count=model.tokens))
        for model in world.models.values()
        if model.owner == ask.owner and model.tokens
    ]
    for sampler in world.samplers.values():
        if sampler.owner == ask.owner and sampler.prompt_tokens:
            where = sampler.session_id, sampler.base_model
            read = SamplingPrefillBillingEvent(cached=False, token_count=sampler.prompt_tokens)
            events.append((*where, read))
            events.append((*where, SamplingSampleBillingEvent(token_count=sampler.sampled_tokens)))
    return events


@answers("checkpoint_storage_usage")
def _storage(ask: Ask) -> Answer:
    saved = [
        each
        for each in ask.service.world.checkpoints_of(ask.owner, ask.service.clock.now())
        if ask.query.project_id in (None, each.project_id)
    ]
    size = sum(each.size for each in saved)
    item = CurrentCheckpointStorageUsageItem(
        project_id=ask.query.project_id,
        org_user_urn=ask.owner,
        user_email=f"{ask.owner}@example.com",
        checkpoint_count=len(saved),
        size_bytes=size,
        size_gigabytes=size / 1e9,
    )
    return CurrentCheckpointStorageUsageResponse(data=[item] if saved else [])
