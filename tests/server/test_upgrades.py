"""A state folder of an earlier version is gone on with; one of a later version is left alone."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tinkex.cli.serve import NEEDED
from tinkex.server.sql.migrations import MIGRATIONS
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.state_check import check
from tinkex.testing import make_tiny_model

from .made_states import RUN, make_state
from .states.make_folder import MODEL, TINY, Server, go_on
from .test_sqlite_store import run

KEPT = sorted((Path(__file__).parent / "states").glob("*.tar.xz"))
posix = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
needs_engine = pytest.mark.skipif(
    any(find_spec(name) is None for name in (*NEEDED, "torch", "transformers")),
    reason="the engine is not installed",
)


# ---- folders that earlier versions left when they were killed


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    for path in [tmp_path / "state", *(tmp_path / "state").rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path / "state", json.loads((tmp_path / "expected.json").read_text())


def test_one_is_kept_and_nothing_of_it_is_damaged(earlier: tuple[Path, dict[str, Any]]):
    state, facts = earlier
    report = check(state)
    assert report.damaged == []
    assert report.rows.counts["models"] == 1
    assert len(facts["losses"]) == 5


@pytest.mark.slow
@needs_engine
def test_a_server_goes_on_where_an_earlier_version_was_killed(
    earlier: tuple[Path, dict[str, Any]], tmp_path: Path
):
    state, facts = earlier
    server = Server(state, make_tiny_model(tmp_path / "model", **TINY))
    try:
        found, expected = go_on(server, facts), facts["then"]
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)
        assert found["loaded"] == pytest.approx(expected["loaded"], rel=1e-4)
        assert found["tokens"] == expected["tokens"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    finally:
        server.kill()
    report = check(state)
    assert report.findings == []
    assert report.rows.migrations == [name for name, _ in MIGRATIONS]


# ---- folders of later versions


@pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason="a server needs more")
def test_a_folder_of_a_later_version_is_refused_with_a_reason_and_left_as_it_is(tmp_path: Path):
    state = make_state(tmp_path / "state")
    database = sqlite3.connect(state / "store" / "store.db")
    database.execute("INSERT INTO migrations VALUES ('from-the-future', 9)")
    database.commit()
    before = list(database.iterdump())
    database.close()
    model = make_tiny_model(tmp_path / "model")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tinkex", "serve", "--model", f"{MODEL}={model}"),
            *("--state", str(state), "--port", "0"),
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "written by a newer version of tinkex" in done.stderr
    assert "from-the-future" in done.stderr
    assert "Traceback" not in done.stderr
    database = sqlite3.connect(state / "store" / "store.db")
    assert list(database.iterdump()) == before
    database.close()


# ---- an upgrade that is cut short

_DIES = """
import os, signal, sqlite3, sys
from tinkex.server.sql import migrations

class Dying(sqlite3.Connection):
    def execute(self, statement, *more):
        if "second_table" in statement:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(statement, *more)

later = ("ALTER TABLE sessions ADD COLUMN mood TEXT", "UPDATE sessions SET mood = 'well'",
         "CREATE TABLE second_table (x)")
migrations.MIGRATIONS = (*migrations.MIGRATIONS, ("second", later))
database = sqlite3.connect(sys.argv[1], isolation_level=None, factory=Dying)
database.execute("PRAGMA journal_mode = WAL")
migrations.migrate(database)
"""


@posix
def test_an_upgrade_that_is_killed_leaves_the_folder_to_the_earlier_version(tmp_path: Path):
    state = make_state(tmp_path / "state")
    path = state / "store" / "store.db"
    done = subprocess.run([sys.executable, "-c", _DIES, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL

    async def test(store: SqliteStore) -> None:
        (row,) = await store.live_sessions()
        assert row.id == "s"
        assert [each.seq for each in await store.replay(RUN, 2)] == [3]

    run(state / "store", test)
    assert check(state).findings == []
