"""Sessions that are and were: lists, searches, projects and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinkex.server import traces
from tinkex.server.records import CheckpointRow, OperationRow, SamplerRow, SessionRow
from tinkex.server.store import Finish, Put

from .rig import MODEL, START, Rig, served


@served
async def test_sessions_newest_first(rig: Rig):
    for id in ("s-1", "s-2", "s-3"):
        await rig.session(id)
        await rig.clock.forward(1)
    await rig.session("s-9", owner="bob")
    assert (await rig.get("sessions")).json == {"sessions": ["s-3", "s-2", "s-1"]}
    assert (await rig.get("sessions?limit=1&offset=1")).json == {"sessions": ["s-2"]}


@pytest.mark.parametrize("live", [True, False])
@served
async def test_what_a_session_holds(rig: Rig, live: bool):
    await rig.session(live=live, user_metadata={"n": 1}, display_name="mine")
    await rig.run("s-1:train:0")
    await rig.run("s-1:train:1")
    await rig.store.write(Put(SamplerRow("s-1:sample:0", "s-1", "ann", MODEL, START)))
    assert (await rig.get("sessions/s-1?access_scope=owned")).json == {
        "training_run_ids": ["s-1:train:0", "s-1:train:1"],
        "sampler_ids": ["s-1:sample:0"],
        "user_metadata": {"n": "1"},
        "display_name": "mine",
    }
    for path, key in (("sessions/s-1", "bob"), ("sessions/s-2", "ann")):
        got = await rig.get(path, key=key)
        assert got.status == 404
        assert path[9:] in got.detail


@served
async def test_a_session_and_its_checkpoints_move_into_a_project(rig: Rig):
    await rig.session()
    await rig.run()
    row = await rig.checkpoint()
    assert (await rig.ask("PUT", "sessions/s-1/project", {"project_id": "p"})).status == 200
    assert (await rig.store.get(SessionRow, "s-1")).project_id == "p"
    assert rig.service.world.sessions["s-1"].row.project_id == "p"
    assert (await rig.store.get(CheckpointRow, row.path)).project_id == "p"
    assert (await rig.get("training_runs?project_id=p")).json["cursor"]["total_count"] == 1
    assert await rig.events() == ["project.session_assigned"]
    assert (await rig.ask("PUT", "sessions/s-1/project", {"project_id": "q"}, key="bob")).status == 404
    assert (await rig.ask("PUT", "sessions/s-1/project", {})).status == 422
    assert (await rig.ask("PUT", "sessions/s-1/project", {"project_id": ""})).status == 400


@served
async def test_a_project_that_cannot_be_written_is_not_assigned(rig: Rig):
    await rig.session()
    rig.store.failing = "the disk is full"
    assert (await rig.ask("PUT", "sessions/s-1/project", {"project_id": "p"})).status == 503
    rig.store.failing = None
    assert rig.service.world.sessions["s-1"].row.project_id is None


# ---- searching

FINISHED = {"status": "finished", "ended": START}


async def _five(rig: Rig) -> None:
    for number, facts in enumerate(
        [
            {"display_name": "Alpha run", "user_metadata": {"k": "v", "n": 1}},
            {"live": False, "status": "expired", "detail": "no heartbeat"},
            {"live": False, "reason": "success", **FINISHED, "project_id": "p"},
            {"live": False, "reason": "errored", "detail": "boom", **FINISHED},
            {"owner": "bob"},
        ],
        1,
    ):
        await rig.session(f"s-{number}", **facts)  # type: ignore[arg-type]
        await rig.clock.forward(1)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, "4321"),
        ({"user_metadata": {}, "owner": {"type": "own"}, "limit": 50}, "4321"),
        ({"owner": {"type": "accessible"}}, "4321"),
        ({"owner": {"type": "user", "owner_urns": ["ann"]}}, "4321"),
        ({"owner": {"type": "user", "owner_urns": ["x", "tml:user:ann"]}}, "4321"),
        ({"owner": {"type": "user", "owner_urns": ["bob"]}}, ""),
        ({"session_id": "s-2"}, "2"),
        ({"session_id": "s-5"}, ""),
        ({"project_ids": ["p", "q"]}, "3"),
        ({"project_ids": []}, ""),
        ({"display_name": "alpha"}, "1"),
        ({"user_metadata": {"n": "1", "k": "v"}}, "1"),
        ({"user_metadata": {"n": "2"}}, ""),
        ({"statuses": [{"type": "active"}]}, "1"),
        ({"statuses": [{"type": "cancelled"}]}, "2"),
        ({"statuses": [{"type": "client_finished"}]}, "43"),
        ({"statuses": [{"type": "client_finished", "reasons": ["errored"]}]}, "4"),
        ({"statuses": [{"type": "failed"}]}, ""),
        ({"statuses": [{"type": "failed"}, {"type": "active"}, {"type": "cancelled"}]}, "21"),
    ],
)
@served
async def test_searching(rig: Rig, body: Any, found: str):
    await _five(rig)
    got = await rig.post("sessions/search", body)
    assert got.status == 200
    assert [each["session_id"] for each in got.json["sessions"]] == [f"s-{number}" for number in found]
    assert "next_cursor" not in got.json


@served
async def test_what_a_search_says_of_a_session(rig: Rig):
    await _five(rig)
    await rig.checkpoint("a", run="s-4:train:0", files={"x": b"12345"})
    await rig.checkpoint("b", run="s-4:train:0", files={"x": b"1"})
    found = (await rig.post("sessions/search")).json["sessions"]
    assert found[0] == {
        "session_id": "s-4",
        "created_at": "2027-01-15T08:00:03Z",
        "owner": "ann",
        "project_id": "default",
        "status": {"type": "client_finished", "reason": {"type": "errored"}, "detail": "boom"},
        "checkpoints_count": 2,
        "user_metadata": {},
        "checkpoint_storage_bytes": 6,
    }
    assert found[2]["status"] == {"type": "cancelled", "detail": "no heartbeat"}
    assert found[3]["status"] == {"type": "active"}
    assert found[3]["display_name"] == "Alpha run"


@served
async def test_a_search_goes_on_where_the_last_page_ended(rig: Rig):
    # Times finer than the microseconds of a date, and some that are the same.
    for number in range(7):
        rig.clock.passed = [0.0, 1e-7, 3e-7, 3e-7, 1.23456789, 2.0, 2.0][number]
        await rig.session(f"s-{number}")
    seen: list[str] = []
    body: dict[str, Any] = {"limit": 2}
    while True:
        page = (await rig.post("sessions/search", body)).json
        seen += [each["session_id"] for each in page["sessions"]]
        if "next_cursor" not in page:
            break
        body["cursor"] = page["next_cursor"]
    assert seen == [f"s-{number}" for number in (6, 5, 4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"owner": {"type": "user", "owner_urns": []}}, "owner_urns"),
        ({"statuses": []}, "statuses"),
        ({"display_name": ""}, "display_name"),
        ({"cursor": {"last_session_id": "s-1"}}, "last_created_at"),
    ],
)
@served
async def test_searches_that_cannot_be(rig: Rig, body: Any, said: str):
    got = await rig.post("sessions/search", body)
    assert got.status == 422
    assert said in got.detail


# ---- traces


@served
async def test_a_trace_is_a_file_behind_a_signed_address(rig: Rig):
    await rig.session()
    await rig.run()
    await rig.checkpoint()
    for seq, kind in ((0, "create_model"), (1, "forward_backward"), (2, "optim_step")):
        row = OperationRow(f"s-1:train:0:{seq}", "s-1:train:0", seq, kind, "ann", START + seq, b"body")
        await rig.store.write(Put(row))
    await rig.store.write(Finish("s-1:train:0:0", "done", START + 0.5, "s-1:train:0", 0, b"{}"))
    ended = Finish("s-1:train:0:1", "failed", START + 9, "s-1:train:0", 1, error="bad", category="user")
    await rig.store.write(ended)
    await rig.clock.forward(20)
    answer = (await rig.get("sessions/s-1/trace_export")).json
    assert answer["status"] == "ready"
    got = await rig.fetch(answer["url"])
    assert got.status == 200
    assert got.headers["content-type"] == "application/json"
    events = got.json["traceEvents"]
    spans = {each["id"]: each for each in events if each["ph"] == "b"}
    ends = {each["id"]: each["ts"] for each in events if each["ph"] == "e"}
    failed = spans["s-1:train:0:1"]
    assert failed["name"] == "forward_backward"
    assert failed["args"] == {
        "request_id": "s-1:train:0:1",
        "seq_id": 1,
        "state": "failed",
        "error": "bad",
        "category": "user",
    }
    assert (failed["ts"], ends["s-1:train:0:1"]) == (round((START + 1) * 1e6), round((START + 9) * 1e6))
    assert ends["s-1:train:0:2"] == round((START + 20) * 1e6)  # still waiting: up to now
    assert spans["s-1"]["name"] == "session"
    assert [each["name"] for each in events if each["ph"] == "i"] == [
        "checkpoint tinker://s-1:train:0/weights/ck"
    ]
    assert set(spans) == set(ends)
    assert (await rig.get("sessions/s-1/trace_export", key="bob")).status == 404


def test_a_trace_that_is_written_twice_at_once_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace, others = Path.replace, [{"n": 2}]

    def meanwhile(path: Path, target: Path) -> Path:
        if others:
            traces._write(tmp_path, "a.json", others.pop())
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    traces._write(tmp_path, "a.json", {"n": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"n": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
