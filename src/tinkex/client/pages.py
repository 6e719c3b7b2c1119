"""Lists that come in pages, as one sequence: read lazily, the next page fetched ahead.

A list may change while it is read.  Items added at its front push the rest back, items removed pull
it forward; both must neither repeat an item nor skip an older one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ..errors import InvalidArgumentError
from ..types.rules import shown
from .future import Future
from .portal import portal

__all__ = ["ByCursor", "ByOffset", "Pages"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_MOST_REPEATS = 20  # equal pages in a row, after which a server does not heed the offset


class Source(Protocol[T_co]):
    """Gives the new items of one page after another, and None after the last."""

    async def next(self) -> Sequence[T_co] | None:
        """The next page's items."""


class Pages(Generic[T]):
    """The items of a list, for `for` and `async for`; each loop reads the list anew."""

    def __init__(self, open: Callable[[], Source[T]]) -> None:
        self._open = open

    def __iter__(self) -> Iterator[T]:
        source = self._open()
        ahead = _next(source)
        try:
            while (items := ahead.result()) is not None:
                ahead = _next(source)
                yield from items
        finally:
            ahead.cancel()

    async def __aiter__(self) -> AsyncIterator[T]:
        source = self._open()
        ahead = _next(source)
        try:
            while (items := await ahead) is not None:
                ahead = _next(source)
                for item in items:
                    yield item
        finally:
            ahead.cancel()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: read it with `for` or `async for`>"


def _next(source: Source[T]) -> Future[Sequence[T] | None]:
    return portal().start(source.next())


def check_page_size(size: object) -> int:
    """A page size of one or more."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidArgumentError(f"page_size: expected a whole number from 1, got {shown(size)}")
    return size


class ByOffset(Generic[T]):
    """Pages of a list that is addressed by position, newest first.

    Each page begins with the last item of the page before.  If it does not, something in front was
    removed meanwhile, and the reader goes back until it finds an item it knows.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], Awaitable[tuple[Sequence[T], int | None]]],
        key: Callable[[T], Hashable],
        size: int,
    ) -> None:
        self._fetch, self._key = fetch, key
        self._size = max(check_page_size(size), 2)  # one item of it is the overlap
        self._offset = 0
        self._seen: set[Hashable] = set()
        self._last: list[Hashable] = []
        self._repeats = 0
        self._over = False

    async def next(self) -> Sequence[T] | None:
        """The next items not seen yet; the total, where the server tells it, spares a last look."""
        while not self._over:
            items, total = await self._fetch(self._size, self._offset)
            keys = [self._key(item) for item in items]
            if self._offset and not (keys and keys[0] in self._seen):
                self._offset = max(self._offset - self._size, 0)
                continue
            self._repeats = self._repeats + 1 if keys == self._last else 0
            end = self._offset + len(items)
            self._over = len(items) < 2 or self._repeats >= _MOST_REPEATS
            self._over |= total is not None and end >= total
            self._last, self._offset = keys, end - 1
            fresh = _fresh(items, keys, self._seen)
            if fresh:
                return fresh
        return None


class ByCursor(Generic[T]):
    """Pages of a list in which each page says where the next one starts."""

    def __init__(
        self,
        fetch: Callable[[Any], Awaitable[tuple[Sequence[T], Any]]],
        key: Callable[[T], Hashable],
        start: Any = None,
    ) -> None:
        self._fetch, self._key = fetch, key
        self._cursor = start
        self._seen: set[Hashable] = set()
        self._over = False

    async def next(self) -> Sequence[T] | None:
        """The next items not seen yet."""
        while not self._over:
            items, onward = await self._fetch(self._cursor)
            self._over = onward is None or onward == self._cursor
            self._cursor = onward
            fresh = _fresh(items, [self._key(item) for item in items], self._seen)
            if fresh:
                return fresh
        return None


def _fresh(items: Sequence[T], keys: Sequence[Hashable], seen: set[Hashable]) -> list[T]:
    fresh = []
    for item, key in zip(items, keys, strict=True):
        if key not in seen:
            seen.add(key)
            fresh.append(item)
    return fresh
