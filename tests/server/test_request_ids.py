"""Every request has a name: in its answer, and in all that the log says about it."""

from __future__ import annotations

import logging
import re

import pytest

from tinkex.engine.messages import OptimStep, Train
from tinkex.server.asks import HANDLERS
from tinkex.server.assembly import pages
from tinkex.wire.headers import PROTOBUF

from .machine import Machine, running

HEALTH = "/api/v1/healthz"


@running()
async def test_every_answer_has_a_name_of_its_own(server: Machine):
    names = set()
    for path in (HEALTH, HEALTH, "/api/v1/nothing", "/nowhere", "/api/v1/training_runs"):
        answer = await server.send("GET", path)
        names.add(answer.headers["x-request-id"])
    assert len(names) == 5
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", name) for name in names)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("from-the-proxy.7:1_a", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        ("two words", False),
        ("line\r\nset-cookie: a=b", False),
        ("ümlaut", False),
    ],
)
def test_a_name_that_came_along_is_kept_if_it_can_be_one(given: str, kept: bool, tmp_path):
    @running()
    async def scenario(server: Machine) -> None:
        answer = await server.send("GET", HEALTH, headers={"X-Request-ID": given})
        assert (answer.headers["x-request-id"] == given) == kept

    scenario(tmp_path=tmp_path)


@running()
async def test_a_mistake_of_the_server_can_be_found_in_its_log(server: Machine, caplog, monkeypatch):
    async def mistaken(ask: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(HANDLERS, "health", mistaken)
    server.allowed_5xx.add(500)
    answer = await server.send("GET", HEALTH, headers={"X-Request-ID": "find-me"})
    assert answer.status == 500
    assert "its log has find-me" in answer.detail
    assert "request failed (find-me) GET /api/v1/healthz" in caplog.text


@running()
async def test_work_that_failed_is_told_with_the_request_it_came_with(server: Machine, caplog):
    ann = server.ann
    model = await ann.model()
    server.engine.fail_next(OptimStep, "out of luck")
    body = {"model_id": model, "seq_id": 1, "adam_params": {}}
    sent = await ann("optim_step", body, headers={"X-Request-ID": "the-step"})
    assert sent.status == 200
    await ann.result(f"{model}:1")
    (line,) = (record for record in caplog.records if "out of luck" in record.getMessage())
    assert line.getMessage() == f"operation {model}:1 (optim_step) of request the-step failed: out of luck"


@running()
async def test_a_joined_pass_is_told_with_its_operations_when_debugging(server: Machine, caplog):
    caplog.set_level(logging.DEBUG, "tinkex.server")
    ann = server.ann
    model = await ann.model()
    (body,) = ann.train_body(model, 1)
    await ann("forward_backward", body, headers={"X-Request-ID": "the-pass", "content-type": PROTOBUF})
    await ann.done(f"{model}:1")
    (told,) = (each for each in server.engine.seen if isinstance(each, Train))
    assert f"pass {told.request_id}: {model}:1 of request the-pass" in caplog.text


@running(pages=pages())
async def test_requests_are_logged_one_by_one_only_when_debugging(server: Machine, caplog):
    caplog.set_level(logging.INFO, "tinkex.server")
    await server.send("GET", HEALTH)
    assert "healthz" not in caplog.text
    caplog.set_level(logging.DEBUG, "tinkex.server")
    await server.send("GET", HEALTH)
    assert re.search(r"GET /api/v1/healthz 200 in \d+\.\d ms", caplog.text)


@running(pages=pages())
async def test_an_address_to_download_from_is_in_no_log(server: Machine, caplog):
    caplog.set_level(logging.DEBUG, "tinkex.server")
    url, _ = server.service.downloads.sign("checkpoints/x", "a.tar")
    path = url.removeprefix(server.service.url)
    await server.send("GET", path)
    assert "GET /files 410" in caplog.text
    assert path not in caplog.text
    assert path.split("/")[2] not in caplog.text


@running()
async def test_sessions_and_models_come_and_go_in_the_log(server: Machine, caplog):
    caplog.set_level(logging.INFO, "tinkex.server")
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    await ann.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
    text = caplog.text
    for said in (f"session {session} of ann opened", f"model {model} of ann opened", "has ended: finished"):
        assert said in text
