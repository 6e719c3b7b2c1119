"""`/readyz`: whether work sent now would be done now (`/api/v1/healthz`: only that a server is there)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .asks import Reply, json_reply

if TYPE_CHECKING:
    from .service import Service

__all__ = ["READY_PAGE", "ready_page"]

READY_PAGE = "readyz"


async def ready_page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
    """200 when every engine is up, else 503; it needs no key and names nothing.

    `failing`: an engine could not start, and is tried again.
    """
    up = sum(room.up for room in service.rooms.values())
    waiting = "failing" if any(room.state == "down" for room in service.rooms.values()) else "starting"
    status = "stopping" if service.draining else "ready" if service.ready else waiting
    facts = {"status": status, "engines": len(service.rooms), "engines_up": up}
    return json_reply(facts, 200 if status == "ready" else 503)
