"""The narrow door to whatever remembers: changes go in together, rows come out by name.

Written for SQLite first, but nothing here is SQLite's: another database has the same few questions to
answer.
`tinkex.testing.MemoryStore` answers them from dictionaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from .records import (
    AuditRow,
    CheckpointRow,
    LossRow,
    ModelRow,
    OperationRow,
    OperationState,
    Row,
    SamplerRow,
    SessionRow,
    SessionStatus,
    UsageRow,
)


class StoreFailed(Exception):
    """What was asked of the store did not happen: nothing was changed, and the store can be used on.

    `again` says whether the same may succeed later: not where the rows themselves cannot be stored.
    """

    def __init__(self, text: str, *, again: bool = True) -> None:
        super().__init__(text)
        self.text, self.again = text, again


R = TypeVar("R", SessionRow, ModelRow, SamplerRow, CheckpointRow, OperationRow, LossRow)


@dataclass(frozen=True, slots=True)
class Put:
    """Store a row, in place of one with the same identity; later edits of the row change nothing."""

    row: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget the row of this kind and identity; nothing happens if there is none."""

    kind: type[Row]
    id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """An operation ended: its result, and how far its model has come, in one.

    A watermark never goes back; where the operation is not there nothing happens, and a model that is not
    there is left alone.
    """

    id: str
    state: OperationState
    ended: float
    model_id: str
    watermark: int
    result: bytes = field(default=b"", repr=False)
    form: str = "json"
    error: str = ""
    category: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A session's client was heard of; the time never goes back."""

    session_id: str
    time: float


@dataclass(frozen=True, slots=True)
class Count:
    """Add to what was used in an hour by the same owner, session, model and so on."""

    usage: UsageRow


@dataclass(frozen=True, slots=True)
class Note:
    """Add a line to the audit log."""

    entry: AuditRow


@dataclass(frozen=True, slots=True)
class ForgetBodies:
    """A snapshot holds a model's operations up to this number: what was asked need not be kept.

    Those that have ended keep row and result, with an empty body; those that have not are left alone.
    """

    model_id: str
    upto: int


@dataclass(frozen=True, slots=True)
class ForgetResults:
    """Drop the operations that ended, and the answers that were kept, before this time.

    An operation that a replay may still need stays as it is: its model is live and its number is above the
    model's snapshot.
    """

    before: float


Change: TypeAlias = Put | Delete | Finish | Seen | Count | Note | ForgetBodies | ForgetResults


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted; lists are newest first, and by id downwards at the same time."""

    limit: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions a search wants; None and empty mean any."""

    owner: str
    session_id: str | None = None
    project_ids: tuple[str, ...] = ()
    display_name: str | None = None
    """Part of the name, in any case."""
    statuses: tuple[tuple[SessionStatus, tuple[str, ...]], ...] = ()
    """Pairs of a status and, for finished ones, the reasons wanted (empty: all)."""
    user_metadata: dict[str, str] = field(default_factory=dict)
    """Every one of these must be there and equal (as text)."""
    before: tuple[float, str] | None = None
    """Created before this time (or at it, with a smaller id): where the last page ended."""

    def fits(self, row: SessionRow) -> bool:
        """Whether a search wants this session."""
        return (
            row.owner == self.owner
            and self.session_id in (None, row.id)
            and (not self.project_ids or row.project_id in self.project_ids)
            and (
                not self.display_name or self.display_name.casefold() in (row.display_name or "").casefold()
            )
            and (not self.statuses or any(self._has(row, *each) for each in self.statuses))
            and all(
                key in row.user_metadata and str(row.user_metadata[key]) == value
                for key, value in self.user_metadata.items()
            )
            and (self.before is None or (row.created, row.id) < self.before)
        )

    @staticmethod
    def _has(row: SessionRow, status: SessionStatus, reasons: tuple[str, ...]) -> bool:
        return row.status == status and (status != "finished" or not reasons or row.reason in reasons)


class Store(Protocol):
    """What the server asks of whatever remembers; all reads see all writes that returned."""

    async def write(self, *changes: Change) -> None:
        """Make these changes, all or none; on return they survive what the store promises to survive.

        Writes take effect in the order of their calls. One that fails raises StoreFailed, and no other
        write fails with it; one whose caller was cancelled may have happened.
        """

    async def get(self, kind: type[R], id: str) -> R | None:
        """One row by its identity (a checkpoint's is its path)."""

    async def answer(self, id: str) -> str | None:
        """A kept answer."""

    async def sessions(self, owner: str, page: Page) -> list[SessionRow]:
        """An owner's sessions."""

    async def search_sessions(self, wanted: SessionFilter, limit: int) -> list[SessionRow]:
        """The newest sessions that fit, by time of creation and then id."""

    async def live_sessions(self) -> list[SessionRow]:
        """Every session that has not ended, oldest first."""

    async def models(
        self, owner: str, page: Page, *, project_id: str | None = None
    ) -> tuple[list[ModelRow], int]:
        """An owner's models (of a project: made in its sessions), and how many there are in all."""

    async def models_of(self, session_ids: Sequence[str]) -> list[ModelRow]:
        """The models of these sessions, oldest first."""

    async def samplers_of(self, session_ids: Sequence[str]) -> list[SamplerRow]:
        """The sampling sessions of these sessions, oldest first."""

    async def losses_of(self, session_ids: Sequence[str]) -> list[LossRow]:
        """The custom losses of these sessions, oldest first."""

    async def checkpoints(
        self, owner: str, page: Page, *, now: float, run_id: str | None = None
    ) -> tuple[list[CheckpointRow], int]:
        """An owner's checkpoints that have not expired, and how many there are in all."""

    async def checkpoints_of(self, session_ids: Sequence[str], *, now: float) -> list[CheckpointRow]:
        """The checkpoints made in these sessions that have not expired, newest first."""

    async def expired_checkpoints(self, now: float) -> list[CheckpointRow]:
        """Every checkpoint whose time has come, the longest expired first."""

    async def storage(self, owner: str | None = None) -> list[tuple[str, str | None, int, int]]:
        """(owner, project, number of checkpoints, bytes) for one owner or all; expired ones count."""

    async def queued(self, model_id: str) -> list[OperationRow]:
        """A model's operations that have not ended, in order, with bodies."""

    async def replay(self, model_id: str, after: int) -> list[OperationRow]:
        """A model's ended operations with a number above `after`, in order, with bodies and results."""

    async def history(self, model_ids: Sequence[str]) -> list[OperationRow]:
        """The operations of these models in order of arrival, without bodies and results."""

    async def usage(self, owner: str, start_hour: int, end_hour: int) -> list[UsageRow]:
        """What an owner used from one hour up to (and without) another, in order of time."""

    async def audit(self, owner: str, start: float, end: float, prefixes: Sequence[str]) -> list[AuditRow]:
        """An owner's audit entries whose event begins with one of these (none: all), in order of time.

        The span is from `start` up to and without `end`.
        """

    async def close(self) -> None:
        """Finish what is under way and let go of the files."""
