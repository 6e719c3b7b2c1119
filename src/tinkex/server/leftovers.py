"""Files no row knows of, left by a crash between the files and the row: moved aside before engines start.

Moving is done in a moment and cannot meet an engine that writes to the same name; removing takes as long as
it takes, in the background. What an engine alone had half-written when it died goes once the next is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .records import SamplerRow
from .store import Page

if TYPE_CHECKING:
    from .service import Service

__all__ = ["Sweeper", "clear_leftovers", "snapshot_before"]

log = logging.getLogger(__name__)
SAMPLERS = "sampler"
"""Where in its folder an engine keeps unnamed samplers, by version."""
_PART = re.compile(r"\..*\.([0-9]+)\.(?:part|old)")
"""What the process with this number is writing, or has replaced."""
_PAGE = 1000
_TRASH = "tmp"
"""Emptied at every start of a server, should this one not come to it."""


async def clear_leftovers(service: Service) -> None:
    """Take away what nothing refers to: checkpoints, snapshots, exports, unnamed samplers.

    Called before engines start.
    """
    state = service.options.state
    known = await _known_folders(service)
    trash = state / _TRASH / f"leftovers-{secrets.token_hex(4)}"
    moved = await asyncio.to_thread(_move_aside, state, known, trash)
    if moved:
        log.info("%d folders that nothing refers to were removed", moved)
        service.spawn(service.remove_folder(trash))


async def _known_folders(service: Service) -> set[Path]:
    """Every folder that a checkpoint, an open sampling session or a live model needs."""
    state, store = service.options.state, service.store
    known: set[Path] = set()
    for owner in dict.fromkeys(owner for owner, *_ in await store.storage()):
        offset = 0
        while True:
            rows, _ = await store.checkpoints(owner, Page(_PAGE, offset), now=float("-inf"))
            known |= {state / row.folder for row in rows}
            if len(rows) < _PAGE:
                break
            offset += _PAGE
    sessions = [row.id for row in await store.live_sessions()]
    samplers: list[SamplerRow] = await store.samplers_of(sessions)
    known |= {state / row.folder for row in samplers if row.folder}
    # Their engine's folder cannot be told of a base model that is not served this time.
    rooms = [room for room in _folders(state / "engine", 2) if room.name == SAMPLERS]
    known |= {room / row.version for row in samplers if row.model_id is not None for room in rooms}
    for model in await store.models_of(sessions):
        # A model whose base model is not served this time waits for the next.
        if model.state == "live" and model.snapshot >= 0:
            newest = service.folders.snapshot(model.id, model.snapshot)
            known |= {newest, *snapshot_before(newest)}
    return known


def snapshot_before(newest: Path) -> list[Path]:
    """The snapshot before a model's newest, if there is one: it is kept should that be damaged."""
    names = os.listdir(newest.parent) if newest.parent.is_dir() else []
    older = [int(name) for name in names if name.isdecimal() and int(name) < int(newest.name)]
    return [newest.with_name(str(max(older)))] if older else []


def _move_aside(state: Path, known: set[Path], trash: Path) -> int:
    moved = 0
    places = [*_folders(state / "checkpoints", 3), *_folders(state / "snapshots", 2)]
    places += [folder for folder in _folders(state / "engine", 3) if folder.parent.name == SAMPLERS]
    for folder in places:
        if folder not in known:
            trash.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.rename(trash / str(moved))
            moved += 1
    for room, depth in (("checkpoints", 2), ("checkpoints", 1), ("snapshots", 1)):
        for folder in list(_folders(state / room, depth)):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
    return moved


class Sweeper:
    """Removes what engines that died were writing, as soon as another is up."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def engine_up(self) -> None:
        """Look for what processes that are no more left behind."""
        self._service.spawn(self._sweep())

    def engine_lost(self, reason: str) -> None:
        """The next engine is waited for."""

    async def _sweep(self) -> None:
        found = await asyncio.to_thread(_parts, self._service.options.state)
        # Asked after looking: an engine that came up meanwhile may have begun to write.
        alive = {os.getpid(), *(room.pid for room in self._service.rooms.values())}
        dead = [folder for folder, pid in found if pid not in alive]
        for folder in dead:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if dead:
            log.info("%d folders that an engine was writing when it died were removed", len(dead))


def _parts(state: Path) -> list[tuple[Path, int]]:
    """Half-written folders, and the number of the process that wrote or writes each."""
    found = []
    for room, depth in (("checkpoints", 3), ("snapshots", 2), ("engine", 3), ("exports", 1)):
        for folder in _folders(state / room, depth):
            part = _PART.fullmatch(folder.name)
            if part:
                found.append((folder, int(part[1])))
    return found


def _folders(place: Path, depth: int) -> Iterator[Path]:
    """The folders so many levels below; what else lies there is no business of ours."""
    if not place.is_dir():
        return
    for entry in list(os.scandir(place)):
        if entry.is_dir(follow_symlinks=False):
            path = Path(entry.path)
            if depth == 1:
                yield path
            else:
                yield from _folders(path, depth - 1)
