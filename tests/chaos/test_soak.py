"""A short soak of a real server: the same code as `bench/soak.py`, with fewer tenants and less time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "soak.py"


@pytest.mark.slow
def test_a_short_while_of_everything_at_once(tmp_path: Path):
    pytest.importorskip("torch")
    words = ["--minutes", "0.75", "--tenants", "8", "--burst", "500", "--out", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, str(BENCH), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (tmp_path / "summary.json").exists(), ended.stdout + ended.stderr
    found = json.loads((tmp_path / "summary.json").read_text())
    # It is too short for a steady state: memory is for the long run to tell.
    wrong = {
        name: each["text"]
        for name, each in found["checks"].items()
        if not each["good"] and not name.endswith("memory")
    }
    assert not wrong
    assert found["steps in all"] > 0
    assert found["did"]["bursts"] > 0
    assert found["did"]["vanishes in stream"] > 0
    assert "soak.html" in {each.name for each in tmp_path.iterdir()}
