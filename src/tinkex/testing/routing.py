"""Routes as the fakes find them: under any base URL, and by names that must be known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..wire import routing
from ..wire.routes import PREFIX, ROUTES, Route

__all__ = ["check_names", "find_route"]


def find_route(method: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
    """The route and its path parameters; anything before `/api/v1` is a base URL's own path."""
    start = path.find(PREFIX + "/")
    return None if start < 0 else routing.find_route(method, path[start:])


def check_names(names: str | Iterable[str], *more: str) -> frozenset[str]:
    """Route names as a set, each known to the contract (or one of `more`)."""
    given = frozenset([names] if isinstance(names, str) else names)
    unknown = given - ROUTES.keys() - set(more)
    if unknown:
        raise ValueError(f"no such route: {', '.join(sorted(unknown))}; known: {', '.join(ROUTES)}")
    return given
