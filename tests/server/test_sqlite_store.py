"""What only the real store has: a disk that fails, processes that die, earlier databases, threads."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tinkex.server import sqlite_threads
from tinkex.server.records import ModelRow, OperationRow, SessionRow
from tinkex.server.sql.columns import AUDIT, PLAIN, USAGE
from tinkex.server.sql.migrations import MIGRATIONS, migrate
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import Count, Delete, Finish, ForgetBodies, ForgetResults, Page, Put, StoreFailed

from .rows import model, operation, session, used
from .store_writer import body

STATES = Path(__file__).parent / "states"
M = "s:train:0"
posix = pytest.mark.skipif(os.name == "nt", reason="signals and limits of POSIX")


def run(folder: Path, test: Callable[[SqliteStore], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        store = await SqliteStore.open(folder, **more)
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(main())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "bodies").iterdir())


# ---- what is on the disk


@posix
def test_nobody_else_can_read_it(tmp_path: Path):
    folder = tmp_path / "deep" / "store"

    async def test(store: SqliteStore) -> None:
        await store.write(Put(operation(body=b"x" * 200_000)), Put(operation(2)))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
        assert {"store.db", "store.db-wal", "bodies"} <= set(modes)
        assert len(modes) >= 4
        assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}

    before = os.umask(0)
    try:
        run(folder, test)
        (folder / "store.db").chmod(0o644)
        folder.chmod(0o755)
        run(folder, test)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("durability", ["process", "power"])
def test_everything_is_there_when_it_is_opened_again(tmp_path: Path, durability: Any):
    large = os.urandom(300_000)
    row = operation(1, body=large, state="done", result=large[::-1], ended=4.0)

    async def write(store: SqliteStore) -> None:
        await store.write(Put(session()), Put(model(watermark=1)), Put(row), Count(used(1, 2)))

    async def read(store: SqliteStore) -> None:
        assert await store.get(SessionRow, "s") == session()
        assert await store.get(ModelRow, M) == model(watermark=1)
        assert await store.replay(M, 0) == [row]
        assert await store.usage("ann", 0, 2) == [used(1, 2)]

    run(tmp_path, write, durability=durability)
    assert len(files(tmp_path)) == 2
    run(tmp_path, read, durability=durability)


def test_large_bodies_are_files_and_go_with_their_rows(tmp_path: Path):
    large = b"x" * 200_000

    async def test(store: SqliteStore) -> None:
        await store.write(Put(model(snapshot=9)), *(Put(operation(n, body=large)) for n in range(1, 6)))
        await store.write(Put(operation(6, body=b"small")))
        assert len(files(tmp_path)) == 5
        await store.write(*(Finish(f"{M}:{n}", "done", 5.0, M, n, large) for n in (1, 2, 3)))
        assert len(files(tmp_path)) == 8
        await store.write(ForgetBodies(M, 2))
        assert len(files(tmp_path)) == 6
        await store.write(Delete(OperationRow, f"{M}:3"))
        assert len(files(tmp_path)) == 4
        await store.write(Put(operation(4, body=b"small now")))
        assert len(files(tmp_path)) == 3
        await store.write(Finish(f"{M}:1", "done", 5.0, M, 1, b"small"))
        assert len(files(tmp_path)) == 2
        await store.write(Finish("unknown", "done", 5.0, M, 1, large))
        assert len(files(tmp_path)) == 2
        await store.write(ForgetResults(6.0))
        assert len(files(tmp_path)) == 1
        assert [row.body for row in await store.queued(M)] == [b"small now", large, b"small"]

    run(tmp_path, test)


def test_files_no_row_names_are_removed_when_it_is_opened(tmp_path: Path):
    async def write(store: SqliteStore) -> None:
        await store.write(Put(operation(body=b"x" * 200_000)))

    async def read(store: SqliteStore) -> None:
        assert [len(row.body) for row in await store.queued(M)] == [200_000]

    run(tmp_path, write)
    kept = files(tmp_path)
    (tmp_path / "bodies" / "left-over").write_bytes(b"half")
    run(tmp_path, read)
    assert files(tmp_path) == kept


def test_a_body_that_is_lost_is_told(tmp_path: Path):
    async def test(store: SqliteStore) -> None:
        await store.write(Put(operation(body=b"x" * 200_000)), Put(operation(1, "other")))
        for name in files(tmp_path):
            (tmp_path / "bodies" / name).unlink()
        (row,) = await store.queued(M)
        assert (row.body, "is damaged or lost" in row.lost) == (b"", True)
        assert await store.queued("other") == [operation(1, "other")]

    run(tmp_path, test)


# ---- many at once


def test_writes_that_wait_share_a_transaction(tmp_path: Path):
    async def test(store: SqliteStore) -> None:
        await store.write(Put(model()))
        before = store.transactions

        async def line(number: int) -> None:
            for turn in range(20):
                seq = number * 20 + turn
                await store.write(Put(operation(seq)))
                assert (await store.get(OperationRow, f"{M}:{seq}")) == operation(seq)
                await store.write(Finish(f"{M}:{seq}", "done", 1.0, M, seq), Count(used(1, 1)))

        await asyncio.gather(*(line(number) for number in range(50)))
        assert store.transactions - before < 2000
        assert [row.seq for row in await store.replay(M, -1)] == list(range(1000))
        assert await store.queued(M) == []
        assert await store.usage("ann", 0, 9) == [used(1, 1000)]
        found = await store.get(ModelRow, M)
        assert found is not None
        assert found.watermark == 999

    run(tmp_path, test)


def test_more_writes_than_fit_into_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_threads, "MOST_AT_ONCE", 10)

    async def test(store: SqliteStore) -> None:
        before = store.transactions
        await asyncio.gather(*(store.write(Put(operation(seq))) for seq in range(205)))
        assert store.transactions - before >= 21
        assert len(await store.queued(M)) == 205

    run(tmp_path, test)


def test_what_was_asked_before_closing_is_done(tmp_path: Path):
    async def test(store: SqliteStore) -> None:
        waiting = [asyncio.ensure_future(store.write(Put(operation(seq)))) for seq in range(300)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*waiting)

    async def read(store: SqliteStore) -> None:
        assert len(await store.queued(M)) == 300

    run(tmp_path, test)
    run(tmp_path, read)


def test_one_who_stops_waiting_disturbs_nobody(tmp_path: Path):
    async def test(store: SqliteStore) -> None:
        waiting = [asyncio.ensure_future(store.write(Put(operation(seq)))) for seq in range(40)]
        await asyncio.sleep(0)
        for each in waiting[::2]:
            each.cancel()
        await asyncio.gather(*waiting[1::2])
        await store.write(Put(operation(99)))
        assert {row.seq for row in await store.queued(M)} >= {*range(1, 40, 2), 99}

    run(tmp_path, test)


def test_it_serves_loops_one_after_another(tmp_path: Path):
    async def opened() -> SqliteStore:
        return await SqliteStore.open(tmp_path)

    store = asyncio.run(opened())
    asyncio.run(store.write(Put(session())))
    assert asyncio.run(store.get(SessionRow, "s")) == session()
    asyncio.run(store.close())


# ---- what cannot be written

UNWRITABLE: list[Any] = [
    Put(model("bad", seed=2**64)),
    Put(session("bad", display_name="\ud800")),
    Put(session("bad", owner=None)),  # type: ignore[arg-type]
    Put(session("bad", user_metadata={"x": object()})),
    Put(session("bad", sdk_version=object())),
    Put(operation(1, "bad", kind=None)),
]


@pytest.mark.parametrize("bad", UNWRITABLE)
def test_a_bad_row_fails_whole_and_alone(tmp_path: Path, bad: Any):
    large = b"x" * 200_000

    async def test(store: SqliteStore) -> None:
        await store.write(Put(operation(0, body=b"before")))

        async def spoilt() -> None:
            with pytest.raises(StoreFailed, match="could not write") as caught:
                await store.write(Put(session("with-it")), Put(operation(0, body=large)), bad)
            assert not caught.value.again

        good = [store.write(Put(operation(seq, body=large))) for seq in range(1, 9)]
        await asyncio.gather(*good[:4], spoilt(), *good[4:])
        assert await store.get(SessionRow, "with-it") is None
        assert await store.get(SessionRow, "bad") is None
        assert [row.seq for row in await store.queued(M)] == list(range(9))
        assert (await store.queued(M))[0].body == b"before"
        assert len(files(tmp_path)) == 8

    run(tmp_path, test)


def test_a_full_disk_fails_writes_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = "16"

    def limited(connect: Callable[[], sqlite3.Connection]) -> Callable[[], sqlite3.Connection]:
        def connected() -> sqlite3.Connection:
            database = connect()
            database.execute(f"PRAGMA max_page_count = {size}")
            return database

        return connected

    async def test(store: SqliteStore) -> None:
        nonlocal size
        writer = store._writer
        await store.write(Put(operation(1, body=b"x" * 100_000)))
        monkeypatch.setattr(writer, "connect", limited(writer.connect))
        writer._open().execute("PRAGMA max_page_count = 16")
        for _ in range(2):
            with pytest.raises(StoreFailed, match="database or disk is full") as caught:
                await asyncio.gather(*(store.write(Put(operation(n, body=b"y" * 100_000))) for n in (2, 3)))
            assert caught.value.again
        assert await store.queued(M) == [operation(1, body=b"x" * 100_000)]
        size = "1000000"
        writer._open().execute("PRAGMA max_page_count = 1000000")
        await store.write(Put(operation(4)))
        assert [row.seq for row in await store.queued(M)] == [1, 4]

    run(tmp_path, test)


LIMITED = """
import asyncio, resource, signal, sys
from pathlib import Path
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import Put, StoreFailed
from tests.server.rows import operation

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main(folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = await SqliteStore.open(folder)
    await store.write(Put(operation(1)))
    limit(64 << 10)
    for seq, size in ((2, 120_000), (3, 500_000), (4, 120_000)):
        try:
            await store.write(Put(operation(seq, body=b"x" * size)))
        except StoreFailed as failed:
            print(failed.again, failed.text)
        else:
            print("written?!")
    print([row.seq for row in await store.queued("s:train:0")])
    limit(resource.RLIM_INFINITY)
    await asyncio.gather(*(store.write(Put(operation(seq, body=b"x" * 120_000))) for seq in (5, 6)))
    await store.write(Put(operation(7, body=b"x" * 500_000)))
    print([row.seq for row in await store.queued("s:train:0")], len(list((folder / "bodies").iterdir())))
    await store.close()

asyncio.run(main(Path(sys.argv[1])))
"""


@posix
def test_a_disk_that_fails_is_told_and_the_store_goes_on(tmp_path: Path):
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.startswith("True the store could not write") for line in lines[:3]] == [True] * 3, lines
    assert "File too large" in lines[1]
    assert lines[3:] == ["[1]", "[1, 5, 6, 7] 1"]


# ---- databases that cannot be opened


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "store.db").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreFailed, match=r"could not be opened in .*not a database"):
        run(tmp_path, _nothing)


def test_a_damaged_database_fails_what_touches_the_damage(tmp_path: Path):
    async def fill(store: SqliteStore) -> None:
        for n in range(300):
            await store.write(Put(session(f"{n:03}", detail="x" * 500)))

    async def test(store: SqliteStore) -> None:
        with pytest.raises(StoreFailed, match="could not read"):
            await store.sessions("ann", Page(1000))
        with pytest.raises(StoreFailed, match="could not write"):
            await store.write(*(Put(session(f"{n:03}")) for n in range(300)))
        await store.write(Put(model()))
        assert await store.get(ModelRow, M) == model()

    run(tmp_path, fill)
    path = tmp_path / "store.db"
    database = sqlite3.connect(path)
    (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sessions'").fetchone()
    (size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    damaged = bytearray(path.read_bytes())
    damaged[(page - 1) * size : page * size] = os.urandom(size)
    path.write_bytes(damaged)
    run(tmp_path, test)


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="could not be opened in"):
        run(tmp_path / "file" / "store", _nothing)


async def _nothing(store: SqliteStore) -> None:
    raise AssertionError("it was opened")


# ---- migrations


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path):
    async def write(store: SqliteStore) -> None:
        await store.write(Put(session()))

    async def read(store: SqliteStore) -> None:
        assert await store.get(SessionRow, "s") == session()

    run(tmp_path, write)
    database = sqlite3.connect(tmp_path / "store.db")
    with database:
        database.execute("INSERT INTO migrations VALUES ('from-the-future', 1.0)")
    with pytest.raises(StoreFailed, match=r"newer version of tinkex .*from-the-future"):
        run(tmp_path, _nothing)
    with database:
        database.execute("DELETE FROM migrations WHERE name = 'from-the-future'")
    database.close()
    run(tmp_path, read)


def test_every_state_a_database_was_ever_in_has_an_example():
    assert {path.stem for path in STATES.glob("*.sql")} == {name for name, _ in MIGRATIONS}


@pytest.mark.parametrize("name", [name for name, _ in MIGRATIONS])
def test_a_database_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path, name: str):
    database = sqlite3.connect(tmp_path / "store.db")
    database.executescript((STATES / f"{name}.sql").read_text())
    database.close()

    async def test(store: SqliteStore) -> None:
        (row,) = await store.live_sessions()
        assert (row.id, row.owner, row.tags, row.user_metadata) == ("s", "ann", ["a"], {"n": 1})
        (trained,) = await store.models_of(["s"])
        assert (trained.id, trained.watermark, trained.skipped) == (M, 1, [7])
        assert [sampler.id for sampler in await store.samplers_of(["s"])] == ["s:sample:0"]
        assert [loss.id for loss in await store.losses_of(["s"])] == ["l"]
        kept, total = await store.checkpoints("ann", Page(9), now=0.0)
        assert ([each.path for each in kept], total) == (["tinker://a/weights/b"], 1)
        assert [(each.seq, each.body, each.result) for each in await store.replay(M, -1)] == [
            (1, b"asked", b"got")
        ]
        assert [(each.seq, each.body) for each in await store.queued(M)] == [(2, b"asked")]
        assert await store.answer("k") == "kept"
        assert [each.count for each in await store.usage("ann", 0, 9)] == [12]
        assert [each.event for each in await store.audit("ann", 0.0, 9.0, [])] == ["checkpoint.created"]
        await store.write(Put(session("t")), Put(operation(3)), Finish(f"{M}:3", "done", 1.0, M, 3))

    run(tmp_path, test)


def test_migrations_run_once():
    database = sqlite3.connect(":memory:", isolation_level=None)
    assert migrate(database) == [name for name, _ in MIGRATIONS]
    assert migrate(database) == []
    database.close()


def test_a_migration_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    broken = (*MIGRATIONS, ("broken", ("CREATE TABLE extra (x)", "CREATE NONSENSE")))
    monkeypatch.setattr("tinkex.server.sql.migrations.MIGRATIONS", broken)
    database = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="NONSENSE"):
        migrate(database)
    assert database.execute("SELECT name FROM sqlite_master").fetchall() == []
    database.close()


def test_every_field_has_a_column_and_every_column_a_field():
    database = sqlite3.connect(":memory:", isolation_level=None)
    migrate(database)

    def columns(table: str) -> set[str]:
        return {row[1] for row in database.execute(f"PRAGMA table_info({table})")} - {"n"}

    for table in (*PLAIN.values(), USAGE, AUDIT):
        assert columns(table.name) == set(table.names), table.name
    halves = columns("operations") | columns("outcomes")
    assert halves | {"lost"} == {each.name for each in fields(OperationRow)} | {"body_file", "result_file"}
    database.close()


# ---- processes that die


def killed(folder: Path, first: int, after: int) -> tuple[set[int], set[int]]:
    """Kill a writing process once it has printed so many lines; the numbers it had put, and ended."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.server.store_writer", str(folder), str(first)],
        cwd=Path(__file__).parent.parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(after)]
    writer.kill()
    lines += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    words = [line.split() for line in lines if line.endswith("\n")]
    numbers = {name: {int(seq) for kind, seq in words if kind == name} for name in ("put", "done")}
    assert len(lines) >= after
    assert numbers["put"]
    return numbers["put"], numbers["done"]


