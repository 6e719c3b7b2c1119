"""Making a state folder smaller: what nobody can ask for any more goes, and the database is written anew.

Checkpoints, usage and the audit log stay, and every run and session that has a checkpoint.
"""

# ruff: noqa: S608 - the only things put together are statements of our own

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from .options import Times
from .sql import statements as sql
from .state_check import NoState, existing, look, remove
from .state_folder import StateFolder, StateInUse, size_on_disk
from .state_rows import DATABASE

__all__ = ["Compacted", "compact"]

_ENDED = """
    SELECT id FROM sessions WHERE status != 'active' AND coalesce(ended, last_seen) < ?
"""
_GONE = f"""
    CREATE TEMP TABLE gone AS SELECT id FROM ({_ENDED}) AS old
    WHERE id NOT IN (SELECT session_id FROM checkpoints) AND NOT EXISTS (
        SELECT 1 FROM models JOIN checkpoints ON run_id = models.id WHERE models.session_id = old.id
    )
"""
_DROP = {
    "operations": (
        "DELETE FROM operations WHERE model_id IN "
        "(SELECT id FROM models WHERE session_id IN (SELECT id FROM gone))"
    ),
    "samplers": f"DELETE FROM samplers WHERE session_id IN ({_ENDED})",
    "losses": f"DELETE FROM losses WHERE session_id IN ({_ENDED})",
    "models": "DELETE FROM models WHERE session_id IN (SELECT id FROM gone)",
    "sessions": "DELETE FROM sessions WHERE id IN (SELECT id FROM gone)",
}


@dataclass(slots=True)
class Compacted:
    """What became of a folder."""

    before: int
    """Bytes on disk."""
    after: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    """Rows dropped, by table."""
    leftovers: int = 0
    """Files and folders removed that nothing referred to."""


def compact(folder: Path, now: float, *, older_than: float) -> Compacted:
    """Drop what ended sessions left behind so many seconds ago, and results past their time."""
    folder = existing(folder)
    try:
        with StateFolder(folder):
            return _compact(folder, now, older_than)
    except StateInUse as problem:
        raise NoState(f"a running server keeps its own house; to compact, stop it: {problem}") from None


def _compact(folder: Path, now: float, older_than: float) -> Compacted:
    done = Compacted(size_on_disk(folder))
    report = look(folder, None, quick=True)
    if report.damaged:
        first = report.damaged[0]
        raise NoState(f"{folder} is damaged: {first.place}: {first.text}; see `tinkex state check`")
    if not report.rows.counts:
        raise NoState(f"{folder} is of an earlier version: start a server on it first")
    with closing(sqlite3.connect(folder / DATABASE, timeout=30, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("BEGIN IMMEDIATE")
        done.rows = _drop(database, now, older_than)
        database.execute("COMMIT")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for each in look(folder, None, quick=True).findings:
        if each.kind == "leftover" and remove(folder, each.place):
            done.leftovers += 1
    done.after = size_on_disk(folder)
    return done


def _drop(database: sqlite3.Connection, now: float, older_than: float) -> dict[str, int]:
    cutoff, results = now - older_than, now - Times().results
    database.execute(_GONE, (cutoff,))
    found = database.execute(sql.RESULTS_TO_FORGET, (results,)).fetchall()
    database.executemany(sql.DELETE_OUTCOME_N, [(n,) for n, *_ in found])
    database.executemany(sql.DELETE_OPERATION_N, [(n,) for n, *_ in found])
    dropped = {
        "operations": len(found),
        "answers": database.execute(sql.FORGET_ANSWERS, (results,)).rowcount,
    }
    for name, statement in _DROP.items():
        values = (cutoff,) if "?" in statement else ()
        dropped[name] = dropped.get(name, 0) + database.execute(statement, values).rowcount
    database.execute("DELETE FROM outcomes WHERE n NOT IN (SELECT n FROM operations)")
    return dropped
