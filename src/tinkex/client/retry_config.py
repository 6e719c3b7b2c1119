"""How sampling is retried, under the name and with the fields the official SDK has."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import APIConnectionError, RetryableException

__all__ = ["RetryConfig"]

_SHORTEST = 0.05  # less would make a hot loop


@dataclass(unsafe_hash=True)
class RetryConfig:
    """Limits of a sampling client: requests under way, waits between tries, patience.

    A sample that failed with one of `retryable_exceptions` is submitted anew; lost results, the server's
    own failures and connections are seen to without being named.
    """

    max_connections: int | None = 1000
    progress_timeout: float = 7200.0
    retry_delay_base: float = 0.5
    retry_delay_max: float = 10.0
    jitter_factor: float = 0.25
    enable_retry_logic: bool = True
    enable_stuck_detection: bool = True
    retryable_exceptions: tuple[type[Exception], ...] = (
        TimeoutError,
        APIConnectionError,
        RetryableException,
    )

    def __post_init__(self) -> None:
        if self.max_connections is not None and self.max_connections <= 0:
            raise ValueError(f"max_connections must be positive, got {self.max_connections}")

    def wait(self, attempt: int, chance: float) -> float:
        """Seconds before the try after the `attempt`-th (from 0), where the server asked for none."""
        delay = min(self.retry_delay_base * 2.0 ** min(attempt, 30), self.retry_delay_max)
        return max(delay * (1.0 - self.jitter_factor * chance), _SHORTEST)
