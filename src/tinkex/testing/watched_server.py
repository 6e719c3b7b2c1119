"""A server that can be looked into and whose clock can be set: what a soak runs.

    python -m tinkex.testing.watched_server [--noop]

It is told everything else by the variables `tinkex serve` reads too (TINKEX_MODEL, TINKEX_STATE, ...), and
is the same server but for one page more. GET /inside answers counts of what is alive; /inside?shift=3600
has its date jump by so many seconds from the real one first; /inside?objects counts Python objects by type.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ..engine.messages import Answer
from ..server import config_file
from ..server.app import App
from ..server.asks import Reply, json_reply
from ..server.assembly import Ready, assemble
from ..server.clock import SystemClock
from ..server.engine_link import EngineLink
from ..server.keys import KeyRing
from ..server.options import ServerOptions
from ..server.serve import run
from ..server.service import Service
from ..server.state_folder import StateFolder
from .direct_link import DirectLink
from .noop_engine import NoopEngine

__all__ = ["INSIDE", "ShiftedTime", "counts"]

INSIDE = "inside"
"""The page's path."""
MOST_TYPES = 60


class ShiftedTime:
    """The date, off by as many seconds as somebody said."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __call__(self) -> float:
        """Seconds since 1970, and the shift."""
        return time.time() + self.shift


def counts(service: Service) -> dict[str, int]:
    """How many there are of what lives in a server."""
    world = service.world
    return {
        "tasks": len(asyncio.all_tasks()),
        "sessions": len(world.sessions),
        "models": len(world.models),
        "samplers": len(world.samplers),
        "tickets": len(service.tickets),
        "pending": service.tickets.pending,
        "samples": sum(len(desk) for desk in service.desks.values()),
        "sequences": sum(service.sampling_rows.values()),
        "operations": sum(number for number, _ in service.queued.values()),
        "noted": len(service.samples),
        "restarts": sum(room.restarts for room in service.rooms.values()),
    }


def _page(date: ShiftedTime) -> Any:
    async def page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
        asked = parse_qs(query.decode(), keep_blank_values=True)
        if "shift" in asked:
            date.shift = float(asked["shift"][0])
        found: dict[str, Any] = counts(service)
        if "objects" in asked:
            gc.collect()
            kinds = Counter(type(each).__name__ for each in gc.get_objects())
            found["objects"] = dict(kinds.most_common(MOST_TYPES))
        return json_reply(found)

    return page


def _no_engines(
    folder: Path, epoch: int, deliver: Callable[[Answer], None], lost: Callable[[str], None]
) -> EngineLink:
    return DirectLink(lambda: NoopEngine(epoch), epoch, deliver, lost)


def main(noop: bool) -> int:
    """Serve until told to stop."""
    date = ShiftedTime()

    async def make(
        options: ServerOptions, keys: KeyRing, url: str, ready: Ready, folders: StateFolder
    ) -> App:
        made = await assemble(
            options, keys, url, ready, folders,
            clock=SystemClock(date), make_link=_no_engines if noop else None,
        )  # fmt: skip
        made.pages[INSIDE] = _page(date)
        return made

    options = config_file.build(config_file.from_environment(os.environ))
    return run(options, mode="json", make=make)


if __name__ == "__main__":
    sys.exit(main("--noop" in sys.argv[1:]))
