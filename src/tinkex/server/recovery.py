"""Bringing a model back after its engine or the server died: the last snapshot, then what came after it.

Every operation since the snapshot is done again in its order, and the losses it gives are compared with
those recorded. A model whose losses differ is not trusted: it is marked corrupted with the reason.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from ..engine.kill_points import reach
from ..engine.messages import LoadState, PartFailure, Train, TrainDone
from ..wire.passes import decode_output
from .engine_room import EngineRoom
from .operations import PassWork
from .problems import Failure, Problem
from .records import OperationRow
from .world import LiveModel

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger(__name__)

TOLERANCE = {"float32": 1e-4, "float64": 1e-9, "bfloat16": 3e-2, "float16": 3e-2}
"""How far a replayed loss may lie from the recorded one, relative to the recorded one (at least 1)."""
LOSS = "loss:sum"


async def recover(service: Service, room: EngineRoom, model: LiveModel) -> str:
    """Restore one model in a fresh engine; what is wrong with it, or nothing."""
    row, epoch = model.row, room.epoch
    if row.watermark < 0:
        return ""  # its creation is still in line
    try:
        if row.snapshot >= 0:
            folder = service.folders.snapshot(model.id, row.snapshot)
            await room.call(LoadState(epoch, room.next_name(), model.id, str(folder), True))
        reach("restart: after a snapshot is loaded")
        operations = await service.store.replay(model.id, row.snapshot)
        again = [each for each in operations if each.state == "done" and each.body]
        for operation in again:
            await _again(service, room, epoch, model, operation)
    except Failure as problem:
        if room.epoch != epoch:
            return ""
        return f"it could not be restored: {problem.text}"
    except Problem as problem:
        return f"it could not be restored: {problem.text}"
    except Mismatch as problem:
        return str(problem)
    reach("restart: after a replay")
    steps = [each for each in again if each.kind == "optim_step"]
    model.steps_since = len(steps)
    model.bytes_since = sum(len(each.body) for each in again)
    log.info("model %s restored: snapshot %d, %d operations replayed", model.id, row.snapshot, len(again))
    return ""


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
    recorded = decode_output(row.result).metrics.get(LOSS, math.nan)
    found = part.metrics.get(LOSS, math.nan)
    dtype = str(room.facts.get("dtype", "float32"))
    allowed = 0.0 if service.options.deterministic else TOLERANCE.get(dtype, 1e-4)
    if not abs(found - recorded) <= allowed * max(1.0, abs(recorded)):
        raise Mismatch(
            f"replaying operation {row.seq} gave a loss of {found:.6g}, recorded was {recorded:.6g}: "
            "its weights cannot be trusted; load its last checkpoint into a new model"
        )
