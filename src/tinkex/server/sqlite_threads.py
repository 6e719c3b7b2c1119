"""The two threads that talk to SQLite: one writes, all that waits in one transaction; the other reads.

They know connections, steps and futures, and nothing of rows.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeAlias

from ..engine.kill_points import reach
from .body_files import BodyFiles
from .sql.changes import Changing, Ready
from .store import StoreFailed

Connect: TypeAlias = Callable[[], sqlite3.Connection]
Question: TypeAlias = Callable[[sqlite3.Connection], Any]

MOST_AT_ONCE = 1024
"""Calls in one transaction."""


@dataclass(slots=True, eq=False)
class Call:
    """Something asked of a thread by a task that waits for it."""

    what: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    answer: Any = None
    error: StoreFailed | None = None


# What SQLite says of values it cannot take; everything else it says is about the disk or the file.
_ROWS_AT_FAULT = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
)


def in_words(error: BaseException, doing: str) -> StoreFailed:
    """What went wrong, as the store tells it."""
    if isinstance(error, StoreFailed):
        return error
    if isinstance(error, sqlite3.Error):
        again = not isinstance(error, _ROWS_AT_FAULT)
    else:
        again = isinstance(error, OSError)
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    failed = StoreFailed(f"the store could not {doing}: {said}", again=again)
    failed.__cause__ = error
    return failed


def _deliver(calls: list[Call]) -> None:
    """Wake the tasks that wait; runs on their loop."""
    for call in calls:
        if not call.future.done():
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.answer)


def _hand_over(calls: list[Call]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, theirs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, theirs)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


@dataclass(eq=False)
class SqliteThread:
    """A thread with a connection of its own that answers calls in order."""

    name: str
    connect: Connect
    _database: sqlite3.Connection | None = None
    _waiting: SimpleQueue[Call | None] = field(default_factory=SimpleQueue)
    _thread: threading.Thread | None = None
    _closed: bool = False

    def start(self) -> None:
        """Begin to answer; an interpreter that exits without closing the store is not held up."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    async def ask(self, what: Any) -> Any:
        """Have something done and wait for it."""
        if self._closed:
            raise StoreFailed("the store is closed")
        loop = asyncio.get_running_loop()
        call = Call(what, loop.create_future(), loop)
        self._waiting.put(call)
        return await call.future

    def close(self) -> None:
        """Finish what was asked before, let go of the connection; blocks until then."""
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            calls: list[Call] = []
            call = self._waiting.get()
            while call is not None:
                calls.append(call)
                if len(calls) == MOST_AT_ONCE or self._waiting.empty():
                    break
                call = self._waiting.get()
            going = call is not None
            if calls:
                self._answer(calls)
                _hand_over(calls)
        self._let_go()

    def _answer(self, calls: list[Call]) -> None:
        raise NotImplementedError

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = self.connect()
        return self._database

    def _let_go(self) -> None:
        """Close the connection; the next call opens another."""
        database, self._database = self._database, None
        if database is not None:
            try:
                database.close()
            except sqlite3.Error:  # it is given up whatever it says
                return


class Reader(SqliteThread):
    """Answers questions one by one."""

    def _answer(self, calls: list[Call]) -> None:
        for call in calls:
            question: Question = call.what
            try:
                call.answer = question(self._open())
            except Exception as error:
                call.error = in_words(error, "read")
                self._let_go()


@dataclass(eq=False)
class Writer(SqliteThread):
    """Makes changes: all that wait at a moment share a transaction, and none fails because of another."""

    files: BodyFiles = field(kw_only=True)
    transactions: int = 0
    """How many have been committed."""

    def _answer(self, calls: list[Call]) -> None:
        calls = [call for call in calls if self._write_files(call)]
        if not calls:
            return
        try:
            self._commit(calls)
        except Exception as error:
            self._recover(error)
            if len(calls) == 1:
                self._refuse(calls[0], error)
            else:
                self._one_by_one(calls)

    def _one_by_one(self, calls: list[Call]) -> None:
        for call in calls:
            try:
                self._commit([call])
            except Exception as error:
                self._recover(error)
                self._refuse(call, error)

    def _write_files(self, call: Call) -> bool:
        ready: Ready = call.what
        if ready.files:
            try:
                self.files.write(ready.files)
                reach("store: after a body's file")
            except OSError as error:
                call.error = in_words(error, "write a body")
                return False
        return True

    def _commit(self, calls: list[Call]) -> None:
        database = self._open()
        changing = Changing(database)
        database.execute("BEGIN IMMEDIATE")
        for call in calls:
            for step in call.what.steps:
                step(changing)
        reach("store: before a commit")
        database.execute("COMMIT")
        reach("store: after a commit")
        self.transactions += 1
        if changing.unneeded:
            self.files.remove(changing.unneeded)

    def _refuse(self, call: Call, error: Exception) -> None:
        call.error = in_words(error, "write")
        self.files.remove(name for name, _ in call.what.files)

    def _recover(self, error: Exception) -> None:
        """Leave the failed transaction; a connection that may be broken is given up."""
        database = self._database
        if database is None:
            return
        try:
            if database.in_transaction:
                database.execute("ROLLBACK")
        except sqlite3.Error:
            self._let_go()
        else:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _ROWS_AT_FAULT):
                self._let_go()
