"""Running checks one after the other, each with its own time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from ..errors import TinkerError
from .checks import Check, Failed, Skipped
from .report import Outcome, Result
from .surroundings import Surroundings

__all__ = ["run_checks"]

_SLOW_SECONDS = 600.0


def run_checks(
    here: Surroundings,
    checks: Iterable[Check],
    *,
    seconds: float = 60.0,
    starting: Callable[[Check], None] = lambda check: None,
) -> Iterator[Outcome]:
    """Run checks and give each one's outcome as it comes; what they made is taken down in between."""
    for each in checks:
        starting(each)
        yield _run(here, each, max(seconds, _SLOW_SECONDS) if each.slow else seconds)


def _run(here: Surroundings, check: Check, seconds: float) -> Outcome:
    started = time.monotonic()
    here.http.until = started + seconds
    ended: list[tuple[Result, str]] = []
    # In a thread of its own: a server that never answers must not hold up the other checks.
    thread = threading.Thread(
        target=lambda: ended.append(_judged(here, check)), name=check.name, daemon=True
    )
    thread.start()
    thread.join(seconds + 2.0)
    result, seen = ended[0] if ended else ("fail", f"it had not ended after {seconds:.0f} s")
    taken = time.monotonic() - started
    here.http.until = time.monotonic() + 10.0
    here.work.tidy()
    return Outcome(check.name, check.title, result, " ".join(seen.split()), round(taken, 3))


def _judged(here: Surroundings, check: Check) -> tuple[Result, str]:
    try:
        return "pass", check.run(here)
    except Skipped as reason:
        return "skip", str(reason)
    except Failed as problem:
        return "fail", str(problem)
    except TinkerError as error:
        return "fail", f"{type(error).__name__}: {error}"
    except Exception as error:  # an answer of a shape nobody thought of
        return "fail", f"unexpected {type(error).__name__} while reading the answers: {error}"
