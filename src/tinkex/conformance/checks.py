"""What a check is: a function that looks at a server and says what it saw, or what was wrong.

A check's name cites the row of the protocol it is about: `wire/5.1/unknown-future`.  How checks are run and
shown is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from .surroundings import Surroundings

__all__ = ["CHECKS", "Check", "Failed", "Run", "Skipped", "check", "chosen", "expect", "widest"]

Run: TypeAlias = "Callable[[Surroundings], str]"


class Failed(Exception):
    """The server did something else than the protocol says."""


class Skipped(Exception):
    """There was nothing to check, and why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing a server must do; `run` returns what was seen."""

    name: str
    title: str
    run: Run
    slow: bool = False


CHECKS: dict[str, Check] = {}
"""Every check by its name, in the order in which they are run."""


def check(name: str, *, slow: bool = False) -> Callable[[Run], Run]:
    """Register a check; its docstring is its title.  Slow ones wait for times a server may choose."""

    def register(run: Run) -> Run:
        if name in CHECKS:
            raise InvalidArgumentError(f"there are two checks called {name}")
        title = (run.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        CHECKS[name] = Check(name, title, run, slow)
        return run

    return register


def chosen(checks: Iterable[Check], patterns: Sequence[str], *, slow: bool) -> list[Check]:
    """The checks whose name has one of the patterns in it (all, without patterns)."""
    kept = [one for one in checks if not patterns or any(_fits(one.name, each) for each in patterns)]
    return [one for one in kept if slow or not one.slow]


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, f"*{pattern.strip('*')}*")


def expect(condition: object, seen: str) -> None:
    """Fail with what was seen, unless the condition holds."""
    if not condition:
        raise Failed(seen)


def widest(expected: Any, got: Any) -> float:
    """The largest difference between two numbers or lists of the same shape; infinite if shapes differ."""
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(expected) != len(got):
            return float("inf")
        return max((widest(one, other) for one, other in zip(expected, got, strict=True)), default=0.0)
    if expected is None or got is None:
        return 0.0 if expected is got else float("inf")
    difference = abs(float(expected) - float(got))
    return difference if difference == difference else float("inf")
