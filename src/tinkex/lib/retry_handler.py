"""`RetryConfig`, under the official SDK's module path."""

from __future__ import annotations

from ..client.retry_config import RetryConfig
from ..errors import RetryableException, status_rule

__all__ = ["RetryConfig", "RetryableException", "is_retryable_status_code"]


def is_retryable_status_code(status_code: int) -> bool:
    """Whether a request answered with this status may be sent again."""
    return status_rule(status_code).retryable
