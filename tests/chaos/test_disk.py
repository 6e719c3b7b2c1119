"""A disk that takes nothing, again and again: a user's program goes on and ends with the same numbers."""

from __future__ import annotations

import contextlib
import random
import resource
import sys
import time
from pathlib import Path

import pytest

from tinkex.testing import make_tiny_model

from .killing import Report, _report, started, undisturbed
from .serving import DETERMINISTIC, Served, wait_for
from .test_kills import needs_engine

STEPS = 12
ENDLESS = resource.RLIM_INFINITY


def limit(served: Served, who: str, size: int) -> None:
    """Let no file that these processes write grow beyond a size: writes fail as on a full disk."""
    engine = served.engine()
    for pid in {"server": [served.pid], "engine": [engine], "both": [served.pid, engine]}[who]:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, ENDLESS))


@pytest.mark.slow
@needs_engine
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
@pytest.mark.parametrize("sdk", ["tinker", "tinkex"])
def test_a_program_does_not_notice_that_the_disk_is_full_for_a_while(sdk: str, tmp_path: Path):
    pytest.importorskip(sdk)
    model = make_tiny_model(tmp_path / "model")
    expected = undisturbed(tmp_path / "undisturbed", model, sdk, STEPS)
    chance, report, windows = random.Random(f"{sdk} disk"), Report(sdk), 0
    with started(tmp_path / "disturbed", model, sdk, STEPS, DETERMINISTIC) as (served, program):
        wait_for(lambda: program.steps_done, "a first step")
        while program.steps_done < STEPS - 1 and not program.over:
            done = program.steps_done
            limit(served, chance.choice(["server", "engine", "both"]), chance.choice([0, 4096, 200_000]))
            time.sleep(chance.uniform(0.2, 1.5))
            limit(served, "both", ENDLESS)
            windows += 1
            wait_for(lambda done=done: program.steps_done > done or program.over, "another step")
        _report(served, program, report)
        said = served.log.read_text()
    assert windows >= 3
    assert "disk cannot be written" in said or "cannot write" in said
    assert report.differences(expected) == []
