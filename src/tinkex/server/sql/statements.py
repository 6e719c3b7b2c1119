"""Every statement the store runs, by name.

Newest first means by time of creation, then by id, both
descending; oldest first the other way round.
"""
# ruff: noqa: S608 - the only things formatted in are names of our own columns

from __future__ import annotations

from typing import Any

from .columns import AUDIT, CHECKPOINTS, LOSSES, MODELS, PLAIN, SAMPLERS, SESSIONS, USAGE

# ---- one row


def _put(name: str, names: tuple[str, ...]) -> str:
    return f"INSERT OR REPLACE INTO {name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


PUT: dict[type[Any], str] = {kind: _put(table.name, table.names) for kind, table in PLAIN.items()}
DELETE: dict[type[Any], str] = {
    kind: f"DELETE FROM {table.name} WHERE {table.key} = ?" for kind, table in PLAIN.items()
}
GET: dict[type[Any], str] = {
    kind: f"SELECT {table.columns} FROM {table.name} WHERE {table.key} = ?" for kind, table in PLAIN.items()
}
ANSWER = "SELECT answer FROM answers WHERE id = ?"

# ---- operations

ADD_OPERATION = """
    INSERT INTO operations (id, model_id, seq, kind, owner, arrived, content, body_file, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
ADD_OUTCOME = """
    INSERT INTO outcomes (n, state, ended, form, error, category, result_file, result)
    SELECT n, ?, ?, ?, ?, ?, ?, ? FROM operations WHERE id = ?
"""
ADVANCE = """
    UPDATE models SET watermark = ? WHERE id = ? AND watermark < ?
    AND EXISTS (SELECT 1 FROM operations WHERE operations.id = ?)
"""
FILES_OF_OPERATION = """
    SELECT body_file, result_file FROM operations LEFT JOIN outcomes USING (n) WHERE id = ?
"""
DELETE_OUTCOME = "DELETE FROM outcomes WHERE n = (SELECT n FROM operations WHERE id = ?)"
DELETE_OPERATION = "DELETE FROM operations WHERE id = ?"

_OPERATION = """
    id, model_id, seq, kind, owner, arrived, content, body_file, body,
    state, ended, form, error, category, result_file, result
"""
GET_OPERATION = f"SELECT {_OPERATION} FROM operations LEFT JOIN outcomes USING (n) WHERE id = ?"
# One that has not ended always has its body, so the short index is enough.
QUEUED = f"""
    SELECT {_OPERATION} FROM operations LEFT JOIN outcomes USING (n)
    WHERE model_id = ? AND body IS NOT NULL AND coalesce(state, 'queued') = 'queued' ORDER BY seq, id
"""
REPLAY = f"""
    SELECT {_OPERATION} FROM operations JOIN outcomes USING (n)
    WHERE model_id = ? AND seq > ? AND state != 'queued' ORDER BY seq, id
"""
HISTORY = """
    SELECT id, model_id, seq, kind, owner, arrived, content, state, ended, form, error, category
    FROM operations LEFT JOIN outcomes USING (n) WHERE model_id = ?
"""

_FORGOTTEN = """
    model_id = ? AND seq <= ? AND body IS NOT NULL
    AND EXISTS (SELECT 1 FROM outcomes WHERE outcomes.n = operations.n AND state != 'queued')
"""
BODY_FILES_TO_FORGET = f"SELECT body_file FROM operations WHERE body_file IS NOT NULL AND {_FORGOTTEN}"
FORGET_BODIES = f"UPDATE operations SET body = NULL, body_file = NULL WHERE {_FORGOTTEN}"

RESULTS_TO_FORGET = """
    SELECT n, body_file, result_file FROM outcomes JOIN operations USING (n)
    WHERE outcomes.state != 'queued' AND outcomes.ended < ? AND NOT EXISTS (
        SELECT 1 FROM models
        WHERE models.id = operations.model_id AND models.state = 'live'
        AND (operations.seq > models.snapshot OR operations.body != x'' OR operations.body_file IS NOT NULL)
    )
"""
DELETE_OUTCOME_N = "DELETE FROM outcomes WHERE n = ?"
DELETE_OPERATION_N = "DELETE FROM operations WHERE n = ?"
FORGET_ANSWERS = "DELETE FROM answers WHERE created < ?"

FILES_IN_USE = """
    SELECT body_file FROM operations WHERE body_file IS NOT NULL
    UNION ALL SELECT result_file FROM outcomes WHERE result_file IS NOT NULL
