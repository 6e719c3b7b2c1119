"""Every decoder answers a value or raises what it is said to raise, whatever is done to its inputs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tinkex.errors import InvalidArgumentError

from . import mutation
from .running import Target, input_of, run, save, told, unlike
from .targets import known

TARGETS = {target.name: target for target in known()}
SLOW_ONES = {"custom loss": 40, "gguf": 12, "server request": 150, "tar": 120, "chats": 60, "tokenizer": 30,
             "state backup": 20, "state database": 20}  # fmt: skip
"""How many inputs those get that take longer than the rest."""
FEW, MANY = 150, 6000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_read_or_refused(name: str):
    report = run(TARGETS[name], SLOW_ONES.get(name, FEW), seed=7)
    assert report.inputs == SLOW_ONES.get(name, FEW)
    assert told(report) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_many_damaged_inputs_are_read_or_refused(name: str):
    count = 10 * SLOW_ONES[name] if name in SLOW_ONES else round(MANY * min(TARGETS[name].share, 1))
    assert told(run(TARGETS[name], max(count, 400), seed=8)) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_a_target_starts_from_inputs_it_reads(name: str):
    target = TARGETS[name]
    refused = 0
    for valid in target.corpus():
        try:
            target.read(valid)
        except target.errors:
            refused += 1
    assert refused < len(target.corpus())


# ---- the machinery itself


def _fragile(data: bytes) -> object:
    if data.startswith(b"ab"):
        raise InvalidArgumentError("documented")
    if b"\xff" in data:
        raise KeyError("a finding")
    return data


FRAGILE = Target("fragile", lambda: [b"abcd", b"xyz" * 4], _fragile, (InvalidArgumentError,))


def test_what_is_not_documented_is_found_and_made_again(tmp_path: Path):
    report = run(FRAGILE, 3000, seed=1, most_findings=3)
    assert len(report.findings) == 3
    assert report.refused > 2
    for finding in report.findings:
        assert finding.what == "KeyError: 'a finding'"
        assert input_of(FRAGILE, 1, finding.number, FRAGILE.corpus()) == finding.data
        assert save(tmp_path, finding).read_bytes() == finding.data
    assert len(unlike(report.findings)) == 1


def test_what_takes_too_long_or_too_much_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.fuzz.running.SECONDS", 0.05)

    def endless(data: bytes) -> object:
        while data != b"stop":
            pass
        return None

    held: list[bytes] = []
    slow = Target("slow", lambda: [b"stop"], endless, (Exception,), lambda rng, corpus: b"go")
    assert run(slow, 5, most_findings=1).findings[0].what.startswith("took more than")
    monkeypatch.setattr("tests.fuzz.running.WAITING", 0.05)
    stuck = threading.Event()
    idle = Target(
        "idle", lambda: [b""], lambda data: data and stuck.wait(), (Exception,), lambda rng, corpus: b"x"
    )
    assert run(idle, 5, most_findings=1).findings[0].what.startswith("took more than")
    large = Target(
        "large",
        lambda: [b""],
        lambda data: held.append(b"x" * (len(data) << 20)),
        (),
        lambda rng, corpus: bytes(400),
    )
    monkeypatch.undo()
    # Forget the most memory this process ever had: tests before this one may have had more.
    Path("/proc/self/clear_refs").write_text("5")
    assert "MiB" in run(large, 3, most_findings=1).findings[0].what
    huge = Target("huge", lambda: [b""], lambda data: bytes(len(data) << 33), (), lambda rng, corpus: b"x")
    assert run(huge, 1).findings[0].what.startswith("MemoryError")


def test_messages_are_changed_inside_and_stay_messages():
    from tinkex.wire import tinker_public_pb2 as pb

    from .wire_targets import pass_requests

    kept = 0
    for number in range(300):
        made = mutation.change_message(Random(number), pass_requests()[1])
        try:
            pb.ForwardBackwardRequest.FromString(made)
            kept += 1
        except Exception:  # a string that is no text, or nesting beyond what is read
            continue
    assert kept > 150
