"""Log lines for people who wait: each thing is said once in a while, however many wait for it."""

from __future__ import annotations

import logging

from .clock import Clock

__all__ = ["Teller"]

_MOST_TOPICS = 1000


class Teller:
    """Says what is going on, and does not say it again too soon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}

    def say(self, logger: logging.Logger, topic: str, every: float, text: str, *values: object) -> None:
        """Log a warning, unless the same topic had one less than `every` seconds ago."""
        now = self._clock.monotonic()
        if now - self._told.get(topic, float("-inf")) < every:
            return
        if len(self._told) >= _MOST_TOPICS:
            self._told.clear()
        self._told[topic] = now
        logger.warning(text, *values)
