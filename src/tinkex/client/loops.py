"""Whether somebody's event loop is in the way of waiting."""

from __future__ import annotations

import asyncio

__all__ = ["blocks_a_loop"]


def blocks_a_loop() -> bool:
    """Whether waiting here would keep a running event loop from its work.

    The cells of a notebook run inside their kernel's loop, which does nothing else until they end: there
    waiting is what everybody does.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    frame = getattr(task.get_coro(), "cr_frame", None) if task is not None else None
    return frame is None or not str(frame.f_globals.get("__name__")).startswith("ipykernel.")
