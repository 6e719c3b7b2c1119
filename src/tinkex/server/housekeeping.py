"""What is looked after while a server runs: sessions nobody keeps alive, and all whose time has come."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .checkpoint_files import discard
from .endings import end_session
from .operations import forget_checkpoint
from .records import CheckpointRow
from .store import ForgetResults
from .traces import TRACES

if TYPE_CHECKING:
    from .service import Service

__all__ = ["Every", "housekeepers"]

log = logging.getLogger(__name__)
Job: TypeAlias = Callable[["Service"], Coroutine[Any, Any, None]]


class Every:
    """A job done at most once in so many seconds."""

    def __init__(self, seconds: float, job: Job) -> None:
        self._seconds, self._job = seconds, job
        self._next = 0.0

    async def __call__(self, service: Service) -> None:
        """Do it, if it is time."""
        now = service.clock.monotonic()
        if now >= self._next:
            self._next = now + self._seconds
            await self._job(service)


def housekeepers() -> list[Job]:
    """Everything there is to look after; each is called again and again, and may fail by itself."""
    return [
        expire_sessions,
        expire_checkpoints,
        flush_usage,
        Every(60, forget_results),
        Every(300, forget_downloads),
    ]


async def expire_sessions(service: Service) -> None:
    """End the sessions whose client was not heard of for too long."""
    limit = service.options.times.session
    oldest = service.clock.monotonic() - limit
    for session in list(service.world.sessions.values()):
        if session.heard < oldest:
            log.warning("session %s has expired: no heartbeat for %.0f s", session.row.id, limit)
            detail = f"no heartbeat for {limit:.0f} seconds"
            await end_session(service, session, "expired", None, detail)


async def expire_checkpoints(service: Service) -> None:
    """Remove the checkpoints whose time to live is over."""
    now = service.clock.time()
    for row in await service.store.expired_checkpoints(now):
        async with service.turns.of(row.owner):
            found = await service.store.get(CheckpointRow, row.path)
            if found is None or found.folder != row.folder or found.expires != row.expires:
                continue  # saved over, or given more time, in this moment
            await service.keep(*forget_checkpoint(row, now, "checkpoint.expired"))
        await discard(service, row.folder)


async def flush_usage(service: Service) -> None:
    """Write down what was used."""
    await service.usage.flush(service)


async def forget_results(service: Service) -> None:
    """Let go of results that nobody has fetched for too long."""
    times, now = service.options.times, service.clock.time()
    # What is left of operations is in the store for longer than in memory; samples are in memory alone.
    service.tickets.drop_before(now - min(times.samples, times.results))
    await service.keep(ForgetResults(now - times.results))


async def forget_downloads(service: Service) -> None:
    """Remove exports and traces whose addresses no longer work."""
    await service.exports.forget_old()
    oldest = service.clock.time() - 2 * service.options.times.download
    await asyncio.to_thread(_remove_older, service.options.state / TRACES, oldest)


def _remove_older(folder: Path, oldest: float) -> None:
    if folder.is_dir():
        for entry in list(os.scandir(folder)):
            if entry.stat().st_mtime < oldest:
                os.unlink(entry.path)
