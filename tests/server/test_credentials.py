"""A key is seen by nobody but its owner: not in logs, errors, answers, names or files."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tinkex.server.asks import Ask
from tinkex.wire.headers import PROTOBUF
from tinkex.wire.routes import route

from .client import datum
from .machine import Machine, running
from .test_owners import things_of


def files_with(folder: Path, secret: str) -> list[str]:
    """The files below a folder in which a text can be read."""
    wanted = [secret.encode(), secret.encode("utf-16-le"), secret.encode().hex().encode()]
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and any(each in path.read_bytes() for each in wanted)
    ]


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged at every level."""
    caplog.set_level(logging.DEBUG)
    return caplog


def test_a_key_is_in_no_log_no_file_and_no_answer(everything: pytest.LogCaptureFixture, tmp_path: Path):
    @running(kind="sqlite")
    async def scenario(server: Machine) -> None:
        server.allowed_5xx.add(500)
        ann = server.ann
        things = await things_of(ann)
        await ann.refused("optim_step", b"{", 422)
        await ann.refused("save_weights", {"model_id": things.model, "seq_id": 5, "path": "a/b"})
        await server.send("POST", "/api/v1/nothing", b"{}", ann.headers())
        await server.send("POST", "/api/v1/create_session", b"{}", {"x-api-key": server.key["bob"] + "x"})
        broken = server.service.catalogue
        server.service.catalogue = None  # a mistake in the server, which is logged with its trace
        assert (await ann("get_server_capabilities")).status == 500
        server.service.catalogue = broken
        await server.replace_engine()
        await server.restart()
        await ann.done(f"{things.model}:1")
        for key in server.key.values():
            for answer in server.answers:
                assert key not in answer.body.decode("latin-1") + str(answer.headers)
            assert key not in repr(server.service) + repr(server.app) + repr(server.keys)
            assert key not in repr(vars(server.service))

    scenario(tmp_path=tmp_path)
    assert len(json.loads((tmp_path / "keys.json").read_text())["keys"]) == 2
    for record in everything.records:
        assert "tml-" not in record.getMessage() + str(record.exc_text)
        assert "tml-" not in everything.handler.format(record)
    assert files_with(tmp_path, "tml-") == []


def test_the_one_who_asks_does_not_show_what_was_sent():
    headers = {b"x-api-key": b"tml-secret"}
    ask = Ask(None, route("optim_step"), headers, {}, None, None, "ann", 1, b"tml-body")
    assert "tml-" not in repr(ask)


def test_another_accounts_credential_is_used_and_not_kept(
    everything: pytest.LogCaptureFixture, tmp_path: Path
):
    @running(kind="sqlite")
    async def scenario(server: Machine) -> None:
        ann, bob = server.ann, server.bob
        theirs = await things_of(ann)
        session = await bob.session()
        model = await bob.model(session)
        token = server.key["ann"]
        body = {"model_id": model, "seq_id": 1, "path": theirs.training, "optimizer": True}
        answer = await bob("load_weights", {**body, "weights_access_token": token})
        assert answer.status in (200, 400)
        assert token not in answer.body.decode()
        wrong = await bob("load_weights", {**body, "seq_id": 2, "weights_access_token": "tml-not-a-key"})
        assert wrong.status == 403
        assert "tml-" not in wrong.detail
        # One's own checkpoint needs no token; one that is sent all the same is not written down.
        saved = (await bob.done(await bob.save(model, 3, "own")))["path"]
        mine = {"model_id": model, "seq_id": 4, "path": saved, "optimizer": True}
        loaded = bob.ticket(await bob("load_weights", {**mine, "weights_access_token": server.key["bob"]}))
        await bob.done(loaded)
        made = {"session_id": session, "model_seq_id": 5, "path": saved, "optimizer": True}
        created = bob.ticket(await bob("load_weights", {**made, "weights_access_token": server.key["bob"]}))
        await bob.done(created)
        headers = {"X-Tinker-Weights-Access-Token": token}
        copied = await bob("copy_weights", {"source_path": theirs.training, "destination_project_id": "p"},
                           headers=headers)  # fmt: skip
        assert copied.status == 200
        await server.restart()
        await bob.done(loaded)

    scenario(tmp_path=tmp_path)
    assert files_with(tmp_path, "tml-") == []
    assert "tml-" not in everything.text


def test_telemetry_is_accepted_and_kept_nowhere(everything: pytest.LogCaptureFixture, tmp_path: Path):
    @running(kind="sqlite")
    async def scenario(server: Machine) -> None:
        ann = server.ann
        event = {
            "event": "GENERIC_EVENT", "event_id": "e", "event_session_index": 0, "severity": "ERROR",
            "timestamp": "2026-11-15T06:36:34Z", "event_name": "marked-event",
            "event_data": {"headers": {"x-api-key": "tml-in-telemetry"}},
        }  # fmt: skip
        body = {"events": [event], "platform": "Linux", "sdk_version": "0.36.0", "session_id": "nobody"}
        assert await ann.ok("telemetry", body) == {"status": "accepted"}
        assert await ann.ok("telemetry", {**body, "process_uuid": "u"}) == {"status": "accepted"}
        await server.restart()

    scenario(tmp_path=tmp_path)
    for secret in ("tml-in-telemetry", "marked-event"):
        assert files_with(tmp_path, secret) == []
        assert secret not in everything.text


def test_prompts_and_data_are_not_logged(everything: pytest.LogCaptureFixture, tmp_path: Path):
    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        session = await ann.session(user_metadata={"note": "private-note"})
        model, sampler = await ann.model(session), await ann.sampler(session)
        await ann.done(await ann.train(model, 1, datum([771, 772, 773])))
        await ann.done(await ann.sample(sampler, 0, prompt={"chunks": [{"tokens": [771, 772, 773]}]}))
        bad = ann.train_body(model, 2, datum([771, 772, 5000]))
        await ann.refused("forward_backward", *bad, headers={"content-type": PROTOBUF})
        await server.replace_engine()

    scenario(tmp_path=tmp_path)
    assert "771" not in everything.text
    assert "private-note" not in everything.text
