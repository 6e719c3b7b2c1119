"""Servers take turns on one state folder and port: a program in the middle of training does not notice."""

from __future__ import annotations

import os
import re
import signal
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from tinkex.testing import make_tiny_model

from .killing import Program, Report, undisturbed
from .serving import DETERMINISTIC, Served, wait_for

STEPS = 24
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("torch", "transformers")),
        reason="the engine is not installed",
    ),
]


def successor(served: Served, number: int) -> Served:
    """The next server of the same folder and port; it waits for its turn."""
    following = Served(served.folder.with_name(f"turn-{number}"), served.model, served.options)
    following.state, following.port, following.url = served.state, served.port, served.url
    return following


def hand_over(served: Served, following: Served, program: Program) -> None:
    """Start the next server while this one runs, tell this one to stop, and see it leave with 0."""
    starting = threading.Thread(target=following.start)
    starting.start()
    wait_for(lambda: following.log.exists() and "waiting up to" in following.log.read_text(), "its wait")
    so_far = program.steps_done
    wait_for(lambda: program.steps_done > so_far or program.over, "another step")
    assert not program.over
    os.kill(served.pid, signal.SIGTERM)
    assert served.left() == 0, served.last_words()
    starting.join()
    assert following.running, following.last_words()


@pytest.mark.parametrize("sdk", ["tinker", "tinkex"])
def test_a_program_does_not_notice_that_servers_take_turns(sdk: str, tmp_path: Path):
    pytest.importorskip(sdk)
    model = make_tiny_model(tmp_path / "model")
    expected = undisturbed(tmp_path / "undisturbed", model, sdk, STEPS)
    served = Served(tmp_path / "turn-0", model, (*DETERMINISTIC, "--wait-for-lock", "60"))
    served.start()
    program = Program(sdk, served.url, STEPS, tmp_path / "turn-0")
    everyone = [served]
    try:
        for number in (1, 2):
            following = successor(served, number)
            everyone.append(following)
            hand_over(served, following, program)
            served = following
        found = Report(sdk, program.result())
        served.stop()
        found.checkpoints, found.ended = served.checkpoints(), served.ended()
        found.files, found.findings = expected.files, served.findings()
        assert found.differences(expected) == []
        replayed = [re.findall(r"(\d+) operations replayed", each.log.read_text()) for each in everyone]
        assert replayed == [[], ["0"], ["0"]]
    finally:
        program.kill()
        for each in everyone:
            each.destroy()
