"""What is looked after while a server runs: sessions nobody keeps alive, and all whose time has come."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..wire import paths
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
TOLD = 600.0
"""Seconds a sample's result is kept after it was sent: the answer may have been lost on its way."""
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
        look_at_the_store,
        expire_sessions,
        expire_checkpoints,
        flush_usage,
        keep_less,
        forget_loose_samplers,
        Every(60, forget_results),
        Every(300, forget_downloads),
    ]


async def look_at_the_store(service: Service) -> None:
    """See whether a store that could not write can now, also when nobody has anything to write."""
    if service.trouble.at("store"):
        await service.probe()


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
        await discard(service, row.folder, row.version)


async def flush_usage(service: Service) -> None:
    """Write down what was used."""
    await service.usage.flush(service)


async def forget_results(service: Service) -> None:
    """Let go of results that nobody has fetched for too long."""
    await service.keep(ForgetResults(service.clock.time() - service.options.times.results))


async def keep_less(service: Service) -> None:
    """Let go of results in memory that are told and old, or that nobody has fetched for too long."""
    times = service.options.times
    # What is left of operations is in the store for longer than in memory; samples are in memory alone.
    gone = service.tickets.drop_old(min(times.samples, times.results), TOLD)
    samples = [ticket.id for ticket in gone if ticket.kind == "asample"]
    service.samples.remove(samples)
    for id in samples:
        name, _, number = id.rpartition(":")
        sampler = service.world.samplers.get(name)
        clone = None if sampler is None else sampler.clones.get(paths.clone_of(int(number)))
        if clone is not None:
            clone.forget(id)


async def forget_loose_samplers(service: Service) -> None:
    """Forget samplers made for requests without a session that nobody has used for as long as one lives."""
    oldest = service.clock.monotonic() - service.options.times.session
    samplers = service.world.samplers
    for id, sampler in list(samplers.items()):
        if sampler.session is None and sampler.used < oldest:
            del samplers[id]
            sampler.wake()


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
