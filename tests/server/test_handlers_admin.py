"""The books: the audit log, usage by the hour, what checkpoints take up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tinkex.server.records import AuditRow, UsageRow
from tinkex.server.store import Count, Note

from .rig import MODEL, START, Rig, served

HOUR = int(START // 3600)
DAY = "starting_on=2027-01-15T00%3A00%3A00Z&ending_before=2027-01-16T00%3A00%3A00Z"


# ---- audit


@served
async def test_the_audit_log_of_a_day(rig: Rig):
    for time, event, details in (
        (START - 86400, "checkpoint.created", {}),
        (START, "session.created", {"session_id": "s-1"}),
        (START + 1, "checkpoint.created", {}),
        (START + 2, "project.session_assigned", {"project_id": "p"}),
        (START + 86400, "checkpoint.deleted", {}),
    ):
        await rig.store.write(Note(AuditRow(time, "ann", event, "m", "tinker://m/weights/x", details)))
    await rig.store.write(Note(AuditRow(START, "bob", "checkpoint.created")))

    async def events(query: str) -> list[str]:
        return [each["event"] for each in (await rig.get(f"audit{query}")).json["entries"]]

    today = ["session.created", "checkpoint.created", "project.session_assigned"]
    assert await events("") == today
    assert await events("?event_type=all&day=2027-01-15") == today
    assert await events("?event_type=checkpoints&day=2027-01-14") == ["checkpoint.created"]
    assert await events("?event_type=checkpoints") == ["checkpoint.created"]
    assert await events("?event_type=projects") == ["project.session_assigned"]
    assert await events("?event_type=teams") == []
    entry = (await rig.get("audit?event_type=projects")).json["entries"][0]
    assert entry == {
        "timestamp": "2027-01-15T08:00:02Z",
        "event": "project.session_assigned",
        "event_details": {"project_id": "p"},
        "model_id": "m",
        "tinker_path": "tinker://m/weights/x",
    }


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("day=yesterday", 400, "day: 'yesterday' is no date; write it as YYYY-MM-DD"),
        ("day=2027-02-30", 400, "2027-02-30"),
        ("event_type=everything", 400, "event_type: 'everything' is not one of all, checkpoints,"),
    ],
)
@served
async def test_audits_that_cannot_be(rig: Rig, query: str, status: int, said: str):
    got = await rig.get(f"audit?{query}")
    assert got.status == status
    assert said in got.detail


# ---- usage


@served(rates={"training": 2.0, "sampling_prefill": 0.5})
async def test_usage_by_the_hour(rig: Rig):
    session = await rig.session(project_id="p", user_metadata={"n": 1})
    for kind, count in (
        ("training", 1_000_000),
        ("sampling_prefill", 10),
        ("sampling_prefill_cached", 20),
        ("sampling_sample", 30),
        ("checkpoint", 2),
    ):
        rig.service.usage.note(rig.service, session, MODEL, kind, count)  # type: ignore[arg-type]
    rig.service.usage.note(rig.service, None, MODEL, "sampling_sample", 5, "ann")
    await rig.store.write(Count(UsageRow(HOUR, "bob", "training", "x", MODEL, "", 1)))
    await rig.store.write(Count(UsageRow(HOUR + 24, "ann", "training", "x", MODEL, "", 1)))
    got = (await rig.get(f"billing/usage/events?{DAY}")).json
    by_kind = {
        (each["event_info"]["type"], each["event_info"].get("cached"), each.get("session_id")): each
        for each in got["data"]
    }
    assert len(by_kind) == len(got["data"]) == 6
    training = by_kind["training", None, "s-1"]
    assert training == {
        "bucket_start": "2027-01-15T08:00:00Z",
        "bucket_end": "2027-01-15T09:00:00Z",
        "base_model": MODEL,
        "user_id": "ann",
        "user_name": "ann",
        "session_id": "s-1",
        "project_id": "p",
        "estimated_cost_usd": 2.0,
        "effective_rate_usd_per_million_tokens": 2.0,
        "event_info": {"type": "training", "token_count": 1_000_000},
    }
    assert by_kind["sampling_prefill", False, "s-1"]["estimated_cost_usd"] == 5e-6
    assert by_kind["sampling_prefill", True, "s-1"]["event_info"]["token_count"] == 20
    assert by_kind["sampling_sample", None, "s-1"]["estimated_cost_usd"] == 0.0
    assert by_kind["sampling_sample", None, None]["event_info"]["token_count"] == 5
    assert by_kind["checkpoint", None, "s-1"]["event_info"] == {"type": "checkpoint", "count": 2}
    assert got["sessions"] == {"s-1": {"user_metadata": {"n": "1"}}}
    assert got["cost_data_through"] == "2027-01-15T08:00:00Z"


@served
async def test_usage_is_answered_though_the_store_cannot_write(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinkex.server.handlers_admin._FLUSH_SECONDS", 0.01)
    session = await rig.session()
    rig.service.usage.note(rig.service, session, MODEL, "training", 3)
    rig.store.failing = "the disk is full"
    assert (await rig.get(f"billing/usage/events?{DAY}")).json["data"] == []
    rig.store.failing = None
    await rig.clock.forward(1)
    (row,) = (await rig.get(f"billing/usage/events?{DAY}")).json["data"]
    assert row["event_info"]["token_count"] == 3


@pytest.mark.parametrize(
    ("start", "end", "status", "said"),
    [
        (
            "2027-01-15T00:30:00Z",
            "2027-01-15T02:00:00Z",
            400,
            "starting_on: 2027-01-15T00:30:00+00:00 is not a",
        ),
        ("2027-01-15T00:00:00Z", "2027-01-15T02:00:01Z", 400, "ending_before"),
        (
            "2027-01-15T00:00:00Z",
            "2027-01-15T00:00:00Z",
            400,
            "0 hours after starting_on; it must be 1 to 336",
        ),
        ("2027-01-15T00:00:00Z", "2027-01-29T01:00:00Z", 400, "337 hours"),
        ("2027-01-15T00:00:00", "2027-01-16T00:00:00Z", 400, "starting_on"),
        ("soon", "2027-01-16T00:00:00Z", 422, "starting_on"),
        ("2027-01-15T00:00:00Z", "", 422, "ending_before"),
    ],
)
@served
async def test_windows_that_cannot_be(rig: Rig, start: str, end: str, status: int, said: str):
    got = await rig.get(f"billing/usage/events?starting_on={start}&ending_before={end}")
    assert got.status == status
    assert said in got.detail


@served
async def test_the_longest_window_and_other_time_zones(rig: Rig):
    for start, end in (
        ("2027-01-01T00:00:00Z", "2027-01-15T00:00:00Z"),
        ("2027-01-01T05:30:00%2B05:30", "2027-01-02T00:00:00.000Z"),
    ):
        got = await rig.get(f"billing/usage/events?starting_on={start}&ending_before={end}")
        assert (got.status, got.json["data"]) == (200, [])


# ---- storage


@served
async def test_what_checkpoints_take_up(rig: Rig):
    await rig.checkpoint("a", size=3_000_000_000)
    await rig.checkpoint("b", size=1, project_id="p")
    await rig.checkpoint("c", size=1, project_id="p")
    await rig.checkpoint("d", owner="bob", run="x")
    got = (await rig.get("billing/usage/checkpoints/current")).json
    assert "effective_rate_usd_per_gigabyte_month" not in got
    assert got["data"][0] == {
        "org_user_urn": "tml:user:ann",
        "user_name": "ann",
        "checkpoint_count": 1,
        "size_bytes": 3_000_000_000,
        "size_gigabytes": 3.0,
        "estimated_monthly_cost_usd": 0.0,
    }
    (item,) = (await rig.get("billing/usage/checkpoints/current?project_id=p")).json["data"]
    assert (item["project_id"], item["checkpoint_count"], item["size_bytes"]) == ("p", 2, 2)
    assert (await rig.get("billing/usage/checkpoints/current?project_id=q")).json["data"] == []


@served(rates={"storage": 0.1})
async def test_storage_has_a_price_if_there_is_a_rate(rig: Rig):
    await rig.checkpoint(size=2_000_000_000)
    got: Any = (await rig.get("billing/usage/checkpoints/current")).json
    assert got["effective_rate_usd_per_gigabyte_month"] == 0.1
    assert got["data"][0]["estimated_monthly_cost_usd"] == pytest.approx(0.2)


@served
async def test_many_may_ask_at_once(rig: Rig):
    session = await rig.session()
    rig.service.usage.note(rig.service, session, MODEL, "training", 3)
    answers = await asyncio.gather(*(rig.get(f"billing/usage/events?{DAY}") for _ in range(5)))
    assert [answer.json["data"][0]["event_info"]["token_count"] for answer in answers] == [3] * 5
