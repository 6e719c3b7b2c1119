"""Bodies as SDKs since 0.3.0 write them are understood, and answers are what those SDKs insist on."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tinkex.engine.messages import LoadState, OptimStep, Train
from tinkex.wire.headers import PROTOBUF

from ..contract.captured import FORWARD_BACKWARD, REQUESTS_0_3, REQUESTS_0_36
from .client import Answer, Client
from .machine import Machine, running

ADAM = {
    "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}  # fmt: skip


class OldClient:
    """Sends captured bodies with this server's names in them."""

    def __init__(self, client: Client, session: str) -> None:
        self.client, self.session = client, session

    async def send(self, path: str, body: str, method: str = "POST", **headers: str) -> Answer:
        text = body.replace("sess-1", self.session).replace("Qwen/Qwen3-8B", "tiny")
        path = path.replace("sess-1", self.session)
        return await self.client.machine.send(method, path, text.encode(), self.client.headers(headers))

    async def result(self, path: str, body: str) -> Any:
        """The result of captured work, as JSON."""
        answer = await self.send(path, body)
        assert answer.status == 200, str(answer)
        ticket = answer.json
        assert isinstance(ticket["request_id"], str)
        polled = await self.send(
            "/api/v1/retrieve_future", json.dumps({"request_id": ticket["request_id"]})
        )
        assert polled.status == 200
        return polled.json


def body_0_3(path: str, part: str = "", full: bool = False) -> str:
    """The captured body for a path; `part` picks one of several."""
    found = [
        (short, whole) for where, short, whole in REQUESTS_0_3 if where.endswith(path) and part in short
    ]
    return found[0][full]


@pytest.mark.parametrize("full", [False, True], ids=["as 0.3.0 sends it", "with everything said"])
def test_a_whole_run_in_the_bodies_of_sdk_0_3(full: bool, tmp_path):
    @running()
    async def scenario(server: Machine) -> None:
        made = await server.ann.ok("create_session", body_0_3("/create_session", full=full).encode())
        old = OldClient(server.ann, made["session_id"])
        session = old.session

        async def run(path: str, part: str = "") -> Any:
            return await old.result(f"/api/v1{path}", body_0_3(path, part, full))

        created = await run("/create_model")
        assert created["model_id"] == f"{session}:train:0"
        # The loss of the captured pass needs inputs the capture has not; its numbers begin at 2.
        first = {"adam_params": {}, "model_id": created["model_id"], "seq_id": 1}
        await old.result("/api/v1/optim_step", json.dumps(first))
        forward = await run("/forward")
        check_pass(forward)
        text = body_0_3("/forward_backward", full=full)
        text = text.replace('"ppo"', '"cross_entropy"').replace('{"clip_low_threshold":0.8}', "null")
        check_pass(await old.result("/api/v1/forward_backward", text))
        forward_pass, backward_pass = [each for each in server.engine.seen if isinstance(each, Train)]
        assert forward_pass.parts[0].forward_only
        assert not backward_pass.parts[0].forward_only
        for part in ("0.0001", "{}"):
            step = await run("/optim_step", f'"adam_params":{part if part == "{}" else ""}')
            check_step(step)
        assert [each.params for each in server.engine.seen if isinstance(each, OptimStep)] == [ADAM] * 3
        saved = await run("/save_weights")
        assert saved["path"] == f"tinker://{session}:train:0/weights/ck1"
        # 7 was another name: saved for sampling under it.
        named = {"model_id": f"{session}:train:0", "path": "s1", "seq_id": 7}
        assert (await old.result("/api/v1/save_weights_for_sampler", json.dumps(named)))["path"]
        unnamed = await run("/save_weights_for_sampler")
        assert unnamed.get("path") is None
        assert unnamed["sampling_session_id"] == f"{session}:sample:0"
        sample = await run("/asample")
        assert sample["sequences"][0]["stop_reason"] in ("stop", "length")
        assert sample["prompt_logprobs"][0] is None
        assert "topk_prompt_logprobs" in sample
        opened = await old.send("/api/v1/create_sampling_session", body_0_3("/create_sampling_session"))
        assert opened.json["sampling_session_id"] == f"{session}:sample:1"
        second = body_0_3("/create_model", full=full).replace('"model_seq_id":0', '"model_seq_id":1')
        await old.result("/api/v1/create_model", second)
        loaded = await run("/load_weights")
        assert loaded["path"] == saved["path"]
        assert [each.with_optimizer for each in server.engine.seen if isinstance(each, LoadState)] == [True]
        listed = await old.send(f"/api/v1/models/{session}:train:0/checkpoints", "", "GET")
        assert {each["checkpoint_type"] for each in listed.json["checkpoints"]} == {"training", "sampler"}
        assert (await old.send("/api/v1/telemetry", body_0_3("/telemetry", full=full))).json == {
            "status": "accepted"
        }

    scenario(tmp_path=tmp_path)


def check_pass(result: Any) -> None:
    """A pass's result as SDKs up to 0.24 read it: nothing more, nothing less."""
    assert set(result) == {"loss_fn_output_type", "loss_fn_outputs", "metrics"}
    for output in result["loss_fn_outputs"]:
        for tensor in output.values():
            assert set(tensor) == {"data", "dtype", "shape"}
    assert "loss:sum" in result["metrics"]
    check_names(result["metrics"])


def check_step(result: Any) -> None:
    assert "error" not in result
    assert set(result) <= {"metrics", "type"}


def check_names(metrics: dict[str, float]) -> None:
    """Every metric has a name and a reduction that SDKs know, and one colon between them."""
    for name in metrics:
        assert name.count(":") == 1, name
        assert name.partition(":")[2] in ("sum", "min", "max", "mean", "slack", "hash2", "unique")


