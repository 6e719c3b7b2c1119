"""What the rows of a state folder need on the disk, read without changing anything.

It reads the database of a running server as well as that of a stopped one; nothing here looks at files.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .sql.migrations import MIGRATIONS, migrate
from .state_folder import file_name

__all__ = ["DATABASE", "Body", "Needed", "Rows", "open_read_only", "plain_name", "read_only", "read_rows"]

DATABASE = "store/store.db"
CHANGES_WEIGHTS = ("create_model", "forward_backward", "optim_step", "load_weights", "unload_model")
"""Operations that a model cannot be restored without."""
_PLAIN = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.%-]{1,220}")


@dataclass(frozen=True, slots=True)
class Needed:
    """A folder that a row needs."""

    folder: str
    """Relative to the state folder."""
    by: str
    """What needs it, for people."""
    size: int | None = None
    """Bytes of its files, where they are known."""


@dataclass(frozen=True, slots=True)
class Body:
    """A file with the body or the result of an operation."""

    name: str
    operation: str
    form: str
    """How it is written: json or protobuf for a body, json or pass for a result."""
    result: bool


@dataclass(slots=True)
class Rows:
    """What a database says is there, at one moment."""

    migrations: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    needed: list[Needed] = field(default_factory=list)
    samplers: dict[str, bool] = field(default_factory=dict)
    """Versions of unnamed samplers that are open; whether a restart can make them again."""
    bodies: list[Body] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(place, text): rows that cannot be right."""
    corrupted: list[tuple[str, str]] = field(default_factory=list)
    """(model, reason)."""
    checkpoints: set[str] = field(default_factory=set)
    """The folders of all checkpoints."""


def open_read_only(path: Path, *, in_use: bool) -> sqlite3.Connection:
    """A connection that changes nothing."""
    waiting = path.with_name(f"{path.name}-wal")
    still = not in_use and not (waiting.exists() and waiting.stat().st_size)
    # Immutable, SQLite makes no files of its own beside a database that is at rest.
    address = f"{path.absolute().as_uri()}?{'immutable=1' if still else 'mode=ro'}"
    database = sqlite3.connect(address, uri=True, timeout=30, isolation_level=None)
    database.execute("PRAGMA trusted_schema = OFF")
    return database


@contextmanager
def read_only(path: Path, *, in_use: bool) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing; all it reads is of one moment."""
    with closing(open_read_only(path, in_use=in_use)) as database:
        database.execute("BEGIN")
        yield database
        database.execute("ROLLBACK")


def _wrong_schema(database: sqlite3.Connection) -> str:
    """What this version would have made otherwise, or not at all; nothing: all is well."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        migrate(fresh)
        right = _schema(fresh)
    found = _schema(database)
    for name in [*right, *found]:
        if name not in found:
            return f"{name} is missing"
        if name not in right:
            return f"{name} is not ours"
        if right[name] != found[name]:
            return f"{name} is not as it should be"
    return ""


