"""What a soak has shown: the checks, the figures, and a page with plots that needs nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

GROWTH = 1.05
"""Most by which the median memory of the last third may lie above that of the second."""
FAIR = 0.6
"""Least part of the median tenant's steps that the slowest has."""
ALIVE = ("sessions", "models", "samplers", "pending", "operations")
"""What is gone when everybody is."""
STATE = ("store", "snapshots", "checkpoints", "engine")
"""The parts of the state folder that matter."""
Look: TypeAlias = Callable[[dict[str, Any]], float | None]
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 180, 56, 22
_COLOURS = ("#0b7285", "#c2255c", "#5c940d", "#e67700", "#5f3dc4")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    good: bool
    text: str


def checks(facts: dict[str, Any]) -> list[Check]:
    """Everything that must hold."""
    found = []
    for name in facts["idle"]:
        second, last = (statistics.median(each) for each in thirds(facts, name)[1:])
        text = f"median of the last third {last:.1f} MB, of the second {second:.1f} MB: {last / second:.3f}"
        found.append(Check(f"{name} memory", last <= GROWTH * second, f"{text} (limit {GROWTH})"))
        before, after = facts["idle"][name]["handles"], facts["rest"][name]["handles"]
        more = _listed(facts["left"]["opened"][name])
        found.append(Check(f"{name} handles", before == after, f"{before} before, {after} after {more}"))
    alive = {
        name: facts["left"][name] for name in ("sessions", "models", "samplers", "pending", "operations")
    }
    found.append(Check("nothing left alive", not any(alive.values()), _listed(alive)))
    files = facts["left"]["files"]
    shown = ", ".join(list(files)[:5]) or "none"
    found.append(Check("no files left", not files, f"{len(files)}: {shown}"))
    errors = facts["errors"]
    found.append(Check("no errors", not errors, _listed(errors) or "none"))
    steps = sorted(facts["steps"].values()) or [0]
    middle = statistics.median(steps)
    ratio = steps[0] / middle if middle else 0.0
    text = f"slowest tenant {steps[0]} steps, median {middle:.0f}, fastest {steps[-1]}: {ratio:.2f}"
    found.append(Check("fairness", ratio >= FAIR, f"{text} of the median (limit {FAIR})"))
    found.append(Check("a tidy end", facts["exit"] == 0, f"exit code {facts['exit']}"))
    restarts = facts["left"]["restarts"]
    found.append(Check("one engine", restarts == 0, f"{restarts} restarts"))
    return found


def thirds(facts: dict[str, Any], process: str) -> list[list[float]]:
    """A process's memory in each third of the run."""
    parts: list[list[float]] = [[], [], []]
    for record in facts["records"]:
        parts[min(2, int(3 * record["at"] / facts["seconds"]))].append(record[process]["memory"])
    return [part or [0.0] for part in parts]


