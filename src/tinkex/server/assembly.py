"""A server put together from its parts: the one place that knows which store and which engines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from ..engine.messages import Answer
from . import handlers
from .app import App, Page
from .asks import HANDLERS
from .clock import Clock
from .doc_pages import PAGES
from .downloads import files_page
from .engine_link import EngineLink, EngineSpec, ProcessLink
from .engine_room import EngineRoom, MakeLink
from .keys import KeyRing
from .metrics_page import METRICS_PAGE, metrics_page
from .options import ServerOptions
from .readiness import READY_PAGE, ready_page
from .service import Keys, Service
from .signing import PAGE
from .sqlite_store import SqliteStore
from .state_folder import StateFolder

log = logging.getLogger(__name__)
Ready = Callable[[str, str, str], None]
HIGHEST_RANK = 1 << 20


class Announcer:
    """Says which models can be used as soon as their engine is up."""

    def __init__(self, service: Service, room: EngineRoom, ready: Ready) -> None:
        self._service, self._room, self._ready = service, room, ready

    def engine_up(self) -> None:
        """Name every model of this engine."""
        facts = self._room.facts
        for model in self._service.catalogue.by_name.values():
            if model.folder == self._room.folder:
                self._ready(model.name, str(facts.get("device")), str(facts.get("dtype")))

    def engine_lost(self, reason: str) -> None:
        """The log has it."""


def engine_spec(options: ServerOptions, folder: Path, state: Path) -> EngineSpec:
    """How the engine of a model folder is run."""
    return EngineSpec(
        folder,
        state,
        options.device,
        options.dtype,
        options.threads,
        options.deterministic,
        options.trust_remote_code,
        options.log_level,
        # Ranks are refused at the door: what was let in under another limit is restored under this one.
        training={"max_rank": max(HIGHEST_RANK, options.limits.rank)},
        sampling={"max_samples": options.limits.num_samples},
        pulse=min(5.0, options.times.stall / 4),
    )


def child_engines(
    options: ServerOptions, folders: StateFolder
) -> Callable[[Path, int, Callable[[Answer], None], Callable[[str], None]], EngineLink]:
    """Engines in processes of their own."""

    def make(
        folder: Path, epoch: int, deliver: Callable[[Answer], None], lost: Callable[[str], None]
    ) -> EngineLink:
        return ProcessLink(engine_spec(options, folder, folders.engine(folder)), epoch, deliver, lost)

    return make


def pages() -> Mapping[str, Page]:
    """What is served beside the API."""
    return {**PAGES, PAGE: files_page, READY_PAGE: ready_page, METRICS_PAGE: metrics_page}


async def assemble(
    options: ServerOptions,
    keys: Keys,
    url: str,
    ready: Ready,
    folders: StateFolder | None = None,
    *,
    clock: Clock | None = None,
    make_link: MakeLink | None = None,
) -> App:
    """An application over the state folder, with engines in child processes unless links are given."""
    folders = folders or StateFolder(options.state)
    store = await SqliteStore.open(folders.store, options.durability)
    make_link = make_link or child_engines(options, folders)
    service = Service(options, store, keys, folders, make_link, clock=clock, url=url)
    if isinstance(keys, KeyRing):
        keys.now = service.clock.time  # that of those who issue tokens
    for room in service.rooms.values():
        room.listeners.append(Announcer(service, room, ready))
    assert handlers.ROOMS
    assert HANDLERS
    return App(service, pages())
