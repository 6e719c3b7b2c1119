"""The order of one model's operations: ascending numbers, whatever order they arrive in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["TrainingLine"]

Job: TypeAlias = Callable[[Callable[[], None]], None]  # starts work; calls its argument when it ended


class TrainingLine:
    """Runs a model's operations one after another by number; number 0 is the model's creation.

    An operation that comes early waits.  A number that was refused counts as used; one that never
    comes is given up after a while (`later` is asked to call back then), and if it comes after
    that, it is too late.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self.arrived: list[int] = []  # every number in order of arrival, repeats included
        self.executed: list[int] = []
        self.skipped: list[int] = []
        self.next: int = 0
        self._later = later
        self._waiting: dict[int, Job] = {}
        self._used: set[int] = set()
        self._busy = False
        self._watched = -1  # the missing number a call-back is out for

    @property
    def held(self) -> list[int]:
        """The numbers that wait for an earlier one."""
        return sorted(self._waiting)

    def too_late(self, number: int) -> bool:
        """Whether the line has already gone past this number."""
        return number < self.next

    def free_number(self) -> int:
        """A number for an operation that came without one."""
        return max([self.next - 1, *self._waiting, *self._used]) + 1

    def use_up(self, number: int) -> None:
        """This number was refused and will not run."""
        if number >= self.next and number not in self._waiting:
            self._used.add(number)
            self.go_on()

    def enter(self, number: int, job: Job) -> None:
        """Take a place in the line."""
        self._used.discard(number)
        self._waiting[number] = job
        self.go_on()

    def go_on(self) -> None:
        """Run whatever is next, as far as it goes."""
        while not self._busy:
            if self.next in self._used:
                self._used.discard(self.next)
                self.next += 1
            elif self.next in self._waiting:
                self._run(self._waiting.pop(self.next))
            else:
                break
        if self._waiting and not self._busy and self._watched != self.next:
            missing = self._watched = self.next
            self._later(lambda: self._give_up(missing))

    def _run(self, job: Job) -> None:
        self._busy = True
        self.executed.append(self.next)
        self.next += 1
        resumed = False

        def ended() -> None:
            self._busy = False
            if resumed:
                self.go_on()

        job(ended)
        # Work that ended at once is followed by the loop in `go_on`, not by recursion.
        resumed = True

    def _give_up(self, missing: int) -> None:
        if self.next == missing and self._waiting:
            first = min([*self._waiting, *self._used])
            self.skipped += range(missing, first)
            self.next = first
            self.go_on()