"""

# ---- sessions

SEEN = "UPDATE sessions SET last_seen = ? WHERE id = ? AND last_seen < ?"
SESSIONS_OF_OWNER = f"""
    SELECT {SESSIONS.columns} FROM sessions WHERE owner = ?
    ORDER BY created DESC, id DESC LIMIT ? OFFSET ?
"""
LIVE_SESSIONS = f"""
    SELECT {SESSIONS.columns} FROM sessions WHERE status = 'active' ORDER BY created, id
"""
SEARCH_SESSIONS = f"""
    SELECT {SESSIONS.columns} FROM sessions WHERE owner = ? ORDER BY created DESC, id DESC
"""
SEARCH_SESSIONS_BEFORE = f"""
    SELECT {SESSIONS.columns} FROM sessions WHERE owner = ? AND (created, id) < (?, ?)
    ORDER BY created DESC, id DESC
"""

# ---- what belongs to one session; for several, the answers are put together

MODELS_OF = f"SELECT {MODELS.columns} FROM models WHERE session_id = ?"
SAMPLERS_OF = f"SELECT {SAMPLERS.columns} FROM samplers WHERE session_id = ?"
LOSSES_OF = f"SELECT {LOSSES.columns} FROM losses WHERE session_id = ?"
CHECKPOINTS_OF = f"""
    SELECT {CHECKPOINTS.columns} FROM checkpoints WHERE session_id = ? AND (expires IS NULL OR expires > ?)
"""

# ---- models

MODELS_OF_OWNER = f"""
    SELECT {MODELS.columns} FROM models WHERE owner = ? ORDER BY created DESC, id DESC LIMIT ? OFFSET ?
"""
COUNT_MODELS_OF_OWNER = "SELECT count(*) FROM models WHERE owner = ?"
_OF_PROJECT = """
    FROM models JOIN sessions ON sessions.id = models.session_id
    WHERE models.owner = ? AND sessions.project_id = ?
"""
MODELS_OF_PROJECT = f"""
    SELECT {MODELS.qualified()} {_OF_PROJECT} ORDER BY models.created DESC, models.id DESC LIMIT ? OFFSET ?
"""
COUNT_MODELS_OF_PROJECT = f"SELECT count(*) {_OF_PROJECT}"

# ---- checkpoints

_OF_OWNER = "FROM checkpoints WHERE owner = ? AND (expires IS NULL OR expires > ?)"
_NEWEST = "ORDER BY created DESC, path DESC LIMIT ? OFFSET ?"
CHECKPOINTS_OF_OWNER = f"SELECT {CHECKPOINTS.columns} {_OF_OWNER} {_NEWEST}"
COUNT_CHECKPOINTS_OF_OWNER = f"SELECT count(*) {_OF_OWNER}"
CHECKPOINTS_OF_RUN = f"SELECT {CHECKPOINTS.columns} {_OF_OWNER} AND run_id = ? {_NEWEST}"
COUNT_CHECKPOINTS_OF_RUN = f"SELECT count(*) {_OF_OWNER} AND run_id = ?"
EXPIRED_CHECKPOINTS = f"""
    SELECT {CHECKPOINTS.columns} FROM checkpoints WHERE expires <= ? ORDER BY expires, path
"""
STORAGE = """
    SELECT owner, project_id, count(*), sum(size) FROM checkpoints
    GROUP BY owner, project_id ORDER BY owner, project_id
"""
STORAGE_OF_OWNER = """
    SELECT owner, project_id, count(*), sum(size) FROM checkpoints WHERE owner = ?
    GROUP BY project_id ORDER BY project_id
"""

# ---- usage and audit

COUNT = """
    INSERT INTO usage (hour, owner, kind, session_id, base_model, project_id, count)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
USAGE_OF_OWNER = f"""
    SELECT {USAGE.columns} FROM usage WHERE owner = ? AND hour >= ? AND hour < ?
    ORDER BY hour, kind, session_id, base_model, project_id
"""
NOTE = f"INSERT INTO audit ({AUDIT.columns}) VALUES (?, ?, ?, ?, ?, ?)"
AUDIT_OF_OWNER = f"""
    SELECT {AUDIT.columns} FROM audit WHERE owner = ? AND time >= ? AND time < ? ORDER BY time, n
"""
