"""Any `concurrent.futures.Future` as one that can be awaited too."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import TypeVar

from .future import Future

__all__ = ["AwaitableConcurrentFuture"]

T = TypeVar("T")


class AwaitableConcurrentFuture(Future[T]):
    """Ends as the wrapped future ends; `cancel()` is passed on to it."""

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        super().__init__()
        self._wrapped = future
        future.add_done_callback(self._copy)

    def _copy(self, ended: concurrent.futures.Future[T]) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if ended.cancelled():
                super().cancel()
            elif (error := ended.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_result(ended.result())

    def future(self) -> concurrent.futures.Future[T]:  # type: ignore[override]
        """The wrapped future."""
        return self._wrapped

    def cancel(self) -> bool:
        """Cancel the wrapped future; False if it cannot be."""
        return self._wrapped.cancel()
