"""What a starting server reads from its store: who was alive, and what was still to be done."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import TinkerError
from ..wire import paths
from .operations import Outcome
from .problems import Problem
from .records import ModelRow, OperationRow
from .service import loss_of
from .store import Finish, Put
from .works import make_work, read_operation
from .world import LiveModel, LiveSession

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger(__name__)


async def load_world(service: Service) -> None:
    """Bring back sessions, models, sampling sessions and operations; time spent down does not count."""
    store = service.store
    sessions = {row.id: service.open_session(row) for row in await store.live_sessions()}
    names = list(sessions)
    for loss in await store.losses_of(names):
        sessions[loss.session_id].losses[loss.id] = loss_of(loss.definition)
    for row in await store.models_of(names):
        if row.state == "live":
            await _open_model(service, row, sessions[row.session_id])
    for sampler in await store.samplers_of(names):
        if sampler.base_model in service.catalogue.by_name:
            service.open_sampler(sampler, sessions[sampler.session_id])
    _open_journal(service)
    if sessions:
        log.info("%d open sessions, %d models restored", len(sessions), len(service.world.models))


def _open_journal(service: Service) -> None:
    """Samples that were under way are lost: those who wait for them are told to ask again."""
    for id in service.samples.open():
        name, _, number = id.rpartition(":")
        sampler = service.world.samplers.get(name)
        if sampler is None or not number.isdecimal():
            service.samples.remove([id])
        else:
            sampler.clone(paths.clone_of(int(number))).add(id, None)


async def _open_model(service: Service, row: ModelRow, session: LiveSession) -> None:
    if row.base_model not in service.catalogue.by_name:
        log.warning("model %s waits: base model %r is not served this time", row.id, row.base_model)
        return
    model = service.open_model(row, session, fresh=False)
    for number in row.skipped:
        model.line.use_up(number)
    queued = await service.store.queued(row.id)
    if service.machine_went_down:
        model.known_upto = max(row.watermark, *row.skipped, *(each.seq for each in queued), -1)
    for operation in queued:
        if operation.seq <= row.watermark:
            await _fail(service, model, operation, "its place in line was lost in a restart")
            continue
        if operation.lost:
            await _fail(service, model, operation, operation.lost)
            continue
        try:
            request = read_operation(operation)
            work = await make_work(service, model, operation.kind, request, operation, again=True)
        except Problem as problem:
            await _fail(service, model, operation, problem.text)
            continue
        except (TinkerError, ValueError) as problem:
            await _fail(service, model, operation, f"what is kept of it cannot be read: {problem}")
            continue
        service.accept(model, operation, work)


async def _fail(service: Service, model: LiveModel, row: OperationRow, text: str) -> None:
    """An operation that was accepted and can no longer be done."""
    outcome = Outcome(error=text, category="server")
    now = service.clock.time()
    model.line.use_up(row.seq)
    await service.keep(
        Put(model.row),
        Finish(
            row.id, "failed", now, model.id, model.row.watermark, error=outcome.error, category="server"
        ),
    )
