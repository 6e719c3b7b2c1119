"""What has ended, on its way into the store: in order for each model, whatever the disk takes and does not.

An end that is known while one before it, or its own operation, is not would have a restart replay the model
without that. Other models are not kept waiting.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from ..engine.kill_points import reach
from .operations import Operation, Outcome
from .snapshots import Snapshots
from .world import LiveModel

if TYPE_CHECKING:
    from .service import Service

__all__ = ["Ends"]


class Ends:
    """The ends of one engine's operations and, with or after them, its models' snapshots."""

    snapshots: Snapshots

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ended: list[tuple[Operation, Outcome]] = []
        self._writing: set[str] = set()
        """Models of which something is being written: what ends meanwhile waits for that."""
        self._soon = False

    def add(self, operation: Operation, outcome: Outcome) -> None:
        """An operation has ended."""
        self._ended.append((operation, outcome))
        self.write_soon()

    def write_soon(self) -> None:
        """Write what is there when this turn of the loop is over."""
        if not self._soon:
            self._soon = True
            self._service.write_begins()
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._soon = False
        late: defaultdict[str, list[tuple[Operation, Outcome]]] = defaultdict(list)
        for operation, _ in self._ended:
            if operation.model.id not in self._writing and self._service.is_late(operation.model):
                late[operation.model.id] = []
        ended, self._ended = self._ended, []
        together = []
        for each in ended:
            model_id = each[0].model.id
            if model_id in self._writing:
                self._ended.append(each)
            elif model_id in late:
                late[model_id].append(each)
            else:
                together.append(each)
        for group in late.values():
            self._begin(group, [])
        snapshots = self.snapshots.taken(self._writing)
        if together or snapshots:
            self._begin(together, snapshots)
        self._service.write_ends()

    def _begin(
        self, ended: list[tuple[Operation, Outcome]], snapshots: list[tuple[LiveModel, int]]
    ) -> None:
        models = {each.model.id for each, _ in ended} | {model.id for model, _ in snapshots}
        self._writing |= models
        self._service.write_begins()
        self._service.spawn(self._write_down(ended, snapshots, models))

    async def _write_down(
        self,
        ended: list[tuple[Operation, Outcome]],
        snapshots: list[tuple[LiveModel, int]],
        models: set[str],
    ) -> None:
        # A snapshot is known only together with or after the end of its last operation: else a restart
        # would do that operation again on top of it.
        known = self.snapshots.changes(snapshots)
        if known:
            reach("snapshot: before its row")
        try:
            for model in {operation.model for operation, _ in ended}:
                await self._service.rows_written(model)
            await self._service.finish(ended, known)
        finally:
            self._writing -= models
            if self._ended or self.snapshots.waiting:
                self.write_soon()
            self._service.write_ends()
        if known:
            reach("snapshot: after its row")
        await self.snapshots.remove_older(snapshots)
