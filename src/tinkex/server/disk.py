"""Room on the disk: new files are refused before there is none left for what is under way."""

from __future__ import annotations

import shutil
from pathlib import Path

from .problems import Problem

__all__ = ["LEAST_FREE", "check_room"]

LEAST_FREE = 256 << 20
"""Bytes that are never given away; on larger disks a hundredth, up to `MOST_KEPT`."""
MOST_KEPT = 4 << 30


def check_room(folder: Path) -> None:
    """Refuse to write more where the disk is all but full."""
    usage = shutil.disk_usage(folder)
    least = max(LEAST_FREE, min(usage.total // 100, MOST_KEPT))
    if usage.free < least:
        raise Problem(
            503,
            f"the server's disk is all but full: {usage.free} bytes are free, {least} are kept; "
            "delete checkpoints, or make room and try again",
            headers={"retry-after": "30"},
        )
