"""How the documents of two journeys differ, line by line, for a person to read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

TOLERANCE = 1e-5
NEAR_ZERO = 1e-6  # below this, float32 noise outweighs the number


def differences(
    expected: Any, got: Any, *, common: tuple[str, ...] = (), tolerance: float = TOLERANCE
) -> list[str]:
    """Each place where two documents differ; of what stands under `common`, only keys both have count."""
    return list(_differ("", expected, got, common, tolerance))


def _differ(
    place: str, expected: Any, got: Any, common: tuple[str, ...], tolerance: float
) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        shared = place in common
        for key in [*expected, *(key for key in got if key not in expected)]:
            below = f"{place} / {key}" if place else str(key)
            if key in expected and key in got:
                yield from _differ(below, expected[key], got[key], common, tolerance)
            elif not shared:
                yield f"{below}: only {'expected' if key in expected else 'got'}"
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            yield f"{place}: {len(expected)} expected, {len(got)} got"
        for index, (one, other) in enumerate(zip(expected, got, strict=False)):
            yield from _differ(f"{place}[{index}]", one, other, common, tolerance)
    elif not _alike(expected, got, tolerance):
        yield f"{place}: {expected!r} expected, {got!r} got"


def _alike(expected: Any, got: Any, tolerance: float) -> bool:
    """Whether two leaves are the same; only numbers with a fraction may differ, and only a little."""
    if isinstance(expected, float) and isinstance(got, float):
        both_nan = math.isnan(expected) and math.isnan(got)
        return both_nan or math.isclose(expected, got, rel_tol=tolerance, abs_tol=NEAR_ZERO)
    return type(expected) is type(got) and bool(expected == got)
