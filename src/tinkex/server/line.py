"""The order of one model's operations: ascending numbers, whatever order they arrive in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

FARTHEST = 1 << 16
"""How far ahead of the next number another may lie."""


class Line(Generic[T]):
    """Operations wait here until all with smaller numbers were taken; number 0 is the model's creation.

    A number that was refused counts as used up. One that never comes is given up when `skip` is called, and
    if it comes after that, it is too late.
    """

    def __init__(self, next: int = 0) -> None:
        self.next = next
        """The smallest number not yet taken, used up or skipped."""
        self._waiting: dict[int, T] = {}
        self._used: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting.values())

    def too_late(self, number: int) -> bool:
        """Whether the line has already gone past this number."""
        return number < self.next

    def too_far(self, number: int) -> bool:
        """Whether this number lies further ahead than any client has reason to be."""
        return number > self.next + FARTHEST

    def free_number(self) -> int:
        """A number for an operation that came without one."""
        return max(self.next - 1, max(self._waiting, default=-1), max(self._used, default=-1)) + 1

    def enter(self, number: int, item: T) -> None:
        """Take a place in the line."""
        self._waiting[number] = item
        self._used.discard(number)

    def use_up(self, number: int) -> None:
        """This number was refused and will not come again."""
        if number >= self.next and not self.too_far(number) and number not in self._waiting:
            self._used.add(number)
            self._pass_used()

    def ready(self) -> Iterator[tuple[int, T]]:
        """The operations that may be taken now, in order."""
        number = self.next
        while True:
            if number in self._waiting:
                yield number, self._waiting[number]
            elif number not in self._used:
                return
            number += 1

    def head(self) -> T | None:
        """The first operation that may be taken now, if there is one."""
        self._pass_used()
        return self._waiting.get(self.next)

    def take(self) -> tuple[int, T]:
        """Take the first ready operation out of the line."""
        self._pass_used()
        number = self.next
        item = self._waiting.pop(number)
        self.next += 1
        self._pass_used()
        return number, item

    def put_back(self, number: int, item: T) -> None:
        """Return what was taken last and must be taken again."""
        self._waiting[number] = item
        # Numbers between it and the next were used up or given up: they stay so.
        self._used.update(each for each in range(number + 1, self.next) if each not in self._waiting)
        self.next = number

    @property
    def missing(self) -> int | None:
        """The number that others wait for, if there is one."""
        self._pass_used()
        return self.next if self._waiting and self.next not in self._waiting else None

    def skip(self) -> list[int]:
        """Give up what is missing, up to the first number that is there."""
        if self.missing is None:
            return []
        first = min(min(self._waiting), min(self._used, default=1 << 62))
        gone = list(range(self.next, first))
        self.next = first
        self._pass_used()
        return gone

    def clear(self) -> list[T]:
        """Take everything out, in order."""
        items = [self._waiting[number] for number in sorted(self._waiting)]
        self._waiting.clear()
        return items

    def _pass_used(self) -> None:
        while self.next in self._used:
            self._used.discard(self.next)
            self.next += 1
