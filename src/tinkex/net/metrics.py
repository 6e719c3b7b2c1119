"""Numbers about this process's own traffic: counters, gauges, and latencies with percentiles.

Local only; what is reported to a server is another matter (telemetry).
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from .locks import new_lock

__all__ = ["Metrics"]

# Bucket edges from 0.1 ms to 1000 s, eight to a decade: a percentile is off by at most 15 %.
_EDGES = [10 ** (exponent / 8) for exponent in range(-32, 25)]


@dataclass(slots=True)
class _Histogram:
    count: int = 0
    total: float = 0.0
    largest: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) + 1))

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)
        self.buckets[bisect.bisect_left(_EDGES, value)] += 1

    def percentile(self, share: float) -> float:
        rank = math.ceil(self.count * share)
        seen = 0
        for index, number in enumerate(self.buckets):
            seen += number
            if seen >= rank and number:
                edge = _EDGES[index] if index < len(_EDGES) else self.largest
                return min(edge, self.largest)
        return 0.0


class Metrics:
    """Counts and times by name; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._counters: dict[str, int] = defaultdict(int)
        self._gauges: dict[str, float] = {}
        self._histograms: dict[str, _Histogram] = defaultdict(_Histogram)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] += by

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._gauges[name] = value

    def observe(self, name: str, seconds: float) -> None:
        """Add a duration."""
        with self._lock:
            self._histograms[name].add(seconds)

    def snapshot(self) -> dict[str, Any]:
        """Everything as plain data."""
        with self._lock:
            return {
                "counters": dict(self._counters),
                "gauges": dict(self._gauges),
                "latencies": {
                    name: {
                        "count": each.count,
                        "mean": each.total / each.count,
                        "p50": each.percentile(0.5),
                        "p90": each.percentile(0.9),
                        "p99": each.percentile(0.99),
                        "max": each.largest,
                    }
                    for name, each in self._histograms.items()
                },
            }

    def prometheus(self, prefix: str = "tinkex_client") -> str:
        """Everything in Prometheus' text format."""
        lines: list[str] = []
        with self._lock:
            for kind, values in (("counter", self._counters), ("gauge", self._gauges)):
                family = f"{prefix}_events_total" if kind == "counter" else f"{prefix}_value"
                if values:
                    lines.append(f"# TYPE {family} {kind}")
                lines += [f'{family}{{name="{name}"}} {value}' for name, value in sorted(values.items())]
            if self._histograms:
                lines.append(f"# TYPE {prefix}_seconds histogram")
            for name, each in sorted(self._histograms.items()):
                seen = 0
                for edge, number in zip(_EDGES, each.buckets, strict=False):
                    seen += number
                    lines.append(f'{prefix}_seconds_bucket{{name="{name}",le="{edge:.6g}"}} {seen}')
                lines.append(f'{prefix}_seconds_bucket{{name="{name}",le="+Inf"}} {each.count}')
                lines.append(f'{prefix}_seconds_sum{{name="{name}"}} {each.total}')
                lines.append(f'{prefix}_seconds_count{{name="{name}"}} {each.count}')
        return "\n".join(lines) + "\n"
