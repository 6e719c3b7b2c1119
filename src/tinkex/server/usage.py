"""What was used: tokens by hour, owner, kind, session and base model, written down now and then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from .records import SessionRow, UsageKind, UsageRow
from .store import Count
from .world import LiveModel

if TYPE_CHECKING:
    from .service import Service

_Key: TypeAlias = tuple[int, str, UsageKind, str, str, str]


class UsageLedger:
    """Counts in memory until they are flushed to the store."""

    def __init__(self) -> None:
        self._counts: Counter[_Key] = Counter()

    def add(self, service: Service, model: LiveModel, kind: UsageKind, count: int) -> None:
        """Count what a model used."""
        self.note(service, model.session.row, model.row.base_model, kind, count)

    def note(
        self, service: Service, session: SessionRow | None, base_model: str, kind: UsageKind, count: int,
        owner: str = "",
    ) -> None:  # fmt: skip
        """Count what was used in a session, or by an owner without one."""
        if count:
            hour = int(service.clock.time() // 3600)
            known = (session.owner, session.id, session.project_id or "") if session else (owner, "", "")
            self._counts[(hour, known[0], kind, known[1], base_model, known[2])] += count

    async def flush(self, service: Service) -> None:
        """Write everything counted so far."""
        counts, self._counts = self._counts, Counter()
        if counts:
            await service.keep(
                *(
                    Count(UsageRow(hour, owner, kind, session, base, project, number))
                    for (hour, owner, kind, session, base, project), number in counts.items()
                )
            )