def dies_again_and_again(folder: Path, rounds: int, seed: int) -> None:
    put: set[int] = set()
    done: set[int] = set()
    chance = random.Random(seed)

    async def check(store: SqliteStore) -> None:
        queued, ended = await store.queued(M), await store.replay(M, -1)
        assert {row.seq for row in ended} >= done
        assert {row.seq for row in queued + ended} >= put
        assert all(row.body == body(row.seq) for row in queued + ended)
        assert all(row.result == body(row.seq) for row in ended)
        found = await store.get(ModelRow, M)
        assert found is not None
        # The watermark and the result are one change: neither is ever there without the other.
        assert found.watermark == max([first - 1, *(row.seq for row in ended)])
        large = [row for row in queued + ended if row.seq % 3 == 0]
        assert large
        assert len(files(folder)) == len(large) + sum(row.state == "done" for row in large)
        database = sqlite3.connect(folder / "store.db")
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        database.close()

    first = 0
    for _ in range(rounds):
        more_put, more_done = killed(folder, first, chance.randint(1, 300))
        put |= more_put
        done |= more_done
        run(folder, check)
        # Numbers go on behind everything that may have been written.
        first = max(put) + 100


@posix
def test_what_was_written_survives_a_kill(tmp_path: Path):
    dies_again_and_again(tmp_path, rounds=3, seed=1)


@posix
@pytest.mark.slow
def test_what_was_written_survives_many_kills(tmp_path: Path):
    dies_again_and_again(tmp_path, rounds=25, seed=2)
