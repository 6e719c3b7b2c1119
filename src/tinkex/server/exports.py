"""Checkpoints in the form other tools read: made from saved ones when somebody wants to download them.

They lie in a folder of their own, are made once, and go when nobody has asked for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.messages import ExportSaved
from .disk import check_room
from .problems import Failure, Problem
from .records import CheckpointRow

if TYPE_CHECKING:
    from .service import Service

__all__ = ["EXPORTS", "Exports"]

log = logging.getLogger(__name__)
EXPORTS = "exports"
"""The folder of exports inside the state folder."""


class Exports:
    """The exports of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._under_way: dict[str, asyncio.Future[None]] = {}

    @property
    def root(self) -> Path:
        """Where they lie."""
        return self._service.options.state / EXPORTS

    async def folder(self, row: CheckpointRow) -> str:
        """The folder with a checkpoint's PEFT files, below the state folder; made if it is not there."""
        if row.kind == "external":
            return row.folder
        place = self._place(row.folder)
        await asyncio.shield(self._wanted(row, place))
        return f"{EXPORTS}/{place.name}"

    async def forget(self, folder: str) -> None:
        """The checkpoint in this folder is no more: its export goes too."""
        with contextlib.suppress(Problem):
            under_way = self._under_way.get(folder)
            if under_way is not None:
                await asyncio.shield(under_way)
        await self._service.remove_folder(self._place(folder))

    async def forget_old(self) -> None:
        """Remove what has not been asked for since before the last addresses for it stopped working."""
        service = self._service
        oldest = service.clock.time() - 2 * service.options.times.download
        busy = {self._place(folder).name for folder in self._under_way}
        for name in await asyncio.to_thread(_untouched, self.root, oldest):
            if name not in busy:
                await service.remove_folder(self.root / name)

    def _place(self, folder: str) -> Path:
        return self.root / hashlib.sha256(folder.encode()).hexdigest()[:32]

    def _wanted(self, row: CheckpointRow, place: Path) -> asyncio.Future[None]:
        """See that it is there; whoever comes meanwhile waits for the same."""
        under_way = self._under_way.get(row.folder)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_future()
            self._under_way[row.folder] = under_way
            self._service.spawn(self._export(row, place, under_way))
        return under_way

    async def _export(self, row: CheckpointRow, place: Path, told: asyncio.Future[None]) -> None:
        try:
            now = self._service.clock.time()
            if not await asyncio.to_thread(_touch, place, now):
                await self._ask_engine(row, place)
                await asyncio.to_thread(_touch, place, now)
            told.set_result(None)
        except Problem as problem:
            told.set_exception(problem)
        except BaseException as error:
            told.set_exception(
                Problem(500, "the checkpoint could not be exported; the server's log says why")
            )
            if not isinstance(error, Failure):
                raise
            log.error("checkpoint %s could not be exported: %s", row.path, error.text)
        finally:
            del self._under_way[row.folder]
            told.exception()  # looked at: nobody may be waiting any more

    async def _ask_engine(self, row: CheckpointRow, place: Path) -> None:
        service = self._service
        check_room(service.options)
        room = service.rooms[service.facts_of(row.base_model).folder]
        source = str(service.options.state / row.folder)
        message = ExportSaved(room.epoch, room.next_name(), source, str(place), row.base_model)
        try:
            await room.call(message)
        except Failure as failure:
            if failure.category == "disk":
                raise Problem(503, failure.text, headers={"retry-after": "30"}) from None
            if room.up and room.epoch == message.epoch:
                raise
            reason = room.reason or "the engine was started again"
            raise Problem(503, f"{reason}; ask again", headers={"retry-after": "5"}) from None


def _touch(place: Path, now: float) -> bool:
    """Say that an export is wanted; whether it is there."""
    try:
        os.utime(place, (now, now))
    except FileNotFoundError:
        return False
    return True


def _untouched(root: Path, oldest: float) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(root) if entry.stat().st_mtime < oldest]
    except FileNotFoundError:
        return []
