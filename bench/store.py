"""What the store costs: writes a second, and CPU for an operation that arrives and ends.

    python bench/store.py [--durability power] [--pairs 4000] [--folder .]

A pair is a Put of an operation and its Finish, each a write of its own that is waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

import uvloop

from tinkex.server.body_files import LARGEST_INSIDE
from tinkex.server.options import Durability
from tinkex.server.records import ModelRow, OperationRow
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import Finish, ForgetBodies, ForgetResults, Put

SNAPSHOT_EVERY = 256


async def one(store: SqliteStore, number: int, pairs: int, body: bytes, waits: list[float]) -> None:
    model = f"{number:032x}:train:0"
    row = ModelRow(model, f"{number:032x}", "owner", "base", 1.0, 1.0, 8, 0)
    await store.write(Put(row))
    for seq in range(1, pairs + 1):
        id = f"{model}:{seq}"
        started = time.perf_counter()
        await store.write(Put(OperationRow(id, model, seq, "forward_backward", "owner", 2.0, body)))
        middle = time.perf_counter()
        await store.write(Finish(id, "done", float(seq), model, seq, body[:300]))
        waits += (middle - started, time.perf_counter() - middle)
        if seq % SNAPSHOT_EVERY == 0:
            row.snapshot = seq
            await store.write(
                Put(row), ForgetBodies(model, seq), ForgetResults(float(seq - SNAPSHOT_EVERY))
            )


async def measure(
    folder: Path, durability: Durability, size: int, tasks: int, pairs: int, inside: int
) -> None:
    store = await SqliteStore.open(folder, durability, largest_inside=inside)
    body = os.urandom(size)
    waits: list[float] = []
    await one(store, tasks, 50, body, [])
    before = store.transactions
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(one(store, number, pairs // tasks, body, waits) for number in range(tasks)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    done = len(waits) // 2
    waits.sort()
    print(
        f"{durability:8}{size:>8} B  {tasks:>3} at once  {2 * done / wall:>8,.0f} writes/s  "
        f"{cpu / done * 1e6:>6.0f} µs CPU a pair  "
        f"p50 {waits[done] * 1e3:6.2f} ms  p99 {waits[int(1.98 * done)] * 1e3:6.2f} ms  "
        f"{2 * done / (store.transactions - before):5.1f} writes a transaction"
    )
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--durability", choices=("process", "power"), default="process")
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--sizes", type=int, nargs="*", default=[300, 50_000])
    parser.add_argument("--inside", type=int, default=LARGEST_INSIDE)
    wanted = parser.parse_args()
    for size in wanted.sizes:
        for tasks in (1, 64):
            with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
                durability: Durability = wanted.durability
                pairs = wanted.pairs if size < 10_000 else wanted.pairs // 4
                uvloop.run(measure(Path(folder) / "store", durability, size, tasks, pairs, wanted.inside))


if __name__ == "__main__":
    main()
