"""The watch over the suite sees what it watches for: each planted leak fails, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANTED = """
import logging, sys
from pathlib import Path
import pytest
from tinkex.config import Secret

KEY = "tml-" + "planted-" * 2
MADE = "tml-" + "a1-_" * 8

def test_printed(): print(Secret(KEY).reveal())
def test_printed_to_stderr(): sys.stderr.write("key=" + Secret(KEY).reveal())
def test_logged(): logging.getLogger("x").warning("sent %s", Secret(KEY).reveal())
def test_raised():
    raise ValueError("the reason is this", Secret(KEY).reveal())
def test_made_by_a_server_elsewhere(): print(MADE)
def test_in_a_repr():
    Secret(KEY)
    given = {"x-api-key": KEY}
    assert given == {}

@pytest.fixture
def untidy():
    yield
    print(Secret(KEY).reveal())
def test_after_its_end(untidy): pass

@pytest.mark.xfail(strict=True)
def test_known_defect():
    raise ValueError(Secret(KEY).reveal())

def test_clean():
    Secret(KEY)
    print(Secret(KEY), "tml-...", "tml-other-text-altogether")
def test_raises_something_else():
    Secret(KEY)
    assert False, "nothing secret"
"""
LEFT = """
from pathlib import Path
from tinkex.config import Secret

KEY = "tml-" + "planted-" * 2

def test_left_in_a_file(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "state.db").write_bytes(b"\\0\\1" + Secret(KEY).reveal().encode() + b"\\0")
def test_kept_where_it_belongs(tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "key").write_text(Secret(KEY).reveal())
"""


NO_WORKERS = pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed")
TWO = pytest.param(("-p", "xdist", "-n", "2"), marks=NO_WORKERS)


@pytest.fixture(params=[(), TWO], ids=["one process", "two workers"])
def workers(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.param


def run(tmp_path: Path, program: str, workers: tuple[str, ...]) -> tuple[int, str]:
    (tmp_path / "test_planted.py").write_text(program)
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = ["-p", "tests.leak_scan", "-p", "no:cacheprovider", "-rA", "--basetemp", str(tmp_path / "base")]
    words += ["-c", os.devnull, "--rootdir", str(tmp_path), *workers, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_what_is_printed_logged_and_raised(tmp_path: Path, workers: tuple[str, ...]):
    code, said = run(tmp_path, PLANTED, workers)
    assert code == 1
    caught = {line.split("::")[1].split()[0] for line in said.splitlines() if "can be read in what" in line}
    assert caught == {
        "test_printed", "test_printed_to_stderr", "test_logged", "test_raised", "test_in_a_repr",
        "test_made_by_a_server_elsewhere", "test_after_its_end",
    }  # fmt: skip
    assert "PASSED test_planted.py::test_clean" in said
    assert "nothing secret" in said
    # Why a test failed is told with it.
    assert "ValueError: ('the reason is this', '(a credential)')" in said
    assert "1 xfailed" in said
    # And what it says about a leak is none itself.
    assert "tml-planted-planted-" not in said


def test_what_is_left_in_files(tmp_path: Path, workers: tuple[str, ...]):
    code, said = run(tmp_path, LEFT, workers)
    assert code == 1
    found = [line for line in said.splitlines() if "a credential lies in" in line]
    assert len(found) == 1
    assert "state.db" in found[0]
    assert "2 passed" in said


def test_this_session_is_watched(request: pytest.FixtureRequest):
    from tests.leak_scan import SCAN
    from tinkex.config import Secret

    scan = request.config.stash[SCAN]
    Secret("tml-" + "watched-" * 3)
    assert scan.in_text("x tml-" + "watched-" * 3)
    assert not scan.in_text("x tml-" + "never-made-" * 3)
