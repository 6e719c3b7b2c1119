"""What `sample_stream` and `sample_many` share: read by a thread or a task, and left at any time."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, Self

__all__ = ["Reader"]


class Reader:
    """Something that is read to its end, or closed before: by hand, by `with`, or by dropping it."""

    _stop: weakref.finalize[Any, Any]

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def close(self) -> None:
        """Read no more, and cancel what is under way; again is harmless."""
        self._stop()

    async def aclose(self) -> None:
        """Read no more, and cancel what is under way; again is harmless."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
