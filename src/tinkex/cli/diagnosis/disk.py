"""Room on disk, where servers keep their state and clients what they have fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ...server.places import default_state
from ..readable import size
from . import Check

__all__ = ["checks"]

LITTLE, TOO_LITTLE = 5 << 30, 256 << 20


def checks() -> Iterator[Check]:
    """Look at the state folder's disk."""
    state = default_state().expanduser()
    place = _nearest(state)
    if not os.access(place, os.W_OK):
        yield Check("disk", "fail", f"{place} cannot be written to", "choose another with TINKEX_STATE")
        return
    free = shutil.disk_usage(place).free
    text = f"{size(free)} free for {state}"
    if free < TOO_LITTLE:
        yield Check("disk", "fail", text, "make room: checkpoints and results are kept there")
    elif free < LITTLE:
        yield Check(
            "disk", "warn", text, "`tinkex billing checkpoint-storage` shows what checkpoints take up"
        )
    else:
        yield Check("disk", "ok", text)


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    while not path.is_dir():
        path = path.parent
    return path
