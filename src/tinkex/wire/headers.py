"""Header names both sides use, and what the retry headers mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
EVENT_STREAM = "text/event-stream"

API_KEY = "X-API-Key"
IDEMPOTENCY_KEY = "X-Idempotency-Key"
REQUEST_ITERATION = "X-Tinker-Request-Iteration"
REQUEST_TYPE = "X-Tinker-Request-Type"
PROMISE_ROUNDTRIP = "X-Tinker-Create-Promise-Roundtrip-Time"
SAMPLING_BACKPRESSURE = "X-Tinker-Sampling-Backpressure"
WEIGHTS_ACCESS_TOKEN = "X-Tinker-Weights-Access-Token"  # noqa: S105 - a header's name
SHOULD_RETRY = "x-should-retry"
RETRY_AFTER = "retry-after"
RETRY_AFTER_MS = "retry-after-ms"
DEPRECATION_NOTE = "x-deprecation-note"
DEPRECATION_LEVEL = "x-deprecation-level"

LONGEST_RETRY_AFTER = 60.0


def retry_after(
    headers: Mapping[str, str], now: datetime, longest: float = LONGEST_RETRY_AFTER
) -> float | None:
    """The seconds a server asks its client to wait, or None if it does not say.

    `retry-after-ms` wins over `retry-after`, which may be seconds or a date.  What cannot be read
    counts as absent, what lies in the past or below zero as 0, and `longest` caps the rest.
    """
    milliseconds = _number(headers.get(RETRY_AFTER_MS))
    if milliseconds is not None:
        return _within(milliseconds / 1000, longest)
    text = headers.get(RETRY_AFTER)
    seconds = _number(text)
    if seconds is None and text is not None:
        seconds = _until(text, now)
    return None if seconds is None else _within(seconds, longest)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """The server's own word on a retry, if it gave one."""
    return {"true": True, "false": False}.get(headers.get(SHOULD_RETRY, "").strip().lower())


def _within(seconds: float, longest: float) -> float:
    return min(max(seconds, 0.0), longest)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _until(text: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return (moment - now).total_seconds()
    except OverflowError:
        return None
