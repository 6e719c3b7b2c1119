"""Telemetry: the official shape, no secrets, and never in anybody's way."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import weakref
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tinkex.client import telemetry as module
from tinkex.client.portal import portal
from tinkex.client.telemetry import BATCH, DRAIN_SECONDS, MOST_EVENTS, Telemetry
from tinkex.config import Config
from tinkex.errors import APIConnectionError, BadRequestError, RequestFailedError, TinkerError
from tinkex.testing import FakeClock, FakeServer, FakeService

KEY = "tml-very-secret-key-000"


@pytest.fixture
def rig() -> Rig:
    return Rig()


def still(**settings: Any) -> Rig:
    """A rig whose time stands still unless it is moved."""
    rig = Rig(**settings)
    rig.clock = rig.service.clock = FakeClock()
    return rig


def batches(rig: Rig) -> list[dict[str, Any]]:
    return [call.json for call in rig.service.calls_to("telemetry")]


def events(rig: Rig) -> list[dict[str, Any]]:
    return [event for batch in batches(rig) for event in batch["events"]]


def kinds(rig: Rig) -> list[str]:
    return [event["event"] for event in events(rig)]


def has_come(rig: Rig, count: int) -> bool:
    return eventually(lambda: len(events(rig)) >= count)


def telemetry_of(client: Any) -> Telemetry:
    found = client.get_telemetry()
    assert isinstance(found, Telemetry)
    return found


# ---- what is sent


def test_a_session_with_errors_is_told_in_the_official_shape(rig: Rig) -> None:
    official = pytest.importorskip("tinker.types")
    client = rig.client(telemetry=True)
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    telemetry_of(client).log("cookbook.step", {"loss": 0.5, "nested": {"list": [1, "two", None]}}, "DEBUG")
    rig.service.faults.add("optim_step", status=422, body={"detail": "no such optimizer"}, times=1)
    with pytest.raises(TinkerError):
        trainer.optim_step(_adam()).result(WAIT)
    rig.service.faults.add("optim_step", fail=("the node died", "server"), times=1)
    with pytest.raises(RequestFailedError):
        trainer.optim_step(_adam()).result(WAIT)
    client.close().result(WAIT)

    assert kinds(rig) == [
        "SESSION_START", "GENERIC_EVENT", "GENERIC_EVENT", "UNHANDLED_EXCEPTION", "SESSION_END",
    ]  # fmt: skip
    assert [event["event_session_index"] for event in events(rig)] == list(range(5))
    session_id = next(iter(rig.service.world.sessions))
    for batch in batches(rig):
        read = official.TelemetrySendRequest.model_validate(batch)
        assert [type(event).__name__ for event in read.events] == [
            _OFFICIAL[event["event"]] for event in batch["events"]
        ]
        assert read.session_id == session_id
        assert set(batch) == set(official.TelemetrySendRequest.model_fields)
    _, noted, user_error, failure, end = events(rig)
    assert noted["event_data"] == {"loss": 0.5, "nested": {"list": [1, "two", None]}}
    assert (noted["event_name"], noted["severity"]) == ("cookbook.step", "DEBUG")
    assert (user_error["event_name"], user_error["severity"]) == ("user_error", "WARNING")
    assert user_error["event_data"]["status_code"] == 422
    assert user_error["event_data"]["error_type"] == "UnprocessableEntityError"
    assert (failure["error_type"], failure["severity"]) == ("RequestFailedError", "ERROR")
    assert failure["error_message"] == "the node died"
    assert 'File "tinkex/client/' in failure["traceback"]
    assert end["duration"].count(":") == 2


_OFFICIAL = {
    "SESSION_START": "SessionStartEvent",
    "SESSION_END": "SessionEndEvent",
    "GENERIC_EVENT": "GenericEvent",
    "UNHANDLED_EXCEPTION": "UnhandledExceptionEvent",
}


def _adam() -> Any:
    from tinkex import types

    return types.AdamParams(learning_rate=1e-4)


def test_the_session_goes_on_after_an_error_and_ends_once(rig: Rig) -> None:
    client = rig.client(telemetry=True)
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    rig.service.faults.add("forward_backward", status=400, body={"detail": "no"}, times=1)
    with pytest.raises(BadRequestError):
        trainer.forward_backward(data(), "cross_entropy").result(WAIT)
    trainer.forward_backward(data(), "cross_entropy").result(WAIT)
    assert has_come(rig, 2)
    assert kinds(rig) == ["SESSION_START", "GENERIC_EVENT"]
    client.close().result(WAIT)
    client.close().result(WAIT)
    assert kinds(rig).count("SESSION_END") == 1


def test_a_client_that_never_opened_a_session_reports_without_one() -> None:
    rig = Rig(without=["create_session"])
    client = rig.client(telemetry=True)
    with pytest.raises(TinkerError):
        client.create_lora_training_client("Qwen/Qwen3-8B")
    client.close().result(WAIT)
    assert kinds(rig) == ["GENERIC_EVENT"]
    assert batches(rig)[0]["session_id"].startswith("sessionless-")


def test_one_error_seen_through_two_futures_is_told_once(rig: Rig) -> None:
    client = rig.client(telemetry=True)
    error = APIConnectionError()
    found = telemetry_of(client)
    assert found.report(error)
    assert found.report(error)
    client.close().result(WAIT)
    assert kinds(rig) == ["UNHANDLED_EXCEPTION"]


def test_events_leave_in_batches(rig: Rig) -> None:
    client = rig.client(telemetry=True)
    with rig.clock.frozen():
        for number in range(2 * BATCH + 50):
            telemetry_of(client).log("n", {"number": number})
    assert has_come(rig, 250)
    assert [len(batch["events"]) for batch in batches(rig)] == [100, 100, 50]
    assert [event["event_data"]["number"] for event in events(rig)] == list(range(250))


def test_a_process_has_one_id_and_a_forked_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first = module._process_uuid()
    assert module._process_uuid() == first
    monkeypatch.setattr(os, "getpid", lambda: -7)
    assert module._process_uuid() != first


# ---- nobody waits for it


def test_an_error_surfaces_at_once_while_the_endpoint_hangs_and_is_sent_later() -> None:
    rig = still()
    fault = rig.service.faults.add("telemetry", hang=True)
    client = rig.client(telemetry=True)
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    rig.service.faults.add("forward_backward", status=400, body={"detail": "no"}, times=1)
    with pytest.raises(BadRequestError):
        trainer.forward_backward(data(), "cross_entropy").result(WAIT)
    assert rig.clock.elapsed == 0
    rig.service.calls.wait_for("telemetry", 1, WAIT)
    assert trainer.forward_backward(data(), "cross_entropy").result(WAIT).metrics
    assert rig.clock.elapsed == 0
    fault.remove()
    rig.clock.advance_until_from_thread(lambda: len(rig.service.calls_to("telemetry")) >= 2)
    assert (
        rig.service.calls.wait_for("telemetry", 2, WAIT)[1].json["events"][1]["event_name"] == "user_error"
    )


def test_nothing_is_sent_before_ten_seconds_without_an_error() -> None:
    rig = still()
    client = rig.client(telemetry=True)
    client.create_lora_training_client("Qwen/Qwen3-8B")
    rig.clock.advance_from_thread(9.0)
    assert batches(rig) == []
    rig.clock.advance_from_thread(1.5)
    assert has_come(rig, 1)


@pytest.mark.parametrize("status", [400, 401, 408, 409, 422, 429])
def test_what_is_refused_is_not_sent_again(rig: Rig, status: int) -> None:
    rig.service.faults.add("telemetry", status=status, body={"detail": "no"}, times=1)
    client = rig.client(telemetry=True)
    telemetry_of(client).report(ValueError("first"))
    assert has_come(rig, 1)
    telemetry_of(client).report(ValueError("second"))
    client.close().result(WAIT)
    assert [event["error_message"] for event in events(rig)] == ["first", "second"]


def test_a_server_without_the_route_is_left_alone() -> None:
    rig = Rig(without=["telemetry"])
    client = rig.client(telemetry=True)
    telemetry_of(client).report(ValueError("first"))
    rig.service.calls.wait_for("telemetry", 1, WAIT)
    assert eventually(lambda: not telemetry_of(client).log("second"))
    client.close().result(WAIT)
    assert len(rig.service.calls_to("telemetry")) == 1


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 503}, {"drop": True}, {"hang": True}])
def test_failures_are_tried_a_few_times_with_growing_waits_and_then_dropped(
    rig: Rig, fault: dict[str, Any]
) -> None:
    down = rig.service.faults.add("telemetry", **fault)
    client = rig.client(telemetry=True)
    telemetry_of(client).report(ValueError("lost"))
    rig.service.calls.wait_for("telemetry", module._TRIES, WAIT)
    times = [call.time for call in rig.service.calls_to("telemetry")]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits == sorted(waits)
    assert waits[0] >= 0.75
    assert eventually(lambda: not telemetry_of(client)._sender.running)
    down.remove()
    telemetry_of(client).report(ValueError("kept"))
    client.close().result(WAIT)
    messages = [event["error_message"] for event in events(rig)]
    assert messages == ["lost"] * module._TRIES + ["kept"]


def test_a_full_queue_drops_events_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = still()
    found = telemetry_of(rig.client(telemetry=True))
    kept = [found.log("n") for _ in range(MOST_EVENTS + 50)]
    assert kept == [True] * MOST_EVENTS + [False] * 50
    assert found.dropped == 50
    assert [record.message for record in caplog.records if "queue is full" in record.message] == [
        "the telemetry queue is full: events are dropped"
    ]


def test_closing_waits_two_seconds_at_most() -> None:
    rig = still()
    rig.service.faults.add("telemetry", hang=True)
    client = rig.client(telemetry=True)
    client.create_lora_training_client("Qwen/Qwen3-8B")
    closing = client.close()
    rig.service.calls.wait_for("telemetry", 1, WAIT)
    rig.clock.advance_from_thread(DRAIN_SECONDS - 0.1)
    assert not closing.done()
    rig.clock.advance_from_thread(0.1)
    closing.result(WAIT)
    assert not telemetry_of(client).log("too late")


# ---- it can be turned off, and leaves nothing behind


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_off_sends_nothing_but_hooks_still_fire(
    rig: Rig, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("TINKER_TELEMETRY", "0")
        config = Config.resolve(base_url="http://fake.test", api_key=KEY)
        client = rig.client(config=config)
    else:
        client = rig.client(telemetry=False)
    seen: list[str] = []
    client.on_event(lambda event: seen.append(event.name))
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    rig.service.faults.add("forward_backward", status=400, body={"detail": "no"}, times=1)
    with pytest.raises(BadRequestError):
        trainer.forward_backward(data(), "cross_entropy").result(WAIT)
    client.close().result(WAIT)
    assert client.get_telemetry() is trainer.get_telemetry() is None
    assert batches(rig) == []
    assert eventually(lambda: "forward_backward" in seen)


def test_a_deleted_client_leaves_neither_a_session_nor_a_task() -> None:
    rig = still()
    rig.service.faults.add("telemetry", hang=True)
    gc.collect()
    before = portal().task_count
    clients = [rig.client(telemetry=True) for _ in range(20)]
    for client in clients:
        client.create_sampling_client(base_model="Qwen/Qwen3-8B")
        telemetry_of(client).report(ValueError("anything"))
    rig.service.calls.wait_for("telemetry", 20, WAIT)
    assert all(telemetry_of(client)._sender.running for client in clients)
    held = [ref for each in clients for ref in (weakref.ref(each.holder), weakref.ref(telemetry_of(each)))]
    del client
    clients.clear()
    assert eventually(lambda: gc.collect() >= 0 and all(ref() is None for ref in held))
    assert eventually(lambda: portal().task_count <= before)


# ---- no secrets


def test_no_credential_header_or_body_is_ever_sent(rig: Rig) -> None:
    client = rig.client(
        api_key=KEY, telemetry=True, default_headers_overrides={"CF-Access-Client-Secret": "hunter22"}
    )
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    token = rig.service.issue_token("someone")
    echo = {"detail": f"bad key {KEY}", "headers": {"x-api-key": KEY}, "private": "my prompt"}
    for fault in (
        {"status": 400, "body": echo},
        {"status": 401, "body": f"Authorization: Bearer {token}"},
        {"fail": (f"upstream said api_key={KEY} and {token} and hunter22", "server")},
        {"fail": (f"https://user:pass@host/x?X-Signature=abc123 {KEY}", "user")},
    ):
        rig.service.faults.add("forward_backward", **fault, times=1)
        with pytest.raises(TinkerError):
            trainer.forward_backward(data(), "cross_entropy").result(WAIT)
    telemetry_of(client).log(
        "custom", {"request_headers": {"X-API-Key": KEY}, "note": f"used {KEY}", "token": "t", "fine": 1}
    )
    client.close().result(WAIT)
    assert len(events(rig)) == 7
    for call in rig.service.calls_to("telemetry"):
        text = call.raw.decode().lower()
        for secret in (KEY, token.lower(), "hunter22", "x-api-key", "user:pass", "abc123", "my prompt"):
            assert secret not in text
    noted = [event for event in events(rig) if event.get("event_name") == "custom"]
    assert noted[0]["event_data"] == {"note": "used [removed]", "fine": 1}


# ---- other clients, and the process's end


def test_a_rest_client_reports_without_a_session(rig: Rig) -> None:
    client = rig.client(telemetry=True)._rest()
    rig.service.faults.add("get_training_run", status=404, body={"detail": "no such run"}, times=1)
    with pytest.raises(TinkerError):
        client.get_training_run("nowhere").result(WAIT)
    assert has_come(rig, 1)
    assert events(rig)[0]["event_data"]["status_code"] == 404
    assert batches(rig)[0]["session_id"].startswith("sessionless-")


def test_a_process_that_forgets_to_close_still_tells_the_end() -> None:
    script = """
        import sys, tinkex
        client = tinkex.ServiceClient(base_url=sys.argv[1], api_key="tml-test", telemetry=True)
        client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    """
    service = FakeService()
    with FakeServer(service) as server:
        command = [sys.executable, "-c", textwrap.dedent(script), server.base_url]
        subprocess.run(command, check=True, timeout=60)
    told = [event["event"] for call in service.calls_to("telemetry") for event in call.json["events"]]
    assert told == ["SESSION_START", "SESSION_END"]
    assert [session.ended for session in service.world.sessions.values()] == ["interrupted"]
