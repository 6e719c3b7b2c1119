"""From a method and a path to a route of the contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from .routes import ROUTES, Route

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
_NO_PARAMS: Mapping[str, str] = {}


def find_route(method: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
    """The route and its path parameters."""
    fixed = _FIXED.get((method, path))
    if fixed is not None:
        return fixed, _NO_PARAMS
    for verb, pattern, route in _OPEN:
        found = pattern.fullmatch(path) if verb == method else None
        if found is not None:
            return route, {name: unquote(value) for name, value in found.groupdict().items()}
    return None


def methods_of(path: str) -> list[str]:
    """The methods a path is served under, for a refusal that says so."""
    fixed = {method for method, known in _FIXED if known == path}
    return sorted(fixed | {method for method, pattern, _ in _OPEN if pattern.fullmatch(path)})
