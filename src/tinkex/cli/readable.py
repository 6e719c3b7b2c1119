"""Sizes, times and counts as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ago", "duration", "plural", "size"]

_UNITS = ("KB", "MB", "GB", "TB", "PB", "EB")
_STEPS = (("day", 86400), ("hour", 3600), ("minute", 60))


def size(count: int | None) -> str | None:
    """Bytes in the largest unit that fits, each 1024 of the one before."""
    if count is None or count < 1024:
        return None if count is None else f"{count} B"
    number = float(count)
    for unit in _UNITS:
        number /= 1024
        if number < 1024 or unit == _UNITS[-1]:
            break
    return f"{number:.1f} {unit}"


def ago(moment: datetime | None, now: datetime | None = None) -> str | None:
    """How long ago, or until when, for a month; a date beyond that."""
    if moment is None:
        return None
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    if abs(seconds) > 30 * 86400:
        return moment.astimezone(UTC).strftime("%Y-%m-%d")
    for name, length in _STEPS:
        if abs(seconds) >= length:
            text = plural(abs(seconds) // length, name)
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return "just now" if seconds >= 0 else "in less than a minute"


def duration(seconds: float) -> str:
    """A span of time: 3 s, 2:05, 1:02:03."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def plural(count: int, name: str) -> str:
    """A count and its noun."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"
