"""Runs a decoder on many inputs and watches it: what it answers or raises, its time and its memory.

Each input is made from the seed, the target's name and its own number alone, so any of them can be made
again without the others.
"""

from __future__ import annotations

import hashlib
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from .mutation import Mutate, damaged

SECONDS = 2.0
"""How long one input may compute: time of this process, however busy the machine is."""
WAITING = 60.0
"""How long it may take in all: then it waits for something that does not come."""
GROWTH = 96 << 20
"""Bytes by which one input may raise the most memory the process ever had."""
ROOM = 3 << 30
"""Bytes of address space beyond what is in use when a run begins."""


@dataclass(frozen=True)
class Target:
    """A decoder, what it is fed, and which errors it is said to raise."""

    name: str
    corpus: Callable[[], Sequence[bytes]]
    """Inputs that are valid, or nearly."""
    read: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...]
    mutate: Mutate = damaged
    share: float = 1.0
    """Of the inputs of a run, compared with other targets."""


@dataclass(frozen=True)
class Finding:
    """An input that a target did not take as it should."""

    target: str
    seed: int
    number: int
    what: str
    where: str
    data: bytes = field(repr=False)

    @property
    def kind(self) -> str:
        """The same for inputs that fail in the same way."""
        return f"{self.target}: {self.what.split(':', 1)[0]} at {self.where}"


@dataclass
class Report:
    """What a run on one target came to."""

    target: str
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


class TooLong(BaseException):
    """An input took too long; no decoder may catch this."""


def input_of(target: Target, seed: int, number: int, corpus: Sequence[bytes]) -> bytes:
    """The input of a number."""
    return target.mutate(Random(f"{seed} {target.name} {number}"), corpus)


def run(
    target: Target,
    inputs: int,
    seed: int = 0,
    *,
    first: int = 0,
    until: float = float("inf"),
    most_findings: int = 20,
) -> Report:
    """Feed a target so many inputs, or until a moment of `time.monotonic`."""
    report = Report(target.name)
    corpus = target.corpus()
    for valid in corpus:  # what is loaded on first use does not count
        _outcome(target, valid)
    began = time.perf_counter()
    with _room(), _alarm():
        for number in range(first, first + inputs):
            data = input_of(target, seed, number, corpus)
            what, where = _watched(target, data)
            report.inputs += 1
            report.refused += what == "refused"
            if what not in ("", "refused"):
                report.findings.append(Finding(target.name, seed, number, what, where, data))
                if len(report.findings) >= most_findings:
                    break
            if number % 64 == 0 and time.monotonic() > until:
                break
    report.seconds = time.perf_counter() - began
    return report


def _watched(target: Target, data: bytes) -> tuple[str, str]:
    before = _peak()
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITING)
    try:
        what, where = _outcome(target, data)
    except TooLong as late:
        return f"took more than {SECONDS} s", _place(late)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not what or what == "refused":
        took, grown = time.process_time() - began, _peak() - before
        if took > SECONDS:
            return f"took {took:.1f} s", "read"
        if grown > GROWTH:
            return f"took {grown >> 20} MiB", "read"
    return what, where


def _outcome(target: Target, data: bytes) -> tuple[str, str]:
    """Nothing, "refused", or what went wrong and where."""
    try:
        target.read(data)
    except target.errors:
        return "refused", ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}", _place(error)
    return "", ""


def _place(error: BaseException) -> str:
    """The innermost line of ours, below whose name the error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tinkex/" in frame.filename] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _alarm() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = {number: signal.signal(number, late) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _room() -> Iterator[None]:
    """Less address space than the machine has: what asks for too much is told so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def save(folder: Path, finding: Finding) -> Path:
    """Keep the input of a finding."""
    folder.mkdir(parents=True, exist_ok=True)
    name = finding.target.replace("/", "-").replace(" ", "-")
    path = folder / f"{name}-{hashlib.sha256(finding.data).hexdigest()[:12]}"
    path.write_bytes(finding.data)
    return path


def unlike(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings by how they fail."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.kind, []).append(finding)
    return found


def told(report: Report) -> list[str]:
    """The findings of a run as lines, for a test's message."""
    return [
        f"{each.kind} — {each.what} (seed {each.seed}, number {each.number})" for each in report.findings
    ]
