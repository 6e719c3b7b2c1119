"""All checks, in the order in which they are run: the journey, the wire, the numbers."""

from __future__ import annotations

from . import (
    format_checks,
    future_checks,
    journey,
    journey_listings,
    journey_sampling,
    numerics,
    order_checks,
    service_checks,
)
from .checks import CHECKS, Check

__all__ = ["all_checks"]

_ROOMS = (
    journey,
    journey_sampling,
    journey_listings,
    service_checks,
    format_checks,
    future_checks,
    order_checks,
    numerics,
)


def all_checks() -> list[Check]:
    """Every check there is, room by room."""
    rooms = [room.__name__ for room in _ROOMS]
    return sorted(CHECKS.values(), key=lambda check: rooms.index(check.run.__module__))
