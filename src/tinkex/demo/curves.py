"""Curves out of letters: one column a point, eight heights a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["chart", "sparkline"]

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int, low: float, high: float) -> str:
    """Values as one line of blocks."""
    return "".join(_EIGHTHS[max(1, _height(value, low, high, 8))] for value in _spread(values, width))


def chart(
    values: Sequence[float], *, width: int, height: int, low: float, high: float, total: int
) -> list[str]:
    """Values as columns of blocks over `height` rows, scale at the left, with room for `total` of them."""
    shown = _spread(values, max(1, round(width * len(values) / max(total, 1)))) if values else []
    heights = [max(1, _height(value, low, high, 8 * height)) for value in shown]
    rows = []
    for row in range(height - 1, -1, -1):
        line = "".join(_EIGHTHS[min(8, max(0, each - 8 * row))] for each in heights)
        label = f"{high:.2f}" if row == height - 1 else f"{low:.2f}" if row == 0 else ""
        rows.append(f"{label:>6} │{line.ljust(width)}")
    return rows


def _height(value: float, low: float, high: float, most: int) -> int:
    if high <= low:
        return most
    return round(most * min(1.0, max(0.0, (value - low) / (high - low))))


def _spread(values: Sequence[float], width: int) -> list[float]:
    """As many values as there are columns: drawn out, or the mean of those that share one."""
    count = len(values)
    if not count:
        return []
    if count <= width:
        return [values[min(count - 1, column * count // width)] for column in range(width)]
    cuts = [column * count // width for column in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
