"""`tinkex model`, `tinkex session` and `tinkex billing`."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.matrix.serving import Served
from tinkex.cli import billing

from .conftest import Command, Fake, Trained

# ---- models


def test_base_models(real: Command, served: Served):
    done = real("model", "list")
    assert done.out.splitlines()[0].split() == ["Model", "Max", "Context", "Trainable", "Sampleable"]
    assert done.out.splitlines()[1].split() == [served.model, "8192", "yes", "yes"]
    assert real("model", "list", "TINY", "-q").out == f"{served.model}\n"
    assert real("model", "list", "--json").data["models"][0]["model_name"] == served.model


def test_no_such_base_model(real: Command):
    done = real("model", "list", "huge")
    assert (done.code, done.out) == (1, "")
    assert "no model's name contains 'huge' (`tinkex model list`" in done.err


# ---- sessions


def test_sessions(real: Command, trained: Trained):
    session = trained.run.partition(":")[0]
    assert session in real("session", "list", "--limit", "0", "-q").out.split()
    assert len(real("session", "list", "--limit", "1", "--json").data["sessions"]) == 1
    data = real("session", "info", session, "--json").data
    assert data["training_run_ids"] == [trained.run]
    assert data["user_metadata"] == {"a": "b"}
    assert trained.run in real("session", "info", session).out


def test_a_session_s_timeline(real: Command, trained: Trained, tmp_path: Path):
    session = trained.run.partition(":")[0]
    target = tmp_path / "new" / "it.pftrace"
    done = real("session", "export-trace", session, "-o", str(target), "--json")
    assert (done.code, done.err) == (0, "")
    assert done.data["destination"] == str(target)
    assert target.stat().st_size == done.data["file_size_bytes"] > 0
    assert json.loads(target.read_text())["traceEvents"]
    assert list(target.parent.iterdir()) == [target]
    url = real("session", "export-trace", session, "--url-only").out.strip()
    assert url.startswith("http://127.0.0.1:")
    assert real("session", "export-trace", session, "--url-only", "--json").data["url"].startswith("http")


def test_a_timeline_that_cannot_be_had(real: Command, fake: Fake, tmp_path: Path):
    assert real("session", "export-trace", "nobody").code == 1
    with fake.service.faults.add(
        "session_trace_export", status=200, body={"status": "ready", "url": "http://127.0.0.1:9/gone"}
    ):
        done = fake("session", "export-trace", "s", "-o", str(tmp_path / "t"))
    assert done.code == 1
    assert "could not be downloaded" in done.err
    assert not (tmp_path / "t").exists()


# ---- usage and storage


def window() -> tuple[str, str]:
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    return (now - timedelta(hours=2)).isoformat(), (now + timedelta(hours=1)).isoformat()


def test_usage(real: Command, trained: Trained, tmp_path: Path):
    done = real("billing", "usage", *window(), "--json")
    assert (done.code, done.err) == (0, "")
    data = done.data["data"]
    assert "training" in {each["event_info"]["type"] for each in data}
    table = real("billing", "usage", *window()).out.splitlines()
    assert table[0] == f"{len(data)} hourly usage row{'s' if len(data) > 1 else ''}"
    assert "bucket_start" in table[1]
    assert "token_count" in table[1]
    rows, sessions = tmp_path / "rows.csv", tmp_path / "sessions.csv"
    done = real("billing", "usage", *window(), "--csv", str(rows), "--sessions-csv", str(sessions))
    assert (done.code, done.out) == (0, "")
    assert f"Wrote {len(data)} row" in done.err
    with rows.open(newline="") as file:
        assert [row["type"] for row in csv.DictReader(file)] == [
            each["event_info"]["type"] for each in data
        ]
    with sessions.open(newline="") as file:
        held = {row["session_id"]: row["user_metadata"] for row in csv.DictReader(file)}
    assert json.loads(held[trained.run.partition(":")[0]]) == {"a": "b"}
    assert real("billing", "usage", *window(), "--csv", "-").out.startswith("bucket_start,")


def test_prices_that_are_not_known_read_null():
    assert billing._priced({"type": "training", "estimated_cost_usd": None}) == {
        "type": "training", "estimated_cost_usd": "null", "effective_rate_usd_per_million_tokens": "null"
    }  # fmt: skip
    assert billing._priced({"type": "checkpoint"}) == {"type": "checkpoint"}


def test_no_usage(real: Command):
    empty = real("billing", "usage", "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z")
    assert empty.out == "No billing usage in this window\n"


@pytest.mark.parametrize(
    "words", [["yesterday", "today"], ["2020-01-01T00:30:00Z", "2020-01-02T00:00:00Z"]]
)
def test_a_window_is_whole_hours(real: Command, words: list[str]):
    done = real("billing", "usage", *words)
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1


def test_storage(real: Command, trained: Trained, tmp_path: Path):
    data = real("billing", "checkpoint-storage", "--json").data
    assert data["data"][0]["checkpoint_count"] >= 3
    assert "checkpoint_count" in real("billing", "checkpoint-storage").out
    real("billing", "checkpoint-storage", "--csv", str(tmp_path / "s.csv"))
    assert "checkpoint_count" in (tmp_path / "s.csv").read_text()
    done = real("billing", "checkpoint-storage", "--project-id", "none-such")
    assert done.code == 0
    assert done.out == "No active checkpoint storage\n"
