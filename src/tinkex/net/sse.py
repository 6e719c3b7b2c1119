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
    """Feed it bytes as they come; it gives back the events they complete."""

    def __init__(self, longest: int = 64 * 2**20) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffer = ""
        self._after_cr = False
        self._first = True
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None
        self._size = 0
        self._longest = longest

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Take some bytes, return the events that are whole now."""
        text = self._text.decode(piece)
        if self._first and text:
            text, self._first = text.removeprefix("\ufeff"), False
        if self._after_cr and text:
            # A line ended with CR at the end of the last piece; an LF now belongs to it.
            text, self._after_cr = text.removeprefix("\n"), False
        if text.endswith("\r"):
            self._after_cr = True
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = (self._buffer + text).split("\n")
        self._buffer = rest
        self._size += len(text)
        events = [event for line in lines if (event := self._line(line)) is not None]
        if self._size > self._longest:
            raise ValueError(f"an event is longer than {self._longest} characters")
        return events

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "", len(self._buffer)
        if not data:
            return None
        return ServerEvent("\n".join(data), event or "message", self._id)
