"""A small piece of work that is nobody's: does an engine do anything at all?"""

from __future__ import annotations

import contextlib

import numpy as np

from ..engine.messages import CreateAdapter, Datum, Train, TrainPart, Unload
from .engine_room import EngineRoom
from .problems import Failure

__all__ = ["works"]


async def works(room: EngineRoom) -> bool:
    """Whether an engine outlives a training pass of one token with a model of its own."""
    epoch, model = room.epoch, room.next_name()
    token = np.zeros(1, np.int32)
    given = Datum(token, {"target_tokens": token.astype(np.int64), "weights": np.ones(1, np.float32)})
    with contextlib.suppress(Failure):  # an answer, if it is not that the engine is gone
        await room.call(CreateAdapter(epoch, room.next_name(), model, rank=1, seed=0))
        await room.call(Train(epoch, room.next_name(), (TrainPart(model, (given,), "cross_entropy"),)))
    if room.epoch != epoch:
        return False
    room.tell(Unload(epoch, room.next_name(), model))
    return True
