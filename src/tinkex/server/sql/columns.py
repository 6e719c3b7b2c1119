"""Rows as columns and back: a column has the name of its field; lists and dictionaries are JSON text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from ..records import (
    AnswerRow,
    AuditRow,
    CheckpointRow,
    LossRow,
    ModelRow,
    SamplerRow,
    SessionRow,
    UsageRow,
)

T = TypeVar("T")


class Table(Generic[T]):
    """The table of one kind of row."""

    def __init__(
        self,
        name: str,
        kind: type[T],
        *,
        key: str = "id",
        json: Iterable[str] = (),
        flags: Iterable[str] = (),
    ) -> None:
        self.name, self.kind, self.key = name, kind, key
        self.names = tuple(field.name for field in fields(kind))  # type: ignore[arg-type]
        self.columns = ", ".join(self.names)
        self._json = [self.names.index(each) for each in json]
        self._flags = [self.names.index(each) for each in flags]
        self._read = attrgetter(*self.names)

    def qualified(self) -> str:
        """The columns with the table's name before each, for joins."""
        return ", ".join(f"{self.name}.{each}" for each in self.names)

    def values(self, row: T) -> list[Any]:
        """What goes into the columns; later edits of the row change nothing."""
        values = list(self._read(row))
        for place in self._json:
            if values[place] is not None:
                values[place] = msgspec.json.encode(values[place]).decode()
        return values

    def row(self, values: Iterable[Any]) -> T:
        """The row that was put into these columns."""
        found = list(values)
        for place in self._json:
            if found[place] is not None:
                found[place] = msgspec.json.decode(found[place])
        for place in self._flags:
            found[place] = bool(found[place])
        return self.kind(*found)


_TRAINED = ("train_attn", "train_mlp", "train_unembed")

SESSIONS = Table("sessions", SessionRow, json=("tags", "user_metadata"))
MODELS = Table("models", ModelRow, json=("optimizer", "user_metadata", "skipped"), flags=_TRAINED)
SAMPLERS = Table("samplers", SamplerRow)
CHECKPOINTS = Table(
    "checkpoints",
    CheckpointRow,
    key="path",
    json=("optimizer", "user_metadata"),
    flags=(*_TRAINED, "public"),
)
LOSSES = Table("losses", LossRow)
ANSWERS = Table("answers", AnswerRow)
USAGE = Table("usage", UsageRow)
AUDIT = Table("audit", AuditRow, json=("details",))

PLAIN: dict[type[Any], Table[Any]] = {
    table.kind: table for table in (SESSIONS, MODELS, SAMPLERS, CHECKPOINTS, LOSSES, ANSWERS)
}
"""Tables whose rows go in and out whole; operations are in two."""
