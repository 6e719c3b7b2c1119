"""`/metrics`: what a server counts and holds, in the text format of Prometheus (0.0.4)."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import shutil
import time
from collections.abc import Iterable, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .._version import __version__
from ..engine.messages import AskStats, Stats
from .asks import Reply
from .metrics import SHORT, Histogram
from .problems import Failure, Problem

if TYPE_CHECKING:
    from .engine_room import EngineRoom
    from .service import Service

__all__ = ["METRICS_PAGE", "metrics_page", "text_of"]

METRICS_PAGE = "metrics"
_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
ENGINE_PATIENCE = 1.0
"""Seconds an engine has to say how it is; one at work on something long is told with what it said last."""
SIZES_EVERY = 60.0
"""Seconds for which the sizes of folders hold: walking through them takes a while."""
Labels = Mapping[str, str]


class _Text:
    """Families of samples, one after the other."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, kind: str, meaning: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """All samples of one name."""
        self._head(name, kind, meaning)
        self.lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]

    def one(self, name: str, kind: str, meaning: str, value: float) -> None:
        """A single sample."""
        self.family(name, kind, meaning, [({}, value)])

    def histogram(self, name: str, meaning: str, series: Iterable[tuple[Labels, Histogram]]) -> None:
        """Buckets, sum and count of each series."""
        self._head(name, "histogram", meaning)
        for labels, seen in series:
            upto = 0
            for bound, count in zip((*SHORT, math.inf), seen.counts, strict=True):
                upto += count
                self.lines.append(f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {upto}")
            self.lines.append(f"{name}_sum{_labels(labels)} {_number(seen.total)}")
            self.lines.append(f"{name}_count{_labels(labels)} {upto}")

    def _head(self, name: str, kind: str, meaning: str) -> None:
        self.lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# ---- the page


async def metrics_page(service: Service, path: str, headers: Mapping[bytes, bytes], query: bytes) -> Reply:
    """All figures; whoever may see them is decided before."""
    if path.rstrip("/") != f"/{METRICS_PAGE}":
        raise Problem(404, f"no page {path!r}")
    figures = await _engine_figures(service)
    sizes = await _sizes(service)
    return Reply(200, text_of(service, figures, sizes).encode(), [_TYPE])


def text_of(service: Service, figures: Mapping[Path, Mapping[str, Any]], sizes: Mapping[str, int]) -> str:
    """The figures as text."""
    out = _Text()
    _about(out, service)
    _requests(out, service)
    _work(out, service)
    _holdings(out, service)
    _engines(out, service, figures)
    _disk(out, service, sizes)
    return "\n".join([*out.lines, ""])


def _about(out: _Text, service: Service) -> None:
    labels = {"version": __version__, "python": platform.python_version()}
    out.family("tinkex_build_info", "gauge", "What this is.", [(labels, 1)])
    out.one("tinkex_ready", "gauge", "Whether work sent now would be done now.", float(_ready(service)))
    out.one("tinkex_draining", "gauge", "Whether the server is stopping.", float(service.draining))
    out.one("process_start_time_seconds", "gauge", "When it started, since 1970.", service.started)
    out.one("process_cpu_seconds_total", "counter", "Processor time used.", time.process_time())
    memory = _resident(os.getpid())
    if memory is not None:
        out.one("process_resident_memory_bytes", "gauge", "Memory in use.", memory)
    files = _open_files()
    if files is not None:
        out.one("process_open_fds", "gauge", "Open files and connections.", files)


def _ready(service: Service) -> bool:
    return service.ready and not service.draining


def _requests(out: _Text, service: Service) -> None:
    counted = service.metrics
    found = sorted(counted.requests.items())
    out.family(
        "tinkex_http_requests_total",
        "counter",
        "Answers by route and status (499: the client left).",
        (({"route": route, "status": str(status)}, count) for (route, status), count in found),
    )
    out.family(
        "tinkex_http_request_seconds_total",
        "counter",
        "Time until the answer began, by route; polls are held until there is a result.",
        (({"route": route}, seconds) for route, seconds in sorted(counted.request_seconds.items())),
    )
    polls = service.tickets.waiting + sum(
        len(each.bell) for sampler in service.world.samplers.values() for each in sampler.clones.values()
    )
    out.one("tinkex_polls_held", "gauge", "Requests that wait for a result.", polls)


def _work(out: _Text, service: Service) -> None:
    counted = service.metrics
    out.family(
        "tinkex_operations_total",
        "counter",
        "Operations on models that ended, by kind and outcome (done, or whose fault).",
        (
            ({"kind": kind, "outcome": outcome}, count)
            for (kind, outcome), count in sorted(counted.operations.items())
        ),
    )
    kinds = sorted(counted.queued)
    out.histogram(
        "tinkex_operation_queue_seconds",
        "From an operation's arrival to its engine.",
        (({"kind": kind}, counted.queued[kind]) for kind in kinds),
    )
    out.histogram(
        "tinkex_operation_engine_seconds",
        "From the engine being told of an operation to its answer.",
        (({"kind": kind}, counted.worked[kind]) for kind in kinds),
    )
    out.family(
        "tinkex_samples_total",
        "counter",
        "Sampling requests that ended, by outcome.",
        (({"outcome": outcome}, count) for outcome, count in sorted(counted.samples.items())),
    )
    out.histogram(
        "tinkex_sample_first_token_seconds",
        "From a sampling request's arrival to its first token.",
        [({}, counted.first_token)],
    )
    out.histogram(
        "tinkex_sample_seconds", "From a sampling request's arrival to its end.", [({}, counted.sampled)]
    )
    out.family(
        "tinkex_tokens_total",
        "counter",
        "Tokens trained on, read as prompts (of those: found in the cache), and sampled.",
        (({"kind": kind}, count) for kind, count in counted.tokens.items()),
    )


def _holdings(out: _Text, service: Service) -> None:
    world = service.world
    live: dict[str, Sized] = {
        "sessions": world.sessions,
        "models": world.models,
        "samplers": world.samplers,
    }
    out.family(
        "tinkex_live",
        "gauge",
        "Open sessions, loaded models, sampling sessions.",
        (({"what": what}, len(those)) for what, those in live.items()),
    )
    models = world.models.values()
    out.one(
        "tinkex_operations_queued",
        "gauge",
        "Operations in line, not with an engine yet.",
        sum(len(model.line) for model in models),
    )
    out.one(
        "tinkex_operations_under_way",
        "gauge",
        "Operations an engine has.",
        sum(model.under_way for model in models),
    )
    out.one(
        "tinkex_queued_bytes",
        "gauge",
        "Bytes of operations that wait or run.",
        sum(size for _, size in service.queued.values()),
    )
    out.one(
        "tinkex_samples_under_way",
        "gauge",
        "Sampling requests that wait or run.",
        sum(len(desk) for desk in service.desks.values()),
    )
    out.one(
        "tinkex_operations_unwritten",
        "gauge",
        "Operations in line whose row is not on disk yet.",
        len(service.unwritten),
    )
    transactions = getattr(service.store, "transactions", None)
    if transactions is not None:
        out.one("tinkex_store_transactions_total", "counter", "Commits to the store.", transactions)


_FIGURES = {
    "models": "Models the engine holds.",
    "sampler_versions": "Frozen weights the engine knows.",
    "sampler_versions_in_memory": "Frozen weights in the engine's memory.",
    "operations_queued": "Operations the engine was told of and has not done.",
    "samples_queued": "Sequences that wait for room.",
    "rows": "Sequences being sampled.",
    "blocks": "Blocks of the key and value cache.",
    "blocks_free": "Blocks that hold nothing anybody uses.",
    "blocks_cached": "Free blocks that hold prefixes.",
}
_COUNTERS = {
    "preemptions": "Sequences put back for want of room.",
    "tokens_drawn": "Tokens drawn.",
    "train_seconds": "Time spent training.",
    "sample_seconds": "Time spent sampling.",
}


def _engines(out: _Text, service: Service, figures: Mapping[Path, Mapping[str, Any]]) -> None:
    names = {
        folder: {"model": min(m.name for m in service.catalogue.by_name.values() if m.folder == folder)}
        for folder in service.rooms
    }
    rooms = service.rooms.items()
    out.family(
        "tinkex_engine_up", "gauge", "Whether the engine takes work.",
        ((names[folder], float(room.up)) for folder, room in rooms),
    )  # fmt: skip
    out.family(
        "tinkex_engine_restarts_total", "counter", "How often it died and was started again.",
        ((names[folder], room.restarts) for folder, room in rooms),
    )  # fmt: skip
    memory = {folder: None if room.pid is None else _resident(room.pid) for folder, room in rooms}
    out.family(
        "tinkex_engine_resident_memory_bytes", "gauge", "Memory of the engine's process.",
        ((names[folder], used) for folder, used in memory.items() if used is not None),
    )  # fmt: skip
    for kind, meanings in (("gauge", _FIGURES), ("counter", _COUNTERS)):
        for figure, meaning in meanings.items():
            name = f"tinkex_engine_{figure}{'_total' if kind == 'counter' else ''}"
            known = ((names[folder], said[figure]) for folder, said in figures.items() if figure in said)
            out.family(name, kind, meaning, known)


def _disk(out: _Text, service: Service, sizes: Mapping[str, int]) -> None:
    out.one(
        "tinkex_disk_free_bytes",
        "gauge",
        "Room on the state folder's disk.",
        shutil.disk_usage(service.options.state).free,
    )
    out.family(
        "tinkex_state_bytes",
        "gauge",
        "Bytes on disk in the state folder, by room, as of the last minute.",
        (({"room": room}, size) for room, size in sizes.items()),
    )


# ---- what has to be asked for

_said: WeakKeyDictionary[EngineRoom, Mapping[str, Any]] = WeakKeyDictionary()
_walked: WeakKeyDictionary[Service, tuple[float, Mapping[str, int]]] = WeakKeyDictionary()


async def _engine_figures(service: Service) -> dict[Path, Mapping[str, Any]]:
    asking = [asyncio.ensure_future(_ask(room)) for room in service.rooms.values() if room.up]
    if asking:
        # Those that take longer are answered all the same: the next look finds it.
        await asyncio.wait(asking, timeout=ENGINE_PATIENCE)
    return {folder: _said[room] for folder, room in service.rooms.items() if room in _said}


async def _ask(room: EngineRoom) -> None:
    try:
        answer = await room.call(AskStats(room.epoch, room.next_name()))
    except Failure:
        return
    if isinstance(answer, Stats):
        _said[room] = {
            name: value for name, value in answer.figures.items() if isinstance(value, (int, float))
        }


async def _sizes(service: Service) -> Mapping[str, int]:
    now = service.clock.monotonic()
    when, sizes = _walked.get(service, (-math.inf, {}))
    if now - when >= SIZES_EVERY:
        usage = await asyncio.to_thread(service.folders.usage)
        sizes = {room: size for room, size in usage.items() if room != "free"}
        _walked[service] = now, sizes
    return sizes


def _resident(process: int) -> int | None:
    """Bytes of memory a process has, where the system tells it."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None
