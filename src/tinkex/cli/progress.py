"""How far something is, on one line of the terminal that is written again and again."""

from __future__ import annotations

import shutil
import time
from types import TracebackType
from typing import Self

from .output import Output

__all__ = ["ProgressLine"]

_EVERY = 0.1


class ProgressLine:
    """A line on stderr that shows the newest text; where nobody watches, nothing is written."""

    def __init__(self, out: Output) -> None:
        self._out, self._stream = out, out.stderr
        self.watched = out.mode == "table" and self._stream.isatty()
        self._width = 0
        self._last = 0.0

    def show(self, text: str, *, now: bool = False) -> None:
        """Write the text over the last one; too many in a short time are left out, unless it matters."""
        moment = time.monotonic()
        if not self.watched or (moment - self._last < _EVERY and not now):
            return
        self._last = moment
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{text.ljust(self._width)}")
        self._stream.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Leave an empty line."""
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._stream.flush()
            self._width = 0

    def __enter__(self) -> Self:
        self._before, self._out.make_room = self._out.make_room, self.clear
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.clear()
        self._out.make_room = self._before