@running()
async def test_no_success_looks_like_a_failure_or_a_wait(server: Machine):
    ann = server.ann
    session = await ann.session()
    model = await ann.model(session)
    ids = [f"{model}:0", await ann.train(model, 1), await ann.step(model, 2), await ann.save(model, 3, "a")]
    ids += [await ann.freeze(model, 4, number=0), await ann.freeze(model, 5, name="b")]
    for name, body in (
        ("save_weights_external", {"model_id": model, "seq_id": 6, "path": "c"}),
        ("load_weights", {"model_id": model, "seq_id": 7, "path": f"tinker://{model}/weights/a"}),
        ("asample", ann.sample_body(await ann.sampler(session, 1), 0)),
        ("unload_model", {"model_id": model}),
    ):
        if name == "unload_model":
            for id in ids:
                await ann.done(id)
        ids.append(ann.ticket(await ann(name, body)))
    for id in ids:
        result = await ann.done(id)
        assert "error" not in result
        assert result.get("type") != "try_again"
        assert "status" not in result


@running()
async def test_the_bodies_of_sdk_0_36(server: Machine):
    ann = server.ann
    old = OldClient(ann, await ann.session())
    body = base64.b64decode(FORWARD_BACKWARD)
    assert b"sess-1:train:0" in body
    skip = {"/api/v1/create_session", "/api/v1/retrieve_future", "/api/v1/auth/token"}
    tickets = []
    for method, path, text in REQUESTS_0_36:
        if path in skip or "finish" in path or "dimuon" in text or "iVBOR" in text or "a:train:0" in text:
            continue
        if path.endswith("asample"):
            await ann.done(tickets[-1])
        if "train:1" in text:
            await ann.model(old.session, 1)
        if path.endswith("weights_info"):
            for ticket in tickets:
                await ann.done(ticket)
        answer = await old.send(path, text.replace("req-6", "nothing"), method)
        assert answer.status == 200, (path, str(answer))
        if "request_id" in answer.json:
            tickets.append(answer.json["request_id"])
        if path.endswith("create_model"):
            # Numbers 1 to 3 are passes in protobuf, which no text can hold; 5 was another optimizer.
            for number in (1, 2, 3, 5):
                await ann.train(f"{old.session}:train:0", number)
    last = await old.send("/api/v1/sessions/sess-1/finish", '{"reason":{"type":"success"},"detail":null}')
    assert last.status == 200
    assert (await ann("session_heartbeat", {"session_id": old.session})).status == 410


@running()
async def test_the_captured_pass_of_sdk_0_36_is_read_as_it_is(server: Machine):
    ann = server.ann
    headers = {"content-type": PROTOBUF}
    answer = await ann("forward_backward", base64.b64decode(FORWARD_BACKWARD), headers=headers)
    assert answer.status == 404  # of a session of another server
    assert "sess-1:train:0" in answer.detail


@running()
async def test_what_a_new_client_sends_besides_is_ignored(server: Machine):
    ann = server.ann
    session = await ann.session(brand_new_field={"a": [1]})
    body = {
        "session_id": session,
        "model_seq_id": 0,
        "base_model": "tiny",
        "new": 1,
        "type": "create_model",
    }
    model = (await ann.done(ann.ticket(await ann("create_model", body))))["model_id"]
    step = {
        "model_id": model,
        "seq_id": 1.0,
        "adam_params": {"learning_rate": 1, "momentum": 3},
        "new": None,
    }
    await ann.done(ann.ticket(await ann("optim_step", step)))
    assert server.engine.seen[-1].params == {**ADAM, "learning_rate": 1.0}


@running()
async def test_clients_are_told_to_send_in_order_and_in_json_where_they_can(server: Machine):
    config = await server.ann.ok("client_config", {"sdk_version": "0.36.0"})
    assert config["parallel_fwdbwd_chunks"] is False
    assert config["proto_write_fwdbwd"] is False
    assert config["fwd_via_fwdbwd"] is False
    assert config["pjwt_auth_enabled"] is False
    assert None not in config.values()
    dynamic = await server.ann.ok("client_dynamic_config", {"sdk_version": "0.36.0"})
    assert None not in dynamic.values()


@running(options={"parallel_chunks": True}, times={"parallel_hole": 300.0})
async def test_a_server_that_allows_pieces_in_parallel_waits_minutes_for_the_first(server: Machine):
    ann = server.ann
    assert (await ann.ok("client_config", {"sdk_version": "0.36.0"}))["parallel_fwdbwd_chunks"] is True
    model = await ann.model()
    waiting = await ann.train(model, 2)
    await server.wait(120)
    first = await ann.train(model, 1)
    await ann.done(first)
    await ann.done(waiting)
    last = await ann.train(model, 4)
    await server.wait(301)
    await ann.done(last)


@running()
async def test_a_heartbeat_keeps_a_session_and_a_finished_one_is_gone(server: Machine):
    ann = server.ann
    session, silent = await ann.session(), await ann.session()
    for _ in range(80):
        await server.wait(10)
        assert await ann.ok("session_heartbeat", {"session_id": session}) == {"type": "session_heartbeat"}
    gone = await ann("session_heartbeat", {"session_id": silent})
    assert gone.status == 410
    assert "expired" in gone.detail
    await ann.ok("finish_session", {"reason": {"type": "errored"}, "detail": "x"}, session_id=session)
    await ann.ok("finish_session", {"reason": {"type": "success"}, "detail": None}, session_id=session)
    gone = await ann("session_heartbeat", {"session_id": session})
    assert (gone.status, "errored" in gone.detail) == (410, True)  # the first reason counts
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny"}
    await ann.refused("create_model", body, 404)
