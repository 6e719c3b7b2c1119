"""Server-sent events from bytes that may be cut anywhere."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

__all__ = ["ServerEvent", "SseDecoder"]


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream."""

    data: str
    event: str = "message"
    id: str | None = None


class SseDecoder:
    """Feed it bytes as they come; it gives back the events they complete.

    What is held is at most one unfinished event; one of more than `longest` characters is refused.
    """

    def __init__(self, longest: int = 64 * 2**20) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._line_so_far: list[str] = []
        self._after_cr = False
        self._first = True
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None
        self._size = 0  # characters of the unfinished event's data
        self._partial = 0  # and of its unfinished line
        self._longest = longest

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Take some bytes, return the events that are whole now."""
        text = self._text.decode(piece)
        if not text:
            return []
        if self._first:
            text, self._first = text.removeprefix("\ufeff"), False
        if self._after_cr:
            # A line ended with CR at the end of the last piece; an LF now belongs to it.
            text, self._after_cr = text.removeprefix("\n"), False
        self._after_cr = text.endswith("\r")
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        rest = lines.pop()
        events = []
        for line in lines:
            event = self._line("".join([*self._line_so_far, line]))
            self._line_so_far.clear()
            self._partial = 0
            if event is not None:
                events.append(event)
        if rest:
            self._line_so_far.append(rest)
            self._partial += len(rest)
            self._check(self._size + self._partial)
        return events

    def _check(self, size: int) -> None:
        if size > self._longest:
            raise ValueError(f"an event is longer than {self._longest} characters")

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value) + 1  # the line break counts: empty lines would be free
            self._check(self._size - 1)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "", 0
        if not data:
            return None
        return ServerEvent("\n".join(data), event or "message", self._id)
