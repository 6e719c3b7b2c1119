"""The moments at which a server or its engine can be killed, for tests of what survives it.

A server started with `KillOrder.environment` dies, once, when it comes to the moment that was ordered::

    order = KillOrder(folder / "order")
    ... start a server with order.environment ...
    order.give("operation: after its row")
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["ENGINE_POINTS", "RESTART_POINTS", "SERVER_POINTS", "KillOrder"]

SERVER_POINTS = (
    "model: before its row",
    "model: after its row",
    "operation: before its row",
    "operation: after its row",
    "operation: before its end is written",
    "operation: after its end is written",
    "store: after a body's file",
    "store: before a commit",
    "store: after a commit",
    "snapshot: before its row",
    "snapshot: after its row",
    "sample: before it is noted",
    "sample: after it is noted",
    "sample: before its end",
)
"""Moments of a server at work; its engine dies with it."""

RESTART_POINTS = (
    "restart: after the store is read",
    "restart: after a snapshot is loaded",
    "restart: after a replay",
)
"""Moments of a server that comes back, or brings its engine back."""

ENGINE_POINTS = (
    "engine: before a model is made",
    "engine: in a pass",
    "engine: before a step",
    "engine: after a step",
    "engine: after weights are frozen",
    "engine: in a sample",
    "folder: before it is written",
    "folder: before it is synced",
    "folder: before it is renamed",
    "folder: after it is renamed",
)
"""Moments of an engine; its server goes on. Folders are snapshots, checkpoints and unnamed samplers."""


class KillOrder:
    """The next moment at which to die, in a file that the processes concerned look at."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def environment(self) -> dict[str, str]:
        """What a server's environment must have."""
        return {"TINKEX_KILL_AT": str(self.path)}

    def give(self, point: str) -> None:
        """Order a death at this moment."""
        if point not in (*SERVER_POINTS, *RESTART_POINTS, *ENGINE_POINTS):
            raise ValueError(f"no such moment: {point!r}")
        aside = self.path.with_suffix(".new")
        aside.write_text(point)
        os.replace(aside, self.path)

    @property
    def obeyed(self) -> bool:
        """Whether a process has come to the moment, and is dead or about to be."""
        return not self.path.exists()

    def take_back(self) -> bool:
        """Order nothing any more; whether nobody had obeyed yet."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
            return True
        return False