def _schema(database: sqlite3.Connection) -> dict[str, str]:
    statement = (
        "SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    )
    return {name: " ".join(sql.split()) for name, sql in database.execute(statement)}


def plain_name(name: str) -> bool:
    """Whether this is one part of a path, as we write them."""
    return _PLAIN.fullmatch(name) is not None


def read_rows(database: sqlite3.Connection) -> Rows:
    """All that rows need, and what is wrong among the rows themselves."""
    rows = Rows()
    try:
        _read(database, rows)
    except (TypeError, ValueError, AttributeError) as problem:
        rows.problems.append((DATABASE, f"a row holds what is never written there: {problem}"))
    return rows


def _read(database: sqlite3.Connection, rows: Rows) -> None:
    for (text,) in database.execute("PRAGMA integrity_check(20)"):
        if text != "ok":
            rows.problems.append((DATABASE, f"SQLite finds it damaged: {text}"))
    rows.migrations = [name for (name,) in database.execute("SELECT name FROM migrations ORDER BY applied")]
    unknown = sorted(set(rows.migrations) - {name for name, _ in MIGRATIONS})
    if unknown:
        text = f"it was written by a newer version of tinkex (it has {', '.join(unknown)})"
        rows.problems.append((DATABASE, text))
        return
    missing = [name for name, _ in MIGRATIONS if name not in rows.migrations]
    if missing:
        return
    wrong = _wrong_schema(database)
    if wrong:
        rows.problems.append((DATABASE, f"its tables are not ours: {wrong}"))
    for name in ("sessions", "models", "samplers", "checkpoints", "operations"):
        rows.counts[name] = _one(database, f"SELECT count(*) FROM {name}")  # noqa: S608 - names of our own
    _checkpoints(database, rows)
    _models(database, rows)
    _samplers(database, rows)
    _operations(database, rows)


def _one(database: sqlite3.Connection, statement: str) -> Any:
    return database.execute(statement).fetchone()[0]


def _inside(folder: str, room: str, depth: int) -> bool:
    """Whether a stored folder is where we put such folders: a row must not lead out of the state folder."""
    parts = folder.split("/")
    return parts[0] == room and len(parts) == depth and all(plain_name(part) for part in parts)


def _checkpoints(database: sqlite3.Connection, rows: Rows) -> None:
    for path, folder, size in database.execute("SELECT path, folder, size FROM checkpoints"):
        rows.checkpoints.add(folder)
        if _inside(folder, "checkpoints", 4):
            rows.needed.append(Needed(folder, f"checkpoint {path}", size or None))
        else:
            rows.problems.append((path, f"its folder {folder!r} is not one of ours"))


def _models(database: sqlite3.Connection, rows: Rows) -> None:
    found = database.execute("""
        SELECT models.id, state, note, watermark, snapshot, sessions.id, sessions.status
        FROM models LEFT JOIN sessions ON sessions.id = session_id
    """)
    for id, state, note, watermark, snapshot, session, status in found:
        if session is None:
            rows.problems.append((id, "its session is not on record"))
        if state == "corrupted":
            rows.corrupted.append((id, note))
            if not note:
                rows.problems.append((id, "it is marked corrupted and nothing says why"))
        if state != "live":
            continue
        if snapshot > watermark:
            text = f"its snapshot ({snapshot}) is newer than its last operation ({watermark})"
            rows.problems.append((id, text))
        if snapshot >= 0 and status == "active":
            folder = f"snapshots/{file_name(id)}/{snapshot}"
            rows.needed.append(Needed(folder, f"model {id} after operation {snapshot}"))


def _samplers(database: sqlite3.Connection, rows: Rows) -> None:
    found = database.execute("""
        SELECT samplers.id, samplers.version, folder, model_id, sessions.id, sessions.status
        FROM samplers LEFT JOIN sessions ON sessions.id = session_id
    """)
    again = _frozen_since(database)
    for id, version, folder, model_id, session, status in found:
        if session is None:
            rows.problems.append((id, "its session is not on record"))
        if status != "active":
            continue
        if folder:
            if _inside(folder, "checkpoints", 4):
                rows.needed.append(Needed(folder, f"sampling session {id}"))
            else:
                rows.problems.append((id, f"its folder {folder!r} is not one of ours"))
        if model_id is not None and version:
            if plain_name(version):
                rows.samplers[version] = rows.samplers.get(version, False) or id in again
            else:
                rows.problems.append((id, f"its weights are called {version!r}"))


def _frozen_since(database: sqlite3.Connection) -> set[str]:
    """Unnamed samplers whose making is replayed after a restart."""
    found = database.execute("""
        SELECT json_extract(CAST(result AS TEXT), '$.sampling_session_id')
        FROM operations JOIN outcomes USING (n) JOIN models ON models.id = model_id
        WHERE kind = 'save_weights_for_sampler' AND models.state = 'live' AND seq > snapshot
            AND outcomes.state = 'done' AND body IS NOT NULL AND json_valid(CAST(result AS TEXT))
    """)
    return {id for (id,) in found if id is not None}


def _operations(database: sqlite3.Connection, rows: Rows) -> None:
    kinds = ", ".join(f"'{kind}'" for kind in CHANGES_WEIGHTS)
    lost = database.execute(f"""
        SELECT operations.id FROM operations JOIN outcomes USING (n) JOIN models ON models.id = model_id
        WHERE models.state = 'live' AND seq > snapshot AND outcomes.state = 'done' AND body IS NULL
            AND kind IN ({kinds})
    """)  # noqa: S608 - names of our own
    rows.problems += [(id, "it must be replayed after a restart, and its body is gone") for (id,) in lost]
    waiting = database.execute("""
        SELECT id FROM operations LEFT JOIN outcomes USING (n)
        WHERE coalesce(state, 'queued') = 'queued' AND body IS NULL
    """)
    rows.problems += [(id, "it waits to be done, and its body is gone") for (id,) in waiting]
    # What is a session's own (a custom loss) has no model.
    strays = "SELECT id FROM operations WHERE model_id <> '' AND model_id NOT IN (SELECT id FROM models)"
    for id in database.execute(strays):
        rows.problems.append((id[0], "its model is not on record"))
    odd = _one(database, "SELECT count(*) FROM outcomes WHERE n NOT IN (SELECT n FROM operations)")
    if odd:
        rows.problems.append((DATABASE, f"{odd} results belong to no operation"))
    files = database.execute("""
        SELECT body_file, id, content, 0 FROM operations WHERE body_file IS NOT NULL
        UNION ALL SELECT result_file, id, form, 1 FROM outcomes JOIN operations USING (n)
        WHERE result_file IS NOT NULL
    """)
    for name, id, form, result in files:
        if plain_name(name):
            rows.bodies.append(Body(name, id, form, bool(result)))
        else:
            rows.problems.append((id, f"its file is called {name!r}"))
