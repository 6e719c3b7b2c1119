"""What every process of clients in a soak does: count, time, and say so every few seconds."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

MODEL = "tiny"
EVERY = 2.0
"""Seconds between two lines."""
HANG = 240.0
"""Seconds after which something that has not ended counts as stuck."""


class Tally:
    """What this process has seen since the last line, and counts since the start."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.did: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.milliseconds: dict[str, list[float]] = {"train": [], "sample": []}

    def failed(self, what: str, error: BaseException | str) -> None:
        """Something a client did not expect."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self.errors[f"{what}: {text[:300]}"] += 1
        if not isinstance(error, str):
            print(f"{what}:", *traceback.format_exception(error), sep="\n", file=sys.stderr, flush=True)

    async def timed(self, kind: str, work: Awaitable[Any]) -> Any:
        """Wait for something and note how long it took."""
        began = time.perf_counter()
        found = await asyncio.wait_for(work, HANG)
        self.milliseconds[kind].append((time.perf_counter() - began) * 1e3)
        return found

    def line(self) -> str:
        """All of it, as one line of JSON."""
        taken, self.milliseconds = self.milliseconds, {name: [] for name in self.milliseconds}
        return json.dumps(
            {
                "steps": self.steps,
                "did": self.did,
                "errors": self.errors,
                "milliseconds": {name: [round(each, 1) for each in found] for name, found in taken.items()},
                "memory": memory(),
            }
        )


def memory(process: int | str = "self") -> float:
    """Resident megabytes of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


async def work(start: Callable[[dict[str, Any], Tally, asyncio.Event], list[Awaitable[None]]]) -> None:
    """Read what to do from the input's first line, do it until the input ends, and report meanwhile."""
    plan = json.loads(sys.stdin.readline())
    tally, over = Tally(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    ended = asyncio.create_task(asyncio.to_thread(wait_for_end))
    tasks = [asyncio.ensure_future(each) for each in start(plan, tally, over)]
    while True:
        done, running = await asyncio.wait(tasks, timeout=EVERY)
        print(tally.line(), flush=True)
        if not running:
            break
    for task in done:
        if task.exception() is not None:
            tally.failed("a client ended", task.exception() or "")
    await ended
    print(tally.line(), flush=True)


async def pause(over: asyncio.Event, seconds: float) -> bool:
    """Wait, but not past the end; whether it has come."""
    try:
        await asyncio.wait_for(over.wait(), seconds)
    except TimeoutError:
        return False
    return True
