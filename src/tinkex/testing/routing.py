"""From a method and a path to a route of the contract."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from ..wire.routes import PREFIX, ROUTES, Route

__all__ = ["check_names", "find_route"]

_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


def _pattern(path: str) -> re.Pattern[str]:
    written = _PARAMETER.sub(lambda found: f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})", path)
    return re.compile(written)


_FIXED: Mapping[tuple[str, str], Route] = {
    (each.method, each.full_path): each for each in ROUTES.values() if "{" not in each.path
}
# A path that ends in a parameter takes what the more exact ones leave over.
_OPEN = [
    (each.method, _pattern(each.full_path), each)
    for each in sorted(ROUTES.values(), key=lambda each: each.path.endswith("}"))
    if "{" in each.path
]


def find_route(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route and its path parameters; anything before `/api/v1` is a base URL's own path."""
    start = path.find(PREFIX + "/")
    if start < 0:
        return None
    path = path[start:] if start else path
    fixed = _FIXED.get((method, path))
    if fixed is not None:
        return fixed, {}
    for verb, pattern, route in _OPEN:
        found = pattern.fullmatch(path) if verb == method else None
        if found is not None:
            return route, {name: unquote(value) for name, value in found.groupdict().items()}
    return None


def check_names(names: str | Iterable[str], *more: str) -> frozenset[str]:
    """Route names as a set, each known to the contract (or one of `more`)."""
    given = frozenset([names] if isinstance(names, str) else names)
    unknown = given - ROUTES.keys() - set(more)
    if unknown:
        raise ValueError(f"no such route: {', '.join(sorted(unknown))}; known: {', '.join(ROUTES)}")
    return given
