"""What a server writes: for requests, which are told to come again where that cannot be, and for work that
has ended, which is tried until it can.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

from .clock import Clock
from .disk import Trouble
from .operations import Operation
from .problems import Problem
from .records import OperationRow
from .store import Change, Put, Seen, Store, StoreFailed
from .tickets import Bell
from .world import LiveModel

log = logging.getLogger(__name__)


class Writes:
    """The writing side of a server."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.stopping = False
        self.trouble = Trouble()
        """What cannot be written now."""
        self.unwritten: dict[str, Bell] = {}
        """Operations in line that are not written down yet; the bell rings when they are."""
        self._late: dict[str, Operation] = {}
        """Those of them that could not be written down at once."""
        self._writes = 0
        self._all_written = Bell()

    async def _write(self, *changes: Change) -> None:
        """Write changes, or note why that cannot be."""
        try:
            await self.store.write(*changes)
        except StoreFailed as problem:
            if problem.again:
                self.trouble.begins("store", f"the server cannot write: {problem}")
            raise
        self.trouble.ends("store")

    async def keep(self, *changes: Change) -> None:
        """Write changes, trying again for as long as the store cannot."""
        pause = 0.5
        while True:
            try:
                await self._write(*changes)
                return
            except StoreFailed as problem:
                if not problem.again or self.stopping:
                    raise
                log.error("the store cannot write: %s; trying again in %.1f s", problem, pause)
                await self.clock.sleep(pause)
                pause = min(pause * 2, 10.0)

    async def probe(self) -> None:
        """Write what changes nothing, to see whether the store can write."""
        with contextlib.suppress(StoreFailed):
            await self._write(Seen("", 0.0))

    async def put_down(self, operation: Operation, row: OperationRow) -> None:
        """Write down an operation that is in line; until that is done, `unwritten` has it."""
        self.unwritten[row.id] = Bell()
        try:
            try:
                await self._write(Put(row))
            except StoreFailed as problem:
                self._late[row.id] = operation
                await self._put_down_later(operation, row, problem)
        finally:
            self._late.pop(row.id, None)
            self.unwritten.pop(row.id).ring()

    def is_late(self, model: LiveModel) -> bool:
        """Whether an operation of a model could not be written down yet."""
        return any(each.model is model for each in self._late.values())

    async def rows_written(self, model: LiveModel) -> None:
        """Wait for the operations of a model that are late."""
        while late := [each.id for each in self._late.values() if each.model is model]:
            await self.unwritten[late[0]].wait(self.clock, 1e9)

    async def _put_down_later(self, operation: Operation, row: OperationRow, problem: StoreFailed) -> None:
        pause, ticket = 0.5, operation.ticket
        self.write_begins()
        try:
            while True:
                if not problem.again:
                    raise problem
                log.error("the store cannot write: %s; trying again in %.1f s", problem, pause)
                await self.clock.sleep(pause)
                pause = min(pause * 2, 10.0)
                # Its end was written to a row that was not there: the row is written as it has ended.
                while operation.ending and ticket.state == "pending":
                    await ticket.bell.wait(self.clock, pause)
                if ticket.state in ("done", "failed"):
                    category = ticket.category if ticket.state == "failed" else ""
                    row = replace(
                        row, state=ticket.state, result=ticket.result, form=ticket.form,
                        error=ticket.error, category=category, ended=ticket.ended,
                    )  # fmt: skip
                try:
                    await self._write(Put(row))
                    return
                except StoreFailed as again:
                    problem = again
        finally:
            self.write_ends()

    async def write(self, *changes: Change) -> None:
        """Write what a request asks for; a client whose request cannot be written is told to come again."""
        try:
            await self._write(*changes)
        except StoreFailed as problem:
            if not problem.again:
                raise Problem(400, f"the request cannot be stored: {problem}") from None
            raise Problem(
                503, f"the server cannot write: {problem}", headers={"retry-after": "5"}
            ) from None

    async def settled(self, seconds: float = 1e9) -> None:
        """Wait until everything that has ended is written, or so long."""
        if self._writes:
            await self._all_written.wait(self.clock, seconds)

    @property
    def settling(self) -> bool:
        """Whether something that has ended is not written yet."""
        return self._writes > 0

    def write_begins(self) -> None:
        """Something has ended that is not written yet."""
        self._writes += 1

    def write_ends(self) -> None:
        """It is written."""
        self._writes -= 1
        if not self._writes:
            self._all_written.ring()
