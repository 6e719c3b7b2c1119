"""A process that writes operations until it is killed, and prints each number that was written."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import Finish, Put

from .rows import model, operation


def body(seq: int) -> bytes:
    """Every third one is large enough for a file."""
    return b"%d " % seq * (70_000 if seq % 3 == 0 else 5)


async def main(folder: Path, first: int) -> None:
    store = await SqliteStore.open(folder)
    await store.write(Put(model(watermark=first - 1)))

    async def line(start: int) -> None:
        for seq in range(start, start + 100_000 * 4, 4):
            await store.write(Put(operation(seq, body=body(seq))))
            print("put", seq, flush=True)
            await store.write(Finish(f"s:train:0:{seq}", "done", 1.0, "s:train:0", seq, body(seq)))
            print("done", seq, flush=True)

    await asyncio.gather(*(line(first + n) for n in range(4)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
