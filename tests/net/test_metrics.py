"""Local numbers: counters, gauges, latencies with percentiles, and their Prometheus form."""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.net.metrics import Metrics

SAMPLE = re.compile(r"(?P<family>[a-zA-Z_:][\w:]*)\{(?P<labels>[^}]*)\} (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def parse(text: str) -> tuple[dict[str, str], dict[str, list[tuple[dict[str, str], float]]]]:
    """Prometheus' text format, strictly: every line a comment of type or a sample of a declared family."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in kinds, "a family is declared once"
            assert not samples[family], "and before its samples"
            kinds[family] = kind
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        family = found["family"]
        owner = re.sub(r"_(bucket|sum|count)$", "", family)
        assert kinds.get(owner if kinds.get(owner) == "histogram" else family), line
        labels = dict(LABEL.findall(found["labels"]))
        assert labels
        samples[family].append((labels, float(found["value"])))
    return kinds, samples


def test_counters_and_gauges() -> None:
    metrics = Metrics()
    metrics.count("a")
    metrics.count("a", 4)
    metrics.gauge("b", 2.5)
    metrics.gauge("b", 1.5)
    assert metrics.snapshot() == {"counters": {"a": 5}, "gauges": {"b": 1.5}, "latencies": {}}


def test_nothing_is_lost_between_threads() -> None:
    metrics = Metrics()

    def work() -> None:
        for _ in range(2000):
            metrics.count("a")
            metrics.observe("b", 0.01)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    snapshot = metrics.snapshot()
    assert snapshot["counters"]["a"] == 16_000
    assert snapshot["latencies"]["b"]["count"] == 16_000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-4, 999.0), min_size=1, max_size=200))
def test_percentiles_are_off_by_no_more_than_a_bucket(values: list[float]) -> None:
    metrics = Metrics()
    for value in values:
        metrics.observe("x", value)
    told = metrics.snapshot()["latencies"]["x"]
    ranked = sorted(values)
    assert told["count"] == len(values)
    assert told["max"] == ranked[-1]
    assert math.isclose(told["mean"], sum(values) / len(values))
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        true = ranked[math.ceil(len(values) * share) - 1]
        assert true <= told[name] * (1 + 1e-9)
        assert told[name] <= true * 10 ** (1 / 8) * (1 + 1e-9)
    assert told["p50"] <= told["p90"] <= told["p99"] <= told["max"]


def test_values_beyond_all_buckets_are_counted() -> None:
    metrics = Metrics()
    for value in (0.0, 5000.0):
        metrics.observe("x", value)
    told = metrics.snapshot()["latencies"]["x"]
    assert (told["count"], told["max"], told["p99"]) == (2, 5000.0, 5000.0)
    _, samples = parse(metrics.prometheus())
    assert samples["tinkex_client_seconds_bucket"][-1][1] == 2


def test_a_snapshot_is_a_copy() -> None:
    metrics = Metrics()
    metrics.count("a")
    snapshot: dict[str, Any] = metrics.snapshot()
    snapshot["counters"]["a"] = 99
    assert metrics.snapshot()["counters"]["a"] == 1


def test_prometheus_text_parses_and_says_the_same() -> None:
    metrics = Metrics()
    metrics.count("retry.asample", 3)
    metrics.count("status.503", 2)
    metrics.gauge("sampling.limit", 64.0)
    for value in (0.001, 0.02, 0.02, 7.0):
        metrics.observe("asample", value)
    metrics.observe("optim_step", 0.5)
    kinds, samples = parse(metrics.prometheus("mine"))
    assert kinds == {"mine_events_total": "counter", "mine_value": "gauge", "mine_seconds": "histogram"}
    assert samples["mine_events_total"] == [({"name": "retry.asample"}, 3), ({"name": "status.503"}, 2)]
    assert samples["mine_value"] == [({"name": "sampling.limit"}, 64)]
    assert samples["mine_seconds_count"] == [({"name": "asample"}, 4), ({"name": "optim_step"}, 1)]
    assert math.isclose(samples["mine_seconds_sum"][0][1], 7.041)
    for name, count in (("asample", 4), ("optim_step", 1)):
        buckets = [
            (each["le"], value) for each, value in samples["mine_seconds_bucket"] if each["name"] == name
        ]
        edges = [float(edge) for edge, _ in buckets]
        assert edges == sorted(set(edges))
        assert edges[-1] == math.inf
        counts = [value for _, value in buckets]
        assert counts == sorted(counts), "buckets are cumulative"
        assert counts[-1] == count
    within = [value for each, value in samples["mine_seconds_bucket"] if float(each["le"]) >= 1.0]
    assert within[0] == 3


def test_no_numbers_make_an_empty_text() -> None:
    assert Metrics().prometheus() == "\n"
