"""A session's timeline as a file trace viewers open (Chrome's JSON format, which Perfetto reads too)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .records import OperationRow, SessionRow

if TYPE_CHECKING:
    from .service import Service

__all__ = ["TRACES", "trace_of", "write_trace"]

TRACES = "traces"
"""The folder of traces inside the state folder."""
_SESSION = 1
"""The track of the session itself; models have the following ones."""


async def write_trace(service: Service, session: SessionRow) -> tuple[str, str]:
    """Write what is known of a session's operations; the folder and name of the file."""
    store, now = service.store, service.clock.time()
    models = [row.id for row in await store.models_of([session.id])]
    operations = await store.history(models)
    samplers = [(row.id, row.created) for row in await store.samplers_of([session.id])]
    saved = [(row.path, row.created) for row in await store.checkpoints_of([session.id], now=now)]
    trace = trace_of(session, operations, {"sampling session": samplers, "checkpoint": saved}, now)
    name = f"{hashlib.sha256(session.id.encode()).hexdigest()[:32]}.json"
    await asyncio.to_thread(_write, service.options.state / TRACES, name, trace)
    return TRACES, name


def trace_of(
    session: SessionRow,
    operations: list[OperationRow],
    moments: dict[str, list[tuple[str, float]]],
    now: float,
) -> dict[str, Any]:
    """The trace: a span for the session and each operation (arrival to end), marks for what was made."""
    tracks = {
        id: _SESSION + 1 + place for place, id in enumerate(dict.fromkeys(o.model_id for o in operations))
    }
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"session {session.id}"}},
        _track(_SESSION, "session"),
        *(_track(number, f"model {id}") for id, number in tracks.items()),
        *_span(
            "session",
            session.id,
            _SESSION,
            session.created,
            session.ended or now,
            {"status": session.status},
        ),
    ]
    for each in operations:
        told = {"request_id": each.id, "seq_id": each.seq, "state": each.state}
        if each.error:
            told |= {"error": each.error, "category": each.category}
        end = now if each.ended is None else each.ended
        events += _span(each.kind, each.id, tracks[each.model_id], each.arrived, end, told)
    for what, found in moments.items():
        events += [
            {"ph": "i", "s": "p", "name": f"{what} {name}", "pid": 1, "tid": _SESSION, "ts": _micro(time)}
            for name, time in found
        ]
    return {"displayTimeUnit": "ms", "otherData": {"session_id": session.id}, "traceEvents": events}


def _span(
    name: str, id: str, track: int, begin: float, end: float, told: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    # Operations of one model overlap while they wait in line: only spans with an id may.
    shared = {
        "cat": "operation" if track > _SESSION else "session",
        "name": name,
        "id": id,
        "pid": 1,
        "tid": track,
    }
    yield {"ph": "b", "ts": _micro(begin), "args": told, **shared}
    yield {"ph": "e", "ts": _micro(max(begin, end)), **shared}


def _track(number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}}


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)


def _write(folder: Path, name: str, trace: dict[str, Any]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    aside = folder / f".{name}.{secrets.token_hex(8)}.part"  # another may be written at the same time
    aside.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")
    aside.replace(folder / name)
