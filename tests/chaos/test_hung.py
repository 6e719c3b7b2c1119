"""An engine that stands still in the middle of its work is replaced, and a program sees nothing of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tinkex.testing import make_tiny_model

from .killing import Report, _report, started, undisturbed
from .serving import DETERMINISTIC, wait_for
from .test_kills import needs_engine

STEPS = 24
WATCHED = (*DETERMINISTIC, "--time", "stall=3", "--time", "loading=60")


@pytest.mark.slow
@needs_engine
@pytest.mark.skipif(os.name == "nt", reason="processes cannot be stopped there")
def test_a_program_does_not_notice_that_its_engine_hangs(tmp_path: Path):
    model = make_tiny_model(tmp_path / "model")
    expected = undisturbed(tmp_path / "undisturbed", model, "tinkex", STEPS)
    report = Report("tinkex")
    with started(tmp_path / "disturbed", model, "tinkex", STEPS, WATCHED) as (served, program):
        for steps in (6, 18):
            wait_for(lambda steps=steps: program.steps_done >= steps or program.over, "some steps")
            engine = served.engine()
            assert engine is not None
            os.kill(engine, signal.SIGSTOP)
            wait_for(lambda engine=engine: served.engine() not in (None, engine), "another engine")
        _report(served, program, report)
        said = served.log.read_text()
    # An engine stopped in its first steps has as long as loading may take.
    assert said.count("; it is killed") == 2
    assert "made no progress for 3 s; it is killed" in said
    assert report.differences(expected) == []
