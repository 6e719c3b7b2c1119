"""Seconds since 1970 as dates, the way JSON and HTTP write them."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import formatdate

__all__ = ["http_date", "moment"]


def moment(seconds: float) -> datetime:
    """A time of the server as a date in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def http_date(seconds: float) -> str:
    """A time of the server as HTTP headers have it."""
    return formatdate(seconds, usegmt=True)
