"""How the database came to be as it is: steps with names, each run once and never edited afterwards."""

from __future__ import annotations

import sqlite3
import time

from ..store import StoreFailed

_FIRST = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, last_seen REAL NOT NULL,
        tags TEXT NOT NULL, user_metadata TEXT NOT NULL, sdk_version TEXT NOT NULL, project_id TEXT,
        display_name TEXT, status TEXT NOT NULL, reason TEXT, detail TEXT, ended REAL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX sessions_of_owner ON sessions (owner, created, id)",
    "CREATE INDEX sessions_live ON sessions (created, id) WHERE status = 'active'",
    """
    CREATE TABLE models (
        id TEXT PRIMARY KEY, session_id TEXT NOT NULL, owner TEXT NOT NULL, base_model TEXT NOT NULL,
        created REAL NOT NULL, last_request REAL NOT NULL, rank INTEGER NOT NULL, seed INTEGER NOT NULL,
        train_attn INTEGER NOT NULL, train_mlp INTEGER NOT NULL, train_unembed INTEGER NOT NULL,
        optimizer TEXT NOT NULL, user_metadata TEXT, state TEXT NOT NULL, note TEXT NOT NULL,
        watermark INTEGER NOT NULL, snapshot INTEGER NOT NULL, skipped TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX models_of_owner ON models (owner, created, id)",
    "CREATE INDEX models_of_session ON models (session_id)",
    """
    CREATE TABLE samplers (
        id TEXT PRIMARY KEY, session_id TEXT NOT NULL, owner TEXT NOT NULL, base_model TEXT NOT NULL,
        created REAL NOT NULL, model_path TEXT, model_id TEXT, version TEXT NOT NULL,
        folder TEXT NOT NULL, joined INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX samplers_of_session ON samplers (session_id)",
    """
    CREATE TABLE checkpoints (
        path TEXT PRIMARY KEY, run_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
        owner TEXT NOT NULL, base_model TEXT NOT NULL, rank INTEGER NOT NULL, created REAL NOT NULL,
        size INTEGER NOT NULL, folder TEXT NOT NULL, train_attn INTEGER NOT NULL,
        train_mlp INTEGER NOT NULL, train_unembed INTEGER NOT NULL, optimizer TEXT NOT NULL,
        version TEXT NOT NULL, public INTEGER NOT NULL, expires REAL, user_metadata TEXT,
        project_id TEXT, session_id TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX checkpoints_of_owner ON checkpoints (owner, created, path)",
    "CREATE INDEX checkpoints_of_run ON checkpoints (run_id, created, path)",
    "CREATE INDEX checkpoints_of_session ON checkpoints (session_id)",
    "CREATE INDEX checkpoints_that_expire ON checkpoints (expires, path) WHERE expires IS NOT NULL",
    """
    CREATE TABLE losses (
        id TEXT PRIMARY KEY, session_id TEXT NOT NULL, owner TEXT NOT NULL, created REAL NOT NULL,
        name TEXT NOT NULL, definition TEXT NOT NULL
    )
    """,
    "CREATE INDEX losses_of_session ON losses (session_id)",
    # What came in and what came out are rows of their own, so that ending an operation rewrites no body.
    # A body that was forgotten is NULL; one in a file is empty and has the file's name.
    """
    CREATE TABLE operations (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model_id TEXT NOT NULL, seq INTEGER NOT NULL,
        kind TEXT NOT NULL, owner TEXT NOT NULL, arrived REAL NOT NULL, content TEXT NOT NULL,
        body_file TEXT, body BLOB
    )
    """,
    "CREATE INDEX operations_of_model ON operations (model_id, seq)",
    "CREATE INDEX operations_with_body ON operations (model_id, seq) WHERE body IS NOT NULL",
    "CREATE INDEX operations_with_file ON operations (body_file) WHERE body_file IS NOT NULL",
    """
    CREATE TABLE outcomes (
        n INTEGER PRIMARY KEY, state TEXT NOT NULL, ended REAL, form TEXT NOT NULL, error TEXT NOT NULL,
        category TEXT NOT NULL, result_file TEXT, result BLOB NOT NULL
    )
    """,
    "CREATE INDEX outcomes_by_time ON outcomes (ended)",
    "CREATE INDEX outcomes_with_file ON outcomes (result_file) WHERE result_file IS NOT NULL",
    """
    CREATE TABLE answers (id TEXT PRIMARY KEY, answer TEXT NOT NULL, created REAL NOT NULL)
    """,
    "CREATE INDEX answers_by_time ON answers (created)",
    """
    CREATE TABLE usage (
        owner TEXT NOT NULL, hour INTEGER NOT NULL, kind TEXT NOT NULL, session_id TEXT NOT NULL,
        base_model TEXT NOT NULL, project_id TEXT NOT NULL, count INTEGER NOT NULL,
        PRIMARY KEY (owner, hour, kind, session_id, base_model, project_id)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE audit (
        n INTEGER PRIMARY KEY, time REAL NOT NULL, owner TEXT NOT NULL, event TEXT NOT NULL,
        model_id TEXT, tinker_path TEXT, details TEXT NOT NULL
    )
    """,
    "CREATE INDEX audit_of_owner ON audit (owner, time)",
)

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (("first", _FIRST),)
"""Names and statements, in order; new ones are added at the end."""

_CREATE_LIST = "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied REAL NOT NULL)"
_LIST = "SELECT name FROM migrations"
_ADD = "INSERT INTO migrations (name, applied) VALUES (?, ?)"


def migrate(database: sqlite3.Connection) -> list[str]:
    """Bring a database up to date, all or nothing; answers the names of what was run."""
    database.execute("BEGIN IMMEDIATE")
    try:
        database.execute(_CREATE_LIST)
        done = {str(name) for (name,) in database.execute(_LIST)}
        unknown = sorted(done - {name for name, _ in MIGRATIONS})
        if unknown:
            raise StoreFailed(
                f"the database was written by a newer version of tinkex (it has {', '.join(unknown)}, "
                "which this version does not know): use that version, or another state folder"
            )
        ran = []
        for name, statements in MIGRATIONS:
            if name not in done:
                for statement in statements:
                    database.execute(statement)
                database.execute(_ADD, (name, time.time()))
                ran.append(name)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    return ran
