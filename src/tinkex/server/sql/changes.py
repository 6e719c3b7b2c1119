"""What each change does to the database: made ready where it is asked for, run in the writer's thread.

Making ready copies everything out of the rows, so later edits of them change nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..body_files import BodyFiles
from ..records import OperationRow, Row
from ..store import Change, Count, Delete, Finish, ForgetBodies, ForgetResults, Note, Put, Seen
from . import statements as sql
from .columns import AUDIT, PLAIN, USAGE

Step: TypeAlias = Callable[["Changing"], object]


@dataclass(slots=True)
class Changing:
    """A transaction under way, and the files nobody needs once it is through."""

    database: sqlite3.Connection
    unneeded: list[str] = field(default_factory=list)

    def drop_files(self, names: Iterable[str | None]) -> None:
        """Remove these files when the transaction is through."""
        self.unneeded.extend(name for name in names if name)


@dataclass(slots=True)
class Ready:
    """Changes that belong together, ready to run, and the files that must be written before."""

    steps: list[Step] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)


def prepare(changes: Iterable[Change], files: BodyFiles) -> Ready:
    """Make changes ready to run."""
    ready = Ready()
    for change in changes:
        _PREPARE[type(change)](change, ready, files)
    return ready


def _place(data: bytes, ready: Ready, files: BodyFiles) -> tuple[str | None, bytes]:
    """Where a body goes: a file's name and nothing, or no file and the body."""
    if len(data) <= files.largest_inside:
        return None, data
    name = files.new_name(data)
    ready.files.append((name, data))
    return name, b""


def _run(statement: str, values: Iterable[Any]) -> Step:
    held = tuple(values)
    return lambda changing: changing.database.execute(statement, held)


def _put(change: Put, ready: Ready, files: BodyFiles) -> None:
    row: Row = change.row
    if isinstance(row, OperationRow):
        _put_operation(row, ready, files)
    else:
        kind = type(row)
        ready.steps.append(_run(sql.PUT[kind], PLAIN[kind].values(row)))


def _put_operation(row: OperationRow, ready: Ready, files: BodyFiles) -> None:
    file, body = _place(row.body, ready, files)
    id, model_id = row.id, row.model_id
    values = (id, model_id, row.seq, row.kind, row.owner, row.arrived, row.content, file, body)

    def step(changing: Changing) -> None:
        try:
            changing.database.execute(sql.ADD_OPERATION, values)
        except sqlite3.IntegrityError:  # there is one already: it goes, with all it had
            _remove_operation(id, changing)
            changing.database.execute(sql.ADD_OPERATION, values)

    ready.steps.append(step)
    outcome = (row.state, row.ended, row.result, row.form, row.error, row.category)
    if outcome != _NO_OUTCOME:
        _add_outcome(row, ready, files)


_NO_OUTCOME = ("queued", None, b"", "json", "", "")


def _add_outcome(ended: OperationRow | Finish, ready: Ready, files: BodyFiles) -> None:
    file, result = _place(ended.result, ready, files)
    id = ended.id
    values = (ended.state, ended.ended, ended.form, ended.error, ended.category, file, result, id)

    def step(changing: Changing) -> None:
        database = changing.database
        try:
            done = database.execute(sql.ADD_OUTCOME, values)
        except sqlite3.IntegrityError:  # it had ended before: the newer outcome stays
            changing.drop_files(name for _, name in database.execute(sql.FILES_OF_OPERATION, (id,)))
            database.execute(sql.DELETE_OUTCOME, (id,))
            done = database.execute(sql.ADD_OUTCOME, values)
        if file and not done.rowcount:
            changing.drop_files((file,))

    ready.steps.append(step)


def _finish(change: Finish, ready: Ready, files: BodyFiles) -> None:
    _add_outcome(change, ready, files)
    values = (change.watermark, change.model_id, change.watermark, change.id)
    ready.steps.append(_run(sql.ADVANCE, values))


def _remove_operation(id: str, changing: Changing) -> None:
    database = changing.database
    for names in database.execute(sql.FILES_OF_OPERATION, (id,)):
        changing.drop_files(names)
    database.execute(sql.DELETE_OUTCOME, (id,))
    database.execute(sql.DELETE_OPERATION, (id,))


def _delete(change: Delete, ready: Ready, files: BodyFiles) -> None:
    id = change.id
    if change.kind is OperationRow:
        ready.steps.append(lambda changing: _remove_operation(id, changing))
    else:
        ready.steps.append(_run(sql.DELETE[change.kind], (id,)))


def _seen(change: Seen, ready: Ready, files: BodyFiles) -> None:
    ready.steps.append(_run(sql.SEEN, (change.time, change.session_id, change.time)))


def _count(change: Count, ready: Ready, files: BodyFiles) -> None:
    ready.steps.append(_run(sql.COUNT, USAGE.values(change.usage)))


def _note(change: Note, ready: Ready, files: BodyFiles) -> None:
    ready.steps.append(_run(sql.NOTE, AUDIT.values(change.entry)))


def _forget_bodies(change: ForgetBodies, ready: Ready, files: BodyFiles) -> None:
    which = (change.model_id, change.upto)

    def step(changing: Changing) -> None:
        changing.drop_files(name for (name,) in changing.database.execute(sql.BODY_FILES_TO_FORGET, which))
        changing.database.execute(sql.FORGET_BODIES, which)

    ready.steps.append(step)


def _forget_results(change: ForgetResults, ready: Ready, files: BodyFiles) -> None:
    before = (change.before,)

    def step(changing: Changing) -> None:
        database = changing.database
        found = database.execute(sql.RESULTS_TO_FORGET, before).fetchall()
        for n, *names in found:
            changing.drop_files(names)
            database.execute(sql.DELETE_OUTCOME_N, (n,))
            database.execute(sql.DELETE_OPERATION_N, (n,))
        database.execute(sql.FORGET_ANSWERS, before)

    ready.steps.append(step)


_PREPARE: dict[type[Any], Callable[[Any, Ready, BodyFiles], None]] = {
    Put: _put,
    Delete: _delete,
    Finish: _finish,
    Seen: _seen,
    Count: _count,
    Note: _note,
    ForgetBodies: _forget_bodies,
    ForgetResults: _forget_results,
}
