"""How sessions end, whoever ends them: their models and samplers go, their checkpoints stay."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from ..engine.messages import BASE_VERSION
from .checkpoint_files import release
from .records import AuditRow, ModelRow, SessionStatus
from .store import Note, Put
from .world import LiveSession

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger(__name__)
LINGER = 3.0
"""Seconds polls of an ended session are held, unless their time is up before."""


async def end_session(
    service: Service, session: LiveSession, status: SessionStatus, reason: str | None, detail: str | None
) -> None:
    """End a session; the first ending counts."""
    row, now = session.row, service.clock.time()
    if service.world.sessions.pop(row.id, None) is None:
        return
    row.status, row.reason, row.detail, row.ended = status, reason, detail, now
    log.info("session %s of %s has ended: %s, %d models", row.id, row.owner, status, len(session.models))
    why = f"its session has {'ended' if status == 'finished' else 'expired'}"
    models: list[ModelRow] = []
    for model in list(session.models.values()):
        model.row.state, model.row.note = "unloaded", why
        models.append(model.row)
        # Not before the engine is done with it: it may be writing there.
        forget = partial(_forget_snapshots, service, model.id)
        service.drop_model(model, f"model {model.id} was unloaded: {why}", forget)
    _drop_samplers(service, session, why)
    await service.keep(
        Put(row),
        *(Put(each) for each in models),
        Note(
            AuditRow(now, row.owner, f"session.{status}", details={"session_id": row.id, "reason": reason})
        ),
    )


def _forget_snapshots(service: Service, model_id: str) -> None:
    service.spawn(service.remove_folder(service.folders.snapshot(model_id, 0).parent))


def _drop_samplers(service: Service, session: LiveSession, why: str) -> None:
    """Forget the session's samplers; unnamed weights nobody else samples from leave the engine."""
    for desk in service.desks.values():
        desk.cancel_of(session.samplers.keys(), f"the sample was called off: {why}")
    gone = list(session.samplers.values())
    for sampler in gone:
        service.world.samplers.pop(sampler.row.id, None)
        # Nobody else knows of them now, and a stopping server would wait for their end; but a client that
        # ends its session calls off its own polls in this moment, and one that is answered just then may
        # miss that: SDK 0.36 then waits for its own poller for ever.
        service.clock.call_later(LINGER, sampler.wake)
    used = {sampler.row.version for sampler in service.world.samplers.values()}
    for sampler in gone:
        row = sampler.row
        if row.model_id is None or row.version == BASE_VERSION or row.version in used:
            continue
        used.add(row.version)
        service.desk_of(row.base_model).thaw(row.version)
    service.spawn(release(service, [sampler.row for sampler in gone]))
