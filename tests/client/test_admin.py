"""`AdminClient`: what each method sends and gives back."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data
from tinkex import types
from tinkex.client.admin import AdminClient
from tinkex.client.rest import RestClient
from tinkex.errors import BadRequestError, ClientClosedError, InvalidArgumentError, PermissionDeniedError

API = "/api/v1"
HOUR = datetime(2026, 1, 1, tzinfo=UTC)
EAST = timezone(timedelta(hours=2))

CALLS: list[tuple[str, dict[str, Any], str, dict[str, str]]] = [
    ("get_audit_log", {}, f"{API}/audit", {"event_type": "all"}),
    (
        "get_audit_log",
        {"event_type": "checkpoints", "day": date(2026, 1, 15)},
        f"{API}/audit",
        {"event_type": "checkpoints", "day": "2026-01-15"},
    ),
    (
        "get_audit_log",
        {"day": datetime(2026, 1, 15, 23, 59, tzinfo=UTC)},
        f"{API}/audit",
        {"event_type": "all", "day": "2026-01-15"},
    ),
    (
        "get_billing_usage",
        {"starting_on": HOUR, "ending_before": "2026-01-02T00:00:00Z"},
        f"{API}/billing/usage/events",
        {"starting_on": "2026-01-01T00:00:00Z", "ending_before": "2026-01-02T00:00:00Z"},
    ),
    (
        "get_billing_usage",
        {"starting_on": datetime(2026, 1, 1, 2, tzinfo=EAST), "ending_before": "2026-01-02T02:00:00+02:00"},
        f"{API}/billing/usage/events",
        {"starting_on": "2026-01-01T02:00:00+02:00", "ending_before": "2026-01-02T02:00:00+02:00"},
    ),
    ("get_current_checkpoint_storage_usage", {}, f"{API}/billing/usage/checkpoints/current", {}),
    (
        "get_current_checkpoint_storage_usage",
        {"project_id": "p1"},
        f"{API}/billing/usage/checkpoints/current",
        {"project_id": "p1"},
    ),
]


def admin_of(rig: Rig) -> AdminClient:
    return AdminClient(
        base_url="http://fake.test", api_key="tml-test", clock=rig.clock, transport=rig.transport
    )


@pytest.mark.parametrize("form", ["sync", "async"])
def test_every_method_sends_its_request(form: str) -> None:
    rig = Rig()
    admin = admin_of(rig)
    for name, arguments, *_ in CALLS:
        if form == "sync":
            getattr(admin, name)(**arguments).result(WAIT)
        else:
            asyncio.run(getattr(admin, f"{name}_async")(**arguments))
    sent = [call for call in rig.service.calls if "client" not in call.route]
    assert [(call.method, call.path, dict(call.query), call.raw) for call in sent] == [
        ("GET", path, query, b"") for _, _, path, query in CALLS
    ]
    assert [call.headers["x-sdk-method"] for call in sent] == [name for name, *_ in CALLS]
    assert rig.service.calls_to("create_session") == []


def test_answers_are_records() -> None:
    rig = Rig()
    trainer = rig.trainer()
    trainer.forward_backward(data(2), "cross_entropy").result(WAIT)
    trainer.save_state("ck").result(WAIT)
    admin = admin_of(rig)
    events = admin.get_audit_log().result(WAIT).entries
    assert "session.created" in [entry.event for entry in events]
    assert admin.get_audit_log(day=date(2001, 1, 1)).result(WAIT).entries == []
    usage = admin.get_billing_usage(HOUR, HOUR + timedelta(days=1)).result(WAIT)
    assert usage.data[0].event_info == types.TrainingBillingEvent(token_count=8)
    assert list(usage.sessions) == ["sess-1"]
    (stored,) = admin.get_current_checkpoint_storage_usage().result(WAIT).data
    assert stored.checkpoint_count == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.get_audit_log("everything"),
        lambda admin: admin.get_audit_log(day="yesterday"),
        lambda admin: admin.get_billing_usage("soon", HOUR),
        lambda admin: admin.get_billing_usage(HOUR, None),
    ],
)
def test_bad_arguments_are_refused_before_any_request(call: Any) -> None:
    rig = Rig()
    with pytest.raises(InvalidArgumentError):
        call(admin_of(rig))
    assert rig.service.calls == []


def test_errors_are_typed() -> None:
    rig = Rig()
    admin = admin_of(rig)
    rig.service.faults.add("audit_log", status=403)
    with pytest.raises(PermissionDeniedError):
        admin.get_audit_log().result(WAIT)
    with pytest.raises(BadRequestError, match="14 days"):
        asyncio.run(admin.get_billing_usage_async(HOUR, HOUR + timedelta(days=30)))


def test_a_redirected_audit_log_is_fetched_without_the_credential() -> None:
    rig = Rig()
    entry = {"timestamp": "2026-01-01T00:00:00Z", "event": "key.created"}
    there = "http://store.test/files/audit?signature=s"
    rig.service.faults.add("audit_log", status=302, headers={"location": there}, body=b"")
    rig.service.faults.add("", status=200, body={"entries": [entry]})
    (found,) = admin_of(rig).get_audit_log().result(WAIT).entries
    assert found.event == "key.created"
    asked, fetched = rig.service.calls[-2:]
    assert asked.headers["x-api-key"] == "tml-test"
    assert (fetched.headers["host"], fetched.query) == ("store.test", {"signature": "s"})
    assert not {name for name in fetched.headers if name.startswith(("x-", "traceparent"))}


def test_it_shares_the_session_of_a_rest_client() -> None:
    rig = Rig()
    client = rig.client()
    rest = RestClient(client.holder)
    with pytest.warns(FutureWarning, match="AdminClient"):
        rest.get_audit_log().result(WAIT)
    admin = AdminClient(rest.holder)
    assert admin.get_telemetry() is rest.get_telemetry()
    client.close().result(WAIT)
    with pytest.raises(ClientClosedError):
        admin.get_audit_log()
    with pytest.raises(InvalidArgumentError, match=r"AdminClient: .*not both"):
        AdminClient(rest.holder, api_key="tml-x")
