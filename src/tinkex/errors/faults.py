"""Whose fault an error is, and whether another try may help: the one table of statuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from types import MappingProxyType

__all__ = ["Fault", "RequestErrorCategory", "StatusRule", "status_rule"]


class Fault(StrEnum):
    """Who has to act to make an error go away."""

    USER = auto()
    SERVER = auto()
    NETWORK = auto()
    UNKNOWN = auto()


class RequestErrorCategory(StrEnum):
    """Whose fault a failed request was, as the server says."""

    Unknown = auto()
    Server = auto()
    User = auto()

    @classmethod
    def _missing_(cls, value: object) -> RequestErrorCategory:
        text = str(value).lower()
        return next((member for member in cls if member.value == text), cls.Unknown)


@dataclass(frozen=True, slots=True)
class StatusRule:
    """What one HTTP status means: whose fault, and whether the same request may be sent again."""

    fault: Fault
    retryable: bool


# The one table from which retrying, error classes and the user-error flag all follow.
_STATUS_RULES: Mapping[int, StatusRule] = MappingProxyType(
    {
        402: StatusRule(Fault.USER, retryable=True),  # a pause, until the account is in order
        408: StatusRule(Fault.NETWORK, retryable=True),
        409: StatusRule(Fault.SERVER, retryable=True),
        410: StatusRule(Fault.SERVER, retryable=False),
        429: StatusRule(Fault.USER, retryable=True),
    }
)


def status_rule(status: int) -> StatusRule:
    """Whose fault an HTTP status is, and whether it is worth another try."""
    rule = _STATUS_RULES.get(status)
    if rule is not None:
        return rule
    if 400 <= status < 500:
        return StatusRule(Fault.USER, retryable=False)
    if status >= 500:
        return StatusRule(Fault.SERVER, retryable=True)
    return StatusRule(Fault.UNKNOWN, retryable=False)
