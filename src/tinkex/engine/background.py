"""Writes what was copied, one thing after the other in a thread of its own, while the engine goes on.

What is to be written is held in memory until it is: beyond a bound the engine waits for the writing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from .messages import Answer

MOST_BYTES = 2 << 30
"""Bytes of copies that wait to be written; one more is taken in whatever its size."""


class BackgroundWriter:
    """The thread, what it has not written yet, and the answers to what it has."""

    def __init__(self, wake: Callable[[], None], most_bytes: int = MOST_BYTES) -> None:
        self._wake, self._most = wake, most_bytes
        self._waiting: deque[tuple[str, int, Future[None]]] = deque()
        self._answers: deque[Answer] = deque()
        self._thread: ThreadPoolExecutor | None = None

    @property
    def has_answers(self) -> bool:
        """Whether something has been written since answers were taken."""
        return bool(self._answers)

    def begin(self, model: str, size: int, write: Callable[[], Answer]) -> None:
        """Have something of a model written; `write` gives the answer and does not raise."""
        self._forget_done()
        while self._waiting and sum(size for _, size, _ in self._waiting) + size > self._most:
            self._waiting.popleft()[2].result()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="background-writer")

        def run() -> None:
            self._answers.append(write())
            self._wake()

        self._waiting.append((model, size, self._thread.submit(run)))

    def answers(self) -> list[Answer]:
        """What has been written since this was last asked."""
        found = []
        while self._answers:
            found.append(self._answers.popleft())
        return found

    def wait(self, model: str) -> None:
        """Wait until nothing of a model is left to be written."""
        for name, _, writing in self._waiting:
            if name == model:
                writing.result()

    def close(self) -> None:
        """Write what is left and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _forget_done(self) -> None:
        while self._waiting and self._waiting[0][2].done():
            self._waiting.popleft()
