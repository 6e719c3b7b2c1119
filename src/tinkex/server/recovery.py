"""Bringing a model back after its engine or the server died: the last snapshot, then what came after it.

Every operation since the snapshot is done again in its order, and the losses it gives are compared with
those recorded. A model whose losses differ is not trusted: it is marked corrupted with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engine.kill_points import reach
from ..engine.messages import LoadState, PartFailure, Train, TrainDone, Unload
from ..wire.passes import decode_output
from .engine_room import EngineRoom
from .operations import PassWork
from .problems import Failure, Problem
from .records import OperationRow
from .snapshots import snapshots_in
from .store import Page, Put, StoreFailed
from .world import LiveModel

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger(__name__)

TOLERANCE = {"float32": 1e-4, "float64": 1e-9, "bfloat16": 3e-2, "float16": 3e-2}
"""How far a replayed loss may lie from the recorded one, relative to the recorded one (at least 1)."""
LOSS = "loss:sum"


CHANGES_WEIGHTS = ("create_model", "forward_backward", "optim_step", "load_weights")
"""Operations without whose bodies a model cannot be restored."""


async def recover(service: Service, room: EngineRoom, model: LiveModel) -> str:
    """Restore one model in a fresh engine; what is wrong with it, or nothing.

    Where the newest snapshot is damaged the one before it is taken, or the model's creation. Raises
    `Unreadable` where the disk does not answer, which may pass.
    """
    row, epoch = model.row, room.epoch
    if row.watermark < 0:
        return ""  # its creation is still in line
    trouble, snapshots = "", [row.snapshot]
    while snapshots:
        snapshot = snapshots.pop(0)
        found = await service.store.replay(model.id, snapshot)
        if snapshot < row.snapshot and not _whole(found, snapshot, row.snapshot):
            continue
        if trouble:
            log.error("model %s: %s; the snapshot before it is tried", model.id, trouble)
            with contextlib.suppress(Failure):
                await room.call(Unload(epoch, room.next_name(), model.id))
        again = [each for each in found if each.state == "done" and (each.body or each.lost)]
        problem = await _restore(service, room, epoch, model, snapshot, again)
        if room.epoch != epoch:
            return ""
        if not problem:
            await _restored(service, model, snapshot, again)
            return ""
        if not trouble and row.snapshot >= 0:
            snapshots = await asyncio.to_thread(_older, service, model)
        trouble = trouble or problem
    return trouble


def _older(service: Service, model: LiveModel) -> list[int]:
    """The snapshots before a model's newest, the latest first; -1: its creation."""
    newest = model.row.snapshot
    return [*sorted((each for each in snapshots_in(service, model) if each < newest), reverse=True), -1]


def _whole(found: Sequence[OperationRow], after: int, upto: int) -> bool:
    """Whether everything from an older snapshot up to a newer one can be done again."""
    between = [each for each in found if each.seq <= upto and each.state == "done"]
    begun = after >= 0 or any(each.seq == 0 for each in between)
    return begun and all(each.body for each in between if each.kind in CHANGES_WEIGHTS)


async def _restore(
    service: Service,
    room: EngineRoom,
    epoch: int,
    model: LiveModel,
    snapshot: int,
    again: Sequence[OperationRow],
) -> str:
    """Load a snapshot and do again what came after it; what went wrong, or nothing."""
    try:
        if snapshot >= 0:
            folder = service.folders.snapshot(model.id, snapshot)
            await room.call(LoadState(epoch, room.next_name(), model.id, str(folder), True))
        reach("restart: after a snapshot is loaded")
        for operation in again:
            if not operation.body and operation.kind in CHANGES_WEIGHTS:
                return f"it could not be restored: {operation.lost}"
            if operation.body:
                await _again(service, room, epoch, model, operation)
    except Failure as problem:
        if problem.category == "disk" and room.epoch == epoch:
            raise Unreadable(problem.text) from None
        return f"it could not be restored: {problem.text}"
    except Problem as problem:
        return f"it could not be restored: {problem.text}"
    except Mismatch as problem:
        return str(problem)
    except StoreFailed:
        raise
    except Exception as problem:
        log.exception("model %s could not be restored", model.id)
        return f"it could not be restored: what is kept of it cannot be read ({type(problem).__name__})"
    reach("restart: after a replay")
    return ""


async def _restored(
    service: Service, model: LiveModel, snapshot: int, again: Sequence[OperationRow]
) -> None:
    row = model.row
    model.steps_since = sum(each.kind == "optim_step" for each in again)
    model.bytes_since = sum(len(each.body) for each in again)
    log.info("model %s restored: snapshot %d, %d operations replayed", model.id, snapshot, len(again))
    if snapshot < row.snapshot:  # the damaged one is of no use to anybody
        damaged, row.snapshot = row.snapshot, snapshot
        await service.keep(Put(row))
        await service.remove_folder(service.folders.snapshot(model.id, damaged))


async def advice(service: Service, model: LiveModel) -> str:
    """What the owner of a corrupted model can do."""
    now = service.clock.time()
    try:
        rows, _ = await service.store.checkpoints(model.row.owner, Page(1000, 0), now=now, run_id=model.id)
    except StoreFailed:  # others wait to be restored
        return "to go on, load one of its checkpoints into a new model"
    saved = max((row for row in rows if row.kind == "training"), key=lambda row: row.created, default=None)
    if saved is None:
        return "it has no checkpoint to go on from: train it anew"
    number = saved.folder.rpartition("-")[2]
    return f"to go on, load {saved.path} (saved at operation {number}) into a new model"


class Unreadable(Exception):
    """The disk cannot be read or written for now."""


class Mismatch(Exception):
    """A replayed pass gave another loss than before."""


async def _again(
    service: Service, room: EngineRoom, epoch: int, model: LiveModel, row: OperationRow
) -> None:
    work = await service.work_again(model, row)
    if work is None:
        return
    name = room.next_name()
    if not isinstance(work, PassWork):
        await room.call(work.message(epoch, name, model.row))
        return
    answer = await room.call(Train(epoch, name, (work.part,)))
    assert isinstance(answer, TrainDone)
    part = answer.parts[0]
    if isinstance(part, PartFailure):
        raise Failure(part.text, part.category)
    if row.lost:
        log.warning("model %s: %s; the loss of its replay is taken as it is", model.id, row.lost)
        return
    recorded = decode_output(row.result).metrics.get(LOSS, math.nan)
    found = part.metrics.get(LOSS, math.nan)
    dtype = str(room.facts.get("dtype", "float32"))
    allowed = 0.0 if service.options.deterministic else TOLERANCE.get(dtype, 1e-4)
    if not abs(found - recorded) <= allowed * max(1.0, abs(recorded)):
        raise Mismatch(
            f"replaying operation {row.seq} gave a loss of {found:.6g}, recorded was {recorded:.6g}: "
            "its weights cannot be trusted"
        )
