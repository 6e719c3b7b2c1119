"""When models are snapshotted, and what becomes of the snapshots before.

The engine writes them while it goes on. A snapshot that could not be written is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from ..engine.messages import Answer, Failed, SaveState
from .engine_room import EngineRoom
from .operations import Operation
from .store import Change, ForgetBodies, Put
from .world import LiveModel

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger(__name__)
AGAIN = 30.0
"""Seconds after which a snapshot that could not be written is tried again."""


class Snapshots:
    """The snapshots of one engine's models; `write_soon` has `taken` written down."""

    def __init__(
        self,
        service: Service,
        room: EngineRoom,
        models: Mapping[str, LiveModel],
        write_soon: Callable[[], None],
    ) -> None:
        self._service, self._room, self._models, self._write_soon = service, room, models, write_soon
        self.under_way = 0
        """How many the engine is writing."""
        self._taken: list[tuple[LiveModel, int]] = []
        """(model, operation) of those to be written down."""

    def after(self, passes: Sequence[Operation], others: Sequence[Operation]) -> None:
        """Snapshot models whose passes have become large without a step to end them."""
        # Twice as large: a snapshot after a step, which has no gradient to hold, is waited for a while.
        most = 2 * self._service.options.snapshot_bytes
        large = {each.model.id: each for each in passes if each.model.bytes_since >= most}
        for operation in large.values():
            if not any(each.model is operation.model and each.kind == "optim_step" for each in others):
                self.take(operation.model, operation.seq)

    def told(self, operation: Operation) -> None:
        """See whether a model is to be snapshotted after an operation that is no pass."""
        model, step = operation.model, operation.kind == "optim_step"
        model.steps_since += step
        if operation.work.needs_snapshot or (step and self._due(model)):
            self.take(model, operation.seq)

    def _due(self, model: LiveModel) -> bool:
        options = self._service.options
        if model.bytes_since >= options.snapshot_bytes:
            return True
        # Steps so short are done again faster than they are saved.
        since = self._service.clock.monotonic() - model.snapshot_at
        return model.steps_since >= options.snapshot_steps and since >= options.snapshot_seconds

    def take_all(self) -> None:
        """Have every model that rests written as it is, so that the next server has nothing to replay."""
        for model in self._models.values():
            row = model.row
            if model.open and not model.under_way and row.watermark > row.snapshot:
                self.take(model, row.watermark)

    def take(self, model: LiveModel, seq: int) -> None:
        """Have the engine write the model as it is after this operation; then older bodies can go."""
        room = self._room
        folder = self._service.folders.snapshot(model.id, seq)
        model.steps_since = model.bytes_since = 0
        model.snapshot_at = self._service.clock.monotonic()

        def saved(answer: Answer) -> None:
            self.under_way -= 1
            if isinstance(answer, Failed):
                if answer.epoch >= 0:
                    log.error("model %s could not be snapshotted: %s", model.id, answer.text)
                    self._later(model)
                return
            self._taken.append((model, seq))
            self._write_soon()

        name = room.next_name()
        message = SaveState(room.epoch, name, model.id, str(folder), True, True, background=True)
        self.under_way += room.tell(message, saved)

    def _later(self, model: LiveModel) -> None:
        """Try again: without a snapshot, what is replayed grows and grows."""
        if not model.snapshot_due:
            model.snapshot_due = True
            self._service.clock.call_later(AGAIN, lambda: self._again(model))

    def _again(self, model: LiveModel) -> None:
        model.snapshot_due = False
        if self._models.get(model.id) is not model:
            return
        row = model.row
        # Only of a model at rest is it known after which operation it is: one that trains on has its turn.
        if not model.open or model.under_way or self._service.settling or not self._room.up:
            self._later(model)
        elif row.watermark > row.snapshot:
            self.take(model, row.watermark)

    # ---- what is written down

    @property
    def waiting(self) -> bool:
        """Whether there are any to be written down."""
        return bool(self._taken)

    def taken(self, but: Set[str]) -> list[tuple[LiveModel, int]]:
        """(model, operation of the snapshot before) of those to be written down now, but for these models'.

        From now on they are their models' own, not before: whatever else writes a model down must not make
        a snapshot known whose last operation is not.
        """
        waiting, self._taken, found = self._taken, [], []
        for model, seq in waiting:
            if model.id in but:
                self._taken.append((model, seq))
            else:
                found.append((model, model.row.snapshot))
                model.row.snapshot = seq
        return found

    @staticmethod
    def changes(taken: Sequence[tuple[LiveModel, int]]) -> list[Change]:
        """What is stored when snapshots are known: the one before each is kept, with all that came after
        it, should the new one be damaged.
        """
        found: list[Change] = []
        for model, old in taken:
            found += [Put(model.row), ForgetBodies(model.id, old)]
        return found

    async def remove_older(self, taken: Sequence[tuple[LiveModel, int]]) -> None:
        """Remove what is older than the snapshots before these."""
        for model, old in taken:
            for seq in await asyncio.to_thread(snapshots_in, self._service, model):
                if seq < old:
                    await self._service.remove_folder(self._service.folders.snapshot(model.id, seq))


def snapshots_in(service: Service, model: LiveModel) -> list[int]:
    """The operations after which snapshots of a model lie on the disk."""
    place = service.folders.snapshot(model.id, 0).parent
    try:
        return [int(name) for name in os.listdir(place) if name.isdecimal()]
    except FileNotFoundError:
        return []