def summary(facts: dict[str, Any], found: Sequence[Check]) -> dict[str, Any]:
    """All figures, as plain data."""
    records = facts["records"]

    def middle(name: str, which: int) -> float | None:
        values = [value for each in records if (value := each["latency"][name][which]) is not None]
        return round(statistics.median(values), 1) if values else None

    return {
        "good": all(each.good for each in found),
        "checks": {each.name: {"good": each.good, "text": each.text} for each in found},
        "minutes": facts["seconds"] / 60,
        "memory by third": {
            name: [round(statistics.median(part), 1) for part in thirds(facts, name)]
            for name in facts["idle"]
        },
        "handles": {
            name: [facts["idle"][name]["handles"], facts["rest"][name]["handles"]] for name in facts["idle"]
        },
        "most handles": max(record["server"]["handles"] for record in records),
        "most samples under way": max(record["inside"]["samples"] for record in records),
        "most sessions": max(record["inside"]["sessions"] for record in records),
        "latency ms": {
            name: {"p50": middle(name, 0), "p99": middle(name, 1)} for name in ("train", "sample")
        },
        "steps": dict(facts["steps"]),
        "steps in all": sum(facts["steps"].values()),
        "did": dict(facts["did"]),
        "errors": dict(facts["errors"]),
        "disk MB": [records[len(records) // 3]["disk"], records[-1]["disk"]],
        "clients MB": [records[len(records) // 3]["clients"], records[-1]["clients"]],
        "left": facts["left"],
    }  # fmt: skip


def _listed(found: dict[str, Any]) -> str:
    return "; ".join(f"{value} × {name}" for name, value in found.items())


# ---- the page


def page(facts: dict[str, Any], found: Sequence[Check]) -> str:
    """The whole of it in one file."""
    records = facts["records"]
    names = list(facts["idle"])
    plots = [
        _plot("resident memory, MB", records, {n: lambda r, n=n: r[n]["memory"] for n in names}),
        _plot("open handles", records, {n: lambda r, n=n: r[n]["handles"] for n in names}),
        _plot("threads", records, {n: lambda r, n=n: r[n]["threads"] for n in names}),
        _plot("train step, ms (median, p99)", records, _latency("train")),
        _plot("sample, ms (median, p99)", records, _latency("sample")),
        _plot("steps by tenant (slowest, median, fastest)", records, _progress()),
        _plot("samples under way", records, _inside("samples", "sequences")),
        _plot("sessions, models, samplers", records, _inside("sessions", "models", "samplers")),
        _plot("operations in line, tasks", records, _inside("operations", "tasks")),
        _plot("results at hand, samples noted", records, _inside("tickets", "noted")),
        _plot("state folder, MB", records,
              {n: lambda r, n=n: r["disk"].get(n, 0.0) for n in STATE}),
        _plot("clients' memory, MB", records,
              {n: lambda r, n=n: r["clients"][n] for n in records[-1]["clients"]}),
        _plot("jumps of the server's date, s", records, {"shift": lambda r: r["shift"]}),
    ]  # fmt: skip
    rows = "".join(
        f"<tr><td>{'ok' if each.good else '<b>FAIL</b>'}</td><td>{escape(each.name)}</td>"
        f"<td>{escape(each.text)}</td></tr>"
        for each in found
    )
    did = ", ".join(f"{count} {escape(name)}" for name, count in sorted(facts["did"].items()))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>tinkex soak</title><style>'
        "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
        "svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#666}"
        "td{padding:.2rem .6rem;border-bottom:1px solid #8883;vertical-align:top}h2{font-size:1rem}"
        f"</style></head><body><h1>{facts['seconds'] / 60:g} minutes of soak</h1>"
        f"<table>{rows}</table><p>{did}</p>\n{''.join(plots)}</body></html>\n"
    )


def _latency(name: str) -> dict[str, Look]:
    return {"median": lambda r: r["latency"][name][0], "p99": lambda r: r["latency"][name][1]}


def _inside(*names: str) -> dict[str, Look]:
    return {name: lambda r, name=name: r["inside"][name] for name in names}  # type: ignore[misc]


def _progress() -> dict[str, Look]:
    return {
        "slowest": lambda r: min(r["steps"].values(), default=0),
        "median": lambda r: statistics.median(r["steps"].values() or [0]),
        "fastest": lambda r: max(r["steps"].values(), default=0),
    }


def _plot(
    title: str,
    records: Sequence[dict[str, Any]],
    lines: dict[str, Look],
) -> str:
    """Lines over time, each with its name."""
    values = {
        name: [(r["at"], v) for r in records if (v := look(r)) is not None] for name, look in lines.items()
    }
    everything = [value for found in values.values() for _, value in found] or [0.0]
    low, high = min(0.0, *everything), max(*everything, 1e-9)
    end = records[-1]["at"]

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * at / end

    def y(value: float) -> float:
        return 8 + (_HEIGHT - _BOTTOM - 8) * (1 - (value - low) / (high - low))

    drawn = []
    for part in range(3):
        value = low + (high - low) * part / 2
        drawn.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#8884"/>'
            f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        )
    for part in range(4):
        at, anchor = end * part / 3, ("start", "middle", "middle", "end")[part]
        drawn.append(
            f'<text x="{x(at):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{at / 60:.1f} min</text>'
        )
    for number, (name, found) in enumerate(values.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in found)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        drawn.append(
            f'<text x="{_LEFT + 8 + 110 * number}" y="18" style="fill:{colour}">{escape(name)}</text>'
        )
    return f'<h2>{escape(title)}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(drawn)}</svg>\n'
