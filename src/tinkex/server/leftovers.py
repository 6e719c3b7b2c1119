"""Files no row knows of, left by a crash between the files and the row: moved aside before engines start.

Moving is done in a moment and cannot meet an engine that writes to the same name; removing takes as long as
it takes, in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .records import SamplerRow
from .store import Page

if TYPE_CHECKING:
    from .service import Service

__all__ = ["clear_leftovers"]

log = logging.getLogger(__name__)
SAMPLERS = "sampler"
"""Where in its folder an engine keeps unnamed samplers, by version."""
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
            known.add(service.folders.snapshot(model.id, model.snapshot))
    return known


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
