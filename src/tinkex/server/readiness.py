"""`/readyz`: whether work sent now would be done now (`/api/v1/healthz`: only that a server is there)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .asks import Reply, json_reply

if TYPE_CHECKING:
    from .service import Service

__all__ = ["READY_PAGE", "ready_page"]

READY_PAGE = "readyz"
LONGEST_REASON = 300
_PLACE = re.compile(r"(?:[A-Za-z]:)?[/\\][^\s:;,'\"]*[/\\](?=[^\s:;,'\"/\\])")
"""A folder of this machine; the name of what lies in it is left."""


async def ready_page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
    """200 when every engine is up, else 503; it needs no key and names nothing.

    `failing`: an engine could not start, and is tried again. `paused`: the disk cannot be written. Both
    with the reason.
    """
    rooms = service.rooms.values()
    down = [room.reason for room in rooms if room.state == "down"]
    paused = "paused" if service.trouble.text else "ready"
    waiting = "failing" if down else "starting"
    status = "stopping" if service.draining else paused if service.ready else waiting
    facts = {"status": status, "engines": len(rooms), "engines_up": sum(room.up for room in rooms)}
    reason = "; ".join(dict.fromkeys(down)) if status == "failing" else service.trouble.text
    if reason:
        facts["reason"] = _PLACE.sub("…", reason)[:LONGEST_REASON]
    return json_reply(facts, 200 if status == "ready" else 503)
