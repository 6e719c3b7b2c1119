"""How a lesson goes, on a terminal: a curve that grows; elsewhere a line every few steps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from .curves import chart
from .lessons import Lesson

__all__ = ["Screen", "summary"]

HEIGHT = 7
_EVERY = 0.08  # seconds between two drawings
_LINES = 8  # that a loop gets where nobody watches


class Screen:
    """Draws on a stream; `live` says whether what was drawn can be drawn over."""

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream, self._live = stream, live
        self._values: list[float] = []
        self._drawn = 0
        self._last = 0.0

    def note(self, text: str) -> None:
        """Say on a terminal what is done now; whatever comes next is written over it."""
        if self._live:
            self._write(f"{text}\r")

    def begin(self, title: str, measure: str, steps: int, top: float | None) -> None:
        """A loop begins."""
        self._title, self._measure, self._steps, self._top = title, measure, steps, top
        self._values, self._drawn, self._began = [], 0, time.monotonic()
        if not self._live:
            self._write(f"{title}\n")

    def point(self, value: float) -> None:
        """Draw the next value."""
        self._values.append(value)
        count = len(self._values)
        if not self._live:
            if count in (1, self._steps) or count % max(1, self._steps // _LINES) == 0:
                self._write(f"  step {count:>3}/{self._steps}  {self._measure} {value:.3f}\n")
        elif time.monotonic() - self._last > _EVERY or count == self._steps:
            self._last = time.monotonic()
            self._draw()

    def end(self) -> None:
        """Leave the last drawing where it is."""
        self._write("\n")

    def _draw(self) -> None:
        columns = shutil.get_terminal_size().columns
        width = max(10, min(60, columns - 10))
        top = self._top if self._top is not None else max(self._values)
        now, took = self._values[-1], time.monotonic() - self._began
        at = f"step {len(self._values)}/{self._steps}"
        head = f"{self._title}   {at}   {self._measure} {now:.3f}   {took:.1f} s"
        rows = chart(self._values, width=width, height=HEIGHT, low=0.0, high=top, total=self._steps)
        lines = [head, *rows]
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._write(up + "".join(f"{line[: columns - 1]}\x1b[K\n" for line in lines))
        self._drawn = len(lines)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def summary(lesson: Lesson, line: Callable[[str], None]) -> None:
    """What came of a lesson: the figures, and what the model says now."""
    line(f"  {figures(lesson)}")
    wide = max(len(each.question) for each in lesson.shown)
    for each in lesson.shown:
        line(f"  {each.question.ljust(wide)}  before  {_short(each.before)}")
        line(f"  {''.ljust(wide)}  after   {_short(each.after)}")
    line("")


def figures(lesson: Lesson) -> str:
    """The measured change in one sentence."""
    change = lesson.change
    if lesson.task == "sft":
        return (
            f"unseen chats: {change.before:.2f} → {change.after:.2f} nats per token, {change.change:.1%} "
            f"lower (95 % interval {change.low:.1%} to {change.high:.1%}; {change.samples} chats)"
        )
    return (
        f"unseen sums: {change.before:.0%} → {change.after:.0%} right, {change.change:+.2f} "
        f"(95 % interval {change.low:+.2f} to {change.high:+.2f}; {change.samples} answers each)"
    )


def _short(text: str, most: int = 70) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
