"""The one retry decision: may this failed operation be tried again, and when?

Every layer asks here; nobody else sleeps and resends.  An operation has one budget in seconds and
one in attempts, and keeps its idempotency key through all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import APIConnectionError, APIStatusError, RequestFailedError, TinkerError
from ..wire.headers import should_retry

__all__ = ["Decision", "Operation", "advised", "backoff", "decide"]

BILLING_PAUSE = 5.0
_FIRST, _LONGEST = 0.5, 10.0
_AT_ONCE = 0.05  # advice below this, a date in the past say, would make a hot loop


@dataclass(frozen=True, slots=True)
class Operation:
    """What is being tried, and for how long it may be."""

    name: str
    seconds: float = 300.0
    attempts: int = 60
    billing_seconds: float = 3600.0
    resubmits: bool = False  # a server's failure may be cured by asking again (sampling)
    final: frozenset[int] = frozenset()  # statuses that mean no, though others may try again on them
    done: frozenset[int] = frozenset()  # what a second try is told if the first, its answer lost, did it


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to try again, after how many seconds, and why."""

    retry: bool
    delay: float = 0.0
    reason: str = ""


def backoff(attempt: int, chance: float, first: float = _FIRST, longest: float = _LONGEST) -> float:
    """Doubling waits, each between three quarters and all of its length."""
    return float(min(first * 2.0 ** min(attempt, 30), longest)) * (0.75 + 0.25 * chance)


def advised(delay: float, attempt: int, chance: float) -> float:
    """The wait a server asked for: waiters told the same come back spread out, never early.

    One that asks for none gets short waits that grow.
    """
    if delay < _AT_ONCE:
        return backoff(attempt, chance, _AT_ONCE, 1.0)
    return delay * (1.0 + 0.1 * chance)


def decide(
    error: TinkerError, operation: Operation, attempt: int, elapsed: float, chance: float
) -> Decision:
    """Whether the `attempt`-th try (from 0), failed with `error`, is followed by another."""
    seconds = operation.seconds
    wait = backoff(attempt, chance)
    if isinstance(error, APIStatusError):
        word = should_retry(error.response.headers)
        retry = error.retryable and error.status_code not in operation.final if word is None else word
        if error.status_code == 402 and word is None:
            seconds, wait = operation.billing_seconds, BILLING_PAUSE
        reason = f"HTTP {error.status_code}"
    elif isinstance(error, APIConnectionError):
        retry, reason = error.retryable, str(error)
    elif isinstance(error, RequestFailedError):
        retry, reason = operation.resubmits and error.retryable, f"the server failed: {error.message}"
    else:
        retry, reason = operation.resubmits and error.retryable, str(error)
    if error.retry_after is not None:
        wait = advised(error.retry_after, attempt, chance)
    if not retry:
        return Decision(False, reason=reason)
    if attempt + 1 >= operation.attempts or elapsed + wait > seconds:
        return Decision(False, reason=f"{reason}; gave up after {attempt + 1} tries in {elapsed:.0f} s")
    return Decision(True, wait, reason)
