"""The one place that prints: for people, as JSON, or only what matters; problems are a line on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TextIO, TypeAlias

__all__ = ["CommandError", "Mode", "Output", "UsageError"]

Mode: TypeAlias = Literal["table", "json", "quiet"]
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class CommandError(Exception):
    """A command that did not succeed: what happened, and what to do next."""

    code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class UsageError(CommandError):
    """A command that was not understood."""

    code = 2


class Output:
    """Where a command's results go; in JSON mode stdout holds one document and nothing else."""

    def __init__(
        self, mode: Mode = "table", stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.mode = mode
        self._stdout, self._stderr = stdout, stderr
        self._undo: list[Callable[[], None]] = []
        self.make_room: Callable[[], None] = lambda: None
        """Takes a line that is written again and again off the terminal, before another one comes."""

    def at_end(self, undo: Callable[[], None]) -> None:
        """Have something undone when the command has ended."""
        self._undo.append(undo)

    def end(self) -> None:
        """Undo what was changed for the command."""
        while self._undo:
            self._undo.pop()()

    @property
    def stdout(self) -> TextIO:
        """Where results go."""
        return self._stdout or sys.stdout

    @property
    def stderr(self) -> TextIO:
        """Where everything else goes."""
        return self._stderr or sys.stderr

    def table(
        self,
        columns: Mapping[str, str],
        rows: Sequence[Mapping[str, Any]],
        *,
        name: str,
        empty: str = "",
        title: str = "",
        essential: str = "",
        data: Any = None,
    ) -> None:
        """Rows under headings by field; as JSON `data`, else `{name: rows}`; quietly one field."""
        if self.mode == "json":
            self.document({name: [dict(row) for row in rows]} if data is None else data)
        elif self.mode == "quiet":
            field = essential or next(iter(columns), "")  # columns may be those of the rows
            for row in rows:
                self.line(_cell(row.get(field)))
        elif not rows:
            self.line(empty or f"no {name}")
        else:
            self.say(title)
            cells = [
                list(columns.values()),
                *([_cell(row.get(field)) for field in columns] for row in rows),
            ]
            widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
            for line in cells:
                self.line("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))

    def record(
        self, fields: Mapping[str, Any], *, essential: str, text: str = "", data: Any = None
    ) -> None:
        """One thing; as JSON `data` or its fields, quietly the essential one, for people a text or all."""
        if self.mode == "json":
            self.document(dict(fields) if data is None else data)
        elif self.mode == "quiet":
            self.line(_cell(fields[essential]))
        elif text:
            self.line(text)
        else:
            width = max(map(len, fields))
            for name, value in fields.items():
                self.line(f"{name.ljust(width)}  {_cell(value)}")

    def document(self, data: Any) -> None:
        """A JSON document."""
        import json

        self.line(json.dumps(data, indent=2, default=str))

    def say(self, text: str) -> None:
        """Prose, for people only."""
        if self.mode == "table" and text:
            self.line(text)

    def line(self, text: str) -> None:
        """A line in every mode."""
        self.make_room()
        text = text.rstrip()
        self.stdout.write(f"{_tame(text) if self.stdout.isatty() else text}\n")

    def aside(self, text: str, end: str = "\n") -> None:
        """Something for whoever sits at the terminal, on stderr."""
        self.make_room()
        self.stderr.write(f"{_tame(text)}{end}")
        self.stderr.flush()

    def warn(self, text: str) -> None:
        """Something the user should know, on stderr."""
        self.make_room()
        if self.mode == "json":
            self._object({"warning": text})
        else:
            self.stderr.write(f"warning: {_tame(text)}\n")

    def error(self, error: CommandError) -> None:
        """Why the command failed and what to do, on stderr: one line, or one JSON object."""
        self.make_room()
        message, hint = " ".join(error.message.split()), " ".join(error.hint.split())
        if self.mode == "json":
            self._object({"error": message, "hint": hint, "exit_code": error.code})
        else:
            self.stderr.write(_tame(f"tinkex: {message}{f' ({hint})' if hint else ''}") + "\n")

    def _object(self, data: Mapping[str, Any]) -> None:
        import json

        self.stderr.write(json.dumps(data) + "\n")


def _tame(text: str) -> str:
    """A text that gives a terminal no command: what a server or a file says is not ours."""
    return _COMMANDS.sub("\ufffd", text)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    # Names and notes come from elsewhere: they must not move the cursor or open a new line.
    return (
        text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)
    )
