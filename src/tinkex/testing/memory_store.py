"""The server's store in dictionaries: the same answers as the real one, and nothing survives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

from ..server.records import (
    AnswerRow,
    AuditRow,
    CheckpointRow,
    LossRow,
    ModelRow,
    OperationRow,
    Row,
    SamplerRow,
    SessionRow,
    UsageRow,
)
from ..server.store import (
    Change,
    Count,
    Delete,
    Finish,
    ForgetBodies,
    ForgetResults,
    Note,
    Page,
    Put,
    R,
    Seen,
    SessionFilter,
    StoreFailed,
)

T = TypeVar("T")

_KINDS = (SessionRow, ModelRow, SamplerRow, CheckpointRow, OperationRow, LossRow, AnswerRow)


class MemoryStore:
    """A `Store` in memory; while `failing` is set, writes fail with that text."""

    def __init__(self) -> None:
        self.failing: str | None = None
        self.writes: int = 0
        """How many have succeeded."""
        self._tables: dict[type[Any], dict[str, Any]] = {kind: {} for kind in _KINDS}
        self._usage: dict[tuple[Any, ...], UsageRow] = {}
        self._audit: list[AuditRow] = []
        self._closed = False

    def copy(self) -> MemoryStore:
        """Another store with the same rows: what a server that is started again would find."""
        made = MemoryStore()
        made._tables, made._usage, made._audit = deepcopy((self._tables, self._usage, self._audit))
        return made

    # ---- writing

    async def write(self, *changes: Change) -> None:
        """Make these changes, all or none."""
        self._check_open()
        if self.failing is not None:
            raise StoreFailed(self.failing)
        # Everything that can go wrong goes wrong before the first change is made.
        steps = [(_CHANGES[type(change)], deepcopy(change)) for change in changes]
        for make, change in steps:
            make(self, change)
        self.writes += 1
        await asyncio.sleep(0)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")

    def _put(self, change: Put) -> None:
        self._tables[type(change.row)][_identity(change.row)] = change.row

    def _delete(self, change: Delete) -> None:
        self._tables[change.kind].pop(change.id, None)

    def _finish(self, change: Finish) -> None:
        row: OperationRow | None = self._tables[OperationRow].get(change.id)
        if row is not None:
            row.state, row.ended, row.result, row.form = (
                change.state,
                change.ended,
                change.result,
                change.form,
            )
            row.error, row.category = change.error, change.category
        model: ModelRow | None = self._tables[ModelRow].get(change.model_id)
        if row is not None and model is not None:
            model.watermark = max(model.watermark, change.watermark)

    def _seen(self, change: Seen) -> None:
        session: SessionRow | None = self._tables[SessionRow].get(change.session_id)
        if session is not None:
            session.last_seen = max(session.last_seen, change.time)

    def _count(self, change: Count) -> None:
        used = change.usage
        key = (used.hour, used.kind, used.session_id, used.base_model, used.project_id, used.owner)
        before = self._usage.get(key)
        self._usage[key] = replace(used, count=used.count + (before.count if before else 0))

    def _note(self, change: Note) -> None:
        self._audit.append(change.entry)

    def _forget_bodies(self, change: ForgetBodies) -> None:
        for row in self._tables[OperationRow].values():
            if row.model_id == change.model_id and row.seq <= change.upto and row.state != "queued":
                row.body = b""

    def _forget_results(self, change: ForgetResults) -> None:
        operations = self._tables[OperationRow]
        for id, row in list(operations.items()):
            over = row.state != "queued" and row.ended is not None and row.ended < change.before
            if over and not self._may_replay(row):
                del operations[id]
        answers = self._tables[AnswerRow]
        for id, kept in list(answers.items()):
            if kept.created < change.before:
                del answers[id]

    def _may_replay(self, row: OperationRow) -> bool:
        model: ModelRow | None = self._tables[ModelRow].get(row.model_id)
        kept = model is not None and (row.seq > model.snapshot or bool(row.body))
        return kept and model is not None and model.state == "live"

    # ---- reading

    def _rows(
        self, kind: type[T], wanted: Callable[[T], bool], order: Callable[[T], Any], newest: bool = False
    ) -> list[T]:
        self._check_open()
        found: Iterable[T] = self._tables[kind].values()
        return [
            deepcopy(row)
            for row in sorted((row for row in found if wanted(row)), key=order, reverse=newest)
        ]

    def _newest(self, kind: type[T], wanted: Callable[[T], bool]) -> list[T]:
        return self._rows(kind, wanted, _created, newest=True)

    async def get(self, kind: type[R], id: str) -> R | None:
        """One row by its identity (a checkpoint's is its path)."""
        self._check_open()
        found: R | None = deepcopy(self._tables[kind].get(id))
        return found

    async def answer(self, id: str) -> str | None:
        """A kept answer."""
        self._check_open()
        row: AnswerRow | None = self._tables[AnswerRow].get(id)
        return row.answer if row else None

    async def sessions(self, owner: str, page: Page) -> list[SessionRow]:
        """An owner's sessions."""
        return _cut(self._newest(SessionRow, lambda row: row.owner == owner), page)

    async def search_sessions(self, wanted: SessionFilter, limit: int) -> list[SessionRow]:
        """The newest sessions that fit, by time of creation and then id."""
        return self._newest(SessionRow, wanted.fits)[:limit]

    async def live_sessions(self) -> list[SessionRow]:
        """Every session that has not ended, oldest first."""
        return self._rows(SessionRow, lambda row: row.status == "active", _created)

    async def models(
        self, owner: str, page: Page, *, project_id: str | None = None
    ) -> tuple[list[ModelRow], int]:
        """An owner's models (of a project: made in its sessions), and how many there are in all."""

        def wanted(row: ModelRow) -> bool:
            session: SessionRow | None = self._tables[SessionRow].get(row.session_id)
            here = project_id is None or (session is not None and session.project_id == project_id)
            return row.owner == owner and here

        found = self._newest(ModelRow, wanted)
        return _cut(found, page), len(found)

    async def models_of(self, session_ids: Sequence[str]) -> list[ModelRow]:
        """The models of these sessions, oldest first."""
        return self._rows(ModelRow, lambda row: row.session_id in session_ids, _created)

    async def samplers_of(self, session_ids: Sequence[str]) -> list[SamplerRow]:
        """The sampling sessions of these sessions, oldest first."""
        return self._rows(SamplerRow, lambda row: row.session_id in session_ids, _created)

    async def losses_of(self, session_ids: Sequence[str]) -> list[LossRow]:
        """The custom losses of these sessions, oldest first."""
        return self._rows(LossRow, lambda row: row.session_id in session_ids, _created)

    async def checkpoints(
        self, owner: str, page: Page, *, now: float, run_id: str | None = None
    ) -> tuple[list[CheckpointRow], int]:
        """An owner's checkpoints that have not expired, and how many there are in all."""
        found = self._newest(
            CheckpointRow,
            lambda row: row.owner == owner and run_id in (None, row.run_id) and not _expired(row, now),
        )
        return _cut(found, page), len(found)

    async def checkpoints_of(self, session_ids: Sequence[str], *, now: float) -> list[CheckpointRow]:
        """The checkpoints made in these sessions that have not expired, newest first."""
        return self._newest(
            CheckpointRow, lambda row: row.session_id in session_ids and not _expired(row, now)
        )

    async def expired_checkpoints(self, now: float) -> list[CheckpointRow]:
        """Every checkpoint whose time has come, the longest expired first."""
        return self._rows(
            CheckpointRow, lambda row: _expired(row, now), lambda row: (row.expires or 0.0, row.path)
        )

    async def storage(self, owner: str | None = None) -> list[tuple[str, str | None, int, int]]:
        """(owner, project, number of checkpoints, bytes) for one owner or all; expired ones count."""
        sums: dict[tuple[str, str | None], list[int]] = {}
        for row in self._rows(CheckpointRow, lambda row: owner in (None, row.owner), _created):
            kept = sums.setdefault((row.owner, row.project_id), [0, 0])
            kept[0] += 1
            kept[1] += row.size
        found = [(whose, project, number, size) for (whose, project), (number, size) in sums.items()]
        return sorted(found, key=lambda each: (each[0], each[1] is not None, each[1] or ""))

    async def queued(self, model_id: str) -> list[OperationRow]:
        """A model's operations that have not ended, in order, with bodies."""
        return self._rows(
            OperationRow, lambda row: row.model_id == model_id and row.state == "queued", _in_line
        )

    async def replay(self, model_id: str, after: int) -> list[OperationRow]:
        """A model's ended operations with a number above `after`, in order, with bodies and results."""
        return self._rows(
            OperationRow,
            lambda row: row.model_id == model_id and row.seq > after and row.state != "queued",
            _in_line,
        )

    async def history(self, model_ids: Sequence[str]) -> list[OperationRow]:
        """The operations of these models in order of arrival, without bodies and results."""
        rows = self._rows(
            OperationRow,
            lambda row: row.model_id in model_ids,
            lambda row: (row.arrived, row.model_id, row.seq, row.id),
        )
        return [replace(row, body=b"", result=b"") for row in rows]

    async def usage(self, owner: str, start_hour: int, end_hour: int) -> list[UsageRow]:
        """What an owner used from one hour up to (and without) another, in order of time."""
        self._check_open()
        return [
            replace(row)
            for _, row in sorted(self._usage.items())
            if row.owner == owner and start_hour <= row.hour < end_hour
        ]

    async def audit(self, owner: str, start: float, end: float, prefixes: Sequence[str]) -> list[AuditRow]:
        """An owner's audit entries whose event begins with one of these (none: all), in order of time."""
        self._check_open()
        wanted = tuple(prefixes) or ("",)
        found = [row for row in self._audit if row.owner == owner and row.event.startswith(wanted)]
        within = [row for row in found if start <= row.time < end]
        return deepcopy(sorted(within, key=lambda row: row.time))

    async def close(self) -> None:
        """Take no more questions."""
        self._closed = True


_CHANGES: dict[type[Any], Callable[[MemoryStore, Any], None]] = {
    Put: MemoryStore._put,
    Delete: MemoryStore._delete,
    Finish: MemoryStore._finish,
    Seen: MemoryStore._seen,
    Count: MemoryStore._count,
    Note: MemoryStore._note,
    ForgetBodies: MemoryStore._forget_bodies,
    ForgetResults: MemoryStore._forget_results,
}


def _identity(row: Row) -> str:
    return row.path if isinstance(row, CheckpointRow) else row.id


def _created(row: Any) -> tuple[float, str]:
    return row.created, _identity(row)


def _in_line(row: OperationRow) -> tuple[int, str]:
    return row.seq, row.id


def _expired(row: CheckpointRow, now: float) -> bool:
    return row.expires is not None and row.expires <= now


def _cut(rows: list[T], page: Page) -> list[T]:
    return rows[page.offset : page.offset + page.limit]
