"""The store in SQLite: a database in a folder, with large bodies in files beside it.

Writes go through one thread, reads through another, so a slow disk never holds up the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ..engine.durable import make_folders
from .body_files import LARGEST_INSIDE, BodyFiles
from .options import Durability
from .records import (
    AuditRow,
    CheckpointRow,
    LossRow,
    ModelRow,
    OperationRow,
    SamplerRow,
    SessionRow,
    UsageRow,
)
from .sql import statements as sql
from .sql.changes import prepare
from .sql.columns import (
    AUDIT,
    CHECKPOINTS,
    LOSSES,
    MODELS,
    PLAIN,
    SAMPLERS,
    SESSIONS,
    USAGE,
    Table,
)
from .sql.migrations import migrate
from .sqlite_threads import Reader, Writer, in_words
from .store import Change, Page, R, SessionFilter

T = TypeVar("T")

_SYNCHRONOUS: dict[Durability, str] = {"process": "NORMAL", "power": "FULL"}
# 16 MB: a checkpoint waits for the disk in either mode, so it is made rare.
_PAGES_BETWEEN_CHECKPOINTS = 4096
_READ_AGAIN = 5


class SqliteStore:
    """A `Store` in a folder; one process opens it at a time.

    With `process` durability what was written survives the end of the process by any means, and after a
    power cut the database is whole but may lack the last writes; with `power` it lacks nothing.
    """

    def __init__(self, files: BodyFiles, writer: Writer, reader: Reader) -> None:
        self._files, self._writer, self._reader = files, writer, reader

    @classmethod
    async def open(
        cls, folder: Path, durability: Durability = "process", *, largest_inside: int = LARGEST_INSIDE
    ) -> SqliteStore:
        """Open the store in a folder, made if it is not there; raises StoreFailed where that cannot be."""
        return await asyncio.to_thread(cls._opened, folder, durability, largest_inside)

    @classmethod
    def _opened(cls, folder: Path, durability: Durability, largest_inside: int) -> SqliteStore:
        path = folder / "store.db"
        connect = partial(_connect, path, durability)
        try:
            make_folders(folder, 0o700)
            folder.chmod(0o700)
            # SQLite gives its other files the mode of this one.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            path.chmod(0o600)
            files = BodyFiles(folder / "bodies", sync=durability == "power", largest_inside=largest_inside)
            database = connect()
            try:
                migrate(database)
                files.keep_only({name for (name,) in database.execute(sql.FILES_IN_USE)})
            except BaseException:
                database.close()
                raise
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # its messages may quote any bytes
            raise in_words(error, f"be opened in {folder}") from error
        writer = Writer("store-writer", connect, database, files=files)
        reader = Reader("store-reader", connect)
        writer.start()
        reader.start()
        return cls(files, writer, reader)

    @property
    def transactions(self) -> int:
        """How many transactions have been committed: fewer than writes when there is much to write."""
        return self._writer.transactions

    async def close(self) -> None:
        """Finish what is under way and let go of the files."""
        await asyncio.to_thread(self._reader.close)
        await asyncio.to_thread(self._writer.close)

    # ---- writing

    async def write(self, *changes: Change) -> None:
        """Make these changes, all or none; on return they survive what the store promises to survive."""
        if not changes:
            return
        try:
            ready = prepare(changes, self._files)
        except (TypeError, ValueError, OverflowError) as error:
            raise in_words(error, "write") from error
        await self._writer.ask(ready)

    # ---- reading: rows by name

    async def get(self, kind: type[R], id: str) -> R | None:
        """One row by its identity (a checkpoint's is its path)."""
        if kind is OperationRow:
            found: list[Any] = await self._operations(sql.GET_OPERATION, id)
        else:
            found = await self._rows(PLAIN[kind], sql.GET[kind], id)
        return found[0] if found else None

    async def answer(self, id: str) -> str | None:
        """A kept answer."""
        for (answer,) in await self._fetch(sql.ANSWER, id):
            return str(answer)
        return None

    async def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        answer: T = await self._reader.ask(question)
        return answer

    async def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._ask(lambda database: database.execute(statement, values).fetchall())

    async def _rows(self, table: Table[T], statement: str, *values: Any) -> list[T]:
        return await self._ask(
            lambda database: [table.row(found) for found in database.execute(statement, values)]
        )

    async def _gather(
        self,
        make: Callable[[tuple[Any, ...]], T],
        order: Callable[[T], Any],
        statement: str,
        ids: Sequence[str],
        *values: Any,
        newest: bool = False,
    ) -> list[T]:
        """What a statement finds for each of these, all at the same moment, in order."""

        def question(database: sqlite3.Connection) -> list[T]:
            with _one_moment(database):
                found = [
                    row for id in dict.fromkeys(ids) for row in database.execute(statement, (id, *values))
                ]
            return sorted(map(make, found), key=order, reverse=newest)

        return await self._ask(question)

    async def _page(
        self, table: Table[T], listing: str, counting: str, page: Page, *values: Any
    ) -> tuple[list[T], int]:
        def question(database: sqlite3.Connection) -> tuple[list[T], int]:
            with _one_moment(database):
                found = database.execute(listing, (*values, page.limit, page.offset)).fetchall()
                (total,) = database.execute(counting, values).fetchone()
            return [table.row(each) for each in found], total

        return await self._ask(question)

    # ---- sessions

    async def sessions(self, owner: str, page: Page) -> list[SessionRow]:
        """An owner's sessions."""
        return await self._rows(SESSIONS, sql.SESSIONS_OF_OWNER, owner, page.limit, page.offset)

    async def search_sessions(self, wanted: SessionFilter, limit: int) -> list[SessionRow]:
        """The newest sessions that fit, by time of creation and then id."""

        def question(database: sqlite3.Connection) -> list[SessionRow]:
            if wanted.session_id is not None:
                rows = database.execute(sql.GET[SessionRow], (wanted.session_id,))
            elif wanted.before is not None:
                rows = database.execute(sql.SEARCH_SESSIONS_BEFORE, (wanted.owner, *wanted.before))
            else:
                rows = database.execute(sql.SEARCH_SESSIONS, (wanted.owner,))
            found: list[SessionRow] = []
            for each in rows:
                if len(found) >= limit:
                    break
                row = SESSIONS.row(each)
                if wanted.fits(row):
                    found.append(row)
            rows.close()
            return found

        return await self._ask(question)

    async def live_sessions(self) -> list[SessionRow]:
        """Every session that has not ended, oldest first."""
        return await self._rows(SESSIONS, sql.LIVE_SESSIONS)

    # ---- models, sampling sessions, losses

    async def models(
        self, owner: str, page: Page, *, project_id: str | None = None
    ) -> tuple[list[ModelRow], int]:
        """An owner's models (of a project: made in its sessions), and how many there are in all."""
        if project_id is None:
            return await self._page(MODELS, sql.MODELS_OF_OWNER, sql.COUNT_MODELS_OF_OWNER, page, owner)
        listing, counting = sql.MODELS_OF_PROJECT, sql.COUNT_MODELS_OF_PROJECT
        return await self._page(MODELS, listing, counting, page, owner, project_id)

    async def models_of(self, session_ids: Sequence[str]) -> list[ModelRow]:
        """The models of these sessions, oldest first."""
        return await self._gather(MODELS.row, _by_age, sql.MODELS_OF, session_ids)

    async def samplers_of(self, session_ids: Sequence[str]) -> list[SamplerRow]:
        """The sampling sessions of these sessions, oldest first."""
        return await self._gather(SAMPLERS.row, _by_age, sql.SAMPLERS_OF, session_ids)

    async def losses_of(self, session_ids: Sequence[str]) -> list[LossRow]:
        """The custom losses of these sessions, oldest first."""
        return await self._gather(LOSSES.row, _by_age, sql.LOSSES_OF, session_ids)

    # ---- checkpoints

    async def checkpoints(
        self, owner: str, page: Page, *, now: float, run_id: str | None = None
    ) -> tuple[list[CheckpointRow], int]:
        """An owner's checkpoints that have not expired, and how many there are in all."""
        if run_id is None:
            listing, counting = sql.CHECKPOINTS_OF_OWNER, sql.COUNT_CHECKPOINTS_OF_OWNER
            return await self._page(CHECKPOINTS, listing, counting, page, owner, now)
        listing, counting = sql.CHECKPOINTS_OF_RUN, sql.COUNT_CHECKPOINTS_OF_RUN
        return await self._page(CHECKPOINTS, listing, counting, page, owner, now, run_id)

    async def checkpoints_of(self, session_ids: Sequence[str], *, now: float) -> list[CheckpointRow]:
        """The checkpoints made in these sessions that have not expired, newest first."""
        make, order = CHECKPOINTS.row, attrgetter("created", "path")
        return await self._gather(make, order, sql.CHECKPOINTS_OF, session_ids, now, newest=True)

    async def expired_checkpoints(self, now: float) -> list[CheckpointRow]:
        """Every checkpoint whose time has come, the longest expired first."""
        return await self._rows(CHECKPOINTS, sql.EXPIRED_CHECKPOINTS, now)

    async def storage(self, owner: str | None = None) -> list[tuple[str, str | None, int, int]]:
        """(owner, project, number of checkpoints, bytes) for one owner or all; expired ones count."""
        if owner is None:
            found = await self._fetch(sql.STORAGE)
        else:
            found = await self._fetch(sql.STORAGE_OF_OWNER, owner)
        return [(whose, project, number, size) for whose, project, number, size in found]

    # ---- operations

    async def queued(self, model_id: str) -> list[OperationRow]:
        """A model's operations that have not ended, in order, with bodies."""
        return await self._operations(sql.QUEUED, model_id)

    async def replay(self, model_id: str, after: int) -> list[OperationRow]:
        """A model's ended operations with a number above `after`, in order, with bodies and results."""
        return await self._operations(sql.REPLAY, model_id, after)

    async def history(self, model_ids: Sequence[str]) -> list[OperationRow]:
        """The operations of these models in order of arrival, without bodies and results."""

        def bare(found: tuple[Any, ...]) -> OperationRow:
            return self._operation(*found[:7], None, None, *found[7:], None, b"")

        order = attrgetter("arrived", "model_id", "seq", "id")
        return await self._gather(bare, order, sql.HISTORY, model_ids)

    async def _operations(self, statement: str, *values: Any) -> list[OperationRow]:
        def question(database: sqlite3.Connection) -> list[OperationRow]:
            for _ in range(_READ_AGAIN):
                found = [self._operation(*each) for each in database.execute(statement, values).fetchall()]
                if not any(row.lost for row in found):
                    break  # else a write may have dropped the file since: look again
            return found

        return await self._ask(question)

    def _operation(
        self,
        id: str,
        model_id: str,
        seq: int,
        kind: str,
        owner: str,
        arrived: float,
        content: str,
        *rest: Any,
    ) -> OperationRow:
        body_file, body, state, ended, form, error, category, result_file, result = rest
        row = OperationRow(id, model_id, seq, kind, owner, arrived, body or b"", content)
        if state is not None:
            row.state, row.ended, row.form, row.error, row.category = state, ended, form, error, category
            row.result = result
        try:
            if body_file:
                row.body = self._files.read(body_file)
            if result_file:
                row.result = self._files.read(result_file)
        except (FileNotFoundError, ValueError):
            what = "result" if row.body or not body_file else "body"
            row.lost = f"the {what} of operation {id} is damaged or lost on the disk"
        return row

    # ---- usage and audit

    async def usage(self, owner: str, start_hour: int, end_hour: int) -> list[UsageRow]:
        """What an owner used from one hour up to (and without) another, in order of time."""
        return await self._rows(USAGE, sql.USAGE_OF_OWNER, owner, start_hour, end_hour)

    async def audit(self, owner: str, start: float, end: float, prefixes: Sequence[str]) -> list[AuditRow]:
        """An owner's audit entries whose event begins with one of these (none: all), in order of time."""
        rows = await self._rows(AUDIT, sql.AUDIT_OF_OWNER, owner, start, end)
        wanted = tuple(prefixes) or ("",)
        return [row for row in rows if row.event.startswith(wanted)]


_by_age = attrgetter("created", "id")


@contextlib.contextmanager
def _one_moment(database: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside is of the same moment."""
    database.execute("BEGIN")
    try:
        yield
    finally:
        database.execute("ROLLBACK")


def _connect(path: Path, durability: Durability) -> sqlite3.Connection:
    database = sqlite3.connect(
        path, timeout=30, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        database.execute(f"PRAGMA wal_autocheckpoint = {_PAGES_BETWEEN_CHECKPOINTS}")
        database.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        database.close()
        raise
    return database
